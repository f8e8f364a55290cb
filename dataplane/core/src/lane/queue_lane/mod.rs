//! The lane implementation, generic over the provider.
//!
//! | file | contents |
//! | --- | --- |
//! | `data_path` | receive, transmit, reap and refill: everything that runs per burst |
//! | `slow_path` | the rare cases of the data path |
//! | `recovery` | the state of the queue pair: errors, resets, failed completion queues, the connection |
//! | `queues` | the queue pair, the completion queues and the channel |
//!
//! [`QueueLane`] calls recovery only if the data path fails or reports an error, or if the queue pair is not live. A
//! live queue pair is connected and in state RTS. Recovery may then restart the data path.

mod data_path;
mod queues;
mod recovery;
mod slow_path;

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use data_path::DataPath;
use queues::Queues;
use recovery::Recovery;

use super::wiring::Wiring;
use super::{ACCESS, Lane, LaneCounters, LaneSpec, LatencySink, NoSink, PendingEvents, Stamping};
use crate::clock::{Clocks, Stamper};
use crate::error::{Error, Result, VerbError};
use crate::mem::{Batch, Pool};
use crate::verbs::{
    CompletionChannel, CompletionQueue, CqGranted, Device, MAX_RUN, ProtectionDomain, QueuePair, check_registered,
    register_error,
};

/// Opens a lane: creates the queues on a device, posts receives, and moves the queue pair to RTS if the peer is ready.
/// Registers the pool's memory with the device.
///
/// All methods of the lane need this pool, or a detached pool with the same memory ([`Pool::detached`]), and batches of
/// this pool. With another pool or batch, the methods panic before they move a packet. A receive that panics loses the
/// buffers of the completions that it has polled.
///
/// # Errors
/// Fails if a verb fails. The error names the verb and the device. Also fails if the prefix of the wiring does not fit
/// into a buffer.
pub fn open<D: Device>(
    device: &D,
    pd: &D::Pd,
    pool: &mut Pool,
    spec: LaneSpec,
    wiring: Box<dyn Wiring<D>>,
    pending_events: Arc<PendingEvents>,
    clocks: &Clocks,
) -> Result<Box<dyn Lane>> {
    let named = |error: VerbError| error.on(device.name());
    let (layout, prefix) = (pool.layout(), wiring.prefix());
    if u32::from(prefix) > layout.room() || layout.headroom().checked_add(prefix).is_none() {
        let (name, room) = (device.name(), layout.room());
        return Err(Error::Memory(format!(
            "{name}: the device writes {prefix} bytes before a packet, but a buffer has room for {room} bytes; help: use \
             larger buffers"
        )));
    }
    let refused = |error| register_error(error, device.name(), pool.region().len());
    let mr = pd.register(pool.region().clone(), ACCESS).map_err(refused)?;
    check_registered(&mr, pool.region(), device.name())?;
    let (queues, granted) = Queues::create(device, pd, &spec).map_err(named)?;
    let stamper = match spec.stamps {
        Stamping::None => Stamper::none(),
        _ => clocks.stamper(granted.stamps),
    };
    let (depths, lengths) = ((spec.recv_depth, spec.send_depth), (prefix, wiring.longest()));
    let mut data = DataPath::new(queues, mr, pool, depths, lengths, stamper);
    let mut recovery = Recovery::new(device, pd, spec, wiring, pending_events, granted);
    recovery.start(&mut data, pool).map_err(named)?;
    Ok(match pool.keeps_received() {
        true => Box::new(QueueLane::<D, true> { data, recovery }),
        false => Box::new(QueueLane::<D, false> { data, recovery }),
    })
}

/// A lane on the queue pair and completion queues of one device.
///
/// `INFO` is whether the pool keeps the receive information of packets. `INFO` is a constant of the type, so no code
/// checks the value for each burst.
struct QueueLane<D: Device, const INFO: bool> {
    // Declared first: the queues must be dropped before the protection domain and the device.
    data: DataPath<D>,
    recovery: Recovery<D>,
}

impl<D: Device, const INFO: bool> QueueLane<D, INFO> {
    /// Reaps completed sends. If the completion queue has failed, creates the queues again. This function is separate
    /// to keep [`Lane::reap`] small, because [`Lane::reap`] usually has nothing to do.
    #[inline(never)]
    fn reap_some(&mut self, pool: &mut Pool, latency: &mut dyn LatencySink) -> Result<(), VerbError> {
        match self.data.reap(pool, latency) {
            Ok(_) => {
                self.examine_error();
                Ok(())
            }
            Err(lost) => self.recovery.rebuild(&mut self.data, pool, lost),
        }
    }

    /// Lets recovery examine an error that the last poll returned.
    #[inline]
    fn examine_error(&mut self) {
        if self.data.has_error {
            self.recovery.examine_error(&mut self.data);
        }
    }
}

impl<D: Device, const INFO: bool> Lane for QueueLane<D, INFO> {
    #[inline]
    fn receive(&mut self, pool: &mut Pool, batch: &mut Batch, limit: usize) -> Result<usize, VerbError> {
        match self.data.receive::<INFO>(pool, batch, limit) {
            Ok(n) => {
                self.examine_error();
                Ok(n)
            }
            Err(lost) => self.recovery.rebuild(&mut self.data, pool, lost).map(|()| 0),
        }
    }

    #[inline]
    fn transmit(&mut self, pool: &mut Pool, batch: &mut Batch) {
        if self.recovery.is_not_live(&self.data) {
            // Ignore the error here, because a failed reset returns the same error at the next refill.
            let _ = self.recovery.advance(&mut self.data, pool);
            if self.recovery.is_not_live(&self.data) {
                return self.recovery.drop_all(&mut self.data, pool, batch);
            }
        }
        self.data.transmit(pool, batch);
    }

    #[inline]
    fn reap(&mut self, pool: &mut Pool, latency: &mut dyn LatencySink) -> Result<(), VerbError> {
        self.recovery.check_deadline(&self.data);
        if self.data.is_reap_due() { self.reap_some(pool, latency) } else { Ok(()) }
    }

    #[inline]
    fn refill(&mut self, pool: &mut Pool) -> Result<(), VerbError> {
        if self.recovery.is_not_live(&self.data) {
            self.recovery.advance(&mut self.data, pool)?;
            if self.recovery.has_failed() {
                return Ok(());
            }
        }
        if self.data.is_refill_due() { self.data.refill(pool) } else { Ok(()) }
    }

    fn is_connected(&self) -> bool {
        self.recovery.is_connected()
    }

    fn housekeep(&mut self, pool: &mut Pool) -> Result<(), VerbError> {
        self.recovery.housekeep(&mut self.data, pool)
    }

    fn stop(&mut self) -> Result<(), VerbError> {
        self.recovery.stop(&mut self.data)
    }

    fn drain(&mut self, pool: &mut Pool) -> Result<usize, VerbError> {
        if self.recovery.is_lost() {
            return Ok(0);
        }
        while self.data.in_flight.len() > 0 && self.data.reap(pool, &mut NoSink)? > 0 {
            self.examine_error();
        }
        while self.data.posted.len() > 0 {
            let n = self.data.queues.recv_cq.poll_run(&mut self.data.run, MAX_RUN)?;
            if n == 0 {
                break;
            }
            self.data.discard_receives(pool, n);
        }
        Ok(self.data.outstanding())
    }

    fn reset_and_reclaim(&mut self, pool: &mut Pool) {
        self.recovery.abandon(&mut self.data, pool);
    }

    fn release_claim(&mut self) {
        self.data.queues.recv_cq.release_claim();
        self.data.queues.send_cq.release_claim();
    }

    fn arm(&mut self) -> bool {
        let Queues { recv_cq, channel, .. } = &mut self.data.queues;
        channel.is_some() && recv_cq.arm(false).is_ok()
    }

    fn waker(&self) -> Option<BorrowedFd<'_>> {
        self.data.queues.channel.as_ref()?.descriptor()
    }

    fn clear_wakeups(&mut self) {
        // Ignore errors here, because the next poll reports them.
        while let Some(Ok(Some(_))) = self.data.queues.channel.as_ref().map(|channel| channel.wait(Duration::ZERO)) {}
    }

    fn posted(&self) -> usize {
        self.data.posted.len()
    }

    fn sending(&self) -> usize {
        self.data.in_flight.len()
    }

    fn source_ended(&self) -> bool {
        self.data.queues.qp.source_ended()
    }

    fn counters(&self) -> &LaneCounters {
        &self.data.counters
    }

    fn stampers(&self) -> [&Stamper; 2] {
        [&self.data.recv_stamper, &self.data.send_stamper]
    }

    fn granted(&self) -> &CqGranted {
        &self.recovery.granted
    }
}
