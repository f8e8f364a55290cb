//! The outcome of a trial.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;

use super::clocks::ClockSteps;
use super::core_load::CoreLoad;
use crate::judge::Judgement;
use crate::series::{Intervals, Point, Shares};
use crate::stream::Stream;

/// The result of a stream in a trial.
#[derive(Clone, Debug)]
pub struct StreamOutcome {
    /// The packets with a signature that were passed to the port.
    pub sent: u64,
    /// The packets that were passed to the port without a signature: the stream sends frames from a capture file, and
    /// these frames have no room for a signature. The tester does not judge these packets.
    pub unsigned: u64,
    /// The packets that were due, but that the tester could not send in time.
    pub missed: u64,
    /// The time from the planned to the actual transmission, in nanoseconds. Empty if the rate is not limited.
    pub pacing: Histogram<u64>,
    /// The judgement. The latency and the jitter are empty if the clock error of the receiving port is unknown.
    pub judgement: Judgement,
    /// The counts and the latencies of the packets, one point for each interval in [`Outcome::intervals`].
    pub series: Vec<Point>,
}

impl StreamOutcome {
    /// Returns the number of packets that the port of the tester did not send. If several streams send from a port, the
    /// port does not know the streams of these packets. In each interval, the packets are then divided in proportion to
    /// the packets of each stream that did not arrive in time.
    pub fn tx_failed(&self) -> u64 {
        self.series.iter().map(|point| point.tx_failed).sum::<u64>().min(self.judgement.counts.lost)
    }

    /// Removes the latencies and the jitter.
    pub(super) fn remove_latency(&mut self) {
        self.judgement.latency.reset();
        self.judgement.jitter.reset();
        for point in self.series.iter_mut().chain(&mut self.judgement.series) {
            (point.latency_sum, point.latency_max) = (0, 0);
        }
    }
}

impl Outcome {
    /// Returns the number of packets of each stream that the tester was too slow to receive. If several streams arrive at
    /// a port, the port does not know the streams of these packets. The packets are then divided in proportion to the
    /// packets of each stream that did not arrive.
    pub fn overruns(&self, streams: &[Stream]) -> Vec<u64> {
        let lost = |stream: &StreamOutcome| stream.judgement.counts.lost - stream.tx_failed();
        let mut overruns = vec![0; self.streams.len()];
        for (port, outcome) in self.ports.iter().enumerate() {
            let to_port = || self.streams.iter().zip(streams).filter(move |(_, stream)| stream.to == port);
            // Packets of other hosts can be part of the overrun.
            let mut shares = Shares::new(outcome.overrun, to_port().map(|(stream, _)| lost(stream)).sum());
            let of_port = overruns.iter_mut().zip(self.streams.iter().zip(streams));
            for (overrun, (stream, _)) in of_port.filter(|(_, (_, stream))| stream.to == port) {
                *overrun = shares.next(lost(stream));
            }
        }
        overruns
    }
}

/// The counts of a port in a trial.
#[derive(Clone, Debug, Default)]
pub struct PortOutcome {
    /// Packets that were passed to the port.
    pub offered: u64,
    /// Packets that the device sent.
    pub tx: u64,
    /// Packets that the device did not send.
    pub tx_failed: u64,
    /// Packets that the device received.
    pub rx: u64,
    /// Received packets with a signature of this trial.
    pub judged: u64,
    /// Received packets without a signature of this trial.
    pub foreign: u64,
    /// Packets that the device lost because the tester was too slow to receive them.
    pub overrun: u64,
    /// The counters of the device that changed in the trial, and the increase of each counter.
    pub device: BTreeMap<String, u64>,
    /// Whether the link is up at the end of the trial, if the device reports the state.
    pub link_up: Option<bool>,
    /// How often the link went down in the trial, if the port has an interface of the kernel.
    pub link_downs: u64,
    /// The clock of the receive times.
    pub clock: String,
    /// The maximum error of the conversion of a receive time to the system clock in nanoseconds, or `None` if the error
    /// is unknown.
    pub clock_error: Option<u64>,
    /// How often a clock of the device jumped or stopped in the trial.
    pub clock_faults: u64,
}

/// The result of a trial.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The time in which packets were sent, in nanoseconds.
    pub duration: u64,
    /// The streams, in order.
    pub streams: Vec<StreamOutcome>,
    /// The ports, in order.
    pub ports: Vec<PortOutcome>,
    /// The longest time between two iterations of the loop while the tester was sending, in nanoseconds.
    pub longest_pause: u64,
    /// The time from the first transmission until the traffic had settled, in nanoseconds.
    pub elapsed: u64,
    /// The part of `elapsed` in which the thread was ready to run, but had no core.
    pub waited: u64,
    /// The other disturbances of the core of the tester.
    pub core: CoreLoad,
    /// The steps of the clocks of the host. The wall clock counts only if it is the clock of the receive times.
    pub clock_steps: ClockSteps,
    /// Whether the trial was stopped before its end.
    pub stopped: bool,
    /// The intervals of the trial. The `series` of each stream has one point for each interval.
    pub intervals: Intervals,
}
