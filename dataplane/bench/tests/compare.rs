//! Tests of comparisons of results with a known difference, and of the HTML pages of these results.

use dataplane_bench::compare::{CompareReport, Verdict, compare};
use dataplane_bench::html::page;
use dataplane_bench::report::{
    Environment, GoalReport, RateReport, SearchReport, SeriesReport, StreamReport, StreamSetup, Times, TrialReport,
    environment, goal_report,
};
use dataplane_bench::search::{Goal, Measurement, Trials, search};
use dataplane_bench::stored::Stored;

/// A device that carries loads up to `limit`, and loses packets at higher loads.
struct Device {
    limit: f64,
    trials: Vec<TrialReport>,
}

impl Trials for Device {
    type Error = ();

    fn measure(&mut self, load: f64, duration: f64) -> Result<Measurement, ()> {
        let loss_ratio = (1.0 - self.limit / load).max(0.0);
        let (sent, lost) = ((load * duration) as u64, (load * duration * loss_ratio) as u64);
        let limits = Vec::new();
        self.trials.push(TrialReport {
            pps: load,
            duration_s: duration,
            sent,
            lost,
            lost_by_tester: 0,
            held: 0,
            loss_ratio,
            by_counters: false,
            ignored: false,
            limits,
        });
        Ok(Measurement { duration, loss_ratio })
    }
}

fn goal(loss_ratio: f64, exceed_ratio: f64) -> Goal {
    let name = if loss_ratio == 0.0 { "NDR".to_owned() } else { "PDR 1%".to_owned() };
    let (initial_duration, final_duration, duration_sum, width) = (0.25, 1.0, 10.0, 0.005);
    Goal { name, loss_ratio, exceed_ratio, initial_duration, final_duration, duration_sum, width, confirmations: 5 }
}

fn searched(limit: f64, goal: &Goal) -> SearchReport {
    let mut device = Device { limit, trials: Vec::new() };
    let results = search(std::slice::from_ref(goal), (100.0, 1e6), &mut device).unwrap();
    let goals: Vec<GoalReport> = vec![goal_report(goal, &results[0], 60.0, &device.trials)];
    let keys = [("size".to_owned(), "60".to_owned())].into();
    let stream = StreamSetup { name: "stream-0".to_owned(), from: 0, to: 1, share: 1.0, mean_size: 60.0, keys };
    SearchReport {
        method: if goal.loss_ratio == 0.0 { "ndr" } else { "pdr" }.to_owned(),
        environment: environment(None),
        stopped: false,
        streams: vec![stream],
        goals,
        trials: device.trials,
        tester_limits: Vec::new(),
    }
}

fn stored(report: &SearchReport) -> Stored {
    Stored::Search(Box::new(report.clone()))
}

fn compared(a: &Stored, b: &Stored) -> Result<CompareReport, String> {
    compare(["a.json", "b.json"], a, b, 0.01).map_err(|reasons| reasons.join("; "))
}

/// A search that is stopped before its first trial.
struct Stopped;

impl Trials for Stopped {
    type Error = ();

    fn measure(&mut self, _: f64, _: f64) -> Result<Measurement, ()> {
        Err(())
    }
}

#[test]
fn bounds_of_a_search_without_trials_are_not_measured() {
    let goal = goal(0.0, 0.0);
    let Err(((), results)) = search(std::slice::from_ref(&goal), (100.0, 10_000.0), &mut Stopped) else {
        panic!("the search has no error")
    };
    let goals = vec![goal_report(&goal, &results[0], 60.0, &[])];
    let report = SearchReport { stopped: true, goals, trials: Vec::new(), ..searched(1_000.0, &goal) };
    let text = report.to_string();
    assert!(text.contains("  lower bound  not measured\n  upper bound  not measured\n"), "{text}");
    assert!(text.contains("trials: 0 in 0 s of traffic"), "{text}");
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["goals"][0]["measured"], false);
    let page = page("x.json", &stored(&report));
    assert!(page.matches("<td>not measured</td>").count() == 2 && !page.contains("-0 s"), "{page}");
}

#[test]
fn complete_search_without_a_bound_names_the_reason() {
    let goal = goal(0.0, 0.0);
    let report = searched(1e9, &goal);
    assert!(report.goals[0].measured && report.goals[0].upper.is_none());
    assert!(report.to_string().contains("upper bound  none: the device fulfils the goal at the highest rate"));
    assert!(page("x.json", &stored(&report)).contains("<td>none</td>"));
}

#[test]
fn search_results_of_a_slower_device_are_worse_and_of_a_faster_device_better() {
    for goal in [goal(0.0, 0.0), goal(0.01, 0.5)] {
        let (slow, fast) = (stored(&searched(10_000.0, &goal)), stored(&searched(20_000.0, &goal)));
        let verdict = |a, b| {
            let report = compared(a, b).unwrap();
            (report.verdict, report.metrics[0].confidence, report.to_string())
        };
        let (worse, confidence, text) = verdict(&fast, &slow);
        assert!(worse == Verdict::Worse && confidence.unwrap() > 0.95, "{text}");
        assert!(text.contains("Fisher's exact test: ") && text.contains("trials of B"), "{text}");
        assert_eq!(verdict(&slow, &fast).0, Verdict::Better);
        let (equal, confidence, text) = verdict(&fast, &fast);
        assert!(equal == Verdict::NoDifferenceShown && confidence.is_none(), "{text}");
        assert!(text.contains("the bounds of the results overlap"), "{text}");
        // Half a percent is within the tolerance.
        let similar = stored(&searched(19_900.0, &goal));
        assert_eq!(verdict(&fast, &similar).0, Verdict::NoDifferenceShown);
    }
}

#[test]
fn few_trials_do_not_show_a_difference() {
    let few = Goal { duration_sum: 1.0, ..goal(0.01, 0.5) };
    let report = compared(&stored(&searched(20_000.0, &few)), &stored(&searched(10_000.0, &few))).unwrap();
    assert_eq!(report.verdict, Verdict::NoDifferenceShown, "{report}");
    assert!(report.metrics[0].confidence.unwrap() < 0.95, "{report}");
}

#[test]
fn ignored_trials_are_no_evidence() {
    let goal = goal(0.0, 0.0);
    let mut slow = searched(10_000.0, &goal);
    slow.trials.iter_mut().for_each(|trial| trial.ignored = true);
    let report = compared(&stored(&searched(20_000.0, &goal)), &stored(&slow)).unwrap();
    assert_eq!(report.verdict, Verdict::NoDifferenceShown, "{report}");
}

#[test]
fn results_that_are_not_comparable_are_refused_with_all_reasons() {
    let report = searched(10_000.0, &goal(0.0, 0.0));
    let why = |change: &dyn Fn(&mut SearchReport)| {
        let mut changed = report.clone();
        change(&mut changed);
        compared(&stored(&report), &stored(&changed)).unwrap_err()
    };
    let key = |report: &mut SearchReport| _ = report.streams[0].keys.insert("size".to_owned(), "1514".to_owned());
    assert_eq!(why(&key), "the stream `stream-0` has different values of `size`: 60 and 1514");
    assert!(why(&|report| report.streams.clear()).contains("the numbers of streams differ: 1 and 0"));
    assert!(why(&|report| report.streams[0].share = 0.5).contains("different shares of the load"));
    assert!(why(&|report| report.goals[0].trial_s = 60.0).contains("the duration of a trial of NDR differs: 1 and 60"));
    assert_eq!(why(&|report| report.stopped = true), "b.json was stopped before its end");
    assert!(
        why(&|report| report.method = "pdr".to_owned()).contains("a.json is a result of `ndr`, and b.json of `pdr`")
    );
    let two = why(&|report| (report.streams[0].share, report.goals[0].complete) = (0.5, false));
    assert!(two.contains("incomplete result of NDR; the stream"), "{two}");
}

#[test]
fn result_of_a_port_whose_link_was_down_is_not_compared() {
    let whole = trial(|_| 10, 5_000);
    let mut down = whole.clone();
    let port = down.ports.iter_mut().find(|port| port.name == down.streams[0].to).unwrap();
    port.link_downs = 1;
    let reason = format!("was measured while the link of the port `{}` was down", port.name);
    let [whole, down] = [whole, down].map(|report| Stored::Rate(Box::new(report)));
    assert!(compared(&whole, &whole).is_ok());
    let why = compared(&whole, &down).unwrap_err();
    assert!(why.contains(&reason), "{why}");
    assert!(page("down.json", &down).contains(&format!("<p class=\"mark\">The result {reason}.</p>")));
}

#[test]
fn debug_build_is_not_compared_with_a_release_build() {
    let compare = |change: fn(&mut Environment)| {
        let mut a = searched(10_000.0, &goal(0.0, 0.0));
        a.environment =
            Environment { profile: "release".to_owned(), build: "00000001".to_owned(), core: Some(1), ..a.environment };
        let mut b = a.clone();
        change(&mut b.environment);
        compared(&stored(&a), &stored(&b)).map(|report| report.notes.join("; "))
    };
    let why = compare(|it| it.profile = "debug".to_owned()).unwrap_err();
    assert!(why.contains("is a `release` build, and the program of the other result is a `debug` build"), "{why}");
    assert_eq!(compare(|it| it.profile = String::new()).unwrap(), "");
    let notes = compare(|it| it.build = "00000002".to_owned()).unwrap();
    assert_eq!(notes, "the build differs: `00000001` and `00000002`");
    assert_eq!(compare(|it| it.core = Some(0)).unwrap(), "the core of the tester differs: `1` and `0`");
    // A result of an earlier version has no build.
    assert_eq!(compare(|it| it.build = String::new()).unwrap(), "");
    let own = environment(None);
    assert_eq!((own.profile.as_str(), own.build.len()), (if cfg!(debug_assertions) { "debug" } else { "release" }, 8));
}

/// Returns the report of a trial of 10 s. Each interval loses `lost` packets, and has the latency `latency` plus some
/// variation.
fn trial(lost: impl Fn(u64) -> u64, latency: u64) -> RateReport {
    let report: RateReport = serde_json::from_str(include_str!("rate.json")).unwrap();
    let stream = &report.streams[0];
    let intervals = || 0..100u64;
    let latency = |number: u64| latency + (number * 7919) % 100;
    let series = SeriesReport {
        interval_s: 0.1,
        sent: intervals().map(|_| 1000).collect(),
        lost: intervals().map(&lost).collect(),
        tx_failed: vec![0; 100],
        latency_mean_ns: intervals().map(latency).collect(),
        latency_max_ns: intervals().map(|number| latency(number) * 3).collect(),
    };
    let mut traffic = stream.traffic.clone();
    traffic.loss_ratio = intervals().map(&lost).sum::<u64>() as f64 / 100_000.0;
    let stream = StreamReport { series, traffic, ..stream.clone() };
    RateReport { streams: vec![stream], ..report }
}

#[test]
fn trials_with_more_loss_or_a_higher_latency_are_worse() {
    let rate = |lost: fn(u64) -> u64, latency| Stored::Rate(Box::new(trial(lost, latency)));
    let base = rate(|_| 0, 10_000);
    for (other, verdict, metric) in [
        (rate(|_| 0, 10_000), Verdict::NoDifferenceShown, ""),
        (rate(|number| number % 3, 10_000), Verdict::Worse, "loss ratio of stream-0: worse"),
        (rate(|_| 0, 11_000), Verdict::Worse, "latency of stream-0 (median of the means of the parts): worse"),
        (rate(|_| 0, 9000), Verdict::Better, "latency of stream-0 (median of the means of the parts): better"),
        // Below the tolerance of 1 %.
        (rate(|_| 0, 10_050), Verdict::NoDifferenceShown, ""),
        // A single burst of losses can be chance.
        (rate(|number| if number == 50 { 900 } else { 0 }, 10_000), Verdict::NoDifferenceShown, ""),
        // The verdict is `worse` if one metric is worse and another metric is better.
        (rate(|number| number % 3, 9000), Verdict::Worse, "loss ratio of stream-0: worse"),
    ] {
        let report = compared(&base, &other).unwrap();
        assert_eq!(report.verdict, verdict, "{report}");
        assert!(report.to_string().contains(metric), "{report}");
    }
    let mut other = trial(|_| 0, 10_000);
    other.streams[0].traffic.requested_pps = Some(1.0);
    let why = compared(&base, &Stored::Rate(Box::new(other))).unwrap_err();
    assert!(why.contains("the requested rates of the stream `stream-0` differ"), "{why}");
}

#[test]
fn page_is_self_contained_and_has_all_charts() {
    let mut lossy = trial(|number| number % 3, 10_000);
    lossy.streams[0].name = "<script>".to_owned();
    lossy.streams[0].latency_ns = Times { count: 1000, min: 1, p50: 10, p90: 20, p99: 30, max: 90, ..Times::default() };
    let pages = [
        (page("a", &Stored::Rate(Box::new(lossy))), ["Packets over time", "Lost packets over time", "Percentiles"]),
        (
            page("b", &stored(&searched(1e4, &goal(0.0, 0.0)))),
            ["Loss ratio and rate", "order of the trials", "NDR lower"],
        ),
    ];
    for (html, parts) in pages {
        for part in parts {
            assert!(html.contains(part), "{part}");
        }
        for outside in ["<script", "http://", "https://", "src=", "NaN", "inf"] {
            assert!(!html.contains(outside), "{outside}\n{html}");
        }
    }
}
