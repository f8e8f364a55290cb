//! Implements [`Link`] for an interface with AF_XDP.

use std::sync::Arc;

use super::queue::Queue;
use super::{Attachment, Xdp, check_queues, explain, lock};
use crate::counters::SoftCounters;
use crate::hand_over::HandOver;
use crate::link::Link;
use crate::link::interface::{Interface, Watcher};
use crate::rss::Rss;
use crate::status::Status;
use dataplane_core::clock::HostClock;
use dataplane_core::error::{Error, Result};
use dataplane_core::verbs::QpSpec;

impl<End: From<Queue>> Link<End> for Xdp {
    fn end(self: Arc<Self>, spec: &QpSpec, _: &Arc<Rss>, _: &HostClock) -> End {
        Queue::new(self, u32::from(spec.queue.0), spec.caps).into()
    }

    fn is_interface(&self) -> bool {
        true
    }

    fn is_zero_copy(&self) -> bool {
        true
    }

    fn check_queues(&self, queues: u16) -> Result<()> {
        check_queues(&self.spec.interface, queues.into())
    }

    /// Releases the sockets of the queues from number `queues` on. The NIC selects the queue of a frame, so the kernel
    /// then gets the frames of the released queues. The frames of a new queue go to its socket as soon as the queue
    /// posts receives.
    fn distribute(&self, queues: u16) -> Result<()> {
        let released = self.release_from(queues.into());
        released.map_err(|error| Error::Wire(explain(&self.spec.interface, "removing a socket from the map", &error)))
    }

    fn hand_over(&self) -> Option<&dyn HandOver> {
        Some(self)
    }

    fn has_nic_stamps(&self) -> bool {
        lock(&self.attachment).by_nic
    }

    /// Watches the interface. The link is up while the interface has a carrier and the program is attached. If the
    /// interface is recreated, attaches the program again, and the queues open sockets on the new interface.
    fn watch(self: Arc<Self>, status: &Arc<Status>) -> Result<Option<Watcher>> {
        let (xdp, status, mut before) = (Arc::downgrade(&self), status.clone(), None::<Interface>);
        let watcher = Watcher::start(&self.spec.interface, move |found| {
            let Some(xdp) = xdp.upgrade() else { return false };
            xdp.replace_foreign();
            if found.is_none() {
                xdp.detach_program();
            }
            let is_known = |interface: &Interface| interface.index == xdp.epoch().index;
            if let Some(interface) = found.filter(|interface| !is_known(interface))
                && let Err(error) = xdp.attach_program(interface.index)
            {
                let trouble = Some(error.to_string());
                let previous = std::mem::replace(&mut lock(&xdp.sockets).trouble, trouble.clone());
                // Log only a new error, because the watcher repeats the attempt several times per second.
                if previous != trouble {
                    tracing::warn!("{error}");
                }
            }
            xdp.update_clock_offset();
            if let Some((now, before)) = found.zip(before) {
                now.report_changes(&before, &status);
            }
            before = found.or(before);
            // Without the attached program, no frames arrive.
            status.set_link(found.is_some_and(|interface| interface.has_carrier && is_known(&interface)));
            found.is_some()
        });
        watcher.map(Some)
    }

    /// Returns the last error of opening a queue or of attaching the program again.
    fn error(&self) -> Option<Error> {
        lock(&self.sockets).trouble.clone().map(Error::Wire)
    }

    fn describe(&self) -> Option<String> {
        let Attachment { native, by_nic, .. } = *lock(&self.attachment);
        let runs = if native { "native" } else { "generic" };
        let copies = if lock(&self.sockets).zero_copy { "zero-copy" } else { "copy" };
        let stamps = match (self.stamped, by_nic) {
            (false, _) => "",
            (true, false) => ", timestamps: kernel",
            (true, true) => ", timestamps: NIC",
        };
        Some(format!("{} ({runs}, {copies}{stamps})", self.spec.interface))
    }

    fn count(&self, into: &mut SoftCounters) {
        let sockets = lock(&self.sockets);
        into.add(&sockets.retired);
        for open in &sockets.open {
            into.add(&open.counters());
        }
    }
}
