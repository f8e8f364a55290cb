//! Tests that faults on the wire lose no buffer, and that the report counts every lost packet.

use std::fmt::Write;

use dataplane::runtime::Options;
use dataplane_testing::config::Config;
use proptest::prelude::*;

use crate::common::{Folder, assert_good, counter, drops, frames_of};

/// The fault rates of a port: request errors and link flaps in per mille, all other faults in percent.
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

/// The parameters of a random config.
#[derive(Clone, Debug)]
struct Setting {
    workers: usize,
    burst: u32,
    /// The depths of the receive and send rings of the ports `a` and `b`. The config adds one burst to each receive
    /// ring.
    rings: [u32; 4],
    /// Buffers beyond the required minimum. `None` uses the default of the config.
    spare: Option<u32>,
    faults: [Faults; 2],
    count: u64,
    size: u16,
    flows: u16,
}

fn setting() -> impl Strategy<Value = Setting> {
    // Two stages copy packets, so a burst of more than 64 packets might grow beyond a batch of 256.
    let burst = prop_oneof![Just(1u32), 1..=64u32];
    let ring = || prop_oneof![1..8u32, 1..300u32];
    let spare = prop_oneof![Just(None), Just(Some(0)), (0..64u32).prop_map(Some)];
    (
        (1..=2usize, burst, [ring(), ring(), ring(), ring()], spare),
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

/// Returns a config in which stages filter, copy, rate-limit and tag the frames of two generators. A route selects the
/// port that sends the frame, which may be the port that received the frame.
fn config(setting: &Setting) -> String {
    let Setting { workers, burst, rings: [a_rx, a_tx, b_rx, b_tx], spare, faults, count, size, flows } = setting;
    let (a_rx, b_rx) = (a_rx + burst, b_rx + burst);
    let mut runtime = format!("burst = {burst}");
    if let Some(spare) = spare {
        write!(runtime, "\nbuffers = {}", a_rx + a_tx + b_rx + b_tx + burst + spare).unwrap();
    }
    let link = format!("kind = 'generator', size = {size}, flows = {flows}, count = {count}");
    let keys = |rx_depth, tx_depth, faults: &Faults| {
        format!("rx_depth = {rx_depth}\ntx_depth = {tx_depth}\nfaults = {}", faults.toml())
    };
    Config::new()
        .workers(*workers)
        .runtime(&runtime)
        .port_with("a", &link, &keys(a_rx, *a_tx, &faults[0]))
        .port_with("b", &format!("{link}, protocol = 'tcp4', vlan = 7"), &keys(b_rx, *b_tx, &faults[1]))
        .input(&["a", "b"])
        .stages(
            r#"
        [[pipeline.stage]]
        use = "mirror"
        outputs = { copy = "tag" }
        [[pipeline.stage]]
        use = "parse"
        [[pipeline.stage]]
        use = "acl"
        default = "permit"
        rules = [{ action = "deny", protocol = "tcp", src = "198.18.0.0/30" }]
        [[pipeline.stage]]
        use = "limit"
        packets_per_second = 1000
        burst = 500
        [[pipeline.stage]]
        name = "again"
        use = "mirror"
        outputs = { copy = "routes" }
        [[pipeline.stage]]
        name = "routes"
        use = "route"
        table = [{ prefix = "198.18.0.0/15", port = "b" }, { prefix = "198.19.0.0/28", port = "a" }]
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
        "#,
        )
        .to_string()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn ledger_matches_the_device_counters(setting in setting()) {
        let report = Folder::new().run(&config(&setting));
        assert_good(&report);
        for (at, faults) in setting.faults.iter().enumerate() {
            let port = &report.ports[at];
            let (rx, injected) = (port.packets.rx, counter(&report, at, "faults"));
            prop_assert_eq!(rx, counter(&report, at, "rx_packets"), "{}", report);
            prop_assert_eq!(port.packets.tx, counter(&report, at, "tx_packets"), "{}", report);
            // The number of received packets is: generated − lost + duplicated. If a queue pair is reset while frames
            // are held back for reordering, these frames count as `rx_missed`.
            let lost: u64 =
                ["rx_out_of_buffer", "rx_too_long", "rx_missed"].iter().map(|name| counter(&report, at, name)).sum();
            let Faults { loss, duplicate, reorder, corrupt, delay, rx_error, tx_error, flap, .. } = *faults;
            let all_zero = |odds: &[u8]| odds.iter().all(|odds| *odds == 0);
            if all_zero(&[duplicate, reorder, corrupt, delay, rx_error, tx_error]) {
                prop_assert_eq!(rx + lost + injected, setting.count, "{}", report);
            }
            if all_zero(&[loss, reorder, corrupt, delay, rx_error, tx_error, flap]) {
                prop_assert_eq!(rx + lost, setting.count + injected, "{}", report);
            }
            if all_zero(&[loss, duplicate, rx_error, flap]) {
                prop_assert_eq!(rx + lost, setting.count, "{}", report);
            }
            prop_assert!(rx + lost <= setting.count + injected, "{}", report);
            if rx_error == 0 {
                prop_assert!(rx + lost + injected >= setting.count, "{}", report);
            }
            prop_assert!(tx_error + rx_error > 0 || port.recoveries + port.tx_errors + port.rx_errors == 0);
        }
    }

    /// Forwards bursts of up to a whole batch. The receive ring has little more space than one burst.
    #[test]
    fn bursts_of_any_size_are_forwarded(
        burst in 1..=256u32, depth in 0..4u32, tx_depth in 1..300u32, workers in 1..=2usize, count in 0..5000u64,
    ) {
        let text = Config::new()
            .workers(workers)
            .runtime(&format!("burst = {burst}\nbuffers = {}", burst * 2 + depth + tx_depth))
            .port_with(
                "p",
                &format!("kind = 'generator', flows = 16, count = {count}"),
                &format!("rx_depth = {}\ntx_depth = {tx_depth}", burst + depth),
            )
            .stage("tx", "port = 'p'")
            .to_string();
        let report = Folder::new().run(&text);
        assert_good(&report);
        let full = drops(&report, "p.tx_full");
        prop_assert_eq!((report.packets.rx, report.packets.tx + full), (count, count));
        // A worker sends each burst before it receives the next burst, so a send ring of at least one burst is never
        // full.
        prop_assert!(full == 0 || tx_depth < burst, "{}", report);
    }
}

/// Loss is the only fault. The numbered frames come out in order, and the number of missing frames equals the number of
/// counted losses.
#[test]
fn sequence_gaps_equal_the_reported_losses() {
    let folder = Folder::new();
    let frames: Vec<Vec<u8>> =
        (0..2000u32).map(|number| [&[2; 14][..], &number.to_be_bytes(), &[0; 46]].concat()).collect();
    folder.capture("in.pcap", &frames);
    let report = folder.run(
        &Config::new()
            .port_with(
                "p",
                "kind = 'pcap', input = 'in.pcap', output = 'out.pcap'",
                "faults = { seed = 3, loss = 0.2 }",
            )
            .stage("tx", "port = 'p'")
            .to_string(),
    );
    assert_good(&report);
    let out = frames_of(&folder.file("out.pcap"));
    let lost = counter(&report, 0, "faults");
    assert!(lost > 200 && out.len() as u64 + lost == 2000, "{report}");
    assert!(out.is_sorted() && out.iter().all(|frame| frames.contains(frame)));
}

/// Packets circulate over the loopback port until the run reaches its packet limit. After the stop, every packet must
/// be accounted for.
#[test]
fn stopped_run_accounts_for_every_packet() {
    for workers in [1, 2] {
        let text = Config::new()
            .workers(workers)
            .runtime("burst = 32")
            .port("g", "kind = 'generator', flows = 64")
            .port_with(
                "l",
                "kind = 'loopback'",
                "rx_depth = 64\ntx_depth = 64\nfaults = { seed = 1, loss = 0.3, duplicate = 0.1 }",
            )
            .input(&["g", "l"])
            .stage("mirror", "outputs = { copy = 'away' }")
            .stage("tx", "name = 'out'\nport = 'l'")
            .stage("tx", "name = 'away'\nport = 'g'")
            .to_string();
        let report = Folder::new().run_until(&text, Options { packets: Some(200_000), ..Options::default() });
        assert_good(&report);
        assert!(report.packets.rx >= 200_000 - 1 && report.ports[1].packets.rx > 0, "{report}");
    }
}

/// Injected errors fail requests and stop queue pairs. Traffic continues on a port that receives, and on a port that
/// only sends.
#[test]
fn ports_recover_from_device_errors() {
    let text = Config::new()
        .runtime("burst = 16")
        .port_with(
            "in",
            "kind = 'generator', count = 200_000",
            "rx_depth = 32\nfaults = { seed = 5, rx_error = 0.001 }",
        )
        .port_with("out", "kind = 'loopback'", "tx_depth = 32\nfaults = { seed = 6, tx_error = 0.001 }")
        .stage("tx", "port = 'out'")
        .to_string();
    let report = Folder::new().run(&text);
    assert_good(&report);
    let [input, output] = &report.ports[..] else { panic!("{report}") };
    assert!(input.recoveries > 50 && input.rx_errors > 50 && input.first_error.is_some(), "{report}");
    assert!(output.recoveries > 50 && output.first_error.is_some(), "{report}");
    // A failed send loses only the requests that were posted in the same call, at most one burst of 16 packets. The
    // limit of 100 packets for each recovery is deliberately wide.
    assert!(output.tx_errors < 100 * output.recoveries && output.packets.tx > 180_000, "{report}");
    assert_eq!(input.packets.rx + input.rx_errors, 200_000, "{report}");
}
