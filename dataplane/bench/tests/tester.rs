//! Trials over cables in memory, with faults that the software device injects and counts.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dataplane::clock::HostClock;
use dataplane::runtime::PortLanes;
use dataplane_bench::report::{RateReport, environment, rate_report};
use dataplane_bench::setup::{self, Sources};
use dataplane_bench::tester::{IntervalCounts, Observer, Outcome, Tester, TesterOptions, TrialPlan};
use dataplane_testing::Folder;

/// The options of the tests. On a busy machine, packets may be delayed. With these limits, no packet is late or missed.
const OPTIONS: TesterOptions = TesterOptions {
    late: Duration::from_secs(30),
    gap: Duration::from_secs(30),
    settle: Duration::from_millis(50),
    catch_up: Duration::from_secs(60),
    interval: Duration::from_millis(100),
    learn: false,
};

/// Returns a config with two ports on one cable. The text `right` has further keys of the port `right`.
fn cable(right: &str, streams: &str) -> String {
    format!(
        "[runtime]\nworkers = 1\nhugepages = 'none'\nidle = 'sleep'\n\
         [[port]]\nname = 'left'\ndevice = 'soft'\nlink = {{ kind = 'loopback', peer = 'right' }}\n\
         {streams}\n\
         [[port]]\nname = 'right'\ndevice = 'soft'\nlink = {{ kind = 'loopback', peer = 'left' }}\n{right}\n"
    )
}

fn sources(folder: &Folder, config: &str) -> Sources {
    let path = folder.write("bench.toml", config);
    Sources { config: Some(path), ..Sources::default() }
}

fn open(config: &str, stop: &Arc<AtomicBool>) -> Tester {
    open_with(config, OPTIONS, stop)
}

fn open_with(config: &str, options: TesterOptions, stop: &Arc<AtomicBool>) -> Tester {
    let folder = Folder::new();
    let (assembly, set) = setup::load(&sources(&folder, config)).unwrap();
    let streams = set.streams(None).unwrap();
    let clock = HostClock::new();
    let lanes = PortLanes::open(assembly, &clock, || false).unwrap();
    let rates = vec![None; streams.len()];
    Tester::new(lanes, clock, streams, &rates, options, stop.clone())
}

fn report(tester: &Tester, rates: &[Option<f64>], outcome: &Outcome) -> RateReport {
    let names = vec![("left".to_owned(), String::new()), ("right".to_owned(), String::new())];
    rate_report("rate", tester.streams(), rates, &names, outcome, &environment(None))
}

/// Runs a trial with a rate for each stream, and checks that no packet is unaccounted. Returns the report, and the
/// number of faults that the port `right` injected.
fn trial(config: &str, rates: &[f64], duration: Duration) -> (RateReport, u64) {
    let mut tester = open(config, &Arc::default());
    let rates: Vec<_> = rates.iter().copied().map(Some).collect();
    let outcome = tester.trial(&rates, duration).unwrap();
    let report = report(&tester, &rates, &outcome);
    tester.close().unwrap();
    assert_eq!(report.unaccounted, 0, "{report}");
    let faults = report.ports[1].counters.get("faults").copied().unwrap_or(0);
    (report, faults)
}

const HALF_SECOND: Duration = Duration::from_millis(500);

#[test]
fn cable_without_faults_loses_nothing() {
    let streams =
        "[[stream]]\nname = 'there'\nsize = 'imix'\n[[stream]]\nname = 'back'\nfrom = 'right'\nvlan = 3\nsize = 100\n";
    let (report, _) = trial(&cable("", streams), &[20_000.0, 10_000.0], HALF_SECOND);
    for (stream, sent) in report.streams.iter().zip([10_000, 5_000]) {
        let traffic = &stream.traffic;
        assert_eq!((traffic.sent, traffic.received, traffic.lost, traffic.missed), (sent, sent, 0, 0), "{report}");
        assert_eq!((traffic.duplicated, traffic.reordered, traffic.corrupted), (0, 0, 0), "{report}");
        assert_eq!(stream.latency_ns.count, sent);
    }
    assert_eq!(report.total.sent, 15_000);
    assert_eq!((report.ports[0].tx, report.ports[1].tx, report.ports[0].foreign), (10_000, 5_000, 0));
}

#[test]
fn planted_faults_are_counted_exactly() {
    for (fault, of) in [
        ("duplicate", (|report| report.total.duplicated) as fn(&RateReport) -> u64),
        ("loss", |report| report.total.lost),
    ] {
        for seed in [1, 2] {
            let keys = format!("faults = {{ seed = {seed}, {fault} = 0.02 }}");
            let (report, faults) = trial(&cable(&keys, ""), &[40_000.0], HALF_SECOND);
            let found = of(&report);
            // On a busy machine, the tester may send only a part of the 20,000 packets.
            assert!(faults > 50, "{faults} {report}");
            assert_eq!(found, faults, "{fault}\n{report}");
            let others = report.total.duplicated + report.total.lost + report.total.reordered + report.total.corrupted;
            assert_eq!(others, found, "{report}");
        }
    }
}

/// The device holds a packet until the next packet has overtaken it, or until four polls received nothing. At the highest
/// rate, each poll receives packets.
#[test]
fn planted_reordering_is_counted_exactly() {
    for seed in [1, 2] {
        let mut tester = open(&cable(&format!("faults = {{ seed = {seed}, reorder = 0.02 }}"), ""), &Arc::default());
        let outcome = tester.trial(&[None], Duration::from_millis(200)).unwrap();
        let report = report(&tester, &[None], &outcome);
        tester.close().unwrap();
        let (found, planted) = (report.total.reordered, report.ports[1].counters["faults"]);
        // The last packet of the trial may be held without effect.
        assert!(planted > 50 && (planted - 1..=planted).contains(&found), "{found} of {planted}\n{report}");
        assert_eq!((report.total.lost, report.total.duplicated, report.unaccounted), (0, 0, 0), "{report}");
        let stream = &report.streams[0];
        assert_eq!((stream.max_reordering_extent, stream.mean_reordering_extent), (1, 1.0), "{report}");
    }
}

#[test]
fn corrupted_packets_are_not_received() {
    // At the second rate, the tester sends and judges packets in bursts.
    for rate in [10_000.0, 1e7] {
        let config = cable("faults = { corrupt = 0.1 }", "[[stream]]\nsize = 1000\n");
        let (report, faults) = trial(&config, &[rate], HALF_SECOND);
        let traffic = &report.total;
        // Bits of the headers may change. The device under test may change headers too.
        assert!(traffic.corrupted <= faults && traffic.corrupted > faults * 9 / 10, "{faults} {report}");
        assert_eq!((traffic.lost, report.ports[1].foreign), (0, 0), "{report}");
        assert_eq!(traffic.received + traffic.corrupted, traffic.sent);
    }
}

#[test]
fn trials_do_not_count_the_packets_of_earlier_trials() {
    // The device delays each packet until after the end of the first trial.
    let config = cable("faults = { delay = 1.0, delay_by = '400ms' }", "");
    let mut tester = open(&config, &Arc::default());
    let rates = [Some(1000.0)];
    let first = tester.trial(&rates, Duration::from_millis(100)).unwrap();
    let first = report(&tester, &rates, &first);
    assert_eq!((first.total.sent, first.unaccounted), (100, 0), "{first}");
    let second = tester.trial(&rates, Duration::from_millis(800)).unwrap();
    let second = report(&tester, &rates, &second);
    // On a busy machine, the first trial may take longer, so that some packets arrive in time.
    assert_eq!((second.ports[1].foreign, second.unaccounted), (first.total.lost, 0), "{second}");
    assert_eq!((second.total.duplicated, second.total.corrupted), (0, 0), "{second}");
    tester.close().unwrap();
}

#[test]
fn gaps_have_their_times_in_the_trial() {
    let options = TesterOptions { gap: Duration::from_millis(20), ..OPTIONS };
    let mut tester = open_with(&cable("", ""), options, &Arc::default());
    let rates = [Some(20.0)];
    // The times of a second trial start again at 0.
    tester.trial(&rates, Duration::from_millis(100)).unwrap();
    let began = Instant::now();
    let outcome = tester.trial(&rates, Duration::from_millis(400)).unwrap();
    let most = began.elapsed().as_nanos() as u64;
    let judgement = &outcome.streams[0].judgement;
    // 8 packets, each 50 ms after the previous packet. On a busy machine, the time between two packets may
    // be shorter.
    assert!((1..=9).contains(&judgement.gap_count), "{judgement:?}");
    assert_eq!(judgement.gaps.len() as u64, judgement.gap_count);
    // The report has rounded seconds, so the test compares nanoseconds.
    let mut last = 0;
    for gap in &judgement.gaps {
        assert!(gap.start >= last && gap.length > 20_000_000, "{:?}", judgement.gaps);
        last = gap.start + gap.length;
    }
    // After a pause of the thread, the last packet can arrive after the last transmission.
    assert!(last <= most, "{last} {most} {:?}", judgement.gaps);
    let report = report(&tester, &rates, &outcome);
    assert_eq!(report.streams[0].gaps.len(), judgement.gaps.len());
    tester.close().unwrap();
}

/// The device holds a fifth of the packets for 200 ms.
#[test]
fn packets_in_a_queue_at_the_end_are_not_part_of_the_rate() {
    let options = TesterOptions { settle: Duration::from_millis(400), ..OPTIONS };
    let config = cable("faults = { delay = 0.2, delay_by = '200ms' }", "");
    let mut tester = open_with(&config, options, &Arc::default());
    let rates = [Some(2000.0)];
    let outcome = tester.trial(&rates, HALF_SECOND).unwrap();
    let report = report(&tester, &rates, &outcome);
    tester.close().unwrap();
    let total = &report.total;
    assert_eq!((total.sent, total.received, report.unaccounted), (1000, 1000, 0), "{report}");
    // On a busy machine, the last transmission may be later, so that more packets arrive before the last
    // transmission.
    assert!(total.held > 0 && total.held <= total.drained, "{report}");
    let in_time = (total.received - total.drained) as f64;
    assert!((total.received_pps * report.duration_s - in_time).abs() < 0.01, "{report}");
    assert!(report.to_string().contains("the device still held"), "{report}");
}

#[test]
fn streams_share_the_highest_rate_by_weights_or_by_their_own_rates() {
    for keys in [["weight = 1", "weight = 4"], ["rate = 100", "rate = '400pps'"]] {
        let [a, b] = keys.map(|keys| format!("[[stream]]\n{keys}\n"));
        let folder = Folder::new();
        let back = "[[stream]]\nfrom = 'right'\nrate = 50\n";
        let (assembly, set) = setup::load(&sources(&folder, &cable("", &(a + &b + back)))).unwrap();
        let mut streams = set.streams(None).unwrap();
        setup::weigh_by_rates(&mut streams, &[None, None]);
        let clock = HostClock::new();
        let lanes = PortLanes::open(assembly, &clock, || false).unwrap();
        let mut tester = Tester::new(lanes, clock, streams, &[None; 3], OPTIONS, Arc::default());
        let outcome = tester.trial(&[None, None, Some(1000.0)], Duration::from_millis(100)).unwrap();
        tester.close().unwrap();
        let [a, b, back] = [0, 1, 2].map(|number| outcome.streams[number].sent);
        // The streams of the port alternate, so the difference is at most one round.
        assert!(a > 10 && b.abs_diff(4 * a) <= 4, "{keys:?}: {a} and {b}");
        assert_eq!(back, 100);
    }
}

/// Clearing the windows of 4 streams takes many milliseconds. If the trial started before, packets that are due in
/// these milliseconds would be missed.
#[test]
fn trial_starts_after_the_windows_of_the_judges_are_cleared() {
    let streams: String = (0..4).map(|number| format!("[[stream]]\nname = '{number}'\n")).collect();
    let folder = Folder::new();
    let (assembly, set) = setup::load(&sources(&folder, &cable("", &streams))).unwrap();
    let clock = HostClock::new();
    let lanes = PortLanes::open(assembly, &clock, || false).unwrap();
    let options = TesterOptions { catch_up: Duration::from_millis(1), ..OPTIONS };
    let streams = set.streams(None).unwrap();
    let mut tester = Tester::new(lanes, clock, streams, &[Some(1e7); 4], options, Arc::default());
    // The thread may pause at any time, but not at the start of each trial.
    let is_complete = |_| {
        let outcome = tester.trial(&[Some(10_000.0); 4], Duration::from_millis(2)).unwrap();
        outcome.streams.iter().all(|stream| stream.missed == 0)
    };
    assert!((0..50).any(is_complete));
    tester.close().unwrap();
}

#[test]
fn stop_ends_a_trial_early_with_the_counts_so_far() {
    let stop = Arc::new(AtomicBool::new(false));
    let mut tester = open(&cable("", ""), &stop);
    stop.store(true, Ordering::Relaxed);
    let rates = [Some(1000.0)];
    let outcome = tester.trial(&rates, Duration::from_secs(3600)).unwrap();
    assert!(outcome.stopped);
    let report = report(&tester, &rates, &outcome);
    assert_eq!((report.unaccounted, report.stopped), (0, true));
    tester.close().unwrap();
}

#[test]
fn stop_ends_a_trial_with_a_port_that_always_receives() {
    let stop = Arc::new(AtomicBool::new(true));
    let noise = "[[port]]\nname = 'noise'\ndevice = 'soft'\nlink = { kind = 'generator', size = 64 }\n";
    let mut tester = open(&cable(noise, ""), &stop);
    let outcome = tester.trial(&[Some(1000.0)], Duration::from_secs(3600)).unwrap();
    assert!(outcome.stopped);
    tester.close().unwrap();
}

#[test]
fn rate_above_the_tester_is_marked_as_a_limit_of_the_tester() {
    let mut tester = open(&cable("", ""), &Arc::default());
    let rates = [Some(1e9)];
    let outcome = tester.trial(&rates, Duration::from_millis(50)).unwrap();
    let report = report(&tester, &rates, &outcome);
    assert!(report.tester.limits.iter().any(|limit| limit.contains("in time")), "{report}");
    assert_eq!(report.unaccounted, 0, "{report}");
    tester.close().unwrap();
}

#[test]
fn mistakes_of_a_config_are_reported_with_their_position() {
    let folder = Folder::new();
    let why = |config: &str| match setup::load(&sources(&folder, config)) {
        Ok(_) => panic!("{config}"),
        Err(error) => error.to_string(),
    };
    let stream = why(&cable("", "[[stream]]\nname = 'a'\n[[stream]]\nname = 'b'\nsize = 20\n"));
    assert!(stream.contains("bench.toml:11: `size` 20 does not fit"), "{stream}");
    let key = why(&cable("", "[[stream]]\nsrc = 1\n"));
    assert!(key.contains("unknown field `src`") && key.contains("line 10"), "{key}");
    // The lines of the ports keep their numbers although the streams are read separately.
    let port = why(&cable("mtuu = 9\n", "[[stream]]\nsize = [\n  { size = 70 },\n]\n"));
    assert!(port.contains("bench.toml:18:1"), "{port}");
    let pipeline = why(&(cable("", "") + "[pipeline]\ninput = ['left']\n"));
    assert!(pipeline.contains("has no [pipeline]"), "{pipeline}");
    let same = why(&cable("", "[[stream]]\nname = 'a'\n[[stream]]\nname = 'a'\n"));
    assert!(same.contains("two streams have the name `a`"), "{same}");
    assert!(fs::metadata(folder.file("bench.toml")).is_ok());
}

#[test]
fn rates_are_shared_by_weights_or_by_their_own_rates() {
    let folder = Folder::new();
    let rates = |streams: &str, total: Option<&str>| {
        let (_, set) = setup::load(&sources(&folder, &cable("", streams))).unwrap();
        let streams = set.streams(None).unwrap();
        let total = total.map(|total| total.parse().unwrap());
        setup::rates(&streams, total, &[Some(1_000_000_000), None]).map_err(|error| error.to_string())
    };
    let two = "[[stream]]\nname = 'a'\nweight = 3\n[[stream]]\nname = 'b'\n";
    assert_eq!(rates(two, Some("1kpps")), Ok(vec![Some(750.0), Some(250.0)]));
    assert_eq!(rates(two, Some("max")), Ok(vec![None, None]));
    assert!(rates(two, None).unwrap_err().contains("the stream `a` has no rate; help: add --rate RATE"));
    let own = "[[stream]]\nname = 'a'\nrate = '300pps'\n[[stream]]\nname = 'b'\nrate = 100\n";
    assert_eq!(rates(own, None), Ok(vec![Some(300.0), Some(100.0)]));
    assert_eq!(rates(own, Some("8kpps")), Ok(vec![Some(6000.0), Some(2000.0)]));
    // The rate is the rate of each port.
    let both = "[[stream]]\n[[stream]]\nfrom = 'right'\n";
    assert_eq!(rates(both, Some("5kpps")), Ok(vec![Some(5000.0), Some(5000.0)]));
    assert!(rates(both, Some("10%")).unwrap_err().contains("--line"));
    assert_eq!(rates("", Some("100%")).map(|rates| rates[0].map(f64::round)), Ok(Some(1_488_095.0)));
    assert!(rates("", Some("2Mpps")).unwrap_err().contains("134.4 % of the line"));
    // The streams of a port share the line at each time.
    let sum = "[[stream]]\nname = 'a'\nrate = '1Mpps'\n[[stream]]\nname = 'b'\nrate = '60%'\n";
    let why = rates(sum, None).unwrap_err();
    assert!(why.contains("bench.toml:9: the streams of the port together have 127.2 % of the line"), "{why}");
    let one_after_the_other =
        sum.replace("[[stream]]\nname = 'b'", "stop = '1s'\n[[stream]]\nname = 'b'\nstart = '1s'");
    assert_eq!(rates(&one_after_the_other, None).map(|rates| rates.len()), Ok(2));
    let above = "[[stream]]\nname = 'a'\nrate = '2Mpps'\n";
    let why = rates(above, None).unwrap_err();
    assert!(why.contains("bench.toml:9: the rate 2000000pps is 134.4 % of the line"), "{why}");
}

#[test]
fn streams_send_at_their_times_in_the_trial() {
    let streams =
        "[[stream]]\nname = 'first'\nstop = '200ms'\n[[stream]]\nname = 'second'\nstart = '300ms'\nburst = 10\n";
    let (report, _) = trial(&cable("", streams), &[1_000.0, 1_000.0], HALF_SECOND);
    assert_eq!(report.streams.iter().map(|it| it.traffic.received).collect::<Vec<_>>(), [200, 200], "{report}");
    // The tester never sends a packet before its time.
    assert_eq!(report.streams[1].series.sent[..3], [0, 0, 0], "{report}");
}

#[test]
fn start_and_stop_times_need_a_fitting_method_and_duration() {
    let folder = Folder::new();
    let config = cable("", "[[stream]]\nstart = '2s'\n");
    let (_, set) = setup::load(&sources(&folder, &config)).unwrap();
    let streams = set.streams(None).unwrap();
    let why = setup::check_times(&streams, Duration::from_secs(2)).unwrap_err().to_string();
    assert!(
        why.contains("bench.toml:9: `start` is not before the end of the trial (2s); help: use an earlier"),
        "{why}"
    );
    assert!(setup::check_times(&streams, Duration::from_secs(3)).is_ok());
    let why = setup::shares(&streams, &[None, None]).unwrap_err().to_string();
    assert!(why.contains("bench.toml:9: this method has trials of several durations"), "{why}");
}

#[test]
fn series_has_the_packets_of_each_interval_and_their_sums() {
    let streams = "[[stream]]\nname = 'a'\n[[stream]]\nname = 'b'\nfrom = 'right'\n";
    let (report, _) = trial(&cable("faults = { seed = 5, loss = 0.05 }", streams), &[20_000.0, 1000.0], HALF_SECOND);
    for stream in &report.streams {
        let series = &stream.series;
        let sum = |values: &[u64]| values.iter().sum::<u64>();
        // A busy machine can send the last packets a little late.
        assert!((5..=6).contains(&series.sent.len()) && series.interval_s == 0.1, "{series:?}");
        assert_eq!((sum(&series.sent), sum(&series.lost)), (stream.traffic.sent, stream.traffic.lost));
        assert!(series.latency_max_ns.iter().all(|max| *max <= stream.latency_ns.max * 1001 / 1000), "{stream:?}");
    }
    assert!(report.streams[0].series.lost.iter().all(|lost| *lost > 0), "{report}");
}

#[test]
fn observer_gets_each_interval_once_and_in_order() {
    #[derive(Default)]
    struct Sums(Vec<usize>, u64, u64);
    impl Observer for Sums {
        fn interval(&mut self, counts: &IntervalCounts) {
            self.0.push(counts.index);
            self.1 += counts.streams[0].sent;
            self.2 += counts.streams[0].received;
        }
    }
    let options = TesterOptions { late: Duration::from_millis(1), interval: Duration::from_millis(20), ..OPTIONS };
    let mut tester = open_with(&cable("", ""), options, &Arc::default());
    let mut sums = Sums::default();
    let rates = [Some(10_000.0)];
    let plan = TrialPlan { rates: &rates, duration: HALF_SECOND, change: None };
    let outcome = tester.trial_with(&plan, &mut sums).unwrap();
    assert_eq!(sums.0, (0..outcome.streams[0].series.len()).collect::<Vec<_>>());
    let counts = outcome.streams[0].judgement.counts;
    // A packet that arrives after its interval was reported is only in the final counts.
    assert!(sums.1 == outcome.streams[0].sent && sums.2 <= counts.received, "{sums:?} {counts:?}", sums = sums.0);
    tester.close().unwrap();
}

#[test]
fn rate_changes_at_the_requested_time() {
    let mut tester = open(&cable("", ""), &Arc::default());
    let (before, after) = ([Some(20_000.0)], [Some(1000.0)]);
    let plan = TrialPlan { rates: &before, duration: HALF_SECOND, change: Some((HALF_SECOND / 5, &after)) };
    let outcome = tester.trial_with(&plan, &mut ()).unwrap();
    assert_eq!((outcome.streams[0].sent, outcome.streams[0].judgement.counts.received), (2400, 2400));
    tester.close().unwrap();
}

#[test]
fn learning_frame_of_the_receiving_port_arrives_before_the_trial() {
    let options = TesterOptions { learn: true, ..OPTIONS };
    let streams = "[[stream]]\n[[stream]]\nname = 'router'\ndst_mac = '02:00:00:00:00:99'\n";
    let mut tester = open_with(&cable("", streams), options, &Arc::default());
    let outcome = tester.trial(&[Some(1000.0); 2], HALF_SECOND).unwrap();
    let report = report(&tester, &[Some(1000.0); 2], &outcome);
    // Only the stream to the port's own address has a learning frame. The tester discards this frame before the trial, or
    // counts it as foreign.
    assert!(report.unaccounted == 0 && report.ports[0].foreign <= 1 && report.ports[1].tx == 0, "{report}");
    assert_eq!(tester.lanes().counters(1).get("tx").copied().unwrap_or(1), 1);
    tester.close().unwrap();
}
