//! Connection setup of a lane's queue pair. Raw packet queues need no peer. Other types exchange endpoints with the
//! peer.

use std::fmt;

use crate::error::VerbError;
use crate::units::QpNum;
use crate::verbs::{AttributeMask, Destination, Device, ProtectionDomain, QpAttributes, QpCaps, QpState, QueuePair};

/// The queue pair type of a device.
pub type QpOf<D> = <<D as Device>::Pd as ProtectionDomain>::Qp;

/// The address handle type of a device.
pub type AhOf<D> = <<D as Device>::Pd as ProtectionDomain>::Ah;

/// The queue pair of a lane, with the operations that a [`Wiring`] may use. The device must own all posted slots until
/// the lane itself resets the queue pair. A wiring can therefore change attributes, but cannot replace or reset the
/// queue pair.
pub struct LaneQueuePair<'lane, D: Device>(&'lane mut QpOf<D>);

impl<'lane, D: Device> LaneQueuePair<'lane, D> {
    pub(super) fn new(qp: &'lane mut QpOf<D>) -> Self {
        Self(qp)
    }

    /// Returns the number of the queue pair.
    pub fn number(&self) -> QpNum {
        self.0.number()
    }

    /// Returns the granted capacities.
    pub fn caps(&self) -> QpCaps {
        self.0.caps()
    }

    /// Changes the attributes in `mask`: `ibv_modify_qp(3)`.
    ///
    /// # Errors
    /// See [`QueuePair::modify`]. Also returns `EINVAL` for a change to RESET, because only the lane may reset the
    /// queue pair.
    pub fn modify(&mut self, attributes: &QpAttributes, mask: AttributeMask) -> Result<(), VerbError> {
        if mask.contains(AttributeMask::STATE) && attributes.state == QpState::Reset {
            return Err(VerbError::new("ibv_modify_qp", libc::EINVAL));
        }
        self.0.modify(attributes, mask)
    }

    /// Sets the destination of all sends. Only queue pairs for unreliable datagrams support this method.
    ///
    /// # Errors
    /// See [`QueuePair::bind_peer`].
    pub fn bind_peer(&mut self, to: Destination<'_, AhOf<D>>) -> Result<(), VerbError> {
        self.0.bind_peer(to)
    }
}

/// The connection setup of a lane, which moves the queue pair from RESET to RTS at the start and after every reset.
pub trait Wiring<D: Device>: fmt::Debug + Send {
    /// Moves the queue pair from RESET to INIT. From INIT on, receives may be posted.
    ///
    /// # Errors
    /// Fails like `ibv_modify_qp(3)`.
    fn initialise(&mut self, qp: &mut LaneQueuePair<'_, D>) -> Result<(), VerbError>;

    /// Moves the queue pair from INIT to RTS if the peer is ready. If the peer is not ready yet, returns `false`, and
    /// the caller must try again later.
    ///
    /// # Errors
    /// Fails like `ibv_modify_qp(3)`.
    fn connect(&mut self, qp: &mut LaneQueuePair<'_, D>) -> Result<bool, VerbError>;

    /// Returns whether the peer has gone or restarted since the connection was set up.
    fn is_stale(&self) -> bool;

    /// Returns the number of bytes that the device writes in front of each received packet. For unreliable datagrams,
    /// the number is the length of the global route header.
    fn prefix(&self) -> u16;

    /// Returns the maximum length of a packet on this connection. The lane drops and counts longer packets. `u16::MAX`
    /// means that only the device limits the length. 0 means that the peer receives no packets. The lane then counts all
    /// packets as not connected.
    fn longest(&self) -> u16;
}

/// Wiring of raw packet queues, which have no peer.
#[derive(Clone, Copy, Debug)]
pub struct RawWiring {
    /// Port number of the device, starting at 1.
    pub port: u8,
}

impl<D: Device> Wiring<D> for RawWiring {
    fn initialise(&mut self, qp: &mut LaneQueuePair<'_, D>) -> Result<(), VerbError> {
        let attributes = QpAttributes { state: QpState::Init, port: self.port, ..QpAttributes::default() };
        qp.modify(&attributes, AttributeMask::STATE | AttributeMask::PORT)
    }

    fn connect(&mut self, qp: &mut LaneQueuePair<'_, D>) -> Result<bool, VerbError> {
        for state in [QpState::Rtr, QpState::Rts] {
            let (attributes, mask) = QpAttributes::to(state);
            qp.modify(&attributes, mask)?;
        }
        Ok(true)
    }

    fn is_stale(&self) -> bool {
        false
    }

    fn prefix(&self) -> u16 {
        0
    }

    fn longest(&self) -> u16 {
        u16::MAX
    }
}
