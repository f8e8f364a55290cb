//! The exchange of messages: the order of the sends, and the results.
//!
//! First, the client sends as many messages as the window allows on each queue pair. Each side then answers each
//! received message with one message. The window limits the number of incomplete sends on each queue pair. The
//! rdma-core programs behave like this program with a window of 1.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use dataplane::clock::{HostClock, Stamp};
use dataplane::lane::message::{poll, poll_or_sleep};
use dataplane::telemetry::Latency;
use dataplane::verbs::{Completion, Device, WcStatus};

use crate::Result;
use crate::args::Plan;
use crate::check::{Findings, Label, Tracker};
use crate::end::{Endpoint, Work};

/// The maximum number of completions polled at once.
const BURST: usize = 64;
/// The number of poll loops between two checks of the deadline.
const DEADLINE_CHECK_INTERVAL: u32 = 256;
/// The value of the field `answers` in a message that is not an answer.
const NO_SEQUENCE: u64 = u64::MAX;

/// The role of a side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The side that sends first.
    Client,
    /// The side that responds.
    Server,
}

/// The results of a run.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// Sends that completed successfully.
    pub(crate) sent: u64,
    /// Messages received.
    pub(crate) received: u64,
    /// Received messages of the wrong size.
    pub(crate) wrong_size: u64,
    /// The results of the message check, if messages are checked.
    pub(crate) findings: Option<Findings>,
    /// The time from a message of the client to the answer to this message.
    pub(crate) latency: Latency,
    /// The duration of the exchange of messages.
    pub(crate) elapsed: Duration,
    /// The reason why the run ended early.
    pub(crate) failure: Option<String>,
}

/// The state of a queue pair.
struct QueueState {
    /// The sequence numbers of the received messages that are not answered yet.
    due: VecDeque<u64>,
    posted: u64,
    completed: u64,
    received: u64,
    /// The sequence number and the send time of each message in the window.
    stamps: Vec<(u64, Stamp)>,
    tracker: Option<Tracker>,
}

struct Traffic<'a, D: Device> {
    end: &'a mut Endpoint<D>,
    plan: &'a Plan,
    role: Role,
    queues: Vec<QueueState>,
    clock: HostClock,
    latency: Latency,
    /// The buffer in which messages are built and checked.
    message: Vec<u8>,
    posted: u64,
    completed: u64,
    received: u64,
    wrong_size: u64,
}

/// Runs until all messages are exchanged, an error occurs, or the deadline passes.
pub(crate) fn run<D: Device>(end: &mut Endpoint<D>, plan: &Plan, role: Role, until: Instant) -> Outcome {
    let window = plan.window as usize;
    let queue_state = |queue| {
        let mut due = VecDeque::with_capacity(plan.rx_depth as usize);
        if role == Role::Client {
            due.resize(window, NO_SEQUENCE);
        }
        let tracker = plan.check.then(|| Tracker::new(queue as u32, plan.iterations));
        let stamps = vec![(NO_SEQUENCE, Stamp::NONE); window];
        QueueState { due, posted: 0, completed: 0, received: 0, stamps, tracker }
    };
    let queues = (0..end.queues()).map(queue_state).collect();
    let mut traffic = Traffic {
        end,
        plan,
        role,
        queues,
        clock: HostClock::new(),
        latency: Latency::new(),
        message: vec![if role == Role::Client { 0x7c } else { 0x7b }; plan.size as usize],
        posted: 0,
        completed: 0,
        received: 0,
        wrong_size: 0,
    };
    if !plan.check {
        traffic.fill();
    }
    let begin = Instant::now();
    let ended = traffic.exchange(until);
    let elapsed = begin.elapsed();
    traffic.into_outcome(elapsed, ended)
}

impl<D: Device> Traffic<'_, D> {
    /// Writes a message to each send slot. Without `--check`, the slots never change, so all messages are equal.
    fn fill(&self) {
        for queue in 0..self.queues.len() {
            (0..self.plan.window).for_each(|slot| self.end.write(queue, slot, &self.message));
        }
    }

    fn now(&self) -> Stamp {
        Stamp::new(self.clock.nanos(), self.clock.timebase().source)
    }

    fn is_done(&self) -> bool {
        let all = self.plan.iterations;
        self.posted == all && self.completed == all && self.received >= all
    }

    fn exchange(&mut self, until: Instant) -> Result<()> {
        let mut completions = Vec::with_capacity(BURST);
        for queue in 0..self.queues.len() {
            self.send_due(queue)?;
        }
        let mut rounds = 0u32;
        while !self.is_done() {
            rounds = rounds.wrapping_add(1);
            if (self.plan.events || rounds.is_multiple_of(DEADLINE_CHECK_INTERVAL)) && Instant::now() >= until {
                return Err(self.overdue().into());
            }
            self.wait(&mut completions, until)?;
            for completion in completions.drain(..) {
                self.complete(&completion)?;
            }
        }
        Ok(())
    }

    fn wait(&mut self, completions: &mut Vec<Completion>, until: Instant) -> Result<()> {
        let end = &mut *self.end;
        let polled = match &end.channel {
            Some(channel) => {
                let left = until.saturating_duration_since(Instant::now());
                poll_or_sleep(&mut end.cq, channel, completions, BURST, left)
            }
            None => poll(&mut end.cq, completions, BURST),
        };
        if polled.map_err(|error| error.on(self.end.device()))? == 0 {
            // Yield the core, because the other side may run on the same core.
            std::thread::yield_now();
        }
        Ok(())
    }

    fn complete(&mut self, completion: &Completion) -> Result<()> {
        let work = Work::of(completion.wr_id);
        let number = completion.qp_num().ok_or("a completion has no queue pair number")?;
        if completion.status != WcStatus::Success {
            return Err(failed(completion, work).into());
        }
        let queue =
            self.end.queue(number).ok_or_else(|| format!("a completion has the unknown queue pair {number}"))?;
        match work {
            Work::Send => {
                self.queues[queue].completed += 1;
                self.completed += 1;
            }
            Work::Receive(slot) => {
                let length = completion.byte_len().and_then(|bytes| self.end.length(bytes)).unwrap_or(0);
                let of = self.take(queue, slot, length);
                // Post the receive request before the answer is sent, because the peer may send its next message as
                // soon as the peer receives the answer.
                self.end.post_receive(queue, slot)?;
                self.queues[queue].due.push_back(of);
            }
        }
        self.send_due(queue)
    }

    /// Handles a received message. Returns its sequence number on the queue pair.
    fn take(&mut self, queue: usize, slot: u32, length: usize) -> u64 {
        let now = self.now();
        let queue_state = &mut self.queues[queue];
        // Without `--check`, messages have no label. The messages of a queue pair are assumed to arrive in order, so
        // the number of earlier messages is the sequence number. If a message is lost, the run does not complete.
        let (mut number, mut answers) = (queue_state.received, queue_state.received);
        queue_state.received += 1;
        self.received += 1;
        let fits = length == self.message.len();
        self.wrong_size += u64::from(!fits);
        if let Some(tracker) = &mut queue_state.tracker {
            // A message that is too short is also checked, and counts as corrupt.
            let message = &mut self.message[..length.min(self.plan.size as usize)];
            self.end.read(slot, message);
            let label = tracker.take(message);
            (number, answers) = label.map_or((number, NO_SEQUENCE), |label| (label.sequence, label.answers));
        }
        let (sent, stamp) = queue_state.stamps[(answers % queue_state.stamps.len() as u64) as usize];
        if self.role == Role::Client && sent == answers && answers != NO_SEQUENCE {
            self.latency.record(stamp, now, 1);
        }
        number
    }

    /// Sends the messages that are due on a queue pair, as many as the window allows.
    fn send_due(&mut self, queue: usize) -> Result<()> {
        let window = u64::from(self.plan.window);
        loop {
            let queue_state = &mut self.queues[queue];
            if self.posted == self.plan.iterations || queue_state.posted - queue_state.completed == window {
                return Ok(());
            }
            let Some(answers) = queue_state.due.pop_front() else { return Ok(()) };
            let sequence = queue_state.posted;
            // Sends complete in order, so the previous send from this slot is complete.
            let slot = (sequence % window) as u32;
            if self.plan.check {
                Label { queue: queue as u32, sequence, answers }.write(&mut self.message);
                self.end.write(queue, slot, &self.message);
            }
            queue_state.posted += 1;
            self.posted += 1;
            let now = self.now();
            self.queues[queue].stamps[slot as usize] = (sequence, now);
            self.end.post_send(queue, slot)?;
        }
    }

    /// Describes how many messages were sent and received until the deadline, and possible reasons for missing
    /// messages.
    fn overdue(&self) -> String {
        let Self { completed, received, plan, .. } = self;
        let mut text =
            format!("deadline reached: {completed} of {} messages sent, {received} received.", plan.iterations);
        text += " The run may need a longer --deadline, or ";
        text += match plan.kind.kind() {
            dataplane::verbs::QpType::Rc => {
                "the peer may have ended: with retry count 7, a device may retry indefinitely and report no error"
            }
            _ => "a message may be lost: this transport does not retransmit",
        };
        text
    }

    fn into_outcome(self, elapsed: Duration, ended: Result<()>) -> Outcome {
        let mut findings = None;
        for tracker in self.queues.iter().filter_map(|queue_state| queue_state.tracker.as_ref()) {
            findings.get_or_insert_with(Findings::default).add(&tracker.findings());
        }
        if let (Some(findings), Ok(())) = (&mut findings, &ended) {
            findings.lost = self.plan.iterations.saturating_sub(findings.good);
        }
        Outcome {
            sent: self.completed,
            received: self.received,
            wrong_size: self.wrong_size,
            findings,
            latency: self.latency,
            elapsed,
            failure: ended.err().map(|error| error.to_string()),
        }
    }
}

fn failed(completion: &Completion, work: Work) -> String {
    let what = if work == Work::Send { "send" } else { "receive" };
    let status = completion.status;
    let hint = match status {
        WcStatus::LocLenErr | WcStatus::RemInvReqErr => "; help: set the same --size on both sides",
        _ => "",
    };
    format!("a {what} failed: {status} ({}): {}{hint}", status.description(), status.likely_cause())
}
