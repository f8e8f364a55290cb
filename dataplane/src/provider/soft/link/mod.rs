//! What the wire of a software device is made of.

mod capture;
mod facts;
mod generator;
mod interface;
mod loopback;
mod packet;
mod pcap;
mod reel;
mod stamps;
mod tap;
mod xdp;

use std::os::fd::BorrowedFd;
use std::sync::Arc;

pub(crate) use capture::Capture;
#[cfg(test)]
pub(crate) use facts::XdpSupport;
pub(crate) use facts::{InterfaceFacts, XdpProgram};
pub use generator::{FrameKind, GeneratorSpec};
pub(crate) use interface::mac_of;
pub use loopback::LoopbackLink;
pub use packet::PacketSpec;
pub use pcap::{Pace, PcapSpec};
pub use tap::TapSpec;
pub use xdp::{BusyPoll, Copying, Filter, HEADROOM as XDP_HEADROOM, Mode, Selector, XdpSpec};

pub(super) use generator::{Generator, Plan};
#[cfg(test)]
pub(super) use interface::Interface;
pub(super) use interface::Watcher;
pub(super) use loopback::Port;
pub(super) use packet::{BURST, PacketPort, Packets};
pub(super) use pcap::{Files, Player};
pub(super) use tap::{Tap, TapPort};
pub(super) use xdp::{Over, Queue, Received, Xdp};

use crate::clock::HostClock;
use crate::error::{Error, Result};
use crate::mem::Run;
use crate::provider::soft::counters::Counting;
use crate::provider::soft::fabric::Fabric;
use crate::provider::soft::memory::Slots;
use crate::provider::soft::rss::Rss;
use crate::provider::soft::status::Status;
use crate::provider::soft::{SoftCounters, SoftSpec};
use crate::provider::{QpSpec, WcStatus};
use crate::units::Nanos;

/// What the wire is.
#[derive(Clone, Debug)]
pub enum LinkSpec {
    /// The port of another software device, or this one's own.
    Loopback(LoopbackLink),
    /// Synthetic frames come in, and what goes out is counted.
    Generator(GeneratorSpec),
    /// A capture file comes in, a capture file goes out.
    Pcap(PcapSpec),
    /// An interface of the kernel, by AF_XDP.
    Xdp(XdpSpec),
    /// An interface of the kernel, by AF_PACKET.
    Packet(PacketSpec),
    /// A TAP interface, with the host at the other end.
    Tap(TapSpec),
}

/// The link of a device.
#[derive(Debug)]
pub(super) enum Link {
    Generator(Arc<Plan>),
    Loopback(LoopbackLink),
    Pcap(Arc<Files>),
    Xdp(Arc<Xdp>),
    Packet(Arc<Packets>),
    Tap(Arc<Tap>),
}

impl Link {
    pub(super) fn new(spec: &SoftSpec) -> Result<Self> {
        let max_frame = spec.max_frame() as usize;
        Ok(match &spec.link {
            LinkSpec::Loopback(link) => Self::Loopback(link.clone()),
            LinkSpec::Generator(spec) => Self::Generator(Arc::new(Plan::new(spec, max_frame)?)),
            LinkSpec::Pcap(spec) => Self::Pcap(Arc::new(Files::open(spec)?)),
            LinkSpec::Xdp(link) => Self::Xdp(Arc::new(Xdp::open(link, max_frame, spec.stamped)?)),
            LinkSpec::Packet(link) => Self::Packet(Arc::new(Packets::open(link, max_frame, spec.stamped)?)),
            LinkSpec::Tap(tap) => Self::Tap(Arc::new(Tap::open(tap, spec.mtu, spec.stamped)?)),
        })
    }

    /// What carries connections and datagrams; `None`: it has raw packets alone.
    pub(super) fn fabric(&self) -> Option<&Arc<Fabric>> {
        match self {
            Self::Loopback(link) => Some(link.fabric()),
            Self::Generator(_) | Self::Pcap(_) | Self::Packet(_) | Self::Tap(_) | Self::Xdp(_) => None,
        }
    }

    /// The end of it that a queue pair has.
    pub(super) fn wire(&self, spec: &QpSpec, rss: &Arc<Rss>, clock: &HostClock) -> Wire {
        let queue = spec.queue;
        match self {
            Self::Generator(plan) => Wire::Generator(Generator::new(plan.clone(), queue, rss, clock.clone())),
            Self::Loopback(link) => Wire::Loopback(Port::new(link, queue, rss.clone())),
            Self::Pcap(files) => Wire::Pcap(Player::new(files.clone(), queue, rss, clock.clone())),
            Self::Packet(packets) => Wire::Packet(Box::new(PacketPort::new(packets.clone(), queue))),
            Self::Tap(tap) => Wire::Tap(TapPort::new(tap.clone())),
            Self::Xdp(xdp) => Wire::Xdp(Queue::new(xdp.clone(), u32::from(queue.0), spec.caps)),
        }
    }

    /// Whether it is an interface of the kernel.
    pub(super) fn is_interface(&self) -> bool {
        match self {
            Self::Packet(_) | Self::Tap(_) | Self::Xdp(_) => true,
            Self::Generator(_) | Self::Loopback(_) | Self::Pcap(_) => false,
        }
    }

    /// Whether slots are lent to the kernel, and sends end some time after they were posted.
    pub(super) fn lends(&self) -> bool {
        matches!(self, Self::Xdp(_))
    }

    /// Whether its frames have the stamps of a NIC's clock.
    pub(super) fn has_nic_stamps(&self) -> bool {
        match self {
            Self::Packet(packets) => packets.by_nic(),
            Self::Xdp(xdp) => xdp.by_nic(),
            Self::Generator(_) | Self::Loopback(_) | Self::Pcap(_) | Self::Tap(_) => false,
        }
    }

    /// What it is, where the kind alone does not say all.
    pub(super) fn describe(&self) -> Option<String> {
        match self {
            Self::Xdp(xdp) => Some(xdp.describe()),
            Self::Packet(packets) => packets.describe(),
            Self::Tap(tap) => tap.describe(),
            Self::Generator(_) | Self::Loopback(_) | Self::Pcap(_) => None,
        }
    }

    /// Adds what is counted of the whole link: by the kernel, and of a file that has failed.
    pub(super) fn count(&self, into: &mut SoftCounters) {
        match self {
            Self::Xdp(xdp) => xdp.count(into),
            Self::Pcap(files) => files.count(into),
            Self::Generator(_) | Self::Loopback(_) | Self::Packet(_) | Self::Tap(_) => {}
        }
    }

    /// Begins to watch the interface that it is.
    pub(super) fn watch(&self, status: &Arc<Status>) -> Result<Option<Watcher>> {
        match self {
            Self::Xdp(xdp) => xdp.watch(status.clone()).map(Some),
            Self::Packet(packets) => packets.watch(status.clone()).map(Some),
            Self::Tap(tap) => tap.watch(status.clone()).map(Some),
            Self::Generator(_) | Self::Loopback(_) | Self::Pcap(_) => Ok(None),
        }
    }

    /// What it has to do when nobody polls. Called several times a second.
    pub(super) fn drive(&self) {
        match self {
            Self::Loopback(link) => link.fabric().drive(),
            Self::Pcap(files) => files.flush_now_and_then(),
            Self::Generator(_) | Self::Packet(_) | Self::Tap(_) | Self::Xdp(_) => {}
        }
    }

    /// What went wrong with it.
    pub(super) fn error(&self) -> Option<Error> {
        match self {
            Self::Pcap(files) => files.error(),
            Self::Xdp(xdp) => xdp.trouble(),
            Self::Generator(_) | Self::Loopback(_) | Self::Packet(_) | Self::Tap(_) => None,
        }
    }

    /// Writes out what is still on its way.
    pub(super) fn finish(&self) -> Result<()> {
        match self {
            Self::Pcap(files) => files.finish(),
            Self::Generator(_) | Self::Loopback(_) | Self::Packet(_) | Self::Tap(_) | Self::Xdp(_) => Ok(()),
        }
    }
}

/// The end of a link that a queue pair has.
#[derive(Debug)]
pub(super) enum Wire {
    Generator(Generator),
    Loopback(Port),
    Pcap(Player),
    Packet(Box<PacketPort>),
    Tap(TapPort),
    Xdp(Queue),
}

/// Where a frame is that was handed to [`Wire::send`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// On its way.
    Gone,
    /// With others, until [`Wire::flush`].
    Waits,
}

impl Wire {
    /// Begins to receive.
    ///
    /// # Errors
    /// The `errno` of why not; [`Link::error`] may have more to say.
    pub(super) fn open(&mut self) -> Result<(), i32> {
        match self {
            Self::Loopback(port) => port.open(),
            Self::Packet(port) => port.open()?,
            Self::Tap(port) => port.open()?,
            Self::Xdp(queue) => queue.open()?,
            Self::Generator(_) | Self::Pcap(_) => {}
        }
        Ok(())
    }

    /// Stops to receive: what was under way is lost. Returns how many frames that were.
    pub(super) fn close(&mut self) -> u64 {
        match self {
            Self::Loopback(port) => port.close(),
            Self::Xdp(queue) => queue.close(),
            Self::Packet(port) => port.close(),
            Self::Tap(port) => port.close(),
            Self::Generator(_) | Self::Pcap(_) => 0,
        }
    }

    /// How many frames wait at the least that would have filled posted receives by now; the most that can be said of a
    /// source without end is `u64::MAX`.
    #[inline]
    pub(super) fn backlog(&mut self) -> u64 {
        match self {
            Self::Generator(generator) => generator.due(),
            Self::Loopback(port) => port.backlog(),
            Self::Pcap(player) => player.due(),
            // They wait with the kernel.
            Self::Packet(_) | Self::Tap(_) => 0,
            // The kernel has its own completion ring: nothing overruns.
            Self::Xdp(_) => 0,
        }
    }

    /// Lets go of the frames that came too early for `room` receives; returns how many. Only a wire with a time of its
    /// own does not wait.
    #[inline]
    pub(super) fn skip_beyond(&mut self, room: u64) -> u64 {
        match self {
            Self::Generator(generator) => generator.skip_beyond(room),
            Self::Loopback(_) | Self::Pcap(_) | Self::Packet(_) | Self::Tap(_) | Self::Xdp(_) => 0,
        }
    }

    /// Hands the next frame over, if one has come in, and when it came by the wall clock, where the wire itself says so. Not of a wire that has the slots themselves.
    #[inline]
    pub(super) fn take(&mut self, counts: &Counting, deliver: impl FnOnce(&[u8], Option<Nanos>)) -> bool {
        match self {
            Self::Generator(generator) => generator.take(|frame| deliver(frame, None)),
            Self::Loopback(port) => port.take(|frame| deliver(frame, None)),
            Self::Pcap(player) => player.take(|frame| deliver(frame, None)),
            Self::Xdp(_) => false,
            Self::Packet(port) => port.take(counts, deliver),
            Self::Tap(port) => port.take(|frame| deliver(frame, None)),
        }
    }

    /// Whether a frame that finds no posted receive waits for one. Where it does not it is lost.
    pub(super) fn waits(&self) -> bool {
        match self {
            Self::Generator(_) | Self::Pcap(_) | Self::Packet(_) | Self::Tap(_) | Self::Xdp(_) => true,
            Self::Loopback(_) => false,
        }
    }

    /// Whether [`Wire::flush`] must come before the next [`Wire::send`].
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        match self {
            Self::Packet(port) => port.is_full(),
            Self::Generator(_) | Self::Loopback(_) | Self::Pcap(_) | Self::Tap(_) | Self::Xdp(_) => false,
        }
    }

    /// Writes frames into posted slots, no more than [`Wire::backlog`] has said, and their lengths. Returns their bytes. Of a
    /// wire that has them in memory.
    #[inline(never)]
    pub(super) fn write(&mut self, slots: &Slots, part: &[u32], lengths: &mut [u32]) -> u64 {
        match self {
            Self::Generator(generator) => generator.write(slots, part, lengths),
            Self::Pcap(player) => player.write(slots, part, lengths),
            Self::Loopback(_) | Self::Packet(_) | Self::Tap(_) | Self::Xdp(_) => 0,
        }
    }

    /// Gets slots ready that are being posted, for [`Wire::write`].
    pub(super) fn prepare(&mut self, slots: &Slots, part: &[u32]) {
        if let Self::Generator(generator) = self {
            generator.prepare(slots, part);
        }
    }

    /// All slots below are ready by now; `None`: all that there are.
    pub(super) fn prepared(&self) -> Option<u32> {
        match self {
            Self::Generator(generator) => generator.prepared(),
            Self::Loopback(_) | Self::Pcap(_) | Self::Packet(_) | Self::Tap(_) | Self::Xdp(_) => None,
        }
    }

    /// Whether what is sent is counted and goes nowhere.
    #[inline]
    pub(super) fn swallows(&self) -> bool {
        match self {
            Self::Generator(_) => true,
            Self::Pcap(player) => player.swallows(),
            Self::Loopback(_) | Self::Packet(_) | Self::Tap(_) | Self::Xdp(_) => false,
        }
    }

    /// Whether what is counted is copied too.
    pub(super) fn copies_out(&self) -> bool {
        matches!(self, Self::Generator(generator) if generator.copies_out())
    }

    /// Copies frames that are only counted.
    pub(super) fn copy_out(&mut self, slots: &Slots, run: &Run<'_>) {
        if let Self::Generator(generator) = self {
            generator.copy_run_out(slots, run);
        }
    }

    /// Sends a frame. Not of a wire that has the slots themselves.
    #[inline]
    pub(super) fn send(&mut self, frame: &[u8], counts: &Counting) -> Result<Sent, WcStatus> {
        match self {
            Self::Generator(generator) => generator.copy_out(frame),
            Self::Loopback(port) => port.send(frame),
            Self::Pcap(player) => player.send(frame)?,
            Self::Packet(port) => {
                port.send(frame);
                return Ok(Sent::Waits);
            }
            Self::Tap(port) => port.send(frame, counts)?,
            Self::Xdp(_) => return Err(WcStatus::LocQpOpErr),
        }
        Ok(Sent::Gone)
    }

    /// Sends the frames that wait; tells of each, in order, how long it was and whether it went.
    #[inline]
    pub(super) fn flush(&mut self, counts: &Counting, each: impl FnMut(Result<usize, WcStatus>)) {
        if let Self::Packet(port) = self {
            port.flush(counts, each);
        }
    }

    /// Whether it is an interface of the kernel. What is sent while that is down is refused.
    pub(super) fn is_interface(&self) -> bool {
        match self {
            Self::Packet(_) | Self::Tap(_) | Self::Xdp(_) => true,
            Self::Generator(_) | Self::Loopback(_) | Self::Pcap(_) => false,
        }
    }

    /// What is readable when a frame has come in. `None`: of this kind, or at this time, there is no such thing.
    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Packet(port) => port.descriptor(),
            Self::Tap(port) => port.descriptor(),
            Self::Xdp(queue) => queue.descriptor(),
            Self::Generator(_) | Self::Loopback(_) | Self::Pcap(_) => None,
        }
    }

    /// Whether no frame will come in any more.
    pub(super) fn ended(&self) -> bool {
        match self {
            Self::Generator(generator) => generator.ended(),
            Self::Loopback(_) | Self::Packet(_) | Self::Tap(_) | Self::Xdp(_) => false,
            Self::Pcap(player) => player.ended(),
        }
    }

    /// Frames lost since the last call because nobody fetched them in time.
    pub(super) fn missed(&mut self) -> u64 {
        match self {
            Self::Loopback(port) => port.missed(),
            Self::Packet(port) => port.missed(),
            Self::Generator(_) | Self::Pcap(_) | Self::Tap(_) | Self::Xdp(_) => 0,
        }
    }
}
