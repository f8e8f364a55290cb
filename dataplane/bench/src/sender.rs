//! The sender of a stream: when the next packet is due, and its bytes.

use dataplane::clock::Stamp;
use dataplane::mem::{BATCH, Batch, Pool};
use dataplane::units::Nanos;
use hdrhistogram::Histogram;

use crate::burst;
use crate::config::Spacing;
use crate::judge::histogram;
use crate::series::{Cursor, Intervals};
use crate::signature::{Key, MAX_TIME, Signature};
use crate::stream::Stream;
use crate::template::{Field, Template};
use crate::values::Random;

/// Times of the schedule have this many bits for fractions of a nanosecond.
const FRACTION: u32 = 16;
/// The duration of the longest trial in nanoseconds. The schedule has no bits for longer times.
pub const LONGEST_TRIAL: u64 = 1 << 47;

/// The sender of a stream. Times are in nanoseconds since the start of the trial.
#[derive(Clone, Debug)]
pub struct Sender {
    number: u8,
    templates: Box<[Template]>,
    /// The index of the template of each packet. The packets of a capture use the templates in order.
    order: Box<[u8]>,
    is_capture: bool,
    fields: Vec<Field>,
    spacing: Spacing,
    seed: u64,
    /// The values of the fields at the start of a trial.
    first_fields: Vec<Field>,
    random: Random,
    key: Key,
    place: usize,
    /// The number of packets that are sent back to back.
    burst: u64,
    /// The packets that are left in the current burst.
    left: u64,
    /// The time of the first packet as a multiple of the interval. `None` unless the stream sends one side of the
    /// conversations of a capture.
    first: Option<f64>,
    /// The first and the last time at which the stream sends, in nanoseconds.
    active: (u64, u64),
    /// The mean time between packets, with its fraction. 0 means as fast as possible.
    interval: u64,
    /// The time of the next packet, with its fraction.
    next: u64,
    /// The end of the trial, with its fraction.
    end: u64,
    /// The maximum delay of a packet after its due time, with its fraction. Packets with a longer delay are not sent.
    catch_up: u64,
    /// The time of the change of the rate, with its fraction, and the interval after the change.
    change: (u64, u64),
    sent: u64,
    /// The packets that were sent without a signature.
    unsigned: u64,
    missed: u64,
    /// The times from the planned to the actual transmission.
    pacing: Histogram<u64>,
    /// The number of packets that were sent in each interval of the trial.
    series: Vec<u64>,
    cursor: Cursor,
}

impl Sender {
    /// Creates the sender of a stream. `number` is the number of the stream in signatures.
    pub fn new(stream: &Stream, number: u8) -> Self {
        Self {
            number,
            templates: stream.templates.clone(),
            order: stream.order.clone(),
            is_capture: stream.is_capture(),
            fields: stream.fields.clone(),
            spacing: stream.spacing,
            seed: stream.seed,
            first_fields: stream.fields.clone(),
            random: Random::new(stream.seed),
            key: Key::new(0),
            place: 0,
            burst: stream.burst,
            left: stream.burst,
            first: stream.first,
            active: stream.active,
            interval: 0,
            next: 0,
            end: 0,
            catch_up: 0,
            change: (u64::MAX, 0),
            sent: 0,
            unsigned: 0,
            missed: 0,
            pacing: histogram(),
            series: Vec::new(),
            cursor: Cursor::default(),
        }
    }

    /// Starts a trial of `duration` nanoseconds with `rate` packets per second, or as fast as possible. The packets of
    /// a trial do not depend on earlier trials. `catch_up` is the maximum time by which a packet may be sent late, in
    /// nanoseconds. `key` is the key of the signatures. `phase` is the time of the first packet as a fraction of the
    /// time between two bursts.
    pub fn start(&mut self, key: Key, rate: Option<f64>, duration: u64, catch_up: u64, phase: f64) {
        self.key = key;
        self.fields.clone_from(&self.first_fields);
        self.random = Random::new(self.seed);
        self.place = 0;
        self.interval = interval(rate);
        self.change = (u64::MAX, 0);
        self.left = self.burst;
        let (start, stop) = self.active;
        self.next =
            (start.min(LONGEST_TRIAL) << FRACTION) + (self.period() as f64 * self.first.unwrap_or(phase)) as u64;
        self.end = duration.min(stop).min(LONGEST_TRIAL) << FRACTION;
        self.catch_up = catch_up.min(LONGEST_TRIAL) << FRACTION;
        (self.sent, self.unsigned, self.missed) = (0, 0, 0);
        self.pacing.reset();
        self.series.clear();
    }

    /// Moves the fields to the values of the packet with the number `first`. Call this function after
    /// [`Sender::start`].
    pub fn set_first_flow(&mut self, first: u64) {
        self.fields.iter_mut().for_each(|field| field.cycle.seek(first));
    }

    /// Starts counting the packets of each interval of the trial. Call this function after [`Sender::start`].
    pub fn count_by_time(&mut self, intervals: Intervals) {
        self.series.resize(intervals.count, 0);
        self.cursor = Cursor::new(intervals);
    }

    /// Changes the rate at the time `at` of the trial. Call this function after [`Sender::start`].
    pub fn change_rate(&mut self, at: u64, rate: Option<f64>) {
        self.change = (at.min(LONGEST_TRIAL) << FRACTION, interval(rate));
    }

    /// Returns the time between two bursts, with its fraction.
    fn period(&self) -> u64 {
        self.interval.saturating_mul(self.burst)
    }

    #[cold]
    fn apply_change(&mut self) {
        self.interval = self.change.1;
        self.left = self.burst;
        self.next = self.change.0;
        self.change.0 = u64::MAX;
    }

    /// Returns whether a packet is due at the time `now`. Skips the packets whose delay exceeds the maximum.
    #[inline]
    pub fn is_due(&mut self, now: u64) -> bool {
        let now = now << FRACTION;
        if self.next >= self.change.0 || (self.interval == 0 && now >= self.change.0) {
            self.apply_change();
        }
        if self.interval == 0 {
            return self.next <= now && now < self.end;
        }
        if self.next >= self.end || self.next > now {
            return false;
        }
        if now - self.next > self.catch_up {
            self.skip((now - self.catch_up).min(self.change.0));
            if self.next >= self.change.0 {
                self.apply_change();
            }
        }
        self.next < self.end && self.next <= now
    }

    /// Counts the packets before `until` as missed.
    #[cold]
    fn skip(&mut self, until: u64) {
        let until = until.min(self.end);
        let bursts = until.saturating_sub(self.next).div_ceil(self.period());
        if bursts > 0 {
            self.missed += self.left + (bursts - 1) * self.burst;
            self.left = self.burst;
            self.next += bursts * self.period();
        }
    }

    /// Returns whether the stream now sends as fast as possible.
    pub fn is_unlimited(&self) -> bool {
        self.interval == 0
    }

    /// Returns the time at which the next packet is due, or `None` if all packets were sent.
    pub fn next_due(&self) -> Option<u64> {
        (self.next < self.end).then_some(self.next >> FRACTION)
    }

    /// Adds the next packet to the batch. `now` is the time of the clock, and `elapsed` the time of the trial. Returns
    /// `false` if the batch is full or no buffer is free.
    #[inline]
    pub fn send(&mut self, batch: &mut Batch, pool: &mut Pool, now: Nanos, elapsed: u64) -> bool {
        let (size, index, round) = match self.is_capture {
            false => {
                let size = self.order.get(self.place).copied().unwrap_or(0);
                (size, usize::from(size), self.order.len())
            }
            true => (0, self.place, self.templates.len()),
        };
        let Some(template) = self.templates.get(index) else { return false };
        if !batch.push_bytes(&template.frame, Stamp::NONE, pool) {
            return false;
        }
        let Some(mut packet) = batch.len().checked_sub(1).and_then(|last| batch.get_mut(last)) else { return false };
        let signature = Signature {
            stream: self.number,
            size,
            sequence: self.sent,
            sent: now.0 & MAX_TIME,
            filler: template.filler_sum,
        };
        if template.signature.is_some() {
            template.write(&mut self.fields, &signature.words(self.key), packet.data_mut());
            self.sent += 1;
            if let Some(count) = self.series.get_mut(self.cursor.at(elapsed)) {
                *count += 1;
            }
        } else {
            self.unsigned += 1;
        }
        self.place = if self.place + 1 < round { self.place + 1 } else { 0 };
        let gap = template.gap;
        self.pass(1, gap);
        true
    }

    /// Moves the schedule to the packet after the next `count` packets of the current burst. `gap` is the time from
    /// the last of these packets to the next packet, as a multiple of the interval. Only [`Spacing::File`] uses `gap`.
    #[inline]
    fn pass(&mut self, count: u64, gap: f64) {
        self.left -= count;
        if self.left == 0 {
            self.left = self.burst;
            self.next += match self.spacing {
                Spacing::Constant => self.period(),
                Spacing::File => (gap * self.interval as f64) as u64,
                Spacing::Poisson => (-self.random.fraction().ln() * self.period() as f64) as u64,
            };
        }
    }

    /// Adds to the batch the packets that are due now, at most `most`. Returns the number of added packets. The packets
    /// are the packets that [`Sender::send`] would add, but all packets of one frame size are written together.
    #[inline]
    pub fn send_due(&mut self, batch: &mut Batch, pool: &mut Pool, now: Nanos, elapsed: u64, most: usize) -> usize {
        let most = most.min(pool.available()).min(BATCH - batch.len());
        let mut added = 0;
        if self.is_capture || most == 1 {
            while added < most && self.is_due(elapsed) {
                let planned = self.next;
                if !self.send(batch, pool, now, elapsed) {
                    break;
                }
                self.note_pacing(planned, elapsed, 1);
                added += 1;
            }
            return added;
        }
        let due = self.take_due(elapsed, most);
        while added < due {
            match self.send_alike(batch, pool, now, due - added) {
                0 => break,
                more => added += more,
            }
        }
        self.missed += (due - added) as u64;
        if added > 0
            && let Some(count) = self.series.get_mut(self.cursor.at(elapsed))
        {
            *count += added as u64;
        }
        added
    }

    /// Records the pacing error of `count` packets that are sent at the time `now`. `planned` is the planned time of
    /// the first packet, with its fraction. All packets get the error of the first packet, which is an upper bound.
    #[inline]
    fn note_pacing(&mut self, planned: u64, now: u64, count: u64) {
        if self.interval > 0 {
            self.pacing.saturating_record_n(now.saturating_sub(planned >> FRACTION), count);
        }
    }

    /// Removes up to `most` due packets from the schedule. Returns their number.
    #[inline]
    fn take_due(&mut self, now: u64, most: usize) -> usize {
        let mut due = 0;
        while due < most && self.is_due(now) {
            if self.interval == 0 {
                return most;
            }
            let (planned, before) = (self.next, due);
            // All bursts before this limit are due, so `is_due` need not be called for each of these bursts.
            let limit = self.end.min(self.change.0).min((now << FRACTION) + 1);
            while due < most && self.next < limit {
                let count = self.left.min((most - due) as u64);
                self.pass(count, 1.0);
                due += count as usize;
            }
            self.note_pacing(planned, now, (due - before) as u64);
        }
        due
    }

    /// Adds the next packets, which have the same frame size, to the batch, at most `most`. Returns their number.
    #[inline]
    fn send_alike(&mut self, batch: &mut Batch, pool: &mut Pool, now: Nanos, most: usize) -> usize {
        let rest = self.order.get(self.place..).unwrap_or_default();
        let Some(&size) = rest.first() else { return 0 };
        let alike = match self.order.len() {
            1 => most,
            _ => rest.iter().take(most).take_while(|other| **other == size).count(),
        };
        let Some(template) = self.templates.get_mut(usize::from(size)) else { return 0 };
        let (key, sent) = (self.key, now.0 & MAX_TIME);
        let first = Signature { stream: self.number, size, sequence: self.sent, sent, filler: template.filler_sum };
        let added = match self.fields.is_empty() && alike >= burst::LEAST {
            true => burst::add(template, &first, key, alike, batch, pool),
            false => batch.push_copies(&template.frame, alike, Stamp::NONE, pool, |index, data| {
                let signature = Signature { sequence: first.sequence + index as u64, ..first };
                template.write(&mut self.fields, &signature.words(key), data);
            }),
        };
        self.place = (self.place + added) % self.order.len();
        self.sent += added as u64;
        added
    }

    /// Ends the trial at the time `now`, and counts the packets that were due but not sent as missed.
    pub fn finish(&mut self, now: u64) {
        let now = (now << FRACTION).min(self.end);
        if self.interval > 0 && self.next < now {
            self.skip(now);
        }
        self.end = self.end.min(now);
    }

    /// Returns the number of packets without a signature that were added to batches.
    pub fn unsigned(&self) -> u64 {
        self.unsigned
    }

    /// Returns the number of packets with a signature that were added to batches.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Returns the number of packets that were sent in each interval of the trial.
    pub fn series(&self) -> &[u64] {
        &self.series
    }

    /// Returns the times from the planned to the actual transmission, in nanoseconds. Empty if the rate is not limited.
    pub fn pacing(&self) -> &Histogram<u64> {
        &self.pacing
    }

    /// Returns the number of packets that were due, but that the tester could not send in time.
    pub fn missed(&self) -> u64 {
        self.missed
    }
}

/// Returns the time between packets, with its fraction.
fn interval(rate: Option<f64>) -> u64 {
    let scale = (1u64 << FRACTION) as f64;
    rate.map_or(0, |rate| (1e9 / rate * scale).ceil().max(1.0) as u64)
}
