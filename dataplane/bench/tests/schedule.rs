//! The times at which senders send.

use dataplane::header::MacAddr;
use dataplane::mem::{Batch, PageKind, Pool, Region, RegionSpec, SlotLayout};
use dataplane::units::Nanos;
use dataplane_bench::sender::Sender;
use dataplane_bench::signature::Key;
use dataplane_bench::stream::{Stream, StreamPort};

const KEY: Key = Key::new(7);

fn stream(keys: &str) -> Stream {
    let port =
        |(name, last): (&str, u8)| StreamPort { name: name.to_owned(), mac: MacAddr([2, 0, 0, 0, 0, last]), mtu: 1500 };
    let ports: Vec<_> = [("left", 1), ("right", 2)].into_iter().map(port).collect();
    Stream::new(&toml::from_str(keys).unwrap(), 0, &ports).unwrap()
}

fn pool() -> Pool {
    let layout = SlotLayout::new(128, 1700, 64).unwrap();
    let spec = RegionSpec { bytes: layout.bytes(), pages: PageKind::Normal, strict: false, node: None };
    Pool::new(Region::allocate(spec).unwrap().0, layout).unwrap()
}

/// Returns the times at which a sender sends, if the tester polls at each of `polls`. The times do not depend on the number
/// of packets that are sent together.
fn sent_times(
    keys: &str,
    rate: f64,
    duration: u64,
    catch_up: u64,
    polls: impl Iterator<Item = u64> + Clone,
) -> (Vec<u64>, u64) {
    let stream = stream(keys);
    let times_of = |most: usize| {
        let (mut sender, mut pool, mut times) = (Sender::new(&stream, 0), pool(), Vec::new());
        let mut batch = Batch::new(&pool);
        sender.start(KEY, Some(rate), duration, catch_up, 0.0);
        for now in polls.clone() {
            while sender.send_due(&mut batch, &mut pool, Nanos(now), now, most) > 0 {
                times.extend((0..batch.len()).map(|_| now));
                batch.free_into(&mut pool);
            }
        }
        sender.finish(duration);
        assert_eq!(sender.sent(), times.len() as u64);
        (times, sender.missed())
    };
    let times = times_of(1);
    assert_eq!(times_of(5), times);
    times
}

#[test]
fn constant_spacing_has_exactly_the_rate() {
    // 30,000 packets per second do not have a whole number of nanoseconds between packets.
    let (times, missed) = sent_times("", 30_000.0, 1_000_000_000, 10_000, (0..=1_000_000_000).step_by(1000));
    assert_eq!((times.len(), missed), (30_000, 0));
    for (number, time) in times.iter().enumerate() {
        let due = number as f64 * 1e9 / 30_000.0;
        assert!((*time as f64) >= due - 1.0 && (*time as f64) < due + 1001.0, "{number}: {time}");
    }
}

#[test]
fn poisson_spacing_has_an_exponential_distribution() {
    let (times, _) =
        sent_times("spacing = 'poisson'", 10_000.0, 2_000_000_000, 10_000, (0..2_000_000_000).step_by(100));
    let spaces: Vec<f64> = times.windows(2).map(|pair| (pair[1] - pair[0]) as f64 / 1e5).collect();
    let mean = spaces.iter().sum::<f64>() / spaces.len() as f64;
    assert!((0.97..1.03).contains(&mean), "{mean}");
    // The share of the intervals that are longer than x times the mean is exp(-x).
    for x in [0.5f64, 1.0, 2.0] {
        let share = spaces.iter().filter(|space| **space > x).count() as f64 / spaces.len() as f64;
        assert!((share - (-x).exp()).abs() < 0.015, "{x}: {share}");
    }
}

#[test]
fn only_packets_of_the_last_catch_up_time_are_sent_after_a_pause() {
    // One packet is due in each microsecond. The tester does not poll from 100 us to 200 us.
    let polls = || (0..100_000).chain(200_000..300_000).step_by(100);
    let (times, missed) = sent_times("", 1e6, 300_000, 20_000, polls());
    // 20 packets are caught up, and 80 are missed.
    assert!((79..=80).contains(&missed), "{missed}");
    assert_eq!(times.len() as u64 + missed, 300);
    assert_eq!(sent_times("", 1e6, 300_000, 200_000, polls()).1, 0);
}

#[test]
fn packets_of_a_burst_are_sent_back_to_back_and_bursts_keep_the_mean_rate() {
    let (times, missed) = sent_times("burst = 8", 1000.0, 1_000_000_000, 10_000, (0..=1_000_000_000).step_by(1000));
    assert_eq!((times.len(), missed), (1000, 0));
    for (number, time) in times.iter().enumerate() {
        assert_eq!(*time, number as u64 / 8 * 8_000_000);
    }
    let (times, _) =
        sent_times("burst = 4\nspacing = 'poisson'", 10_000.0, 2_000_000_000, 10_000, (0..2_000_000_000).step_by(1000));
    assert!((18_000..22_000).contains(&times.len()), "{}", times.len());
    assert!(times.chunks_exact(4).all(|burst| burst[0] == burst[3]));
}

#[test]
fn whole_bursts_are_missed_after_a_long_pause() {
    // A burst of 10 packets is due in each 10 us. The tester does not poll from 100 us to 200 us.
    let polls = || (0..100_000).chain(200_000..300_000).step_by(100);
    let (times, missed) = sent_times("burst = 10", 1e6, 300_000, 20_000, polls());
    assert_eq!((times.len() as u64 + missed, missed % 10), (300, 0));
    assert!((70..=80).contains(&missed), "{missed}");
}

#[test]
fn stream_sends_only_between_its_start_and_its_stop() {
    let polls = || (0..=1_000_000_000).step_by(1000);
    let (times, missed) = sent_times("start = '200ms'\nstop = '700ms'", 1000.0, 1_000_000_000, 10_000, polls());
    assert_eq!((times.len(), missed), (500, 0));
    assert_eq!((times[0], times[499]), (200_000_000, 699_000_000));
    let mut sender = Sender::new(&stream("start = '1ms'\nstop = '2ms'"), 0);
    sender.start(KEY, None, 1_000_000_000, 0, 0.0);
    let due = [0, 999_999, 1_000_000, 1_999_999, 2_000_000].map(|now| sender.is_due(now));
    assert_eq!(due, [false, false, true, true, false]);
}
