//! Slots and packets are conserved, whatever goes wrong on the wire.

use std::fmt::Write;

use dataplane::runtime::Options;
use proptest::prelude::*;

use crate::common::{Folder, assert_good, counter, drops, frames_of};

/// What goes wrong on a port, in percent; errors of requests and of the link in a thousand.
#[derive(Clone, Copy, Debug, Default)]
struct Faults {
    seed: u64,
    loss: u8,
    duplicate: u8,
    reorder: u8,
    corrupt: u8,
    delay: u8,
    rx_error: u8,
    tx_error: u8,
    flap: u8,
}

impl Faults {
    fn toml(&self) -> String {
        let Self { seed, loss, duplicate, reorder, corrupt, delay, rx_error, tx_error, flap } = *self;
        format!(
            "{{ seed = {seed}, loss = 0.{loss:02}, duplicate = 0.{duplicate:02}, reorder = 0.{reorder:02}, \
             corrupt = 0.{corrupt:02}, delay = 0.{delay:02}, delay_by = '20us', \
             rx_error = 0.{rx_error:03}, tx_error = 0.{tx_error:03}, flap = 0.{flap:03} }}"
        )
    }
}

fn faults() -> impl Strategy<Value = Faults> {
    let odds = || prop_oneof![2 => Just(0u8), 1 => 1..30u8];
    let wire = (odds(), odds(), odds(), odds(), odds());
    (0..u64::from(u32::MAX), wire, odds(), odds(), odds()).prop_map(
        |(seed, (loss, duplicate, reorder, corrupt, delay), rx_error, tx_error, flap)| Faults {
            seed,
            loss,
            duplicate,
            reorder,
            corrupt,
            delay,
            rx_error,
            tx_error,
            flap,
        },
    )
}

/// How much of everything a run has.
#[derive(Clone, Debug)]
struct Setting {
    workers: u32,
    burst: u32,
    /// Depths of the four rings, beyond a burst for those that receive.
    rings: [u32; 4],
    /// Buffers beyond those that are needed at least; none: as many as the config takes by itself.
    spare: Option<u32>,
    faults: [Faults; 2],
    count: u64,
    size: u16,
    flows: u16,
}

fn setting() -> impl Strategy<Value = Setting> {
    // Two stages copy: a burst of more than 64 might become more than a batch.
    let burst = prop_oneof![Just(1u32), 1..=64u32];
    let ring = || prop_oneof![1..8u32, 1..300u32];
    let spare = prop_oneof![Just(None), Just(Some(0)), (0..64u32).prop_map(Some)];
    (
        (1..=2u32, burst, [ring(), ring(), ring(), ring()], spare),
        [faults(), faults()],
        (0..3000u64, 64..200u16, 1..50u16),
    )
        .prop_map(|((workers, burst, rings, spare), faults, (count, size, flows))| Setting {
            workers,
            burst,
            rings,
            spare,
            faults,
            count,
            size,
            flows,
        })
}

/// A generator whose frames are judged, copied, limited, tagged and sent by the port that a route chooses; one port
/// reflects.
fn config(setting: &Setting) -> String {
    let Setting { workers, burst, rings: [a_rx, a_tx, b_rx, b_tx], spare, faults, count, size, flows } = setting;
    let (a_rx, b_rx) = (a_rx + burst, b_rx + burst);
    let mut text = format!("[runtime]\nworkers = {workers}\nburst = {burst}\nhugepages = 'none'\n");
    if let Some(spare) = spare {
        writeln!(text, "buffers = {}", a_rx + a_tx + b_rx + b_tx + burst + spare).unwrap();
    }
    let (first, second) = (faults[0].toml(), faults[1].toml());
    write!(
        text,
        r#"
        [[port]]
        name = "a"
        device = "soft"
        rx_depth = {a_rx}
        tx_depth = {a_tx}
        faults = {first}
        link = {{ kind = "generator", size = {size}, flows = {flows}, count = {count} }}
        [[port]]
        name = "b"
        device = "soft"
        rx_depth = {b_rx}
        tx_depth = {b_tx}
        faults = {second}
        link = {{ kind = "generator", protocol = "tcp4", size = {size}, flows = {flows}, count = {count}, vlan = 7 }}

        [pipeline]
        input = ["a", "b"]
        [[pipeline.stage]]
        use = "mirror"
        outputs = {{ copy = "tag" }}
        [[pipeline.stage]]
        use = "parse"
        [[pipeline.stage]]
        use = "acl"
        default = "permit"
        rules = [{{ action = "deny", protocol = "tcp", src = "198.18.0.0/30" }}]
        [[pipeline.stage]]
        use = "limit"
        packets_per_second = 1000
        burst = 500
        [[pipeline.stage]]
        name = "again"
        use = "mirror"
        outputs = {{ copy = "routes" }}
        [[pipeline.stage]]
        name = "routes"
        use = "route"
        table = [{{ prefix = "198.18.0.0/15", port = "b" }}, {{ prefix = "198.19.0.0/28", port = "a" }}]
        [[pipeline.stage]]
        use = "ttl"
        next = "out"
        [[pipeline.stage]]
        name = "tag"
        use = "vlan"
        op = "push"
        id = 9
        next = "back"
        [[pipeline.stage]]
        name = "out"
        use = "tx"
        [[pipeline.stage]]
        name = "back"
        use = "tx"
        port = "a"
        "#
    )
    .unwrap();
    text
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn nothing_is_lost_between_the_ledger_and_the_devices(setting in setting()) {
        let report = Folder::new().run(&config(&setting));
        assert_good(&report);
        for (at, faults) in setting.faults.iter().enumerate() {
            let port = &report.ports[at];
            let (rx, injected) = (port.packets.rx, counter(&report, at, "faults"));
            prop_assert_eq!(rx, counter(&report, at, "rx_packets"), "{}", report);
            prop_assert_eq!(port.packets.tx, counter(&report, at, "tx_packets"), "{}", report);
            // What the source sent, less what the device says that it lost, more what it says that it doubled.
            // What is kept back when a queue pair is reset is missed.
            let lost: u64 =
                ["rx_out_of_buffer", "rx_too_long", "rx_missed"].iter().map(|name| counter(&report, at, name)).sum();
            let Faults { loss, duplicate, reorder, corrupt, delay, rx_error, tx_error, flap, .. } = *faults;
            let alone = |odds: &[u8]| odds.iter().all(|odds| *odds == 0);
            if alone(&[duplicate, reorder, corrupt, delay, rx_error, tx_error]) {
                prop_assert_eq!(rx + lost + injected, setting.count, "{}", report);
            }
            if alone(&[loss, reorder, corrupt, delay, rx_error, tx_error, flap]) {
                prop_assert_eq!(rx + lost, setting.count + injected, "{}", report);
            }
            if alone(&[loss, duplicate, rx_error, flap]) {
                prop_assert_eq!(rx + lost, setting.count, "{}", report);
            }
            prop_assert!(rx + lost <= setting.count + injected, "{}", report);
            if rx_error == 0 {
                prop_assert!(rx + lost + injected >= setting.count, "{}", report);
            }
            prop_assert!(tx_error + rx_error > 0 || port.recoveries + port.tx_errors + port.rx_errors == 0);
        }
    }

    /// A burst of a whole batch, and the smallest rings that take it.
    #[test]
    fn bursts_of_any_size_come_through(
        burst in 1..=256u32, depth in 0..4u32, tx_depth in 1..300u32, workers in 1..=2u32, count in 0..5000u64,
    ) {
        let text = format!(
            r#"
            [runtime]
            workers = {workers}
            burst = {burst}
            buffers = {}
            hugepages = "none"
            [[port]]
            name = "p"
            device = "soft"
            rx_depth = {}
            tx_depth = {tx_depth}
            link = {{ kind = "generator", flows = 16, count = {count} }}
            [pipeline]
            input = ["p"]
            [[pipeline.stage]]
            use = "tx"
            port = "p"
            "#,
            burst * 2 + depth + tx_depth,
            burst + depth,
        );
        let report = Folder::new().run(&text);
        assert_good(&report);
        let full = drops(&report, "p.tx_full");
        prop_assert_eq!((report.packets.rx, report.packets.tx + full), (count, count));
        // A worker sends what it received before it receives again.
        prop_assert!(full == 0 || tx_depth < burst, "{}", report);
    }
}

/// Faults that are all loss: the frames that come out are a sequence with gaps, and the gaps are what was counted.
#[test]
fn what_is_lost_on_the_wire_is_what_the_device_says() {
    let folder = Folder::new();
    let frames: Vec<Vec<u8>> =
        (0..2000u32).map(|number| [&[2; 14][..], &number.to_be_bytes(), &[0; 46]].concat()).collect();
    folder.capture("in.pcap", &frames);
    let report = folder.run(
        r#"
        [runtime]
        workers = 1
        hugepages = "none"
        [[port]]
        name = "p"
        device = "soft"
        faults = { seed = 3, loss = 0.2 }
        link = { kind = "pcap", input = "in.pcap", output = "out.pcap" }
        [pipeline]
        input = ["p"]
        [[pipeline.stage]]
        use = "tx"
        port = "p"
        "#,
    );
    assert_good(&report);
    let out = frames_of(&folder.file("out.pcap"));
    let lost = counter(&report, 0, "faults");
    assert!(lost > 200 && out.len() as u64 + lost == 2000, "{report}");
    assert!(out.is_sorted() && out.iter().all(|frame| frames.contains(frame)));
}

/// Two ports that reflect feed each other for ever; stopped, everything is accounted for.
#[test]
fn a_run_in_full_flight_is_stopped_without_loss() {
    for workers in [1, 2] {
        let text = format!(
            r#"
            [runtime]
            workers = {workers}
            burst = 32
            hugepages = "none"
            [[port]]
            name = "g"
            device = "soft"
            link = {{ kind = "generator", flows = 64 }}
            [[port]]
            name = "l"
            device = "soft"
            rx_depth = 64
            tx_depth = 64
            faults = {{ seed = 1, loss = 0.3, duplicate = 0.1 }}
            link = {{ kind = "loopback" }}
            [pipeline]
            input = ["g", "l"]
            [[pipeline.stage]]
            use = "mirror"
            outputs = {{ copy = "away" }}
            [[pipeline.stage]]
            name = "out"
            use = "tx"
            port = "l"
            [[pipeline.stage]]
            name = "away"
            use = "tx"
            port = "g"
            "#
        );
        let report = Folder::new().run_until(&text, Options { packets: Some(200_000), ..Options::default() });
        assert_good(&report);
        assert!(report.packets.rx >= 200_000 - 1 && report.ports[1].packets.rx > 0, "{report}");
    }
}

/// Requests fail, queue pairs stop, and traffic goes on: at a port that receives and at one that only sends.
#[test]
fn ports_recover_from_errors_of_their_devices() {
    let text = r#"
        [runtime]
        workers = 1
        burst = 16
        hugepages = "none"
        [[port]]
        name = "in"
        device = "soft"
        rx_depth = 32
        faults = { seed = 5, rx_error = 0.001 }
        link = { kind = "generator", count = 200_000 }
        [[port]]
        name = "out"
        device = "soft"
        tx_depth = 32
        faults = { seed = 6, tx_error = 0.001 }
        link = { kind = "loopback" }
        [pipeline]
        input = ["in"]
        [[pipeline.stage]]
        use = "tx"
        port = "out"
        "#;
    let report = Folder::new().run(text);
    assert_good(&report);
    let [input, output] = &report.ports[..] else { panic!("{report}") };
    assert!(input.recoveries > 50 && input.rx_errors > 50 && input.first_error.is_some(), "{report}");
    assert!(output.recoveries > 50 && output.first_error.is_some(), "{report}");
    // Only what was posted together is lost with a send that fails.
    assert!(output.tx_errors < 100 * output.recoveries && output.packets.tx > 180_000, "{report}");
    assert_eq!(input.packets.rx + input.rx_errors, 200_000, "{report}");
}
