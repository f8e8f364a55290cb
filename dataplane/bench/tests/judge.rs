//! Compares the judge with a simple model that stores all arrivals.

use std::collections::BTreeSet;

use dataplane_bench::judge::{Arrival, Counts, Gap, Judge, Limits};
use proptest::prelude::*;

#[test]
fn packets_that_leave_a_queue_after_the_trial_are_held() {
    let mut judge = Judge::new(16, Limits { late: 1_000, gap: 10_000 });
    let arrival = |sequence, at, latency| Arrival { sequence, at, latency, corrupted: false };
    judge.arrive(arrival(0, 100, 100), 5);
    judge.arrive(arrival(1, 800, 300), 5);
    judge.end_sending(900, 50);
    // The lowest latency is 100, and the time for draining is 50. So a packet that arrives after 900 + 100 + 50 was
    // held by a queue. A late packet counts only as late.
    judge.arrive(arrival(2, 1050, 400), 5);
    judge.arrive(arrival(3, 1051, 400), 5);
    judge.arrive(arrival(4, 1900, 1_001), 5);
    let counts = judge.finish(5, 900).counts;
    assert_eq!((counts.received, counts.late, counts.drained, counts.held), (4, 1, 2, 1));
}

const LIMITS: Limits = Limits { late: 1_000, gap: 400 };

/// The result of the model: the counts, the latencies, the jitters and the gaps.
struct Model {
    counts: Counts,
    latencies: Vec<u64>,
    jitters: Vec<u64>,
    gaps: Vec<Gap>,
}

/// Applies the definitions to the list of all arrivals.
fn model(arrivals: &[Arrival], sent: u64, window: u64, end: u64) -> Model {
    let mut counts = Counts::default();
    let mut seen = BTreeSet::new();
    // The sequence numbers in the order of arrival, without duplicates.
    let mut order: Vec<u64> = Vec::new();
    let (mut latencies, mut jitters, mut gaps) = (Vec::new(), Vec::new(), Vec::new());
    let mut previous: Option<&Arrival> = None;
    let mut last_at = 0;
    let mut note = |at: u64| {
        if at > last_at && at - last_at > LIMITS.gap {
            gaps.push(Gap { start: last_at, length: at - last_at });
        }
        last_at = last_at.max(at);
    };
    for arrival in arrivals {
        let highest = order.iter().max().copied();
        if arrival.sequence >= sent {
            counts.unsent += 1;
            continue;
        }
        if highest.is_some_and(|highest| arrival.sequence + window <= highest) {
            counts.too_old += 1;
            continue;
        }
        if !seen.insert(arrival.sequence) {
            counts.duplicated += 1;
            continue;
        }
        // RFC 4737, section 4.2.2: the extent is the distance to the earliest arrival with a higher number.
        if let Some(first) = order.iter().position(|earlier| *earlier > arrival.sequence) {
            let extent = (order.len() - first) as u64;
            counts.reordered += 1;
            counts.extents += extent;
            counts.max_extent = counts.max_extent.max(extent);
        }
        order.push(arrival.sequence);
        note(arrival.at);
        if arrival.corrupted {
            counts.corrupted += 1;
            previous = None;
            continue;
        }
        if arrival.latency > LIMITS.late {
            counts.late += 1
        } else {
            counts.received += 1
        }
        latencies.push(arrival.latency);
        if let Some(before) = previous.filter(|before| before.sequence + 1 == arrival.sequence) {
            jitters.push(arrival.latency.abs_diff(before.latency));
        }
        previous = Some(arrival);
    }
    if sent > 0 {
        note(end);
    }
    counts.lost = sent - seen.len() as u64;
    Model { counts, latencies, jitters, gaps }
}

/// Arrivals that are mostly in order, with losses, duplicates, jumps back and corruption. Many arrivals have the times of
/// the arrival before.
fn arrivals(sent: u64) -> impl Strategy<Value = Vec<Arrival>> {
    let times = prop_oneof![(0u64..500, 1u64..1500).prop_map(Some), Just(None), Just(None)];
    let step = (prop_oneof![8 => Just(1i64), 1 => -20i64..40, 1 => -200i64..400], times, 0u8..20);
    prop::collection::vec(step, 0..300).prop_map(move |steps| {
        let (mut sequence, mut at, mut latency) = (-1i64, 0, 1);
        let arrival = |(step, times, corrupted): (i64, Option<(u64, u64)>, u8)| {
            sequence = (sequence + step).clamp(0, sent as i64 + 2);
            if let Some((wait, new)) = times {
                (at, latency) = (at + wait, new);
            }
            Arrival { sequence: sequence as u64, at, latency, corrupted: corrupted == 0 }
        };
        steps.into_iter().map(arrival).collect()
    })
}

/// Judges the arrivals. With `in_runs`, judges consecutive packets with equal times together.
fn judge(arrivals: &[Arrival], sent: u64, window: usize, end: u64, in_runs: bool) -> dataplane_bench::judge::Judgement {
    let mut judge = Judge::new(window, LIMITS);
    // The results of an earlier trial must not matter.
    judge.start();
    judge.arrive(Arrival { sequence: 3, at: 9_999, latency: 77, corrupted: false }, 10);
    judge.start();
    let follows = |a: &Arrival, b: &Arrival| in_runs && *b == (Arrival { sequence: a.sequence + 1, ..*a });
    for run in arrivals.chunk_by(follows) {
        match in_runs {
            true => judge.arrive_run(run[0], run.len() as u64, sent),
            false => judge.arrive(run[0], sent),
        }
    }
    judge.finish(sent, end)
}

proptest! {
    #[test]
    fn judge_agrees_with_the_model(
        (sent, arrivals) in (1u64..500).prop_flat_map(|sent| (Just(sent), arrivals(sent))),
        window in prop::sample::select(vec![8usize, 64, 1024]),
        in_runs: bool,
    ) {
        let end = arrivals.last().map_or(1000, |last| last.at + 50);
        let (found, model) = (judge(&arrivals, sent, window, end, in_runs), model(&arrivals, sent, window as u64, end));
        prop_assert_eq!(found.counts, model.counts);
        prop_assert_eq!(found.counts.arrived(), arrivals.len() as u64);
        let sum = found.counts.received + found.counts.corrupted + found.counts.late + found.counts.lost;
        prop_assert_eq!(sum, sent);
        prop_assert_eq!(found.gap_count, model.gaps.len() as u64);
        for (histogram, mut values) in [(found.latency, model.latencies), (found.jitter, model.jitters)] {
            values.sort_unstable();
            prop_assert_eq!(histogram.len(), values.len() as u64);
            for quantile in [0.5, 0.9, 0.99, 1.0] {
                let Some(rank) = ((values.len() as f64 * quantile).ceil() as usize).checked_sub(1) else { continue };
                // The histogram starts at 1 ns, and has an error of at most 0.1 %.
                let (measured, value) =
                    (histogram.value_at_quantile(quantile).max(1) as f64, values[rank].max(1) as f64);
                prop_assert!((measured / value - 1.0).abs() <= 0.001, "{measured} {value}");
            }
        }
        if model.gaps.len() <= dataplane_bench::judge::STORED_GAPS {
            prop_assert_eq!(found.gaps, model.gaps);
        }
    }
}

fn in_order(sequences: &[u64]) -> Vec<Arrival> {
    let arrival =
        |(at, sequence): (usize, &u64)| Arrival { sequence: *sequence, at: at as u64, latency: 5, corrupted: false };
    sequences.iter().enumerate().map(arrival).collect()
}

/// The examples of RFC 4737, sections 4.2.3 and 7.
#[test]
fn reordering_has_the_extents_of_the_standard() {
    for (order, reordered, max_extent, extents) in [
        (&[1u64, 2, 3, 7, 4, 5, 6, 8][..], 3, 3, 6),
        (&[1, 4, 2, 5, 3, 6, 7, 8], 2, 3, 4),
        (&[1, 2, 3, 4, 5, 6, 7, 8], 0, 0, 0),
        (&[1, 2, 3, 3, 4], 0, 0, 0),
    ] {
        let sequences: Vec<u64> = order.iter().map(|number| number - 1).collect();
        let counts = judge(&in_order(&sequences), 8, 64, 10, false).counts;
        assert_eq!(
            (counts.reordered, counts.max_extent, counts.extents),
            (reordered, max_extent, extents),
            "{order:?}"
        );
    }
}

#[test]
fn times_before_the_start_and_after_the_stop_of_a_stream_are_not_gaps() {
    let mut judge = Judge::new(16, Limits { late: 1_000, gap: 100 });
    judge.start();
    judge.expect(500, 900);
    for (sequence, at) in [(0, 510), (1, 750), (2, 890)] {
        judge.arrive(Arrival { sequence, at, latency: 10, corrupted: false }, 3);
    }
    let judgement = judge.finish(3, 2_000);
    assert_eq!(judgement.gap_count, 2);
    assert_eq!(judgement.gaps, [Gap { start: 510, length: 240 }, Gap { start: 750, length: 140 }]);
}
