//! Tests of the reliability data of a result: disturbances of the tester, the clock of each port, and the confidence
//! interval of the loss ratio.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dataplane::clock::HostClock;
use dataplane::runtime::PortLanes;
use dataplane::soft::doctor::Roots;
use dataplane_bench::report::{RateReport, Traffic, environment, rate_report};
use dataplane_bench::search::ratio_interval;
use dataplane_bench::setup::{self, Sources};
use dataplane_bench::tester::{HostTimes, Observer, Outcome, Tester, TesterOptions, TrialPlan};
use dataplane_testing::Folder;

/// On a busy machine, packets may be delayed. With these limits, no packet is late or missed.
const OPTIONS: TesterOptions = TesterOptions {
    late: Duration::from_secs(30),
    gap: Duration::from_secs(30),
    settle: Duration::from_millis(20),
    catch_up: Duration::from_secs(60),
    interval: Duration::from_millis(100),
    learn: false,
};

/// Opens a cable between the ports `left` and `right`. The text `right` has further keys of the port `right`.
fn open(right: &str) -> Tester {
    open_with(right, "")
}

fn open_with(right: &str, streams: &str) -> Tester {
    let folder = Folder::new();
    let config = folder.write(
        "bench.toml",
        format!(
            "[runtime]\nworkers = 1\nhugepages = 'none'\nidle = 'sleep'\n\
             [[port]]\nname = 'left'\ndevice = 'soft'\nlink = {{ kind = 'loopback', peer = 'right' }}\n\
             [[port]]\nname = 'right'\ndevice = 'soft'\nlink = {{ kind = 'loopback', peer = 'left' }}\n{right}\n{streams}"
        ),
    );
    let (assembly, set) = setup::load(&Sources { config: Some(config), ..Sources::default() }).unwrap();
    let clock = HostClock::new();
    let lanes = PortLanes::open(assembly, &clock, || false).unwrap();
    let streams = set.streams(None).unwrap();
    let fastest = vec![Some(200_000.0); streams.len()];
    Tester::new(lanes, clock, streams, &fastest, OPTIONS, Arc::default())
}

fn report(tester: &Tester, rates: &[Option<f64>], outcome: &Outcome) -> RateReport {
    let names = ["left", "right"].map(|name| (name.to_owned(), String::new()));
    rate_report("rate", tester.streams(), rates, &names, outcome, &environment(None))
}

/// Without the comparison of the clocks, all packets of this trial could have wrong latencies.
#[test]
fn step_of_the_system_clock_is_marked_as_a_limit_of_the_tester() {
    let mut tester = open("");
    let (clock, mut readings) = (HostClock::new(), 0);
    tester.set_host_times(Box::new(move || {
        readings += 1;
        let times = HostTimes::read(&clock);
        // Both clocks step, but no timestamp is from the wall clock.
        let step = if readings == 1 { 0 } else { 30_000_000_000 };
        HostTimes { system: times.system - step, wall: times.wall + step, ..times }
    }));
    for expected in [1, 0] {
        let outcome = tester.trial(&[Some(1000.0)], Duration::from_millis(20)).unwrap();
        let report = report(&tester, &[Some(1000.0)], &outcome);
        let steps: Vec<_> = report.tester.limits.iter().filter(|limit| limit.contains("clock stepped by")).collect();
        assert_eq!(steps.len(), expected, "{report}");
        assert!(steps.iter().all(|limit| limit.starts_with("the system clock stepped by -30.0")), "{report}");
    }
    tester.close().unwrap();
}

/// The folders `/proc` and `/sys` of a host whose files change during the trial.
#[test]
fn disturbances_of_the_core_are_reported() {
    let mut tester = open("");
    let core = tester.lanes().plan().cores[0].0;
    let folder = Folder::new();
    let write = |steal: u64, busy: u64, kilohertz: u64| {
        folder.write("proc/stat", format!("cpu{core} 0 0 0 0 0 0 0 {steal}\ncpu4000 {busy} 0 0 0 0 0 0 0\n"));
        let cpu = format!("sys/devices/system/cpu/cpu{core}");
        folder.write(&format!("{cpu}/topology/thread_siblings_list"), format!("{core},4000\n"));
        folder.write(&format!("{cpu}/cpufreq/scaling_cur_freq"), kilohertz.to_string());
    };
    /// Changes the files when the trial starts.
    struct Change<F>(F);
    impl<F: FnMut()> Observer for Change<F> {
        fn start(&mut self) {
            self.0();
        }
    }
    tester.set_roots(Roots { sys: folder.file("sys"), proc: folder.file("proc") });
    let plan = TrialPlan { rates: &[Some(1000.0)], duration: Duration::from_millis(20), change: None };
    // On a busy machine, a trial takes longer. An hour is a large share of every trial.
    let expected = [
        ((360_000, 0, 2_000_000), "the hypervisor took the core of the tester for at least"),
        ((0, 360_000, 2_000_000), "another thread of the physical core of the tester was busy for at least"),
        ((0, 0, 1_800_000), "the frequency of the core of the tester changed from 2000 MHz to 1800 MHz"),
    ];
    for ((steal, busy, kilohertz), reason) in expected {
        write(0, 0, 2_000_000);
        let outcome = tester.trial_with(&plan, &mut Change(|| write(steal, busy, kilohertz))).unwrap();
        let report = report(&tester, &[Some(1000.0)], &outcome);
        let reasons = &report.tester.disturbances;
        assert!(reasons.iter().any(|text| text.starts_with(reason)), "{reason}\n{report}");
        // On a busy machine, the tester may also wait for its core.
        assert_eq!(reasons.iter().filter(|text| !text.contains("waited for a core")).count(), 1, "{report}");
    }
    tester.close().unwrap();
}

/// The counter of the right port jumps back every 100 ms.
#[test]
fn jump_of_the_clock_of_a_port_is_marked_as_a_limit_of_the_tester() {
    let jump = |number: u32| format!("{{ at = '{}ms', kind = 'jump', value = -1000000 }}", number * 100);
    let events: Vec<String> = (1..300).map(jump).collect();
    let keys = format!("clock = {{ khz = 156250, bits = 48, events = [{}] }}", events.join(", "));
    let mut tester = open(&keys);
    let outcome = tester.trial(&[Some(1000.0)], Duration::from_secs(1)).unwrap();
    let report = report(&tester, &[Some(1000.0)], &outcome);
    let is_jump = |limit: &String| limit.starts_with("the clock of the port `right` jumped or stopped");
    assert!(report.tester.limits.iter().any(is_jump), "{report}");
    assert!(!report.to_string().contains("the clock of the port `left`"), "{report}");
    tester.close().unwrap();
}

/// The frequency of the counter of the right port is measured during the first trials. The error is unknown until then.
#[test]
fn each_port_has_its_clock_and_the_error_of_this_clock() {
    let mut tester = open("clock = { khz = 156250, bits = 48 }");
    let begin = Instant::now();
    loop {
        let outcome = tester.trial(&[Some(1000.0)], Duration::from_millis(100)).unwrap();
        let report = report(&tester, &[Some(1000.0)], &outcome);
        let [left, right] = &report.ports[..] else { panic!("{report}") };
        assert_eq!(
            (left.clock.as_str(), left.clock_error_ns, right.clock.as_str()),
            ("software", Some(0), "device_ticks")
        );
        let text = report.to_string();
        assert!(text.contains("clock of the receive times: software, error of the conversion: 0 ns"), "{text}");
        let is_unknown = text.contains("device_ticks, error of the conversion: unknown");
        assert_eq!(is_unknown, right.clock_error_ns.is_none(), "{text}");
        let stream = &report.streams[0];
        let has_latency = stream.series.latency_max_ns.iter().any(|max| *max > 0);
        if let Some(error) = right.clock_error_ns {
            assert!(error > 0 && has_latency, "{text}");
            assert_eq!(stream.latency_ns.count, stream.traffic.received, "{text}");
            break;
        }
        // Without a known offset between the two clocks, there is no latency.
        assert_eq!((stream.latency_ns.count, stream.jitter_ns.count, has_latency), (0, 0, false), "{text}");
        assert!(text.contains("stream-0    unknown"), "{text}");
        assert!(begin.elapsed() < Duration::from_secs(60), "{text}");
    }
    tester.close().unwrap();
}

#[test]
fn packets_that_the_tester_lost_are_not_losses_of_the_device() {
    let mut tester = open("faults = { seed = 1, loss = 0.1 }");
    let mut outcome = tester.trial(&[Some(20_000.0)], Duration::from_millis(50)).unwrap();
    let lost = outcome.streams[0].judgement.counts.lost;
    assert!(lost > 5, "{outcome:?}");
    // The sum of `tx` and `tx_failed` is the number of packets of the streams.
    let tx = outcome.ports[0].tx;
    assert_eq!(outcome.streams[0].series.len(), 1, "{outcome:?}");
    for (overrun, failed, expected) in [(0, 0, lost), (3, 0, lost - 3), (3, 2, lost - 5), (lost + 1, 1, 0)] {
        outcome.ports[1].overrun = overrun;
        (outcome.ports[0].tx, outcome.ports[0].tx_failed) = (tx - failed, failed);
        outcome.streams[0].series[0].tx_failed = failed;
        let report = report(&tester, &[Some(20_000.0)], &outcome);
        let total = &report.total;
        assert_eq!(
            (total.lost, total.overrun, total.tx_failed),
            (expected, overrun.min(lost - failed), failed),
            "{report}"
        );
        let stream = &report.streams[0].traffic;
        assert_eq!((stream.lost, stream.overrun, stream.tx_failed), (total.lost, total.overrun, total.tx_failed));
        assert_eq!(stream.loss_ratio, total.loss_ratio, "{report}");
        let series = &report.streams[0].series;
        assert_eq!((series.lost[0], series.tx_failed[0]), (lost - failed, failed), "{report}");
        assert_eq!(total.loss_ratio, expected as f64 / total.sent as f64, "{report}");
        let text = report.to_string();
        assert!(text.contains(&format!("({expected} of {})", total.sent)), "{text}");
        assert_eq!(text.contains("too slow to receive 3 more packets"), overrun == 3, "{text}");
        assert_eq!(text.contains("extent  by tester\n"), overrun + failed > 0, "{text}");
        assert_eq!(report.unaccounted, 0, "{text}");
    }
    tester.close().unwrap();
}

#[test]
fn losses_of_a_port_are_divided_among_its_streams() {
    let mut tester = open_with("faults = { seed = 1, loss = 0.1 }", &"[[stream]]\n".repeat(2));
    let rates = [Some(20_000.0), Some(5_000.0)];
    let mut outcome = tester.trial(&rates, Duration::from_millis(50)).unwrap();
    let lost: Vec<u64> = outcome.streams.iter().map(|stream| stream.judgement.counts.lost).collect();
    assert!(lost[0] > 5 && lost[1] > 1, "{lost:?}");
    for (overrun, expected) in [(lost[0] + lost[1], [0, 0]), (0, [lost[0], lost[1]])] {
        outcome.ports[1].overrun = overrun;
        let report = report(&tester, &rates, &outcome);
        assert_eq!([0, 1].map(|number| report.streams[number].traffic.lost), expected, "{report}");
        let sum = |of: fn(&Traffic) -> u64| report.streams.iter().map(|stream| of(&stream.traffic)).sum::<u64>();
        assert_eq!((sum(|it| it.overrun), sum(|it| it.lost)), (report.total.overrun, report.total.lost), "{report}");
    }
    tester.close().unwrap();
}

#[test]
fn trial_is_marked_if_a_link_of_the_tester_was_down() {
    let mut tester = open("");
    let mut outcome = tester.trial(&[Some(1_000.0)], Duration::from_millis(20)).unwrap();
    for (port, downs, is_up, expected) in
        [(0, 0, None, &[][..]), (0, 1, Some(true), &["left"]), (1, 0, Some(false), &["right"]), (1, 0, Some(true), &[])]
    {
        outcome.ports.iter_mut().for_each(|port| (port.link_downs, port.link_up) = (0, None));
        (outcome.ports[port].link_downs, outcome.ports[port].link_up) = (downs, is_up);
        let report = report(&tester, &[Some(1_000.0)], &outcome);
        assert_eq!(report.ports_with_link_down(), expected);
        assert_eq!(report.to_string().contains("TESTER LIMIT: the link of the port"), !expected.is_empty(), "{report}");
    }
    tester.close().unwrap();
}

#[test]
fn each_packet_with_a_planned_time_has_a_pacing_error() {
    let mut tester = open("");
    // At the second rate, the tester sends packets in bursts.
    for rate in [Some(1_000.0), Some(5e6), None] {
        let outcome = tester.trial(&[rate], Duration::from_millis(50)).unwrap();
        let report = report(&tester, &[rate], &outcome);
        let stream = &report.streams[0];
        let (sent, pacing) = (stream.traffic.sent, &stream.pacing_ns);
        assert_eq!(pacing.count, if rate.is_some() { sent } else { 0 }, "{report}");
        // The tester sends a packet after its planned time, and before the end of the trial.
        assert!(pacing.max as f64 <= report.duration_s * 1.001e9, "{report}");
        assert!(sent > 0 && report.to_string().contains("\npacing error\n"), "{report}");
    }
    tester.close().unwrap();
}

/// The number of packets of a trial with losses.
const PACKETS: u64 = 2_000;

/// Runs a trial through a cable that loses each packet with a probability. Returns the loss ratio and its interval.
fn lossy_trial(probability: f64, seed: u32) -> (f64, [f64; 2]) {
    let rates = [Some(200_000.0)];
    // On a busy machine, a trial can end before all packets are sent. The number of packets decides about the repetition,
    // not the loss.
    for _ in 0..1_000 {
        let mut tester = open(&format!("faults = {{ seed = {seed}, loss = {probability} }}"));
        let outcome = tester.trial(&rates, Duration::from_millis(10)).unwrap();
        let report = report(&tester, &rates, &outcome);
        tester.close().unwrap();
        let total = &report.total;
        assert_eq!(total.loss_interval, report.streams[0].traffic.loss_interval);
        assert!(report.to_string().contains(", 95 % interval "), "{report}");
        if total.sent == PACKETS {
            return (total.loss_ratio, total.loss_interval);
        }
    }
    panic!("in no trial, the tester had its core at the end")
}

/// The seeds are fixed, so the same packets are lost in each run.
#[test]
fn known_loss_is_inside_the_interval_in_19_of_20_trials() {
    const PROBABILITY: f64 = 0.02;
    let is_inside = |seed: &u32| {
        let (ratio, [low, high]) = lossy_trial(PROBABILITY, *seed);
        let is_inside = low <= PROBABILITY && PROBABILITY <= high;
        println!("seed {seed}: {ratio:.5}, {low:.5} to {high:.5}, inside: {is_inside}");
        assert!(high - low < PROBABILITY, "the interval is too wide to prove anything");
        is_inside
    };
    let inside = (1..=20).filter(is_inside).count();
    assert!(inside >= 19, "the probability {PROBABILITY} is inside {inside} of 20 intervals");
}

/// The expected values were computed with the formula of Wilson in another program.
#[test]
fn interval_has_the_limits_of_wilson() {
    for (hits, packets, expected) in [
        (0, 0, (0.0, 1.0)),
        (0, 100, (0.0, 0.036_993_5)),
        (10, 100, (0.055_229_1, 0.174_365_7)),
        (100, 100, (0.963_006_5, 1.0)),
        (1, 1_000_000_000_000, (0.0, 0.0)),
    ] {
        let (low, high) = ratio_interval(hits, packets);
        assert!((low - expected.0).abs() < 1e-6 && (high - expected.1).abs() < 1e-6, "{low} {high} {expected:?}");
        let ratio = hits as f64 / packets.max(1) as f64;
        assert!(low <= ratio && ratio <= high, "{low} {ratio} {high}");
    }
}
