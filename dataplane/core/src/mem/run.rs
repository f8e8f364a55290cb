//! A run: the descriptors of packets that are sent with one call, and bounds on all these packets.

use crate::clock::Stamp;
use crate::mem::desc::Desc;
use crate::mem::vector::{self, Bounds};

/// Packets that are sent with one call. The bounds on all packets are computed once and passed on with the run.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    descs: &'a [Desc],
    // The bounds are a reference, because a copy would be slow. The batch has just written the bounds one field at a
    // time, so the wider loads of a copy would stall on store forwarding.
    bounds: &'a Bounds,
}

/// Descriptors and their bounds. A [`Run`] borrows both.
#[derive(Clone, Copy, Debug)]
pub struct RunSource<'a> {
    descs: &'a [Desc],
    bounds: Bounds,
}

impl<'a> RunSource<'a> {
    /// Computes the bounds of these packets.
    pub fn new(descs: &'a [Desc]) -> Self {
        Self { descs, bounds: vector::bounds(Desc::words(descs)) }
    }

    /// Returns the packets as a run to send.
    pub fn run(&self) -> Run<'_> {
        Run { descs: self.descs, bounds: &self.bounds }
    }
}

impl<'a> Run<'a> {
    /// Creates a run of packets with known bounds.
    #[inline]
    pub(super) fn known(descs: &'a [Desc], bounds: &'a Bounds) -> Self {
        debug_assert!(bounds.covers(vector::bounds(Desc::words(descs))));
        Self { descs, bounds }
    }

    /// Returns the descriptors of the packets.
    #[inline]
    pub fn descs(&self) -> &'a [Desc] {
        self.descs
    }

    /// Returns the number of packets.
    #[inline]
    pub fn len(&self) -> usize {
        self.descs.len()
    }

    /// Returns whether the run is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.descs.is_empty()
    }

    /// Returns the bounds on all packets.
    #[inline]
    pub fn bounds(&self) -> &'a Bounds {
        self.bounds
    }
}

/// The receive timestamps of a run of packets.
#[derive(Clone, Copy, Debug)]
pub enum Stamps<'a> {
    /// All packets share this timestamp.
    Alike(Stamp),
    /// Each packet has its own timestamp.
    Each(&'a [Stamp]),
}

impl Stamps<'_> {
    /// Returns the timestamp of the packet at `index`.
    #[inline]
    pub(crate) fn at(&self, index: usize) -> Stamp {
        match self {
            Self::Alike(stamp) => *stamp,
            Self::Each(stamps) => stamps[index],
        }
    }

    /// Returns the timestamps of `n` packets, starting at index `from`.
    #[inline]
    pub(crate) fn part(&self, from: usize, n: usize) -> Self {
        match self {
            Self::Alike(stamp) => Self::Alike(*stamp),
            Self::Each(stamps) => Self::Each(&stamps[from..from + n]),
        }
    }
}
