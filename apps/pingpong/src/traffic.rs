//! The messages: who sends when, and what comes of it.
//!
//! The client begins with as many messages as the window is wide, on each queue pair. From then on each side answers each
//! message that it receives with one, and has at most a window of sends on a queue pair that have not completed. With a
//! window of 1 that is what the programs of rdma-core do.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use dataplane::clock::{HostClock, Stamp};
use dataplane::lane::message::{poll, poll_or_sleep};
use dataplane::provider::{Completion, Device, WcStatus};
use dataplane::telemetry::Latency;

use crate::Result;
use crate::args::Plan;
use crate::check::{Findings, Label, Tracker};
use crate::end::{End, Work};

/// Completions that are polled at a time.
const BURST: usize = 64;
/// How often, in rounds of the loop, the time is looked at.
const GLANCE: u32 = 256;
/// Of a message that answers none.
const NOTHING: u64 = u64::MAX;

/// Which side this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Sends first.
    Client,
    /// Answers.
    Server,
}

/// What came of a run.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// Sends that completed well.
    pub(crate) sent: u64,
    /// Messages that came.
    pub(crate) received: u64,
    /// Of those, how many had another size than they should have.
    pub(crate) wrong_size: u64,
    /// What was found in them; of checked messages.
    pub(crate) findings: Option<Findings>,
    /// From a client's message to its answer.
    pub(crate) latency: Latency,
    /// How long all took.
    pub(crate) elapsed: Duration,
    /// Why it ended before its time.
    pub(crate) failure: Option<String>,
}

/// What a queue pair has under way.
struct Line {
    /// Messages that are still to be answered.
    due: VecDeque<u64>,
    posted: u64,
    completed: u64,
    received: u64,
    /// What was sent when: of the last window.
    stamps: Vec<(u64, Stamp)>,
    tracker: Option<Tracker>,
}

struct Traffic<'a, D: Device> {
    end: &'a mut End<D>,
    plan: &'a Plan,
    role: Role,
    lines: Vec<Line>,
    clock: HostClock,
    latency: Latency,
    /// A message while it is made or looked at.
    message: Vec<u8>,
    posted: u64,
    completed: u64,
    received: u64,
    wrong_size: u64,
}

/// Runs until all messages went to and fro, something fails, or it is time.
pub(crate) fn run<D: Device>(end: &mut End<D>, plan: &Plan, role: Role, until: Instant) -> Outcome {
    let window = plan.window as usize;
    let line = |queue| {
        let mut due = VecDeque::with_capacity(plan.rx_depth as usize);
        if role == Role::Client {
            due.resize(window, NOTHING);
        }
        let tracker = plan.check.then(|| Tracker::new(queue as u32, plan.iterations));
        let stamps = vec![(NOTHING, Stamp::NONE); window];
        Line { due, posted: 0, completed: 0, received: 0, stamps, tracker }
    };
    let lines = (0..end.queues()).map(line).collect();
    let mut traffic = Traffic {
        end,
        plan,
        role,
        lines,
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
    /// Every message that is not checked is the same.
    fn fill(&self) {
        for queue in 0..self.lines.len() {
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
        for queue in 0..self.lines.len() {
            self.send_due(queue)?;
        }
        let mut rounds = 0u32;
        while !self.is_done() {
            rounds = rounds.wrapping_add(1);
            if (self.plan.events || rounds.is_multiple_of(GLANCE)) && Instant::now() >= until {
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
            // Where both sides share the cores it is the other's turn.
            std::thread::yield_now();
        }
        Ok(())
    }

    fn complete(&mut self, completion: &Completion) -> Result<()> {
        let work = Work::of(completion.wr_id);
        let number = completion.qp_num().ok_or("a completion does not say of which queue pair it is")?;
        if completion.status != WcStatus::Success {
            return Err(failed(completion, work).into());
        }
        let queue = self
            .end
            .queue(number)
            .ok_or_else(|| format!("a completion is of queue pair {number}, which is none of these"))?;
        match work {
            Work::Send => {
                self.lines[queue].completed += 1;
                self.completed += 1;
            }
            Work::Receive(slot) => {
                let length = completion.byte_len().and_then(|bytes| self.end.length(bytes)).unwrap_or(0);
                let of = self.take(queue, slot, length);
                // Before the answer: the peer may then send again.
                self.end.post_receive(queue, slot)?;
                self.lines[queue].due.push_back(of);
            }
        }
        self.send_due(queue)
    }

    /// Looks at a message. Returns its number among those of its queue pair.
    fn take(&mut self, queue: usize, slot: u32, length: usize) -> u64 {
        let now = self.now();
        let line = &mut self.lines[queue];
        // Without a label they come in order, or the run does not get to its end.
        let (mut number, mut answers) = (line.received, line.received);
        line.received += 1;
        self.received += 1;
        let fits = length == self.message.len();
        self.wrong_size += u64::from(!fits);
        if let Some(tracker) = &mut line.tracker {
            // What is too short is looked at too: it is corrupt.
            let message = &mut self.message[..length.min(self.plan.size as usize)];
            self.end.read(slot, message);
            let label = tracker.take(message);
            (number, answers) = label.map_or((number, NOTHING), |label| (label.sequence, label.answers));
        }
        let (sent, stamp) = line.stamps[(answers % line.stamps.len() as u64) as usize];
        if self.role == Role::Client && sent == answers && answers != NOTHING {
            self.latency.record(stamp, now, 1);
        }
        number
    }

    /// Sends what is to be sent on a queue pair, as far as there is room.
    fn send_due(&mut self, queue: usize) -> Result<()> {
        let window = u64::from(self.plan.window);
        loop {
            let line = &mut self.lines[queue];
            if self.posted == self.plan.iterations || line.posted - line.completed == window {
                return Ok(());
            }
            let Some(answers) = line.due.pop_front() else { return Ok(()) };
            let sequence = line.posted;
            // Sends complete in their order, so this slot's last message is gone.
            let slot = (sequence % window) as u32;
            if self.plan.check {
                Label { queue: queue as u32, sequence, answers }.write(&mut self.message);
                self.end.write(queue, slot, &self.message);
            }
            line.posted += 1;
            self.posted += 1;
            let now = self.now();
            self.lines[queue].stamps[slot as usize] = (sequence, now);
            self.end.post_send(queue, slot)?;
        }
    }

    /// What is missing at the deadline, and what may be the reason.
    fn overdue(&self) -> String {
        let Self { completed, received, plan, .. } = self;
        let mut text = format!(
            "not at its end at the deadline: {completed} of {} messages sent, {received} received.",
            plan.iterations
        );
        text += match plan.kind.kind() {
            dataplane::provider::QpType::Rc => {
                " The device tries for ever (retry count 7), so a peer that is gone is silent"
            }
            _ => " Of this type a message that is lost stays lost, and nobody sends it again",
        };
        text + "; or it takes longer than --deadline"
    }

    fn into_outcome(self, elapsed: Duration, ended: Result<()>) -> Outcome {
        let mut findings = None;
        for tracker in self.lines.iter().filter_map(|line| line.tracker.as_ref()) {
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
        WcStatus::LocLenErr | WcStatus::RemInvReqErr => "; do both sides have the same --size?",
        _ => "",
    };
    format!("a {what} failed: {status} ({}): {}{hint}", status.description(), status.likely_cause())
}
