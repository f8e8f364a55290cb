//! The loops of the latency tests.

use dataplane::Result;
use dataplane::clock::HostClock;
use dataplane::verbs::Device;

use super::endpoint::{Endpoint, Queue};
use super::plan::{Plan, Role};
use super::receives::{Receives, check_length};
use super::samples::LatencyTimes;
use super::watch::Watch;

/// Waits for one completion.
fn wait<D: Device>(end: &mut Endpoint<'_, D>, queue: Queue, watch: &mut Watch<'_>) -> Result<()> {
    while end.poll(queue, 1)? == 0 {
        watch.empty(end.sleeps())?;
    }
    watch.progress();
    Ok(())
}

/// Sends messages back and forth. The client sends first.
pub(super) fn send_in_turn<D: Device>(
    end: &mut Endpoint<'_, D>,
    plan: &Plan,
    size: u32,
    role: Role,
    receives: &mut Receives,
    (clock, watch): (&HostClock, &mut Watch<'_>),
    times: &mut LatencyTimes,
) -> Result<()> {
    let messages = plan.iterations;
    let (mut sent, mut received) = (0, 0);
    while sent < messages || received < messages {
        watch.check_stop()?;
        if received < messages && (sent > 0 || role == Role::Server) {
            wait(end, Queue::Receive, watch)?;
            check_length(end, size)?;
            received += 1;
            receives.replace(end, 0, messages - received)?;
        }
        if sent < messages {
            times.post(clock.nanos().0);
            end.post_send(0, sent as u64, size, 0, true)?;
            sent += 1;
            wait(end, Queue::Send, watch)?;
        }
    }
    Ok(())
}

/// Writes messages back and forth. The server writes first, as in perftest. The last byte of a message is the number of
/// the message, and the peer polls this byte.
pub(super) fn write_in_turn<D: Device>(
    end: &mut Endpoint<'_, D>,
    plan: &Plan,
    size: u32,
    role: Role,
    (clock, watch): (&HostClock, &mut Watch<'_>),
    times: &mut LatencyTimes,
) -> Result<()> {
    let messages = plan.iterations;
    let (mut sent, mut received) = (0, 0);
    while sent < messages || received < messages {
        watch.check_stop()?;
        if received < messages && (sent > 0 || role == Role::Client) {
            received += 1;
            while end.read_last_byte(size) != received as u8 {
                if plan.yields {
                    std::thread::yield_now();
                }
                watch.empty(false)?;
            }
            watch.progress();
        }
        if sent < messages {
            times.post(clock.nanos().0);
            sent += 1;
            end.write_last_byte(size, sent as u8);
            end.post_send(0, sent as u64, size, 0, true)?;
            wait(end, Queue::Send, watch)?;
        }
    }
    Ok(())
}

/// Posts one request after the other: reads or atomics, which return after one round trip.
pub(super) fn fetch_in_turn<D: Device>(
    end: &mut Endpoint<'_, D>,
    plan: &Plan,
    size: u32,
    (clock, watch): (&HostClock, &mut Watch<'_>),
    times: &mut LatencyTimes,
) -> Result<()> {
    for number in 0..plan.iterations {
        watch.check_stop()?;
        times.post(clock.nanos().0);
        end.post_send(0, number as u64, size, 0, true)?;
        wait(end, Queue::Send, watch)?;
    }
    Ok(())
}
