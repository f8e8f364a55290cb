//! The links of software devices. A link is the wire of a device: the source of the frames that the device receives,
//! and the destination of the frames that the device sends.
//!
//! Each kind of link has a folder. The code in the folder implements [`Link`] for the open link of a device. A kind
//! that copies frames also implements [`Wire`] for a queue pair's end of the link. This file lists the kinds.

pub mod config;
pub mod doctor;
mod facts;
mod generator;
mod interface;
mod loopback;
mod open_link;
mod packet;
mod parameters;
mod pcap;
mod reel;
mod tap;
mod wire;
mod xdp;

use std::os::fd::BorrowedFd;
use std::sync::Arc;

pub use facts::InterfaceFacts;
pub use generator::{FrameKind, GeneratorSpec};
pub use interface::{PromiscuousMode, mac_of, mtu_of, next_hop};
pub use loopback::LoopbackLink;
pub use packet::PacketSpec;
pub use pcap::{Capture, Pace, PcapSpec};
pub use tap::TapSpec;
pub use xdp::doctor::of_unused as of_unused_interface;
pub use xdp::{
    BusyPoll, Copying, Filter, HEADROOM as XDP_HEADROOM, Mode, Selector, XdpFacts, XdpProgram, XdpSpec, XdpSupport,
};

pub(super) use interface::Watcher;
#[cfg(test)]
pub(super) use interface::{Interface, set_option};
pub(super) use open_link::Link;
pub(super) use packet::BURST;
pub(super) use wire::{Sent, Wire};
pub(super) use xdp::{CompletedSend, Queue as ZeroCopyQueue, Received};

use crate::counters::Counting;
use crate::memory::Slots;
use dataplane_core::error::Result;
use dataplane_core::mem::{Run, SlotLayout};
use dataplane_core::units::Nanos;
use dataplane_core::verbs::WcStatus;

/// A fuzz target for the parsers of data that the kernel reports about interfaces. The first two bytes of the input are
/// the number of an attribute. The target parses the remaining bytes twice: as a list of netlink attributes, and as the
/// type information of the kernel (BTF).
#[cfg(any(test, fuzzing))]
pub(super) fn fuzz(input: &[u8]) {
    let Some((number, data)) = input.split_first_chunk() else { return };
    if let Some(value) = interface::netlink::attribute(data, u16::from_ne_bytes(*number)) {
        let at = value.as_ptr() as usize - data.as_ptr() as usize;
        assert!(at >= 4 && at + value.len() <= data.len());
    }
    let _ = xdp::btf::find(data, "name");
}

/// The link of a software device: its kind and its settings.
#[derive(Clone, Debug)]
pub enum LinkSpec {
    /// A cable to the port of another software device, or to the same device.
    Loopback(LoopbackLink),
    /// Generates synthetic frames, and counts sent frames.
    Generator(GeneratorSpec),
    /// Plays a capture file, and writes sent frames to a capture file.
    Pcap(PcapSpec),
    /// A kernel interface, with AF_XDP.
    Xdp(XdpSpec),
    /// A kernel interface, with AF_PACKET.
    Packet(PacketSpec),
    /// A TAP interface, with the host at the other end.
    Tap(TapSpec),
}

impl LinkSpec {
    /// Selects that the queues receive nothing until they take over the queues of another program
    /// (`dataplane upgrade`). `is_input` is whether workers poll the queues. A kind of link
    /// that does not support this is not affected.
    pub fn take_over(&mut self, is_input: bool) {
        match self {
            // A port that only sends opens its own sockets.
            Self::Packet(link) => link.takes_over = is_input,
            // A TAP with a single queue allows no second queue, so the queue is taken over even if the port only sends.
            Self::Tap(link) => link.takes_over = true,
            Self::Xdp(link) => link.takes_over = true,
            Self::Loopback(_) | Self::Generator(_) | Self::Pcap(_) => {}
        }
    }

    /// Opens the link of a device with this MTU and this maximum frame length, in bytes. `stamped` is whether
    /// completions have receive timestamps.
    ///
    /// # Errors
    /// Fails if the link cannot be opened, for example because an interface or a file is missing.
    pub(super) fn open(&self, mtu: u32, max_frame: usize, stamped: bool) -> Result<Arc<AnyLink>> {
        Ok(match self {
            Self::Loopback(link) => Arc::new(link.clone()),
            Self::Generator(link) => Arc::new(generator::Plan::new(link, max_frame)?),
            Self::Pcap(link) => Arc::new(pcap::Files::open(link)?),
            Self::Xdp(link) => Arc::new(xdp::Xdp::open(link, max_frame, stamped)?),
            Self::Packet(link) => Arc::new(packet::Packets::open(link, max_frame, stamped)?),
            Self::Tap(link) => Arc::new(tap::Tap::open(link, mtu, stamped)?),
        })
    }
}

/// An open link of any kind.
pub(super) type AnyLink = dyn Link<LinkEnd>;

/// A queue pair's end of a link.
#[derive(Debug)]
pub(super) enum LinkEnd {
    /// Frames are copied between the link and posted slots (packet buffers).
    Copying(AnyWire),
    /// The kernel owns posted slots until it returns them.
    ZeroCopy(ZeroCopyQueue),
}

/// A [`Wire`] of any kind. Each method matches the kind and calls the method of that kind, so no call is dynamic.
// `repr(u8)` gives the enum's tag its own byte. A tag inside a niche of another field costs more instructions per
// batch.
#[repr(u8)]
#[derive(Debug)]
pub(super) enum AnyWire {
    Generator(generator::Generator),
    Loopback(loopback::Port),
    Pcap(pcap::Player),
    Packet(Box<packet::PacketPort>),
    Tap(tap::TapPort),
}

/// Implements the conversion from each [`Wire`] to a [`LinkEnd`].
macro_rules! copying_ends {
    ($($kind:ident: $wire:ty),+) => {
        $(impl From<$wire> for LinkEnd {
            fn from(wire: $wire) -> Self {
                Self::Copying(AnyWire::$kind(wire))
            }
        })+
    };
}

copying_ends!(
    Generator: generator::Generator,
    Loopback: loopback::Port,
    Pcap: pcap::Player,
    Packet: Box<packet::PacketPort>,
    Tap: tap::TapPort
);

impl From<ZeroCopyQueue> for LinkEnd {
    fn from(queue: ZeroCopyQueue) -> Self {
        Self::ZeroCopy(queue)
    }
}

/// Calls a method of the [`Wire`] inside an [`AnyWire`].
macro_rules! inside {
    ($self:ident, $wire:ident => $call:expr) => {
        match $self {
            Self::Generator($wire) => $call,
            Self::Loopback($wire) => $call,
            Self::Pcap($wire) => $call,
            Self::Packet($wire) => $call,
            Self::Tap($wire) => $call,
        }
    };
}

impl Wire for AnyWire {
    fn open(&mut self) -> Result<(), i32> {
        inside!(self, wire => wire.open())
    }

    fn close(&mut self) -> u64 {
        inside!(self, wire => wire.close())
    }

    #[inline]
    fn take(&mut self, counts: &Counting, deliver: impl FnOnce(&[u8], Option<Nanos>)) -> bool {
        inside!(self, wire => wire.take(counts, deliver))
    }

    #[inline]
    fn send(&mut self, frame: &[u8], counts: &Counting) -> Result<Sent, WcStatus> {
        inside!(self, wire => wire.send(frame, counts))
    }

    #[inline]
    fn is_full(&self) -> bool {
        inside!(self, wire => wire.is_full())
    }

    #[inline]
    fn flush(&mut self, counts: &Counting, each: impl FnMut(Result<usize, WcStatus>)) {
        inside!(self, wire => wire.flush(counts, each))
    }

    #[inline]
    fn backlog(&mut self) -> u64 {
        inside!(self, wire => wire.backlog())
    }

    #[inline]
    fn skip_beyond(&mut self, room: u64) -> u64 {
        inside!(self, wire => wire.skip_beyond(room))
    }

    fn waits(&self) -> bool {
        inside!(self, wire => wire.waits())
    }

    fn bind(&mut self, layout: SlotLayout) -> bool {
        inside!(self, wire => wire.bind(layout))
    }

    #[inline(never)]
    fn write(&mut self, slots: &Slots, part: &[u32], lengths: &mut [u32]) -> u64 {
        inside!(self, wire => wire.write(slots, part, lengths))
    }

    fn prepare(&mut self, slots: &Slots, part: &[u32]) {
        inside!(self, wire => wire.prepare(slots, part))
    }

    fn prepared(&self) -> Option<u32> {
        inside!(self, wire => wire.prepared())
    }

    fn discards(&self) -> bool {
        inside!(self, wire => wire.discards())
    }

    fn copies_out(&self) -> bool {
        inside!(self, wire => wire.copies_out())
    }

    fn copy_out(&mut self, slots: &Slots, run: &Run<'_>) {
        inside!(self, wire => wire.copy_out(slots, run))
    }

    fn is_interface(&self) -> bool {
        inside!(self, wire => wire.is_interface())
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        inside!(self, wire => wire.descriptor())
    }

    fn ended(&self) -> bool {
        inside!(self, wire => wire.ended())
    }

    fn missed(&mut self) -> u64 {
        inside!(self, wire => wire.missed())
    }
}
