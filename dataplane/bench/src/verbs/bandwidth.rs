//! The loops of the bandwidth tests.

use std::time::Duration;

use dataplane::clock::HostClock;
use dataplane::verbs::Device;
use dataplane::{Error, Result};

use super::endpoint::{Endpoint, POLL, Queue, sent_message};
use super::plan::Plan;
use super::receives::{Receives, check_length};
use super::samples::BandwidthTimes;
use super::watch::Watch;

/// The time without a message after which a receiver ends the test, if the sender has finished and the transport can lose
/// messages.
const LOST: Duration = Duration::from_secs(1);

/// The sends of a queue pair.
#[derive(Clone, Default)]
struct Sends {
    posted: usize,
    completed: usize,
    place: usize,
}

/// Posts all messages of one size, and waits for their completions. With a duration, returns after this time, also while
/// messages are outstanding. After an error, `times` has the messages that have completed.
pub(super) fn post_all<D: Device>(
    end: &mut Endpoint<'_, D>,
    plan: &Plan,
    size: u32,
    clock: &HostClock,
    watch: &mut Watch<'_>,
    times: &mut BandwidthTimes,
) -> Result<()> {
    let (messages, depth, every) = (plan.iterations, plan.tx_depth as usize, plan.cq_mod as usize);
    let places = end.places(size);
    let mut sends = vec![Sends::default(); plan.queue_pairs];
    let mut all_completed = 0;
    while all_completed < plan.messages() && !times.is_over(clock) {
        for (queue_pair, Sends { posted, completed, place }) in sends.iter_mut().enumerate() {
            while *posted < messages && *posted - *completed < depth {
                let is_signaled = *posted % every == every - 1 || *posted == messages - 1;
                times.post(clock.nanos().0);
                end.post_send(queue_pair, *posted as u64, size, *place, is_signaled)?;
                *posted += 1;
                *place = if *place + 1 == places { 0 } else { *place + 1 };
            }
        }
        if end.poll(Queue::Send, POLL)? == 0 {
            watch.empty(end.sleeps())?;
            continue;
        }
        watch.progress();
        watch.check_stop()?;
        let now = clock.nanos().0;
        for completion in end.completions() {
            let (queue_pair, number) = sent_message(completion);
            let covered = covered(number, every);
            sends[queue_pair].completed += covered;
            all_completed += covered;
            times.complete(all_completed, now);
        }
    }
    Ok(())
}

/// Returns the number of messages of a queue pair that complete with the message of this number, if each `every`-th
/// message requests a completion. The sum over all completions is correct in any order of the completions. efa may
/// complete sends in another order than the order of their posts.
fn covered(number: usize, every: usize) -> usize {
    number % every + 1
}

/// Receives all messages of one size. If the transport can lose messages, returns also when the sender has finished and
/// no more messages arrive. With a duration, returns this time after the first message. `times` has the time of the first
/// message, and the number of received messages.
pub(super) fn receive_all<D: Device>(
    end: &mut Endpoint<'_, D>,
    plan: &Plan,
    size: u32,
    receives: &mut Receives,
    clock: &HostClock,
    watch: &mut Watch<'_>,
    times: &mut BandwidthTimes,
) -> Result<()> {
    let mut received = vec![0; plan.queue_pairs];
    let mut all_received = 0;
    while all_received < plan.messages() && !times.is_over(clock) {
        let polled = end.poll(Queue::Receive, POLL)?;
        if polled == 0 {
            watch.empty(end.sleeps())?;
            if plan.loses_messages() && watch.idle_time() >= LOST && watch.peer_has_finished() {
                // With a duration, the number of lost messages is unknown, so the result would not show this loss.
                return if all_received == 0 && plan.duration.is_some() { Err(nothing_arrived()) } else { Ok(()) };
            }
            continue;
        }
        watch.progress();
        watch.check_stop()?;
        let is_first = all_received == 0;
        let begin = clock.nanos().0;
        if is_first {
            times.post(begin);
        }
        check_length(end, size)?;
        for at in 0..polled {
            let queue_pair = end.completions()[at].wr_id as usize;
            received[queue_pair] += 1;
            // A peer with other options can send too many messages on one queue pair.
            receives.replace(end, queue_pair, plan.iterations.saturating_sub(received[queue_pair]))?;
        }
        all_received += polled;
        // A rate needs the messages of at least two polls, because the first poll has no duration.
        times.complete(all_received, if is_first { begin } else { clock.nanos().0 });
    }
    Ok(())
}

#[cold]
fn nothing_arrived() -> Error {
    let help = "check that the network between the devices passes UDP port 4791, the VLAN of the GID and the path MTU";
    Error::Peer(format!("no message arrived; help: {help}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completions_in_any_order_cover_all_messages() {
        for (every, order) in [(1, vec![3, 4, 0, 2, 1]), (2, vec![4, 1, 3]), (3, vec![4, 2]), (100, vec![4])] {
            assert_eq!(order.iter().map(|number| covered(*number, every)).sum::<usize>(), 5, "{every}");
        }
    }
}
