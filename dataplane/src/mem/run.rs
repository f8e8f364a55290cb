//! A run of packets: where they are, and what is known of all of them.

use crate::clock::Stamp;
use crate::mem::Desc;
use crate::mem::vector::{self, Extent};

/// Packets that are sent together. What is so of all of them goes with them, so that it is found out once.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    descs: &'a [Desc],
    // A reference: it was written a number at a time just now, and a processor waits where it is to copy that in fewer and
    // larger parts.
    extent: &'a Extent,
}

/// Packets on their own, out of which a [`Run`] is made.
#[derive(Clone, Copy, Debug)]
pub struct Loose<'a> {
    descs: &'a [Desc],
    extent: Extent,
}

impl<'a> Loose<'a> {
    /// These packets.
    pub fn new(descs: &'a [Desc]) -> Self {
        Self { descs, extent: vector::extent(Desc::words(descs)) }
    }

    /// To be sent.
    pub fn run(&self) -> Run<'_> {
        Run { descs: self.descs, extent: &self.extent }
    }
}

impl<'a> Run<'a> {
    /// Packets of which this is known.
    #[inline]
    pub(super) fn known(descs: &'a [Desc], extent: &'a Extent) -> Self {
        debug_assert!(extent.covers(vector::extent(Desc::words(descs))));
        Self { descs, extent }
    }

    /// Where they are.
    #[inline]
    pub fn descs(&self) -> &'a [Desc] {
        self.descs
    }

    /// How many.
    #[inline]
    pub fn len(&self) -> usize {
        self.descs.len()
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.descs.is_empty()
    }

    #[inline]
    pub(crate) fn extent(&self) -> &'a Extent {
        self.extent
    }
}

/// The stamps of a run of packets.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stamps<'a> {
    /// All have this one.
    Alike(Stamp),
    /// Each its own.
    Each(&'a [Stamp]),
}

impl Stamps<'_> {
    /// That of one of them.
    #[inline]
    pub(crate) fn at(&self, index: usize) -> Stamp {
        match self {
            Self::Alike(stamp) => *stamp,
            Self::Each(stamps) => stamps[index],
        }
    }

    /// Those from an index on, so many.
    #[inline]
    pub(crate) fn part(&self, from: usize, n: usize) -> Self {
        match self {
            Self::Alike(stamp) => Self::Alike(*stamp),
            Self::Each(stamps) => Self::Each(&stamps[from..from + n]),
        }
    }
}
