//! How a lane's queue pair comes to its peer, as the lane sees it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{self, JoinHandle};

use super::meeting::Meeting;
use super::ways::Ways;
use crate::error::VerbError;
use crate::lane::{QpOf, Wiring};
use crate::provider::connect::{Agreed, Connector, QueuePairEndpoint};
use crate::provider::{Destination, Device, ProtectionDomain, QpType, QueuePair};

type AhOf<D> = <<D as Device>::Pd as ProtectionDomain>::Ah;

/// Bytes in front of a datagram: its global route header.
const GRH: u16 = 40;

/// How far the lane has come.
enum Step<D: Device> {
    /// RESET.
    Down,
    /// INIT: receives are posted next.
    Initialised,
    /// The endpoint was offered.
    Offered,
    /// The way to the peer is being looked for, which may take its time.
    Resolving(QueuePairEndpoint, JoinHandle<Result<AhOf<D>, VerbError>>),
    /// RTS.
    Ready,
    /// The peer cannot be reached: all begins anew, with the next peer.
    Refused,
}

/// The wiring of one lane of a port that has a peer.
pub(crate) struct PeerWiring<D: Device> {
    device: D,
    ways: Arc<Ways<D::Pd>>,
    connector: Connector,
    kind: QpType,
    queue: u16,
    /// Bytes that a receive has room for.
    room: u32,
    meeting: Arc<Meeting>,
    /// Changes when the addresses of the device's port do.
    addresses: Arc<AtomicU32>,
    seen: u32,
    step: Step<D>,
    agreed: Option<Agreed>,
    /// Kept as long as requests may use it.
    handle: Option<AhOf<D>>,
}

impl<D: Device> PeerWiring<D> {
    pub(crate) fn new(
        (device, ways): (&D, &Arc<Ways<D::Pd>>),
        connector: Connector,
        (kind, queue, room): (QpType, u16, u32),
        meeting: Arc<Meeting>,
        addresses: Arc<AtomicU32>,
    ) -> Self {
        Self {
            device: device.clone(),
            ways: ways.clone(),
            connector: connector.queue(queue),
            kind,
            queue,
            room,
            meeting,
            seen: addresses.load(Ordering::Relaxed),
            addresses,
            step: Step::Down,
            agreed: None,
            handle: None,
        }
    }

    fn endpoint(&self, qp: &QpOf<D>) -> QueuePairEndpoint {
        let endpoint = self.connector.endpoint(qp);
        // A message that is longer than the receives posted here would be an error on both sides.
        QueuePairEndpoint { max_message: endpoint.max_message.min(self.room), ..endpoint }
    }

    /// The peer is known. Before the queue pair goes on, the way there is looked for on a thread of its own: the kernel looks
    /// for it when a connection goes to RTR, and of an address that nothing leads to it takes a second to find out. What the
    /// kernel has just found it finds at once.
    fn look_for(&mut self, qp: &QpOf<D>, (remote, round): (QueuePairEndpoint, u32)) {
        let path = match self.connector.agree(&self.connector.endpoint(qp), &remote) {
            Ok(agreed) => agreed.path,
            Err(refused) => return self.refuse(&refused.to_string()),
        };
        let ways = self.ways.clone();
        match thread::Builder::new().name("resolve".to_owned()).spawn(move || ways.find(round, &path)) {
            Ok(found) => self.step = Step::Resolving(remote, found),
            Err(error) => self.refuse(&format!("no thread to resolve its address: {error}")),
        }
    }

    /// The way is known: on to RTS. What the device refuses here may be the fault of what the peer told: it ends this try, and
    /// not the run.
    fn handshake(&mut self, qp: &mut QpOf<D>, remote: &QueuePairEndpoint, handle: AhOf<D>) -> Result<(), VerbError> {
        let agreed = match self.connector.connect(qp, remote) {
            Ok(agreed) => agreed,
            Err(refused) => {
                self.refuse(&refused.to_string());
                return Ok(());
            }
        };
        if self.kind == QpType::Ud {
            qp.bind_peer(Destination { ah: &handle, qp: remote.qpn, qkey: remote.qkey })?;
            self.handle = Some(handle);
        }
        self.agreed = Some(agreed);
        self.step = Step::Ready;
        self.meeting.ready(self.queue);
        Ok(())
    }

    fn refuse(&mut self, why: &str) {
        self.meeting.refuse(&format!("the peer cannot be connected with: {why}"));
        self.step = Step::Refused;
    }
}

impl<D: Device> fmt::Debug for PeerWiring<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerWiring").field("kind", &self.kind).field("queue", &self.queue).finish_non_exhaustive()
    }
}

impl<D: Device> Wiring<D> for PeerWiring<D> {
    fn initialise(&mut self, qp: &mut QpOf<D>) -> Result<(), VerbError> {
        if !matches!(self.step, Step::Down) {
            self.connector.renew();
        }
        let addresses = self.addresses.load(Ordering::Relaxed);
        if addresses != self.seen {
            self.seen = addresses;
            if let Err(error) = self.connector.refresh(&self.device) {
                // As before, then: when the port is well again, it says so, and all begins anew.
                tracing::warn!("{error}");
            }
        }
        let (attributes, mask) = self.connector.init();
        qp.modify(&attributes, mask)?;
        self.step = Step::Initialised;
        Ok(())
    }

    fn connect(&mut self, qp: &mut QpOf<D>) -> Result<bool, VerbError> {
        match std::mem::replace(&mut self.step, Step::Down) {
            Step::Down => {}
            Step::Initialised => {
                self.meeting.offer(self.queue, self.endpoint(qp));
                self.step = Step::Offered;
            }
            Step::Offered => {
                self.step = Step::Offered;
                if let Some(answer) = self.meeting.answer(self.queue) {
                    self.look_for(qp, answer);
                }
            }
            Step::Resolving(remote, found) if !found.is_finished() => self.step = Step::Resolving(remote, found),
            Step::Resolving(remote, found) => {
                // A thread that panicked has found nothing.
                match found.join().unwrap_or(Err(VerbError::new("ibv_create_ah", libc::EIO))) {
                    Ok(handle) => self.handshake(qp, &remote, handle)?,
                    Err(error) => self.refuse(&format!("{}: {error}: no way to {}", self.device.name(), remote.gid)),
                }
            }
            step @ (Step::Ready | Step::Refused) => self.step = step,
        }
        Ok(self.meeting.is_live(self.queue))
    }

    fn is_stale(&self) -> bool {
        matches!(self.step, Step::Refused)
            || self.meeting.is_stale(self.queue)
            || self.addresses.load(Ordering::Relaxed) != self.seen
    }

    fn prefix(&self) -> u16 {
        if self.kind == QpType::Ud { GRH } else { 0 }
    }

    fn longest(&self) -> u16 {
        self.agreed.as_ref().map_or(0, |agreed| u16::try_from(agreed.max_message).unwrap_or(u16::MAX))
    }
}
