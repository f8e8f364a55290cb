//! How a lane's queue pair comes to its peer: at once for raw packets, by an exchange of endpoints for the others.

use std::fmt;

use crate::error::VerbError;
use crate::provider::{AttributeMask, Device, ProtectionDomain, QpAttributes, QpState, QueuePair};

/// The queue pairs of a device.
pub(crate) type QpOf<D> = <<D as Device>::Pd as ProtectionDomain>::Qp;

/// Brings a queue pair from RESET to RTS, however often it takes. Never called per packet.
pub(crate) trait Wiring<D: Device>: fmt::Debug + Send {
    /// RESET to INIT: from here on receives may be posted.
    ///
    /// # Errors
    /// As `ibv_modify_qp(3)`.
    fn initialise(&mut self, qp: &mut QpOf<D>) -> Result<(), VerbError>;

    /// INIT to RTS, if the peer is there. `false`: not yet, ask again.
    ///
    /// # Errors
    /// As `ibv_modify_qp(3)`.
    fn connect(&mut self, qp: &mut QpOf<D>) -> Result<bool, VerbError>;

    /// Whether the peer has gone, or has begun anew, since the connection was made.
    fn is_stale(&self) -> bool;

    /// Bytes that stand in front of a received packet: those of the global route header of datagrams.
    fn prefix(&self) -> u16;

    /// The longest packet that can be sent over the connection; what is longer is a counted drop. `u16::MAX`: the device
    /// is asked.
    fn longest(&self) -> u16;
}

/// Raw packets have no peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawWiring {
    /// The port of the device, from 1.
    pub(crate) port: u8,
}

impl<D: Device> Wiring<D> for RawWiring {
    fn initialise(&mut self, qp: &mut QpOf<D>) -> Result<(), VerbError> {
        let attributes = QpAttributes { state: QpState::Init, port: self.port, ..QpAttributes::default() };
        qp.modify(&attributes, AttributeMask::STATE | AttributeMask::PORT)
    }

    fn connect(&mut self, qp: &mut QpOf<D>) -> Result<bool, VerbError> {
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
