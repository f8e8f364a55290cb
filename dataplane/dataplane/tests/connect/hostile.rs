//! Tests of a listener with hostile peers. The listener disconnects each hostile peer and frees the resources of its
//! connection. A good peer, which follows the protocol, can therefore still connect.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use dataplane::connect::{EndpointParameters, QueuePairEndpoint, WaitLimits, connect};
use dataplane::units::QpNum;
use dataplane::verbs::{QpState, QpType, QueuePair};
use proptest::prelude::*;

use super::exchange::{LONG, listener, offer, wait_limits};
use super::{cabled, endpoint, prepared};

/// The step deadline of tests in which a peer is too slow. The step deadline is the time limit of each step of the
/// exchange, such as the wait for one message.
const SHORT: Duration = Duration::from_millis(200);

/// Returns a message in the format of `docs/handshake.md`.
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

/// Connects, sends the bytes, and returns everything received until the listener disconnects.
fn send_and_read(address: SocketAddr, bytes: &[u8], close: bool) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    // The listener may disconnect before all bytes are sent.
    let _ = stream.write_all(bytes);
    if close {
        let _ = stream.shutdown(Shutdown::Write);
    }
    read_all(&mut stream)
}

fn read_all(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Ok(_) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => bytes,
        Err(error) => panic!("the listener did not disconnect: {error}"),
    }
}

/// Attacks a listener that has the step deadline `step`, and then connects as the good peer, which must succeed.
///
/// Returns how many peers the listener rejected before the good peer connected.
fn attack_then_connect(step: Duration, attack: impl FnOnce(SocketAddr)) -> u64 {
    let (listener, address) = listener("127.0.0.1:0").unwrap();
    let devices = cabled();
    let refused = thread::scope(|scope| {
        let passive = scope.spawn(|| {
            let (qp, _pd, _cq) = prepared(&devices[0], QpType::Ud, EndpointParameters::default()).unwrap();
            let own = [qp.endpoint()];
            let exchange = listener.accept(&offer(&own), &WaitLimits::new(4 * LONG, step)).unwrap();
            let connected = qp.connect(&exchange.remotes[0]).unwrap();
            assert_eq!(connected.queue_pair().state(), QpState::Rts);
            assert_eq!(devices[0].queue_counters().len(), 1, "rejected peers left queue pairs behind");
            let refused = exchange.refused;
            exchange.confirm(&wait_limits()).unwrap();
            refused
        });
        attack(address);
        let (mut qp, _pd, _cq) = prepared(&devices[1], QpType::Ud, EndpointParameters::default()).unwrap();
        loop {
            let own = [qp.endpoint()];
            let exchange = connect(address, &offer(&own), &wait_limits()).unwrap();
            let connected = qp.connect(&exchange.remotes[0]).unwrap();
            match exchange.confirm(&wait_limits()) {
                Ok(_) => break,
                // On a busy machine the good peer itself may miss a short deadline.
                Err(error) => assert!(step == SHORT, "{error}"),
            }
            qp = connected.reset().unwrap();
        }
        passive.join().unwrap()
    });
    assert_eq!(devices[0].queue_counters(), []);
    refused
}

/// Decodes the listener's reply to a hello: the token and the listener's endpoint.
fn decode_reply(reply: &[u8]) -> (u64, QueuePairEndpoint) {
    assert_eq!(reply[..12], message(1, 1, 72, 0, &[])[..12]);
    (u64::from_be_bytes(reply[12..20].try_into().unwrap()), QueuePairEndpoint::from_bytes(&reply[20..]).unwrap())
}

fn ud_endpoint(number: u32) -> QueuePairEndpoint {
    QueuePairEndpoint { transport: QpType::Ud, ..endpoint(number) }
}

#[test]
fn peer_with_an_invalid_hello_is_disconnected() {
    let good = hello(&ud_endpoint(77));
    let with = |change: fn(&mut QueuePairEndpoint)| {
        let mut endpoint = ud_endpoint(77);
        change(&mut endpoint);
        hello(&endpoint)
    };
    let (none, malformed, version, queues, wrong) = (Vec::new(), refusal(1), refusal(2), refusal(3), refusal(4));
    let mut noise = good.clone();
    noise[20..].fill(0xee);
    let cases: Vec<(&str, Vec<u8>, &Vec<u8>)> = vec![
        ("nothing", vec![], &none),
        ("a byte", good[..1].to_vec(), &none),
        ("half a header", good[..10].to_vec(), &none),
        ("only a header", good[..20].to_vec(), &none),
        ("one byte missing", good[..91].to_vec(), &none),
        ("the message of ibv_rc_pingpong", b"0000:000011:1dfb1b:fe80000000000000000000fffe000001\0".to_vec(), &none),
        ("a web browser", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(), &none),
        ("no magic", vec![0xff; 4096], &none),
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
        ("random bytes instead of the endpoint", noise, &wrong),
        ("queue pair 0", with(|it| it.qpn = QpNum(0)), &wrong),
        ("queue pair 1", with(|it| it.qpn = QpNum(1)), &wrong),
        ("queue pair 2^24", with(|it| it.qpn = QpNum(1 << 24)), &wrong),
        ("packet sequence number 2^24", with(|it| it.psn = 1 << 24), &wrong),
        ("a path MTU of 0", with(|it| it.path_mtu = 0), &wrong),
        ("a path MTU of 6", with(|it| it.path_mtu = 6), &wrong),
        ("no address", with(|it| it.gid = Default::default()), &wrong),
        ("an endpoint of version 3", with(|it| it.version = 3), &wrong),
        ("a reliable connection", with(|it| it.transport = QpType::Rc), &wrong),
        ("another queue", with(|it| it.queue = 1), &wrong),
    ];
    let count = cases.len() as u64;
    let refused = attack_then_connect(LONG, |address| {
        for (name, bytes, expected) in &cases {
            assert_eq!(&&send_and_read(address, bytes, true), expected, "{name}");
        }
    });
    assert_eq!(refused, count);
}

/// A peer that received the listener's endpoints but replies incorrectly is disconnected.
#[test]
fn peer_with_a_wrong_reply_is_disconnected() {
    let good = hello(&ud_endpoint(77));
    let refused = attack_then_connect(LONG, |address| {
        let (_, own) = decode_reply(&send_and_read(address, &good, true));
        assert_eq!(own.transport, QpType::Ud);
        // A peer sends wrong bytes after its hello: zeros, a second hello, or a ready message with a wrong token.
        for rest in [vec![0; 5000], good.clone(), message(1, 2, 0, 4711, &[])] {
            let reply = send_and_read(address, &[&good[..], &rest].concat(), false);
            assert!(reply.is_empty() || reply.len() >= 92, "{reply:?}");
        }
        // A peer sends the listener's own endpoint back.
        assert_eq!(send_and_read(address, &hello(&own), true), refusal(4));
        // A peer replies with the token of another connection.
        let (first, _) = decode_reply(&send_and_read(address, &good, true));
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream.write_all(&good).unwrap();
        let mut answer = [0; 92];
        stream.read_exact(&mut answer).unwrap();
        assert_ne!(decode_reply(&answer).0, first);
        stream.write_all(&message(1, 2, 0, first, &[])).unwrap();
        assert_eq!(read_all(&mut stream), refusal(1));
    });
    assert_eq!(refused, 7);
}

/// A peer that stops after its hello, and a peer that sends nothing, are disconnected at the step deadline.
#[test]
fn silent_peer_is_disconnected() {
    let good = hello(&ud_endpoint(77));
    let refused = attack_then_connect(SHORT, |address| {
        let reply = send_and_read(address, &good, false);
        // On a busy machine the hello may arrive after the deadline.
        assert!(reply.is_empty() || decode_reply(&reply).1.transport == QpType::Ud);
        assert!(send_and_read(address, &[], false).is_empty());
    });
    assert!(refused >= 2, "{refused}");
}

/// A peer that sends single bytes slowly is disconnected at the step deadline.
#[test]
fn slow_peer_is_disconnected() {
    let good = hello(&ud_endpoint(77));
    let refused = attack_then_connect(SHORT, |address| {
        thread::scope(|scope| {
            for _ in 0..20 {
                scope.spawn(|| {
                    let mut stream = TcpStream::connect(address).unwrap();
                    stream.set_nodelay(true).unwrap();
                    stream.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
                    let mut bytes = good[..91].iter();
                    loop {
                        // Check between two bytes whether the listener has disconnected.
                        match stream.read(&mut [0; 1]) {
                            Ok(0) => break,
                            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => break,
                            Err(_) => {}
                            Ok(_) => panic!("the listener replied to an incomplete hello"),
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

/// Ten thousand peers connect, and five hundred of them do not disconnect. The listener keeps at most 32 connections,
/// and the good peer still connects.
#[test]
fn good_peer_connects_among_ten_thousand_others() {
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
    let refused = attack_then_connect(LONG, |address| {
        thread::scope(|scope| {
            let crowd: Vec<_> = (0..10).map(|_| scope.spawn(|| come(address))).collect();
            silent = crowd.into_iter().flat_map(|some| some.join().unwrap()).collect();
        });
    });
    assert_eq!(silent.len(), 500);
    for mut stream in silent {
        stream.set_read_timeout(Some(LONG)).unwrap();
        read_all(&mut stream);
    }
    // Some silent peers may still be connected when the good peer succeeds.
    assert!((10_000 - 32..=10_000).contains(&refused), "{refused}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// The listener survives random bytes, and hello messages with changed bytes.
    #[test]
    fn listener_survives_random_bytes(
        noise in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..4),
        changes in prop::collection::vec((0usize..92, any::<u8>(), 0usize..120), 1..6),
    ) {
        attack_then_connect(LONG, |address| {
            for bytes in &noise {
                send_and_read(address, bytes, true);
            }
            for (at, value, length) in &changes {
                let mut bytes = hello(&ud_endpoint(77));
                bytes[*at] = *value;
                bytes.resize(*length, 0);
                send_and_read(address, &bytes, true);
            }
        });
    }
}
