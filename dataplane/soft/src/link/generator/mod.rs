//! Generates synthetic frames into posted receives. Sent frames are counted and, with `copy_out`, also copied.

pub(super) mod config;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use zerocopy::IntoBytes;

use crate::counters::Counting;
use crate::fault::Random;
use crate::line::{self, LINE, Line};
use crate::link::reel::{Frames, Reel};
use crate::link::{Link, Sent, Wire};
use crate::memory::{Slots, copy};
use crate::rss::Rss;
use dataplane_core::clock::{HostClock, Timebase};
use dataplane_core::error::{Error, Result};
use dataplane_core::mem::{Run, SlotLayout, vector};
use dataplane_core::units::{Nanos, Ticks};
use dataplane_core::verbs::{QpSpec, WcStatus};

/// Protocol headers of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FrameKind {
    /// UDP over IPv4.
    #[default]
    Udp4,
    /// TCP over IPv4.
    Tcp4,
    /// UDP over IPv6.
    Udp6,
}

/// The settings of a generator: the frames, their number and their rate.
#[derive(Clone, Debug)]
pub struct GeneratorSpec {
    /// Frame sizes in bytes, without the frame check sequence, and their weights. The weight is the number of frames of
    /// this size that each flow has in one round. The generator repeats the round.
    pub sizes: Vec<(u16, u16)>,
    /// The number of flows. Each flow has its own source port, starting at `src_port`. After port 65535 the ports
    /// continue at 0. After all ports are used, the source address is incremented.
    pub flows: u32,
    /// Protocol headers of the frames.
    pub kind: FrameKind,
    /// VLAN ID of the frames. `None` means that the frames have no VLAN tag.
    pub vlan: Option<u16>,
    /// Source MAC address.
    pub src_mac: [u8; 6],
    /// Destination MAC address.
    pub dst_mac: [u8; 6],
    /// First source address. `None` means 198.18.0.1 or 2001:2::1 (RFC 2544, RFC 5180).
    pub src_ip: Option<IpAddr>,
    /// Destination address. `None` means 198.19.0.1 or 2001:2:0:8000::1.
    pub dst_ip: Option<IpAddr>,
    /// First source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Seed of the random payload. Frames of the same flow start with the same payload bytes. Frames of different flows
    /// have different payload bytes.
    pub seed: u64,
    /// Total number of frames for all queues. `None` means unlimited.
    pub count: Option<u64>,
    /// Frames per second, for all queues together. The device's clock measures the seconds. Frames that are due while
    /// no receive is posted are lost, as on a wire. `None` means that every posted receive gets a frame immediately.
    pub rate: Option<u64>,
    /// Whether every receive gets a newly written frame. If `false`, a slot (packet buffer) is written only at its
    /// first use, so changes that stages make to a packet persist. `false` is faster, for tests that ignore the packet
    /// bytes.
    pub rewrite: bool,
    /// Whether each sent frame is copied out of its slot, as hardware would read the frame by DMA. If `false`, sent
    /// frames are only counted.
    pub copy_out: bool,
}

impl Default for GeneratorSpec {
    fn default() -> Self {
        Self {
            sizes: vec![(64, 1)],
            flows: 1,
            kind: FrameKind::Udp4,
            vlan: None,
            src_mac: [2, 0, 0, 0, 0, 1],
            dst_mac: [2, 0, 0, 0, 0, 2],
            src_ip: None,
            dst_ip: None,
            src_port: 1024,
            dst_port: 9,
            seed: 0,
            count: None,
            rate: None,
            rewrite: true,
            copy_out: false,
        }
    }
}

/// Minimum size, in cache lines, of the buffer into which sent frames are copied. The copies of the short frames of one
/// [`Run`] go to consecutive lines.
const SHORT_OUT: usize = 32;
/// Maximum total size, in bytes, of the frames that the generator prepares.
const MOST_BYTES: usize = 64 << 20;

/// The precomputed frames of one round, and the settings that all queues share.
#[derive(Debug)]
pub(crate) struct Plan {
    frames: Frames,
    count: Option<u64>,
    rate: Option<u64>,
    rewrite: bool,
    /// Maximum length of a sent frame, if sent frames are copied out.
    out: Option<usize>,
}

impl Plan {
    pub(super) fn new(spec: &GeneratorSpec, max_frame: usize) -> Result<Self> {
        let addresses = Addresses::of(spec)?;
        let sizes: Vec<usize> =
            spec.sizes.iter().flat_map(|&(size, weight)| vec![usize::from(size); usize::from(weight)]).collect();
        let least = headers(spec.kind, spec.vlan);
        if let Some(size) = sizes.iter().find(|&&size| size < least || size > max_frame) {
            return Err(Error::Wire(format!(
                "the generator cannot create frames of {size} bytes: {:?} frames must have {least} to {max_frame} \
                 bytes",
                spec.kind
            )));
        }
        let flows = spec.flows.max(1) as usize;
        let bytes = sizes.iter().sum::<usize>().saturating_mul(flows);
        if sizes.is_empty() || bytes > MOST_BYTES || spec.rate == Some(0) {
            return Err(Error::Wire(format!(
                "the generator needs a size with a weight above 0, a rate above 0, and prepared frames of at most \
                 {MOST_BYTES} bytes in total (these settings: {bytes} bytes)"
            )));
        }
        // Every flow gets every size. Consecutive frames belong to different flows.
        let mut frames = Frames::default();
        for &size in &sizes {
            (0..flows as u32).for_each(|flow| frames.push(&frame(spec, addresses, flow, size)));
        }
        let out = spec.copy_out.then_some(max_frame);
        Ok(Self { frames, count: spec.count, rate: spec.rate, rewrite: spec.rewrite, out })
    }
}

impl<End: From<Generator>> Link<End> for Plan {
    fn end(self: Arc<Self>, spec: &QpSpec, rss: &Arc<Rss>, clock: &HostClock) -> End {
        Generator::new(self, spec.queue, rss, clock.clone()).into()
    }
}

fn headers(kind: FrameKind, vlan: Option<u16>) -> usize {
    let link = if vlan.is_some() { 18 } else { 14 };
    link + match kind {
        FrameKind::Udp4 => 28,
        FrameKind::Tcp4 => 40,
        FrameKind::Udp6 => 48,
    }
}

/// The source address of the first flow, and the destination address.
#[derive(Clone, Copy, Debug)]
enum Addresses {
    V4(Ipv4Addr, Ipv4Addr),
    V6(Ipv6Addr, Ipv6Addr),
}

impl Addresses {
    fn of(spec: &GeneratorSpec) -> Result<Self> {
        let v4 = |address, default| match address {
            None => Some(default),
            Some(IpAddr::V4(address)) => Some(address),
            Some(IpAddr::V6(_)) => None,
        };
        let v6 = |address, default| match address {
            None => Some(default),
            Some(IpAddr::V6(address)) => Some(address),
            Some(IpAddr::V4(_)) => None,
        };
        let (source, target) = (spec.src_ip, spec.dst_ip);
        let addresses = match spec.kind {
            FrameKind::Udp4 | FrameKind::Tcp4 => v4(source, Ipv4Addr::new(198, 18, 0, 1))
                .zip(v4(target, Ipv4Addr::new(198, 19, 0, 1)))
                .map(|(source, target)| Self::V4(source, target)),
            FrameKind::Udp6 => v6(source, Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 1))
                .zip(v6(target, Ipv6Addr::new(0x2001, 2, 0, 0x8000, 0, 0, 0, 1)))
                .map(|(source, target)| Self::V6(source, target)),
        };
        addresses.ok_or_else(|| {
            Error::Wire(format!("the generator's addresses do not match the address family of {:?} frames", spec.kind))
        })
    }
}

/// Builds a frame of a flow. `size` must be at least the size of the headers.
fn frame(spec: &GeneratorSpec, addresses: Addresses, flow: u32, size: usize) -> Box<[u8]> {
    let mut out = Vec::with_capacity(size);
    out.extend(spec.dst_mac);
    out.extend(spec.src_mac);
    if let Some(vlan) = spec.vlan {
        out.extend([0x81, 0]);
        out.extend((vlan & 0xfff).to_be_bytes());
    }
    let ip = out.len() + 2;
    let length = (size - ip) as u16;
    let (protocol, transport) = match spec.kind {
        FrameKind::Udp4 | FrameKind::Udp6 => (17, 8),
        FrameKind::Tcp4 => (6, 20),
    };
    let pseudo = match addresses {
        Addresses::V4(source, target) => {
            out.extend([8, 0, 0x45, 0]);
            out.extend(length.to_be_bytes());
            out.extend([0, 0, 0x40, 0, 64, protocol, 0, 0]);
            out.extend(source.to_bits().wrapping_add(flow >> 16).to_be_bytes());
            out.extend(target.octets());
            let sum = checksum(&out[ip..ip + 20], 0);
            out[ip + 10..ip + 12].copy_from_slice(&sum.to_be_bytes());
            ip + 12
        }
        Addresses::V6(source, target) => {
            out.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            out.extend((length - 40).to_be_bytes());
            out.extend([protocol, 64]);
            out.extend(source.to_bits().wrapping_add(u128::from(flow >> 16)).to_be_bytes());
            out.extend(target.octets());
            ip + 8
        }
    };
    let l4 = out.len();
    let l4_length = (size - l4) as u16;
    out.extend(spec.src_port.wrapping_add(flow as u16).to_be_bytes());
    out.extend(spec.dst_port.to_be_bytes());
    if transport == 8 {
        out.extend(l4_length.to_be_bytes());
        out.extend([0, 0]);
    } else {
        out.extend([0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0]);
    }
    let mut random = Random::new(spec.seed.wrapping_add(u64::from(flow)));
    while out.len() < size {
        let left = size - out.len();
        out.extend(random.next().to_be_bytes().into_iter().take(left));
    }
    let sum = checksum(&out[pseudo..], u32::from(protocol) + u32::from(l4_length));
    let at = l4 + if transport == 8 { 6 } else { 16 };
    out[at..at + 2].copy_from_slice(&if sum == 0 { 0xffff } else { sum }.to_be_bytes());
    out.into()
}

/// Computes the Internet checksum (RFC 1071).
fn checksum(bytes: &[u8], from: u32) -> u16 {
    let words = bytes.chunks(2).map(|word| u32::from(word[0]) << 8 | word.get(1).map_or(0, |&low| u32::from(low)));
    let mut sum = words.fold(from, |sum, word| sum + word);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// The generator of one queue, with the frames of the round that hash to the queue.
#[derive(Debug)]
pub(crate) struct Generator {
    plan: Arc<Plan>,
    reel: Reel,
    /// The number of frames that are left to generate. `u64::MAX` means unlimited.
    left: u64,
    clock: HostClock,
    timebase: Timebase,
    /// This queue's share of the rate, as (frames, nanoseconds).
    rate: Option<(u128, u128)>,
    /// The time of the first poll, from which frames become due at the configured rate. `None` before the first poll.
    began: Option<Ticks>,
    /// The number of frames delivered or lost so far.
    passed: u64,
    written_slots: WrittenSlots,
    /// Buffer for copies of sent frames: large enough for the longest frame and for several short frames. Empty if
    /// sends are not copied.
    out: Box<[Line]>,
    /// Maximum length of a sent frame.
    longest_out: usize,
}

/// The state of slots that are written only once (`rewrite` is `false`).
#[derive(Debug, Default)]
struct WrittenSlots {
    /// Whether each slot holds its frame.
    written: Vec<bool>,
    /// All slots below this index hold their frame.
    below: u32,
    /// The length of each slot's frame. Empty if all frames have the same length.
    lengths: Vec<u32>,
    /// The length of the longest frame.
    longest: u32,
}

impl Generator {
    pub(super) fn new(plan: Arc<Plan>, queue: (u16, u16), rss: &Rss, clock: HostClock) -> Self {
        let reel = Reel::new(&plan.frames, |frame| rss.queue(frame, queue.1) == queue.0);
        let (all, own) = (plan.frames.len() as u64, reel.numbers().len() as u64);
        let left = match plan.count {
            _ if own == 0 => 0,
            None => u64::MAX,
            Some(count) => {
                count / all * own + reel.numbers().partition_point(|&number| u64::from(number) < count % all) as u64
            }
        };
        // Keep the queue's share of the rate as a fraction. Rounding could reduce the share to 0.
        let rate = plan.rate.map(|rate| (u128::from(rate) * u128::from(own), 1_000_000_000 * u128::from(all)));
        let timebase = clock.timebase();
        let longest_out = plan.out.unwrap_or(0);
        let out = vec![Line::ZERO; plan.out.map_or(0, |longest| longest.div_ceil(LINE).max(SHORT_OUT))].into();
        let written_slots = WrittenSlots::default();
        Self { plan, reel, left, clock, timebase, rate, began: None, passed: 0, written_slots, out, longest_out }
    }

    /// Returns the frame that `prepare` writes into a slot if `rewrite` is `false`.
    fn of_slot(&self, slot: u32) -> &[u8] {
        let numbers = self.reel.numbers();
        self.plan.frames.get(numbers[slot as usize % numbers.len()] as usize)
    }

    /// Returns the number of frames that are due and not yet delivered.
    #[inline]
    fn due(&mut self) -> u64 {
        match self.rate {
            None => self.left,
            Some(rate) => self.due_by_now(rate),
        }
    }

    /// Returns the number of due frames at the configured rate.
    #[inline(never)]
    fn due_by_now(&mut self, (frames, nanos): (u128, u128)) -> u64 {
        let now = self.clock.now();
        let began = *self.began.get_or_insert(now);
        let elapsed = self.timebase.between(began, now).0;
        let due = u128::from(elapsed).saturating_mul(frames) / nanos;
        u64::try_from(due).unwrap_or(u64::MAX).saturating_sub(self.passed).min(self.left)
    }

    #[inline]
    fn pass(&mut self, n: u64) {
        self.passed += n;
        if self.left != u64::MAX {
            self.left -= n;
        }
    }

    #[inline(never)]
    fn skip(&mut self, room: u64) -> u64 {
        let lost = self.due().saturating_sub(room);
        self.pass(lost);
        lost
    }

    #[inline]
    fn lengths_of(&self, part: &[u32], lengths: &mut [u32]) -> u64 {
        if self.written_slots.lengths.is_empty() {
            vector::fill(lengths, self.written_slots.longest);
            return u64::from(self.written_slots.longest) * part.len() as u64;
        }
        let mut bytes = 0;
        for (length, &slot) in lengths.iter_mut().zip(part) {
            *length = self.written_slots.lengths[slot as usize];
            bytes += u64::from(*length);
        }
        bytes
    }

    /// Copies a sent frame, if copying is enabled.
    #[inline]
    fn copy_frame_out(&mut self, frame: &[u8]) {
        let len = frame.len().min(self.longest_out);
        copy(&mut self.out.as_mut_bytes()[..len], &frame[..len]);
    }
}

impl Wire for Generator {
    /// Prepares for slots of this layout. Returns `false` if a frame does not fit in a slot, so that [`Wire::write`]
    /// cannot be used.
    fn bind(&mut self, layout: SlotLayout) -> bool {
        let Some(longest) = self.reel.lengths().max().filter(|longest| *longest <= layout.room() as usize) else {
            return false;
        };
        let uniform = self.reel.lengths().all(|length| length == longest);
        let lengths = if uniform {
            Vec::new()
        } else {
            (0..layout.count()).map(|slot| self.of_slot(slot).len() as u32).collect()
        };
        self.written_slots =
            WrittenSlots { written: vec![false; layout.count() as usize], below: 0, lengths, longest: longest as u32 };
        true
    }

    #[inline]
    fn skip_beyond(&mut self, room: u64) -> u64 {
        if self.rate.is_none() { 0 } else { self.skip(room) }
    }

    #[inline]
    fn backlog(&mut self) -> u64 {
        self.due()
    }

    fn ended(&self) -> bool {
        self.left == 0
    }

    fn take(&mut self, _: &Counting, deliver: impl FnOnce(&[u8], Option<Nanos>)) -> bool {
        if self.due() == 0 {
            return false;
        }
        self.pass(1);
        deliver(self.reel.take(&self.plan.frames).0, None);
        true
    }

    #[inline]
    fn send(&mut self, frame: &[u8], _: &Counting) -> Result<Sent, WcStatus> {
        self.copy_frame_out(frame);
        Ok(Sent::Gone)
    }

    fn discards(&self) -> bool {
        true
    }

    #[inline]
    fn write(&mut self, slots: &Slots, part: &[u32], lengths: &mut [u32]) -> u64 {
        self.pass(part.len() as u64);
        match self.plan.rewrite {
            true => self.reel.write(&self.plan.frames, slots, part, lengths),
            false => self.lengths_of(part, lengths),
        }
    }

    fn copies_out(&self) -> bool {
        !self.out.is_empty()
    }

    fn copy_out(&mut self, slots: &Slots, run: &Run<'_>) {
        if !line::read(&mut self.out, slots, run) {
            run.descs().iter().filter_map(|desc| slots.bytes(*desc)).for_each(|frame| self.copy_frame_out(frame));
        }
    }

    fn prepared(&self) -> Option<u32> {
        (!self.plan.rewrite).then_some(self.written_slots.below)
    }

    /// Writes the frames of slots that are used for the first time, if slots are written only once.
    fn prepare(&mut self, slots: &Slots, part: &[u32]) {
        if self.plan.rewrite {
            return;
        }
        for &slot in part {
            if !self.written_slots.written[slot as usize] {
                let _ = slots.write(slot, self.of_slot(slot));
                self.written_slots.written[slot as usize] = true;
            }
        }
        let written_slots = &mut self.written_slots;
        while written_slots.written.get(written_slots.below as usize).copied().unwrap_or(false) {
            written_slots.below += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dataplane_core::verbs::RssSpec;

    #[test]
    fn sent_frames_are_copied_out_only_if_enabled() {
        for copy_out in [false, true] {
            let plan = Plan::new(&GeneratorSpec { copy_out, ..GeneratorSpec::default() }, 100).unwrap();
            let mut generator =
                Generator::new(Arc::new(plan), (0, 1), &Rss::new(&RssSpec::STANDARD), HostClock::manual());
            generator.copy_frame_out(&[7; 60]);
            generator.copy_frame_out(&[8; 40]);
            let expected = [&[8; 40][..], &[7; 20], &[0; 40]].concat();
            let copied = generator.out.first_chunk::<2>().map_or(&[][..], |lines| &lines.as_bytes()[..100]);
            assert_eq!(copied, if copy_out { expected } else { Vec::new() });
            // A frame longer than the maximum must not panic.
            generator.copy_frame_out(&[9; 101]);
        }
    }

    #[test]
    fn frames_have_valid_lengths_and_checksums() {
        for (kind, vlan) in [(FrameKind::Udp4, None), (FrameKind::Tcp4, Some(7)), (FrameKind::Udp6, None)] {
            let spec = GeneratorSpec { kind, vlan, ..GeneratorSpec::default() };
            for size in [headers(kind, vlan), 64, 65, 1514].into_iter().filter(|&size| size >= headers(kind, vlan)) {
                let frame = frame(&spec, Addresses::of(&spec).unwrap(), 70_000, size);
                assert_eq!(frame.len(), size);
                let ip = if vlan.is_some() { 18 } else { 14 };
                let (pseudo, protocol, l4) = match kind {
                    FrameKind::Udp4 => (ip + 12, 17, ip + 20),
                    FrameKind::Tcp4 => (ip + 12, 6, ip + 20),
                    FrameKind::Udp6 => (ip + 8, 17, ip + 40),
                };
                assert_eq!(checksum(&frame[pseudo..], protocol + (size - l4) as u32), 0, "{kind:?} of {size}");
                if kind != FrameKind::Udp6 {
                    assert_eq!(checksum(&frame[ip..ip + 20], 0), 0);
                }
            }
        }
    }

    #[test]
    fn header_fields_match_the_spec() {
        let spec = GeneratorSpec {
            src_mac: [2, 1, 1, 1, 1, 1],
            dst_mac: [2, 2, 2, 2, 2, 2],
            src_ip: Some("10.0.255.255".parse().unwrap()),
            dst_ip: Some("10.9.8.7".parse().unwrap()),
            src_port: 65_530,
            dst_port: 53,
            vlan: Some(0x123),
            ..GeneratorSpec::default()
        };
        let frame = |spec: &GeneratorSpec, flow| frame(spec, Addresses::of(spec).unwrap(), flow, 90);
        let first = frame(&spec, 0);
        assert_eq!(first[..18], [2, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 0x81, 0, 1, 0x23, 8, 0]);
        assert_eq!(first[30..38], [10, 0, 255, 255, 10, 9, 8, 7]);
        assert_eq!(first[38..42], [0xff, 0xfa, 0, 53]);
        // The port is incremented first and wraps around. Then the address is incremented, with a carry.
        for (flow, source, port) in
            [(5, [10, 0, 255, 255], 65_535u16), (6, [10, 0, 255, 255], 0), (65_536, [10, 1, 0, 0], 65_530)]
        {
            let frame = frame(&spec, flow);
            assert_eq!((&frame[30..34], &frame[38..40]), (&source[..], &port.to_be_bytes()[..]), "flow {flow}");
        }
        let six = GeneratorSpec {
            kind: FrameKind::Udp6,
            src_ip: Some("fd00::ffff:ffff".parse().unwrap()),
            dst_ip: None,
            vlan: None,
            ..spec.clone()
        };
        let addresses = [Ipv6Addr::from_bits(0xfd << 120 | 1 << 32), "2001:2:0:8000::1".parse().unwrap()];
        assert_eq!(frame(&six, 65_536)[22..54], addresses.map(|address| address.octets()).concat());
        let payload = |seed, flow| frame(&GeneratorSpec { seed, ..spec.clone() }, flow)[46..].to_vec();
        assert_eq!(payload(7, 1), payload(7, 1));
        assert_ne!(payload(7, 1), payload(8, 1));
        assert_ne!(payload(7, 1), payload(7, 2));
    }

    #[test]
    fn slow_rate_is_shared_by_all_queues() {
        let spec = GeneratorSpec { flows: 64, rate: Some(1), ..GeneratorSpec::default() };
        let plan = Arc::new(Plan::new(&spec, 1514).unwrap());
        let rss = Rss::new(&crate::RssSpec::STANDARD);
        let clock = HostClock::manual();
        let mut queues: Vec<_> =
            (0..2).map(|index| Generator::new(plan.clone(), (index, 2), &rss, clock.clone())).collect();
        assert!(queues.iter_mut().all(|queue| queue.due() == 0));
        clock.advance(dataplane_core::units::Nanos(64_000_000_000));
        let due: Vec<u64> = queues.iter_mut().map(Generator::due).collect();
        assert!(due.iter().sum::<u64>() == 64 && due.iter().all(|due| *due > 0), "{due:?}");
    }

    #[test]
    fn frame_count_is_divided_exactly_among_queues() {
        let spec = GeneratorSpec { flows: 37, sizes: vec![(64, 3), (128, 1)], ..GeneratorSpec::default() };
        let rss = Rss::new(&crate::RssSpec::STANDARD);
        for count in [0, 1, 147, 148, 149, 10_000] {
            let plan = Arc::new(Plan::new(&GeneratorSpec { count: Some(count), ..spec.clone() }, 1514).unwrap());
            let queue = |index| Generator::new(plan.clone(), (index, 4), &rss, HostClock::manual()).left;
            assert_eq!((0..4).map(queue).sum::<u64>(), count);
        }
    }

    #[test]
    fn invalid_generator_specs_are_refused() {
        for spec in [
            GeneratorSpec { sizes: vec![(41, 1)], ..GeneratorSpec::default() },
            GeneratorSpec { sizes: vec![(1600, 1)], ..GeneratorSpec::default() },
            GeneratorSpec { sizes: vec![(64, 0)], ..GeneratorSpec::default() },
            GeneratorSpec { flows: u32::MAX, ..GeneratorSpec::default() },
            GeneratorSpec { rate: Some(0), ..GeneratorSpec::default() },
            GeneratorSpec { src_ip: Some(Ipv6Addr::LOCALHOST.into()), ..GeneratorSpec::default() },
            GeneratorSpec {
                kind: FrameKind::Udp6,
                dst_ip: Some(Ipv4Addr::LOCALHOST.into()),
                ..GeneratorSpec::default()
            },
        ] {
            assert!(matches!(Plan::new(&spec, 1514), Err(Error::Wire(_))), "{spec:?}");
        }
    }
}
