//! The judgement of a stream: which packets arrived, in which order, and when.
//!
//! The memory of a judge is fixed. A judge remembers the last `window` sequence numbers. The judgement is exact if each
//! packet arrives less than `window` sequence numbers behind the highest sequence number so far.

use hdrhistogram::Histogram;

use crate::series::{Cursor, Intervals, Point};

/// The longest measured time in nanoseconds: one minute. Longer times count as this value.
const LONGEST: u64 = 60_000_000_000;
/// The number of significant digits of measured times.
const DIGITS: u8 = 3;
/// The number of gaps that a judge stores with their times. The judge stores the longest gaps.
pub const STORED_GAPS: usize = 16;

/// The entry in the window for a packet that arrived.
const ARRIVED: u64 = u64::MAX;

/// A packet that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The sequence number.
    pub sequence: u64,
    /// The time of arrival in nanoseconds since the start of the trial.
    pub at: u64,
    /// The time from transmission to arrival in nanoseconds.
    pub latency: u64,
    /// Whether the content of the packet differs from the content that was sent.
    pub corrupted: bool,
}

/// The limits of a judgement, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// A packet with a higher latency is late.
    pub late: u64,
    /// A time without arrivals that is longer than this limit is a gap.
    pub gap: u64,
}

/// A time without arrivals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gap {
    /// The time of the last arrival before the gap in nanoseconds since the start of the trial, or 0.
    pub start: u64,
    /// The duration in nanoseconds.
    pub length: u64,
}

/// The counts of a stream, in packets.
///
/// `received + corrupted + late + lost` is the number of packets that were sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets that arrived in time with the right content. Further copies of a packet count only as duplicates.
    pub received: u64,
    /// Packets of `received` that arrived after the last transmission.
    pub drained: u64,
    /// Packets of `drained` that a queue of the device still held after the time for draining.
    pub held: u64,
    /// Packets that arrived with a wrong content.
    pub corrupted: u64,
    /// Packets that arrived with the right content and with a latency above the limit.
    pub late: u64,
    /// Packets that did not arrive.
    pub lost: u64,
    /// Further copies of packets that had already arrived.
    pub duplicated: u64,
    /// Packets that arrived after a packet with a higher sequence number (RFC 4737, section 3.3).
    pub reordered: u64,
    /// The longest reordering extent: the number of arrivals from the earliest packet with a higher sequence number to
    /// the reordered packet, without the reordered packet (RFC 4737, section 4.2.1).
    pub max_extent: u64,
    /// The sum of all reordering extents.
    pub extents: u64,
    /// Packets that arrived after the window had passed their sequence numbers. The judge cannot distinguish these
    /// packets from duplicates, so the packets also count as lost.
    pub too_old: u64,
    /// Packets with a sequence number that was not sent.
    pub unsent: u64,
}

impl Counts {
    /// Returns the number of all packets that arrived.
    pub fn arrived(&self) -> u64 {
        self.received + self.corrupted + self.late + self.duplicated + self.too_old + self.unsent
    }
}

/// The state of the judgement of a stream.
#[derive(Clone, Debug)]
pub struct Judge {
    limits: Limits,
    counts: Counts,
    /// For each sequence number of the window: [`ARRIVED`], or the number of the arrival that was the first with a
    /// higher sequence number.
    window: Box<[u64]>,
    /// The number of entries of `window` that are not [`ARRIVED`]. While the number is 0, packets that arrive in order
    /// change no entry.
    absent: u64,
    /// The highest sequence number that arrived, plus 1.
    next: u64,
    /// The number of packets that arrived, without duplicates.
    position: u64,
    latency: Histogram<u64>,
    jitter: Histogram<u64>,
    /// The sequence number and the latency of the last packet.
    last: Option<(u64, u64)>,
    last_at: u64,
    /// The time after which the stream sends no packet.
    expected_end: u64,
    /// The time of the last transmission, and the time for draining. `None` while packets are sent.
    sending_end: Option<(u64, u64)>,
    gaps: [Gap; STORED_GAPS],
    gap_count: u64,
    /// The counts and latencies of the packets that were sent in each interval.
    series: Vec<Point>,
    cursor: Cursor,
}

/// The result of a judgement.
#[derive(Clone, Debug)]
pub struct Judgement {
    /// The counts.
    pub counts: Counts,
    /// The latency of the packets of `received` and `late`, in nanoseconds.
    pub latency: Histogram<u64>,
    /// The absolute difference between the latencies of two packets that were sent one after the other, in nanoseconds
    /// (RFC 3393). Measured only if the second packet also arrived directly after the first packet.
    pub jitter: Histogram<u64>,
    /// The longest gaps, in the order of their times.
    pub gaps: Vec<Gap>,
    /// The number of all gaps.
    pub gap_count: u64,
    /// The received packets: one point for the packets that were sent in each interval. `sent` of each point is 0,
    /// because the judge does not know the sent packets.
    pub series: Vec<Point>,
}

/// Returns an empty histogram of times in nanoseconds.
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST, DIGITS).expect("1 to a minute at 3 digits are valid bounds")
}

impl Judge {
    /// Creates a judge. `window` is the number of sequence numbers that the judge remembers, rounded up to a power of
    /// two.
    pub fn new(window: usize, limits: Limits) -> Self {
        Self {
            limits,
            counts: Counts::default(),
            window: vec![ARRIVED; window.max(1).next_power_of_two()].into(),
            absent: 0,
            next: 0,
            position: 0,
            latency: histogram(),
            jitter: histogram(),
            last: None,
            last_at: 0,
            expected_end: u64::MAX,
            sending_end: None,
            gaps: [Gap::default(); STORED_GAPS],
            gap_count: 0,
            series: Vec::new(),
            cursor: Cursor::default(),
        }
    }

    /// Starts a new trial.
    pub fn start(&mut self) {
        self.counts = Counts::default();
        self.window.fill(ARRIVED);
        (self.absent, self.next, self.position, self.last, self.last_at) = (0, 0, 0, None, 0);
        self.expected_end = u64::MAX;
        self.sending_end = None;
        self.latency.reset();
        self.jitter.reset();
        (self.gaps, self.gap_count) = ([Gap::default(); STORED_GAPS], 0);
        self.series.clear();
    }

    /// Starts counting the packets of each interval of the trial. Call this function after [`Judge::start`].
    pub fn count_by_time(&mut self, intervals: Intervals) {
        self.series.resize(intervals.count, Point::default());
        self.cursor = Cursor::new(intervals);
    }

    /// Sets the times between which the stream sends. The time before the first of these times, and the time after the
    /// last, do not count as gaps. Call this function after [`Judge::start`].
    pub fn expect(&mut self, first: u64, last: u64) {
        (self.last_at, self.expected_end) = (first, last);
    }

    /// Notes the time `end` of the last transmission. Without a queue in the device, the last packet arrives at `end`
    /// plus the lowest latency. Packets that arrive more than `drain` after this expected arrival count as `held`.
    pub fn end_sending(&mut self, end: u64, drain: u64) {
        self.sending_end = Some((end, drain));
    }

    /// Judges a packet that arrived. `sent` is the number of packets that were sent so far.
    #[inline]
    pub fn arrive(&mut self, packet: Arrival, sent: u64) {
        self.arrive_run(packet, 1, sent);
    }

    /// Judges `count` packets with consecutive sequence numbers that arrived one after the other. `first` is the first
    /// packet, and the other values of `first` are the values of all these packets. The result is the same as the result
    /// of one call of [`Judge::arrive`] for each packet.
    #[inline]
    pub fn arrive_run(&mut self, first: Arrival, count: u64, sent: u64) {
        let end = first.sequence.saturating_add(count);
        if first.sequence == self.next && end <= sent {
            self.next = end;
            if self.absent > 0 {
                (first.sequence..end).for_each(|sequence| self.set_arrived(sequence));
            }
            return self.count(first, count);
        }
        for sequence in first.sequence..end {
            let packet = Arrival { sequence, ..first };
            if self.place(sequence, sent) {
                self.count(packet, 1);
            }
        }
    }

    /// Notes in the window that a packet arrived.
    #[inline]
    fn set_arrived(&mut self, sequence: u64) {
        let mask = self.window.len() as u64 - 1;
        let entry = &mut self.window[(sequence & mask) as usize];
        self.absent -= u64::from(*entry != ARRIVED);
        *entry = ARRIVED;
    }

    /// Finds the place of a packet in the order of the stream. Returns `false` if the packet does not count as arrived:
    /// the packet is a duplicate, is too old, or was not sent.
    fn place(&mut self, sequence: u64, sent: u64) -> bool {
        let length = self.window.len() as u64;
        let mask = length - 1;
        if sequence >= self.next {
            if sequence >= sent {
                self.counts.unsent += 1;
                return false;
            }
            // For the missing packets before this packet, this packet is the first arrival with a higher sequence
            // number. Entries that are older than the window are overwritten.
            for missing in self.next.max((sequence + 1).saturating_sub(length))..sequence {
                let entry = &mut self.window[(missing & mask) as usize];
                self.absent += u64::from(*entry == ARRIVED);
                *entry = self.position;
            }
            self.next = sequence + 1;
        } else {
            if self.next - sequence > length {
                self.counts.too_old += 1;
                return false;
            }
            let entry = self.window[(sequence & mask) as usize];
            if entry == ARRIVED {
                self.counts.duplicated += 1;
                return false;
            }
            let extent = self.position - entry;
            self.counts.reordered += 1;
            self.counts.extents += extent;
            self.counts.max_extent = self.counts.max_extent.max(extent);
        }
        self.set_arrived(sequence);
        true
    }

    /// Counts `count` consecutive packets that arrived for the first time. `first` is the first packet.
    #[inline]
    fn count(&mut self, first: Arrival, count: u64) {
        let Arrival { sequence, at, latency, corrupted } = first;
        self.position += count;
        self.note_gap(at);
        if corrupted {
            // The transmit time may be wrong too.
            self.counts.corrupted += count;
            self.last = None;
            return;
        }
        let is_late = latency > self.limits.late;
        *(if is_late { &mut self.counts.late } else { &mut self.counts.received }) += count;
        self.latency.saturating_record_n(latency, count);
        if !is_late && let Some(point) = self.series.get_mut(self.cursor.at(at.saturating_sub(latency))) {
            point.received += count;
            point.latency_sum += latency * count;
            point.latency_max = point.latency_max.max(latency);
        }
        if let Some((end, drain)) = self.sending_end
            && at > end
            && !is_late
        {
            self.counts.drained += count;
            let limit = end.saturating_add(drain).saturating_add(self.latency.min());
            self.counts.held += if at > limit { count } else { 0 };
        }
        if let Some((last, before)) = self.last
            && last + 1 == sequence
        {
            self.jitter.saturating_record(latency.abs_diff(before));
        }
        if count > 1 {
            self.jitter.saturating_record_n(0, count - 1);
        }
        self.last = Some((sequence + count - 1, latency));
    }

    #[inline]
    fn note_gap(&mut self, at: u64) {
        let length = at.saturating_sub(self.last_at);
        if length > self.limits.gap {
            self.add_gap(Gap { start: self.last_at, length });
        }
        self.last_at = self.last_at.max(at);
    }

    #[cold]
    fn add_gap(&mut self, gap: Gap) {
        self.gap_count += 1;
        if let Some(shortest) = self.gaps.iter_mut().min_by_key(|gap| gap.length)
            && shortest.length < gap.length
        {
            *shortest = gap;
        }
    }

    /// Returns the judgement. `sent` is the number of packets that were sent, and `end` is the time of the last
    /// transmission.
    pub fn finish(&mut self, sent: u64, end: u64) -> Judgement {
        if sent > 0 {
            self.note_gap(end.min(self.expected_end));
        }
        let mut counts = self.counts;
        counts.lost = sent.saturating_sub(counts.received + counts.corrupted + counts.late);
        let mut gaps: Vec<Gap> = self.gaps.iter().copied().filter(|gap| gap.length > 0).collect();
        gaps.sort_unstable_by_key(|gap| gap.start);
        Judgement {
            counts,
            latency: self.latency.clone(),
            jitter: self.jitter.clone(),
            gaps,
            gap_count: self.gap_count,
            series: self.series.clone(),
        }
    }

    /// Returns the counts of the packets that arrived so far. The lost packets are not known yet.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Returns the received packets so far: one point for the packets that were sent in each interval.
    pub fn series(&self) -> &[Point] {
        &self.series
    }

    /// Returns the number of packets that arrived, without duplicates.
    pub fn position(&self) -> u64 {
        self.position
    }
}
