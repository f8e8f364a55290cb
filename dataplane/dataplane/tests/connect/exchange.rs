//! Tests of the endpoint exchange between two peers that follow the protocol.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use dataplane::connect::{
    ConnectError, EndpointParameters, ExchangeError, Listener, MAX_QUEUES, Offer, QueuePairEndpoint, Refusal,
    WaitLimits, connect,
};
use dataplane::verbs::{QpState, QpType, QueuePair};
use dataplane_testing::skip;

use super::{cabled, endpoint, prepared};

pub(super) const LONG: Duration = Duration::from_secs(30);

pub(super) fn wait_limits() -> WaitLimits<'static> {
    WaitLimits::new(LONG, LONG)
}

pub(super) fn offer(endpoints: &[QueuePairEndpoint]) -> Offer<'_> {
    Offer { endpoints, allow_self: false }
}

/// Returns a listener on a free port of a local address. Returns `None` if the host does not have the address.
pub(super) fn listener(address: &str) -> Option<(Listener, SocketAddr)> {
    let address: SocketAddr = address.parse().unwrap();
    match Listener::bind(address, None) {
        Ok(listener) => {
            let address = listener.address().unwrap();
            Some((listener, address))
        }
        Err(error) => {
            skip(error);
            None
        }
    }
}

/// Connects an active side, which offers the endpoints `there`, to a passive side, which offers the endpoints `here`.
/// Returns the endpoints that the passive side received, and the endpoints that the active side received. Returns
/// `None` if the host does not have the address.
fn exchanged(
    address: &str,
    here: &[QueuePairEndpoint],
    there: &[QueuePairEndpoint],
) -> Option<[Result<Vec<QueuePairEndpoint>, ConnectError>; 2]> {
    let (listener, address) = listener(address)?;
    thread::scope(|scope| {
        let passive = scope.spawn(|| {
            let exchange = listener.accept(&offer(here), &WaitLimits::new(LONG, LONG))?;
            let remotes = exchange.remotes.clone();
            exchange.confirm(&wait_limits()).map(|_| remotes)
        });
        let active = connect(address, &offer(there), &wait_limits()).and_then(|exchange| {
            let remotes = exchange.remotes.clone();
            exchange.confirm(&wait_limits()).map(|_| remotes)
        });
        Some([passive.join().unwrap(), active])
    })
}

#[test]
fn endpoints_are_exchanged_over_ipv4_and_ipv6() {
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

/// Takes queue pairs of the software device from RESET to RTS on both sides, with an exchange over TCP.
#[test]
fn queue_pairs_are_connected_over_tcp() {
    let (listener, address) = listener("127.0.0.1:0").unwrap();
    let devices = cabled();
    let run = |device: &dataplane::soft::SoftDevice, listener: Option<&Listener>| {
        let (mut qp, _pd, cq) = prepared(device, QpType::Ud, EndpointParameters::default()).unwrap();
        qp.initialise().unwrap();
        let own = [qp.endpoint()];
        let exchange = match listener {
            Some(listener) => listener.accept(&offer(&own), &wait_limits()),
            None => connect(address, &offer(&own), &wait_limits()),
        };
        let exchange = exchange.unwrap();
        let connected = qp.connect(&exchange.remotes[0]).unwrap();
        exchange.confirm(&wait_limits()).unwrap();
        assert_eq!(connected.queue_pair().state(), QpState::Rts);
        drop(cq);
        (own[0], connected.negotiated().remote)
    };
    let [one, two] = &devices;
    let (passive, active) = thread::scope(|scope| {
        let passive = scope.spawn(|| run(one, Some(&listener)));
        (run(two, None), passive.join().unwrap())
    });
    assert_eq!((passive.0, passive.1), (active.1, active.0));
}

/// The passive side confirms when its queue pairs are in RTS. The active side waits in `confirm` for this confirmation.
#[test]
fn active_side_waits_until_the_passive_side_is_ready() {
    let (listener, address) = listener("127.0.0.1:0").unwrap();
    let (here, there) = ([endpoint(5)], [endpoint(6)]);
    let ready = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let exchange = listener.accept(&offer(&here), &wait_limits()).unwrap();
            // At this point, an application moves its queue pairs to RTS.
            ready.store(true, Ordering::SeqCst);
            exchange.confirm(&wait_limits()).unwrap();
        });
        let exchange = connect(address, &offer(&there), &wait_limits()).unwrap();
        exchange.confirm(&wait_limits()).unwrap();
        assert!(ready.load(Ordering::SeqCst));
    });
}

/// The active side retries until the passive side listens.
#[test]
fn active_side_retries_until_the_listener_exists() {
    let (first, address) = listener("127.0.0.1:0").unwrap();
    drop(first);
    let (here, there) = ([endpoint(5)], [endpoint(6)]);
    let asked = std::sync::atomic::AtomicUsize::new(0);
    thread::scope(|scope| {
        let active = scope.spawn(|| {
            // `connect` calls `cancelled` in every pause before a retry. Several calls therefore show that earlier
            // attempts found no listener.
            let count = || {
                asked.fetch_add(1, Ordering::SeqCst);
                false
            };
            let wait_limits = WaitLimits { cancelled: &count, ..wait_limits() };
            connect(address, &offer(&there), &wait_limits).and_then(|exchange| exchange.confirm(&wait_limits))
        });
        while asked.load(Ordering::SeqCst) < 5 {
            thread::yield_now();
        }
        let listener = Listener::bind(address, None).unwrap();
        listener.accept(&offer(&here), &wait_limits()).unwrap().confirm(&wait_limits()).unwrap();
        active.join().unwrap().unwrap();
    });
}

/// If the offers of the two sides do not match, the active side gets an error with the reason. The passive side keeps
/// listening.
#[test]
fn active_side_gets_the_reason_of_a_refused_offer() {
    let uc = QueuePairEndpoint { transport: QpType::Uc, ..endpoint(6) };
    let second = QueuePairEndpoint { queue: 1, ..endpoint(7) };
    for (there, refusal) in [(&[uc][..], Refusal::Endpoint), (&[endpoint(6), second][..], Refusal::Queues)] {
        let (listener, address) = listener("127.0.0.1:0").unwrap();
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let passive = scope.spawn(|| {
                let cancelled = || over.load(Ordering::SeqCst);
                let wait_limits = WaitLimits { cancelled: &cancelled, ..wait_limits() };
                listener.accept(&offer(&[endpoint(5)]), &wait_limits).map(|_| ())
            });
            match connect(address, &offer(there), &wait_limits()) {
                Err(ConnectError::Peer(ExchangeError::Refused(reason))) => assert_eq!(reason, refusal),
                other => panic!("{other:?}"),
            }
            over.store(true, Ordering::SeqCst);
            assert!(matches!(passive.join().unwrap(), Err(ConnectError::Cancelled)));
        });
    }
}

#[test]
fn waiting_ends_at_the_deadline() {
    let (listener, address) = listener("127.0.0.1:0").unwrap();
    let soon = || WaitLimits::new(Duration::from_millis(500), LONG);
    let own = [endpoint(5)];
    match listener.accept(&offer(&own), &soon()) {
        Err(ConnectError::Deadline { last: None }) => {}
        other => panic!("{other:?}"),
    }
    // The listener exists, but does not respond.
    match connect(address, &offer(&own), &WaitLimits::new(Duration::from_millis(500), Duration::from_millis(50))) {
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
    let never = WaitLimits { cancelled: &|| true, ..wait_limits() };
    assert!(matches!(connect(address, &offer(&own), &never), Err(ConnectError::Cancelled)));
}

#[test]
fn offer_with_a_wrong_number_of_endpoints_is_rejected() {
    let (listener, address) = listener("127.0.0.1:0").unwrap();
    for count in [0, MAX_QUEUES + 1] {
        let own = vec![endpoint(5); count];
        assert!(matches!(listener.accept(&offer(&own), &wait_limits()), Err(ConnectError::Count(it)) if it == count));
        assert!(matches!(connect(address, &offer(&own), &wait_limits()), Err(ConnectError::Count(it)) if it == count));
    }
}

#[test]
fn second_listener_on_an_address_is_rejected() {
    let (_listener, address) = listener("127.0.0.1:0").unwrap();
    match Listener::bind(address, None) {
        Err(error @ ConnectError::Listen { .. }) => {
            let text = error.to_string();
            assert!(text.starts_with(&format!("cannot listen on {address}: ")), "{text}");
        }
        other => panic!("{other:?}"),
    }
}

/// A queue pair that connects to itself over TCP is rejected.
#[test]
fn own_endpoint_is_rejected_over_tcp() {
    let own = [endpoint(5)];
    let (listener, address) = listener("127.0.0.1:0").unwrap();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let passive = scope.spawn(|| {
            let cancelled = || over.load(Ordering::SeqCst);
            listener.accept(&offer(&own), &WaitLimits { cancelled: &cancelled, ..wait_limits() }).map(|_| ())
        });
        let active = connect(address, &offer(&own), &wait_limits()).map(|_| ());
        over.store(true, Ordering::SeqCst);
        assert!(matches!(active, Err(ConnectError::Peer(ExchangeError::Refused(Refusal::Endpoint)))), "{active:?}");
        assert!(matches!(passive.join().unwrap(), Err(ConnectError::Cancelled)));
    });
}

/// A listener that expects one peer address rejects other peers.
#[test]
fn peer_from_unexpected_address_is_disconnected() {
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap(), "192.0.2.1".parse().ok()).unwrap();
    let address = listener.address().unwrap();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let passive = scope.spawn(|| {
            let cancelled = || over.load(Ordering::SeqCst);
            listener.accept(&offer(&[endpoint(5)]), &WaitLimits { cancelled: &cancelled, ..wait_limits() }).map(|_| ())
        });
        let there = [endpoint(6)];
        let active = connect(address, &offer(&there), &WaitLimits::new(Duration::from_millis(500), LONG)).map(|_| ());
        over.store(true, Ordering::SeqCst);
        assert!(matches!(active, Err(ConnectError::Deadline { last: Some(_) })), "{active:?}");
        assert!(matches!(passive.join().unwrap(), Err(ConnectError::Cancelled)));
    });
}
