//! The exchange between two good peers.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use dataplane::provider::connect::{
    ConnectError, EndpointParameters, Fault, Listener, MAX_QUEUES, Offer, Patience, QueuePairEndpoint, Refusal, connect,
};
use dataplane::provider::{QpState, QpType, QueuePair};

use super::{cabled, endpoint, prepared};

pub(super) const LONG: Duration = Duration::from_secs(30);

pub(super) fn patience() -> Patience<'static> {
    Patience::new(LONG, LONG)
}

pub(super) fn offer(endpoints: &[QueuePairEndpoint]) -> Offer<'_> {
    Offer { endpoints, allow_self: false }
}

/// A listener at a free port, on an address of this host.
pub(super) fn listener(address: &str) -> Option<(Listener, SocketAddr)> {
    let address: SocketAddr = address.parse().unwrap();
    match Listener::bind(address, None) {
        Ok(listener) => {
            let address = listener.address().unwrap();
            Some((listener, address))
        }
        Err(error) => {
            println!("skipped: {error}");
            None
        }
    }
}

/// Both ways at once: what each side heard.
fn exchanged(
    address: &str,
    here: &[QueuePairEndpoint],
    there: &[QueuePairEndpoint],
) -> Option<[Result<Vec<QueuePairEndpoint>, ConnectError>; 2]> {
    let (listener, address) = listener(address)?;
    thread::scope(|scope| {
        let passive = scope.spawn(|| {
            let heard = listener.accept(&offer(here), &Patience::new(LONG, LONG))?;
            let remotes = heard.remotes.clone();
            heard.confirm(&patience()).map(|_| remotes)
        });
        let active = connect(address, &offer(there), &patience()).and_then(|heard| {
            let remotes = heard.remotes.clone();
            heard.confirm(&patience()).map(|_| remotes)
        });
        Some([passive.join().unwrap(), active])
    })
}

#[test]
fn both_sides_hear_each_other_over_both_protocols() {
    for address in ["127.0.0.1:0", "[::1]:0"] {
        for queues in [1, 2, MAX_QUEUES] {
            let side = |base: u32| -> Vec<QueuePairEndpoint> {
                (0..queues).map(|at| QueuePairEndpoint { queue: at as u16, ..endpoint(base + at as u32) }).collect()
            };
            let (here, there) = (side(0x100), side(0x1000));
            let Some([passive, active]) = exchanged(address, &here, &there) else { continue };
            assert_eq!((passive.unwrap(), active.unwrap()), (there, here));
        }
    }
}

/// Queue pairs of the software device, from RESET to RTS on both sides, by way of TCP.
#[test]
fn queue_pairs_become_peers_by_way_of_tcp() {
    let (listener, address) = listener("127.0.0.1:0").unwrap();
    let devices = cabled();
    let go = |device: &dataplane::provider::soft::SoftDevice, listener: Option<&Listener>| {
        let (mut qp, _pd, cq) = prepared(device, QpType::Ud, EndpointParameters::default()).unwrap();
        qp.initialise().unwrap();
        let own = [qp.endpoint()];
        let heard = match listener {
            Some(listener) => listener.accept(&offer(&own), &patience()),
            None => connect(address, &offer(&own), &patience()),
        };
        let heard = heard.unwrap();
        let connected = qp.handshake(&heard.remotes[0]).unwrap();
        heard.confirm(&patience()).unwrap();
        assert_eq!(connected.queue_pair().state(), QpState::Rts);
        drop(cq);
        (own[0], connected.agreed().remote)
    };
    let [one, two] = &devices;
    let (passive, active) = thread::scope(|scope| {
        let passive = scope.spawn(|| go(one, Some(&listener)));
        (go(two, None), passive.join().unwrap())
    });
    assert_eq!((passive.0, passive.1), (active.1, active.0));
}

/// The passive side's word comes when its queue pairs are in RTS, and the active side sends no sooner.
#[test]
fn the_active_side_is_held_until_the_passive_is_ready() {
    let (listener, address) = listener("127.0.0.1:0").unwrap();
    let (here, there) = ([endpoint(5)], [endpoint(6)]);
    let ready = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let heard = listener.accept(&offer(&here), &patience()).unwrap();
            // Where the queue pairs would go to RTS.
            ready.store(true, Ordering::SeqCst);
            heard.confirm(&patience()).unwrap();
        });
        let heard = connect(address, &offer(&there), &patience()).unwrap();
        heard.confirm(&patience()).unwrap();
        assert!(ready.load(Ordering::SeqCst));
    });
}

/// Who is early tries again until somebody listens.
#[test]
fn the_active_side_may_come_first() {
    let (first, address) = listener("127.0.0.1:0").unwrap();
    drop(first);
    let (here, there) = ([endpoint(5)], [endpoint(6)]);
    let asked = std::sync::atomic::AtomicUsize::new(0);
    thread::scope(|scope| {
        let active = scope.spawn(|| {
            // It asks in every pause: once it has paused, nobody was there.
            let count = || {
                asked.fetch_add(1, Ordering::SeqCst);
                false
            };
            let patience = Patience { cancelled: &count, ..patience() };
            connect(address, &offer(&there), &patience).and_then(|heard| heard.confirm(&patience))
        });
        while asked.load(Ordering::SeqCst) < 5 {
            thread::yield_now();
        }
        let listener = Listener::bind(address, None).unwrap();
        listener.accept(&offer(&here), &patience()).unwrap().confirm(&patience()).unwrap();
        active.join().unwrap().unwrap();
    });
}

/// What two sides disagree on is said on both.
#[test]
fn a_disagreement_is_told_to_both_sides() {
    let uc = QueuePairEndpoint { transport: QpType::Uc, ..endpoint(6) };
    let second = QueuePairEndpoint { queue: 1, ..endpoint(7) };
    for (there, refusal) in [(&[uc][..], Refusal::Endpoint), (&[endpoint(6), second][..], Refusal::Queues)] {
        let (listener, address) = listener("127.0.0.1:0").unwrap();
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let passive = scope.spawn(|| {
                let cancelled = || over.load(Ordering::SeqCst);
                let patience = Patience { cancelled: &cancelled, ..patience() };
                listener.accept(&offer(&[endpoint(5)]), &patience).map(|_| ())
            });
            match connect(address, &offer(there), &patience()) {
                Err(ConnectError::Peer(Fault::Refused(told))) => assert_eq!(told, refusal),
                other => panic!("{other:?}"),
            }
            over.store(true, Ordering::SeqCst);
            assert!(matches!(passive.join().unwrap(), Err(ConnectError::Cancelled)));
        });
    }
}

#[test]
fn waiting_ends_with_its_deadline() {
    let (listener, address) = listener("127.0.0.1:0").unwrap();
    let soon = || Patience::new(Duration::from_millis(500), LONG);
    let own = [endpoint(5)];
    match listener.accept(&offer(&own), &soon()) {
        Err(ConnectError::Deadline { last: None }) => {}
        other => panic!("{other:?}"),
    }
    // It is there, and does not answer.
    match connect(address, &offer(&own), &Patience::new(Duration::from_millis(500), Duration::from_millis(50))) {
        Err(ConnectError::Deadline { last: Some(last) }) => {
            assert_eq!(last, format!("{address}: a step took longer than the step_deadline"));
        }
        other => panic!("{other:?}"),
    }
    drop(listener);
    match connect(address, &offer(&own), &soon()) {
        Err(ConnectError::Deadline { last: Some(last) }) => assert!(last.contains("refused"), "{last}"),
        other => panic!("{other:?}"),
    }
    let never = Patience { cancelled: &|| true, ..patience() };
    assert!(matches!(connect(address, &offer(&own), &never), Err(ConnectError::Cancelled)));
}

#[test]
fn what_cannot_be_offered_is_refused() {
    let (listener, address) = listener("127.0.0.1:0").unwrap();
    for count in [0, MAX_QUEUES + 1] {
        let own = vec![endpoint(5); count];
        assert!(matches!(listener.accept(&offer(&own), &patience()), Err(ConnectError::Count(it)) if it == count));
        assert!(matches!(connect(address, &offer(&own), &patience()), Err(ConnectError::Count(it)) if it == count));
    }
    match Listener::bind(address, None) {
        Err(error @ ConnectError::Listen { .. }) => {
            let text = error.to_string();
            assert!(text.starts_with(&format!("cannot listen at {address}: ")), "{text}");
        }
        other => panic!("{other:?}"),
    }
}

/// A queue pair that comes by TCP to itself is not its own peer.
#[test]
fn the_own_endpoint_is_refused_over_tcp() {
    let own = [endpoint(5)];
    let (listener, address) = listener("127.0.0.1:0").unwrap();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let passive = scope.spawn(|| {
            let cancelled = || over.load(Ordering::SeqCst);
            listener.accept(&offer(&own), &Patience { cancelled: &cancelled, ..patience() }).map(|_| ())
        });
        let active = connect(address, &offer(&own), &patience()).map(|_| ());
        over.store(true, Ordering::SeqCst);
        assert!(matches!(active, Err(ConnectError::Peer(Fault::Refused(Refusal::Endpoint)))), "{active:?}");
        assert!(matches!(passive.join().unwrap(), Err(ConnectError::Cancelled)));
    });
}

/// Only the peer that is meant is listened to.
#[test]
fn who_comes_from_elsewhere_is_let_go() {
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap(), "192.0.2.1".parse().ok()).unwrap();
    let address = listener.address().unwrap();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let passive = scope.spawn(|| {
            let cancelled = || over.load(Ordering::SeqCst);
            listener.accept(&offer(&[endpoint(5)]), &Patience { cancelled: &cancelled, ..patience() }).map(|_| ())
        });
        let there = [endpoint(6)];
        let active = connect(address, &offer(&there), &Patience::new(Duration::from_millis(500), LONG)).map(|_| ());
        over.store(true, Ordering::SeqCst);
        assert!(matches!(active, Err(ConnectError::Deadline { last: Some(_) })), "{active:?}");
        assert!(matches!(passive.join().unwrap(), Err(ConnectError::Cancelled)));
    });
}
