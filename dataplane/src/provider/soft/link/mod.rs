//! What the wire of a software device is made of.

mod capture;
mod generator;
#[allow(dead_code, reason = "the links that are made of interfaces come next")]
mod interface;
mod loopback;
mod pcap;

use std::sync::Arc;

pub(crate) use capture::Capture;
pub use generator::{FrameKind, GeneratorSpec};
pub use loopback::LoopbackLink;
pub use pcap::{Pace, PcapSpec};

pub(super) use generator::{Generator, Plan};
pub(super) use loopback::Port;
pub(super) use pcap::{Files, Player};

use crate::clock::HostClock;
use crate::error::{Error, Result};
use crate::provider::WcStatus;
use crate::provider::soft::fabric::Fabric;
use crate::provider::soft::rss::Rss;

/// What the wire is.
#[derive(Clone, Debug)]
pub enum LinkSpec {
    /// The port of another software device, or this one's own.
    Loopback(LoopbackLink),
    /// Synthetic frames come in, and what goes out is counted.
    Generator(GeneratorSpec),
    /// A capture file comes in, a capture file goes out.
    Pcap(PcapSpec),
}

/// The link of a device.
#[derive(Debug)]
pub(super) enum Link {
    Generator(Arc<Plan>),
    Loopback(LoopbackLink),
    Pcap(Arc<Files>),
}

impl Link {
    pub(super) fn new(spec: &LinkSpec, max_frame: usize) -> Result<Self> {
        Ok(match spec {
            LinkSpec::Loopback(link) => Self::Loopback(link.clone()),
            LinkSpec::Generator(spec) => Self::Generator(Arc::new(Plan::new(spec, max_frame)?)),
            LinkSpec::Pcap(spec) => Self::Pcap(Arc::new(Files::open(spec)?)),
        })
    }

    /// What carries connections and datagrams; `None`: it has raw packets alone.
    pub(super) fn fabric(&self) -> Option<&Arc<Fabric>> {
        match self {
            Self::Loopback(link) => Some(link.fabric()),
            Self::Generator(_) | Self::Pcap(_) => None,
        }
    }

    /// The end of it that queue pair `queue` has: which of how many.
    pub(super) fn wire(&self, queue: (u16, u16), rss: &Arc<Rss>, clock: &HostClock) -> Wire {
        match self {
            Self::Generator(plan) => Wire::Generator(Generator::new(plan.clone(), queue, rss, clock.clone())),
            Self::Loopback(link) => Wire::Loopback(Port::new(link, queue, rss.clone())),
            Self::Pcap(files) => Wire::Pcap(Player::new(files.clone(), queue, rss, clock.clone())),
        }
    }

    /// What went wrong with it.
    pub(super) fn error(&self) -> Option<Error> {
        match self {
            Self::Pcap(files) => files.error(),
            Self::Generator(_) | Self::Loopback(_) => None,
        }
    }

    /// Writes out what is still on its way.
    pub(super) fn finish(&self) -> Result<()> {
        match self {
            Self::Pcap(files) => files.finish(),
            Self::Generator(_) | Self::Loopback(_) => Ok(()),
        }
    }
}

/// The end of a link that a queue pair has.
#[derive(Debug)]
pub(super) enum Wire {
    Generator(Generator),
    Loopback(Port),
    Pcap(Player),
}

impl Wire {
    /// Begins to receive.
    pub(super) fn open(&mut self) {
        if let Self::Loopback(port) = self {
            port.open();
        }
    }

    /// Stops to receive: what was under way is lost. Returns how many frames that were.
    pub(super) fn close(&mut self) -> u64 {
        match self {
            Self::Loopback(port) => port.close(),
            Self::Generator(_) | Self::Pcap(_) => 0,
        }
    }

    /// How many frames wait at the least; the most that can be said of a source without end is `u64::MAX`.
    pub(super) fn backlog(&mut self) -> u64 {
        match self {
            Self::Generator(generator) => generator.due(),
            Self::Loopback(port) => port.backlog(),
            Self::Pcap(player) => player.due(),
        }
    }

    /// Lets go of the frames that came too early for `room` receives; returns how many. Only a wire with a time of its
    /// own does not wait.
    pub(super) fn skip_beyond(&mut self, room: u64) -> u64 {
        match self {
            Self::Generator(generator) => generator.skip_beyond(room),
            Self::Loopback(_) | Self::Pcap(_) => 0,
        }
    }

    /// Hands the next frame over, if one has come in.
    #[inline]
    pub(super) fn take(&mut self, deliver: impl FnOnce(&[u8])) -> bool {
        match self {
            Self::Generator(generator) => generator.take(deliver),
            Self::Loopback(port) => port.take(deliver),
            Self::Pcap(player) => player.take(deliver),
        }
    }

    /// Whether a frame that finds no posted receive waits for one. Where it does not it is lost.
    pub(super) fn waits(&self) -> bool {
        match self {
            Self::Generator(_) | Self::Pcap(_) => true,
            Self::Loopback(_) => false,
        }
    }

    /// Sends a frame.
    #[inline]
    pub(super) fn send(&mut self, frame: &[u8]) -> Result<(), WcStatus> {
        match self {
            Self::Generator(_) => Ok(()),
            Self::Loopback(port) => {
                port.send(frame);
                Ok(())
            }
            Self::Pcap(player) => player.send(frame),
        }
    }

    /// Whether no frame will come in any more.
    pub(super) fn ended(&self) -> bool {
        match self {
            Self::Generator(generator) => generator.ended(),
            Self::Loopback(_) => false,
            Self::Pcap(player) => player.ended(),
        }
    }

    /// Frames lost since the last call because nobody fetched them in time.
    pub(super) fn missed(&self) -> u64 {
        match self {
            Self::Loopback(port) => port.missed(),
            Self::Generator(_) | Self::Pcap(_) => 0,
        }
    }
}
