//! Hostile peers at a listener: each is let go, holds nothing, and keeps nobody else from getting through.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use dataplane::provider::connect::{EndpointParameters, Patience, QueuePairEndpoint, connect};
use dataplane::provider::{QpState, QpType, QueuePair};
use dataplane::units::QpNum;
use proptest::prelude::*;

use super::exchange::{LONG, listener, offer, patience};
use super::{cabled, endpoint, prepared};

/// How long a step may take where its end is what is waited for.
const SHORT: Duration = Duration::from_millis(200);

/// A message as the page on the handshake has it.
fn message(version: u16, kind: u16, length: u32, token: u64, payload: &[u8]) -> Vec<u8> {
    let mut bytes = b"DPQP".to_vec();
    bytes.extend(version.to_be_bytes());
    bytes.extend(kind.to_be_bytes());
    bytes.extend(length.to_be_bytes());
    bytes.extend(token.to_be_bytes());
    bytes.extend(payload);
    bytes
}

fn hello(endpoint: &QueuePairEndpoint) -> Vec<u8> {
    message(1, 1, 72, 99, &endpoint.to_bytes())
}

fn refusal(code: u16) -> Vec<u8> {
    message(1, 3, 2, 0, &code.to_be_bytes())
}

/// Comes, says this, and hears what there is to hear until it is let go.
fn say(address: SocketAddr, bytes: &[u8], close: bool) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    // It may be let go before it has said all.
    let _ = stream.write_all(bytes);
    if close {
        let _ = stream.shutdown(Shutdown::Write);
    }
    heard(&mut stream)
}

fn heard(stream: &mut TcpStream) -> Vec<u8> {
    let mut heard = Vec::new();
    match stream.read_to_end(&mut heard) {
        Ok(_) => heard,
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => heard,
        Err(error) => panic!("it was not let go: {error}"),
    }
}

/// Attacks a listener whose steps may take so long, and then comes as the good peer, who gets through. Returns how many
/// were let go before.
fn besieged(step: Duration, attack: impl FnOnce(SocketAddr)) -> u64 {
    let (listener, address) = listener("127.0.0.1:0").unwrap();
    let devices = cabled();
    let refused = thread::scope(|scope| {
        let passive = scope.spawn(|| {
            let (qp, _pd, _cq) = prepared(&devices[0], QpType::Ud, EndpointParameters::default()).unwrap();
            let own = [qp.endpoint()];
            let heard = listener.accept(&offer(&own), &Patience::new(4 * LONG, step)).unwrap();
            let connected = qp.handshake(&heard.remotes[0]).unwrap();
            assert_eq!(connected.queue_pair().state(), QpState::Rts);
            assert_eq!(devices[0].queue_counters().len(), 1, "what came left queue pairs");
            let refused = heard.refused;
            heard.confirm(&patience()).unwrap();
            refused
        });
        attack(address);
        let (mut qp, _pd, _cq) = prepared(&devices[1], QpType::Ud, EndpointParameters::default()).unwrap();
        loop {
            let own = [qp.endpoint()];
            let heard = connect(address, &offer(&own), &patience()).unwrap();
            let connected = qp.handshake(&heard.remotes[0]).unwrap();
            match heard.confirm(&patience()) {
                Ok(_) => break,
                // On a busy machine it was itself too slow for a short step.
                Err(error) => assert!(step == SHORT, "{error}"),
            }
            qp = connected.reset().unwrap();
        }
        passive.join().unwrap()
    });
    assert_eq!(devices[0].queue_counters(), []);
    refused
}

/// The listener's own endpoint, as it tells it to who says hello.
fn told(heard: &[u8]) -> (u64, QueuePairEndpoint) {
    assert_eq!(heard[..12], message(1, 1, 72, 0, &[])[..12]);
    (u64::from_be_bytes(heard[12..20].try_into().unwrap()), QueuePairEndpoint::from_bytes(&heard[20..]).unwrap())
}

fn datagrams(number: u32) -> QueuePairEndpoint {
    QueuePairEndpoint { transport: QpType::Ud, ..endpoint(number) }
}

#[test]
fn what_is_no_hello_is_let_go() {
    let good = hello(&datagrams(77));
    let with = |change: fn(&mut QueuePairEndpoint)| {
        let mut endpoint = datagrams(77);
        change(&mut endpoint);
        hello(&endpoint)
    };
    let (none, malformed, version, queues, wrong) = (Vec::new(), refusal(1), refusal(2), refusal(3), refusal(4));
    let mut noise = good.clone();
    noise[20..].fill(0xee);
    let cases: Vec<(&str, Vec<u8>, &Vec<u8>)> = vec![
        ("nothing", vec![], &none),
        ("a byte", good[..1].to_vec(), &none),
        ("half a head", good[..10].to_vec(), &none),
        ("a head alone", good[..20].to_vec(), &none),
        ("all but a byte", good[..91].to_vec(), &none),
        ("the message of ibv_rc_pingpong", b"0000:000011:1dfb1b:fe80000000000000000000fffe000001\0".to_vec(), &none),
        ("a web browser", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(), &none),
        ("no digits where the magic is", vec![0xff; 4096], &none),
        ("a wrong last letter", [b"DPQQ".as_slice(), &good[4..]].concat(), &none),
        ("version 0", message(0, 1, 72, 0, &good[20..]), &version),
        ("version 2", message(2, 1, 72, 0, &good[20..]), &version),
        ("ready before hello", message(1, 2, 0, 0, &[]), &malformed),
        ("an unknown kind", message(1, 9, 0, 0, &[]), &malformed),
        ("no endpoint", message(1, 1, 0, 0, &[]), &malformed),
        ("a byte less", message(1, 1, 71, 0, &good[20..91]), &malformed),
        ("a byte more", message(1, 1, 73, 0, &[&good[20..], &[0]].concat()), &malformed),
        ("two endpoints", message(1, 1, 144, 0, &[&good[20..], &good[20..]].concat()), &queues),
        ("four gigabytes", message(1, 1, u32::MAX, 0, &[7; 100]), &malformed),
        ("a refusal", refusal(4), &none),
        ("a refusal of another length", message(1, 3, 3, 0, &[0; 3]), &malformed),
        ("noise where the endpoint is", noise, &wrong),
        ("queue pair 0", with(|it| it.qpn = QpNum(0)), &wrong),
        ("queue pair 1", with(|it| it.qpn = QpNum(1)), &wrong),
        ("queue pair 2^24", with(|it| it.qpn = QpNum(1 << 24)), &wrong),
        ("packet 2^24", with(|it| it.psn = 1 << 24), &wrong),
        ("a path MTU of 0", with(|it| it.path_mtu = 0), &wrong),
        ("a path MTU of 6", with(|it| it.path_mtu = 6), &wrong),
        ("no address", with(|it| it.gid = Default::default()), &wrong),
        ("an endpoint of version 3", with(|it| it.version = 3), &wrong),
        ("a reliable connection", with(|it| it.transport = QpType::Rc), &wrong),
        ("another queue", with(|it| it.queue = 1), &wrong),
    ];
    let count = cases.len() as u64;
    let refused = besieged(LONG, |address| {
        for (name, bytes, expected) in &cases {
            assert_eq!(&&say(address, bytes, true), expected, "{name}");
        }
    });
    assert_eq!(refused, count);
}

/// A peer that was told the own endpoints, and does not answer them.
#[test]
fn who_does_not_answer_right_is_let_go() {
    let good = hello(&datagrams(77));
    let refused = besieged(LONG, |address| {
        let (_, own) = told(&say(address, &good, true));
        assert_eq!(own.transport, QpType::Ud);
        // More than was due.
        for rest in [vec![0; 5000], good.clone(), message(1, 2, 0, 4711, &[])] {
            let heard = say(address, &[&good[..], &rest].concat(), false);
            assert!(heard.is_empty() || heard.len() >= 92, "{heard:?}");
        }
        // Its own endpoint, sent back to it.
        assert_eq!(say(address, &hello(&own), true), refusal(4));
        // The token of another connection.
        let (first, _) = told(&say(address, &good, true));
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream.write_all(&good).unwrap();
        let mut answer = [0; 92];
        stream.read_exact(&mut answer).unwrap();
        assert_ne!(told(&answer).0, first);
        stream.write_all(&message(1, 2, 0, first, &[])).unwrap();
        assert_eq!(heard(&mut stream), refusal(1));
    });
    assert_eq!(refused, 7);
}

/// Who says hello and no more is let go when its step is over; so is who says nothing at all.
#[test]
fn a_silent_peer_is_let_go() {
    let good = hello(&datagrams(77));
    let refused = besieged(SHORT, |address| {
        let heard = say(address, &good, false);
        // On a busy machine it was too slow to be heard.
        assert!(heard.is_empty() || told(&heard).1.transport == QpType::Ud);
        assert!(say(address, &[], false).is_empty());
    });
    assert!(refused >= 2, "{refused}");
}

/// Who sends a byte from time to time is let go when its step is over, whatever it sends.
#[test]
fn a_slow_peer_is_let_go() {
    let good = hello(&datagrams(77));
    let refused = besieged(SHORT, |address| {
        thread::scope(|scope| {
            for _ in 0..20 {
                scope.spawn(|| {
                    let mut stream = TcpStream::connect(address).unwrap();
                    stream.set_nodelay(true).unwrap();
                    stream.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
                    let mut bytes = good[..91].iter();
                    loop {
                        // Between two bytes it listens whether it was let go.
                        match stream.read(&mut [0; 1]) {
                            Ok(0) => break,
                            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => break,
                            Err(_) => {}
                            Ok(_) => panic!("it was told something"),
                        }
                        if let Some(byte) = bytes.next()
                            && stream.write_all(&[*byte]).is_err()
                        {
                            break;
                        }
                    }
                });
            }
        });
    });
    assert!(refused >= 20, "{refused}");
}

/// Ten thousand come and go, and five hundred stay without a word: they hold 32 places at most, and the good peer gets in
/// while they are there.
#[test]
fn a_crowd_keeps_nobody_out() {
    let mut silent = Vec::new();
    let come = |address| {
        let mut silent = Vec::new();
        for at in 0..1_000u32 {
            let mut stream = TcpStream::connect(address).unwrap();
            if at % 3 == 0 {
                let _ = stream.write_all(&at.to_be_bytes());
            }
            if at % 20 == 0 {
                silent.push(stream);
            }
        }
        silent
    };
    let refused = besieged(LONG, |address| {
        thread::scope(|scope| {
            let crowd: Vec<_> = (0..10).map(|_| scope.spawn(|| come(address))).collect();
            silent = crowd.into_iter().flat_map(|some| some.join().unwrap()).collect();
        });
    });
    assert_eq!(silent.len(), 500);
    for mut stream in silent {
        stream.set_read_timeout(Some(LONG)).unwrap();
        heard(&mut stream);
    }
    // Of those that stay, the last may be there when the good peer is in.
    assert!((10_000 - 32..=10_000).contains(&refused), "{refused}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Any bytes, and those of a hello with some of them changed.
    #[test]
    fn any_bytes_are_survived(
        noise in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..4),
        changes in prop::collection::vec((0usize..92, any::<u8>(), 0usize..120), 1..6),
    ) {
        besieged(LONG, |address| {
            for bytes in &noise {
                say(address, bytes, true);
            }
            for (at, value, length) in &changes {
                let mut bytes = hello(&datagrams(77));
                bytes[*at] = *value;
                bytes.resize(*length, 0);
                say(address, &bytes, true);
            }
        });
    }
}
