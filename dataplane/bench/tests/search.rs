//! Tests of searches on simulated devices whose capacity is known. A strict goal has `exceed_ratio` 0: no trial may
//! lose more packets than the loss ratio of the goal allows.

use dataplane_bench::search::*;
use proptest::prelude::*;

fn goal(loss_ratio: f64, exceed_ratio: f64) -> Goal {
    Goal {
        name: "goal".to_owned(),
        loss_ratio,
        exceed_ratio,
        initial_duration: 0.25,
        final_duration: 1.0,
        duration_sum: 10.0,
        width: 0.005,
        confirmations: 0,
    }
}

/// A device in software: a function from the load, the start time and the duration of a trial to the loss ratio.
struct Device<F> {
    loss: F,
    now: f64,
    loads: Vec<f64>,
}

impl<F: FnMut(f64, f64, f64) -> f64> Trials for Device<F> {
    type Error = String;

    fn measure(&mut self, load: f64, duration: f64) -> Result<Measurement, String> {
        let loss_ratio = (self.loss)(load, self.now, duration);
        self.now += duration;
        self.loads.push(load);
        Ok(Measurement { duration, loss_ratio })
    }
}

fn device<F: FnMut(f64, f64, f64) -> f64>(loss: F) -> Device<F> {
    Device { loss, now: 0.0, loads: Vec::new() }
}

fn run(goals: &[Goal], range: (f64, f64), loss: impl FnMut(f64, f64, f64) -> f64) -> Vec<GoalResult> {
    search(goals, range, &mut device(loss)).unwrap()
}

fn limited(capacity: f64) -> impl FnMut(f64, f64, f64) -> f64 {
    move |load, _, _| ((load - capacity) / load).max(0.0)
}

proptest! {
    #[test]
    fn limit_of_a_device_is_found(capacity in 150.0..9e6f64, exceed in prop::sample::select(vec![0.0, 0.5])) {
        let goals = [goal(0.0, exceed), goal(0.01, exceed)];
        let [ndr, pdr] = &run(&goals, (100.0, 1e7), limited(capacity))[..] else { panic!() };
        for (result, truth) in [(ndr, capacity), (pdr, capacity / 0.99)] {
            let [lower, upper] = [&result.lower, &result.upper].map(|bound| bound.as_ref().unwrap().load);
            prop_assert!(lower <= truth && truth <= upper, "{lower} {truth} {upper}");
            prop_assert!((upper - lower) / upper <= 0.005, "{lower} {upper}");
            prop_assert!(result.complete);
        }
        prop_assert!(pdr.conditional_throughput.unwrap() <= capacity * 1.0001);
    }

    #[test]
    fn search_ends_on_any_device(seed: u64, noise in 0.0..0.5f64) {
        let mut state = seed;
        let random = move |load: f64, _: f64, _: f64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let noise = (state >> 40) as f64 / (1u64 << 24) as f64 * noise;
            ((load - 5e4) / load).max(0.0).max(noise - 0.2)
        };
        let mut device = device(random);
        let results = search(&[goal(0.0, 0.5), goal(0.05, 0.5)], (100.0, 1e5), &mut device).unwrap();
        for result in results {
            if let (Some(lower), Some(upper)) = (result.lower, result.upper) {
                prop_assert!(lower.load < upper.load);
            }
        }
    }
}

#[test]
fn device_without_loss_has_the_highest_load_as_lower_bound() {
    let [result] = &run(&[goal(0.0, 0.5)], (100.0, 1e6), |_, _, _| 0.0)[..] else { panic!() };
    assert_eq!(result.lower.as_ref().map(|bound| bound.load), Some(1e6));
    assert_eq!((result.upper.as_ref(), result.complete), (None, true));
    assert_eq!(result.conditional_throughput, Some(1e6));
}

#[test]
fn device_that_loses_at_every_load_has_no_lower_bound() {
    let [result] = &run(&[goal(0.0, 0.5)], (100.0, 1e6), |_, _, _| 0.1)[..] else { panic!() };
    assert_eq!(result.upper.as_ref().map(|bound| bound.load), Some(100.0));
    assert_eq!((result.lower.as_ref(), result.complete), (None, true));
}

/// The device carries up to 1000 packets per second. If the load exceeds 400 packets per second, the device pauses
/// every 2.5 s for 50 ms. Most short trials see no loss.
#[test]
fn rare_bursts_of_loss_do_not_raise_a_strict_result() {
    let loss = |load: f64, now: f64, duration: f64| {
        let has_burst = ((now + duration) / 2.5).floor() > (now / 2.5).floor();
        let burst = if has_burst && load > 400.0 { 0.05 / duration } else { 0.0 };
        burst.max((load - 1000.0) / load)
    };
    let [strict] = &run(&[goal(0.0, 0.0)], (10.0, 1e5), loss)[..] else { panic!() };
    let lower = strict.lower.as_ref().unwrap();
    assert!((397.0..=400.0).contains(&lower.load), "{lower:?}");
    assert_eq!((lower.exceeded, lower.trials), (0, 10));
}

/// A short trial with loss decides a strict goal, so the search runs no full-length trial at the upper bound.
#[test]
fn upper_bound_counts_the_short_trials_that_it_rests_on() {
    let mut only_short = 0;
    for capacity in [997.0, 1234.5, 5000.0, 7777.0] {
        let [result] = &run(&[goal(0.0, 0.0)], (10.0, 1e5), limited(capacity))[..] else { panic!() };
        let upper = result.upper.as_ref().unwrap();
        assert!(upper.trials + upper.short_trials > 0, "{upper:?}");
        assert_eq!((upper.exceeded, upper.short_exceeded), (upper.trials, upper.short_trials), "{upper:?}");
        only_short += u64::from(upper.trials == 0);
        let lower = result.lower.as_ref().unwrap();
        assert_eq!((lower.exceeded, lower.short_exceeded), (0, 0), "{lower:?}");
    }
    assert!(only_short > 0);
}

/// The device loses packets in 40 % of the trials above 400 packets per second. The test compares a tester that is
/// never disturbed with a tester that is disturbed in each trial.
#[test]
fn disturbed_trials_do_not_raise_a_result() {
    struct Disturbed {
        state: u64,
        is_disturbed: bool,
    }
    impl Trials for Disturbed {
        type Error = String;
        fn measure(&mut self, load: f64, duration: f64) -> Result<Measurement, String> {
            let mut attempt = 0;
            loop {
                attempt += 1;
                self.state = self.state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let has_loss = load > 400.0 && (self.state >> 40) as f64 / (1u64 << 24) as f64 <= 0.4;
                let loss_ratio = if has_loss { 0.01 } else { ((load - 1000.0) / load).max(0.0) };
                if !is_ignored(self.is_disturbed, attempt) {
                    return Ok(Measurement { duration, loss_ratio });
                }
            }
        }
    }
    // By chance, all ten trials at a load above 400 can have no loss, so a few results are too high.
    let too_high = |is_disturbed: bool| {
        let is_too_high = |seed: &u64| {
            let state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let results = search(&[goal(0.0, 0.0)], (10.0, 1e4), &mut Disturbed { state, is_disturbed }).unwrap();
            results[0].lower.as_ref().is_some_and(|lower| lower.load > 410.0)
        };
        (0..200).filter(is_too_high).count()
    };
    let counts = [too_high(false), too_high(true)];
    assert!(counts.iter().all(|count| *count < 20), "{counts:?}");
}

#[test]
fn short_trial_without_loss_is_not_a_lower_bound() {
    let goal = goal(0.0, 0.5);
    let trial = |duration, loss_ratio| Measurement { duration, loss_ratio };
    assert_eq!(classify(&goal, &[]), Class::Undecided);
    assert_eq!(classify(&goal, &vec![trial(0.5, 0.0); 1000]), Class::Undecided);
    assert_eq!(classify(&goal, &[trial(1.0, 0.0); 4]), Class::Undecided);
    assert_eq!(classify(&goal, &[trial(1.0, 0.0); 5]), Class::Lower);
    assert_eq!(classify(&goal, &[trial(1.0, 0.1); 5]), Class::Upper);
    // A strict goal needs all ten trials without loss.
    let strict = Goal { exceed_ratio: 0.0, ..goal };
    assert_eq!(classify(&strict, &[trial(1.0, 0.0); 9]), Class::Undecided);
    assert_eq!(classify(&strict, &[trial(1.0, 0.0); 10]), Class::Lower);
    assert_eq!(classify(&strict, &[trial(0.25, 0.1)]), Class::Upper);
}

#[test]
fn equal_devices_get_equal_trials() {
    let loads = |_| {
        let mut device = device(limited(7777.0));
        search(&[goal(0.0, 0.5)], (100.0, 1e6), &mut device).unwrap();
        device.loads
    };
    assert_eq!(loads(0), loads(1));
}

#[test]
fn error_of_a_trial_ends_the_search_with_the_results_so_far() {
    struct Failing(u32);
    impl Trials for Failing {
        type Error = &'static str;
        fn measure(&mut self, load: f64, duration: f64) -> Result<Measurement, Self::Error> {
            self.0 += 1;
            match self.0 {
                20 => Err("stopped"),
                _ => Ok(Measurement { duration, loss_ratio: if load > 500.0 { 0.5 } else { 0.0 } }),
            }
        }
    }
    let (error, results) = search(&[goal(0.0, 0.5)], (100.0, 1e6), &mut Failing(0)).unwrap_err();
    assert_eq!(error, "stopped");
    assert!(!results[0].complete);
}

/// The values are from R: `binom.test(x, n)$conf.int`.
#[test]
fn confidence_interval_matches_the_values_of_r() {
    for (hits, trials, lower, upper) in [
        (0, 10, 0.0, 0.308_497),
        (10, 10, 0.691_503, 1.0),
        (1, 10, 0.002_529, 0.445_016),
        (5, 10, 0.187_086, 0.812_914),
    ] {
        let found = confidence_interval(hits, trials);
        assert!((found.0 - lower).abs() < 1e-5 && (found.1 - upper).abs() < 1e-5, "{hits} of {trials}: {found:?}");
    }
    assert_eq!(confidence_interval(0, 0), (0.0, 1.0));
}

#[test]
fn upper_bound_of_a_strict_goal_is_confirmed_by_full_length_trials() {
    let strict = Goal { confirmations: 3, ..goal(0.0, 0.0) };
    let results = run(&[strict], (100.0, 1e6), limited(7777.0));
    let upper = results[0].upper.as_ref().unwrap();
    assert!(upper.trials >= 3 && upper.exceeded == upper.trials, "{upper:?}");
    assert!(results[0].complete);
}
