//! The queues of a lane.

use crate::error::VerbError;
use crate::lane::LaneSpec;
use crate::lane::wiring::QpOf;
use crate::verbs::{
    Capability, CompletionChannel, CompletionQueue, CqFlags, CqGranted, CqSpec, Device, PollFields, ProtectionDomain,
    QpCaps, QpSpec, QpType, QueuePair,
};

/// The maximum length of an inline send in bytes: enough for the shortest Ethernet frame with a VLAN tag. The device
/// then reads a short frame together with its request, instead of in a second read.
const INLINE: u32 = 64;

/// The queues of a lane. If a completion queue fails, the lane creates all queues again.
pub(super) struct Queues<D: Device> {
    // Declared first: the queue pair must be dropped before the completion queues that it reports to.
    pub(super) qp: QpOf<D>,
    pub(super) send_cq: D::Cq,
    pub(super) recv_cq: D::Cq,
    /// The completion channel that the worker sleeps on.
    pub(super) channel: Option<D::Channel>,
}

impl<D: Device> Queues<D> {
    /// Creates the queues. The new queue pair is in state RESET. If the device creates completion queues with
    /// timestamps but refuses the queue pair, creates the queues without timestamps.
    pub(super) fn create(device: &D, pd: &D::Pd, spec: &LaneSpec) -> Result<(Self, CqGranted), VerbError> {
        let stamps = spec.stamps.fields();
        let refused = match Self::create_with(device, pd, spec, stamps) {
            Err(refused) if refused.errno == libc::EOPNOTSUPP && !stamps.is_empty() => refused,
            created => return created,
        };
        let (queues, mut granted) = Self::create_with(device, pd, spec, PollFields::empty())?;
        tracing::warn!(
            "{}: the device refuses a queue pair with device timestamps ({refused}), so packets get software timestamps",
            device.name()
        );
        for (capability, field) in
            [(Capability::Timestamps, PollFields::TIMESTAMP), (Capability::WallclockTimestamps, PollFields::WALLCLOCK)]
        {
            if stamps.contains(field) {
                granted.refused.push(capability);
                granted.why.push(format!("missing {capability}: {refused}"));
            }
        }
        granted.refused.sort_unstable();
        Ok((queues, granted))
    }

    /// Creates the queues. The completion queues request the timestamps in `stamps`.
    fn create_with(
        device: &D,
        pd: &D::Pd,
        spec: &LaneSpec,
        stamps: PollFields,
    ) -> Result<(Self, CqGranted), VerbError> {
        let send_fields = PollFields::BYTE_LEN | stamps;
        let recv_fields = send_fields | PollFields::from(spec.recv_fields);
        // The worker waits for several lanes at once, so the worker needs the file descriptor of each channel.
        let channel = match spec.sleeps && device.capabilities().has.contains(&Capability::Events) {
            true => Some(device.create_channel()?).filter(|channel| channel.descriptor().is_some()),
            false => None,
        };
        // With a vector for each worker, the wake-ups of one worker do not interrupt the core of another worker.
        let of_worker = u32::from(spec.queue.0) % device.capabilities().completion_vectors.max(1);
        let cq = |depth, fields, channel: Option<&D::Channel>| {
            let vector = if channel.is_some() { of_worker } else { 0 };
            let spec = CqSpec { depth, fields, vector, flags: CqFlags::SINGLE_THREADED, ..CqSpec::default() };
            device.create_cq(&spec, channel)
        };
        let (send_cq, _) = cq(spec.send_depth, send_fields, None)?;
        // A lane that only sends also needs a receive queue and its completion queue. Both have the minimum size, and
        // nothing is posted to the receive queue.
        let (recv_cq, granted) = cq(spec.recv_depth.max(1), recv_fields, channel.as_ref())?;
        let create = |inline| {
            let (send_depth, recv_depth) = (spec.send_depth, spec.recv_depth.max(1));
            let caps = QpCaps { send_depth, recv_depth, send_sges: 1, recv_sges: 1, inline };
            let only = QpSpec::new(spec.kind, caps);
            // Only raw-packet queue pairs use RSS.
            let spec = if spec.kind == QpType::RawPacket { QpSpec { queue: spec.queue, ..only } } else { only };
            pd.create_qp(&spec, &send_cq, &recv_cq, None)
        };
        let may_inline = spec.kind == QpType::RawPacket && device.capabilities().has.contains(&Capability::Inline);
        let qp = match may_inline {
            // Space for inline bytes makes every send request longer, which may exceed a limit of the device. The lane
            // then works without inline sends.
            true => create(INLINE).or_else(|_| create(0))?,
            false => create(0)?,
        };
        Ok((Self { qp, send_cq, recv_cq, channel }, granted))
    }

    /// Returns the numbers that identify the queue pair, its work queue and the completion queues in asynchronous
    /// events.
    pub(super) fn numbers(&self) -> (u32, Option<u32>, [u32; 2]) {
        (self.qp.number().0, self.qp.work_queue(), [self.send_cq.number(), self.recv_cq.number()])
    }
}
