//! The interface of all open links.

use std::fmt;
use std::sync::Arc;

use super::interface::Watcher;
use crate::counters::SoftCounters;
use crate::fabric::Fabric;
use crate::hand_over::HandOver;
use crate::rss::Rss;
use crate::status::Status;
use dataplane_core::clock::HostClock;
use dataplane_core::error::{Error, Result};
use dataplane_core::verbs::QpSpec;

/// The open link of a device. Each queue pair sends and receives through its own end of the link, and `End` is the type
/// of such an end. The data path does not use this trait.
pub(crate) trait Link<End>: fmt::Debug + Send + Sync {
    /// Creates the end through which one queue pair sends and receives.
    fn end(self: Arc<Self>, spec: &QpSpec, rss: &Arc<Rss>, clock: &HostClock) -> End;

    /// Returns the fabric, which carries connections and datagrams, or `None` if the link carries only raw packets.
    fn fabric(&self) -> Option<&Arc<Fabric>> {
        None
    }

    /// Checks whether the link can have this number of queues.
    ///
    /// # Errors
    /// Fails with a suggested fix if the link can have only fewer queues.
    fn check_queues(&self, _queues: u16) -> Result<()> {
        Ok(())
    }

    /// Distributes the received frames among the first `queues` queues. The other queues receive no further frames, but
    /// keep the frames that have already arrived. Any thread can call this method while the queues receive.
    ///
    /// # Errors
    /// Fails if the kernel refuses the change.
    fn distribute(&self, _queues: u16) -> Result<()> {
        Ok(())
    }

    /// Returns whether the link is a kernel interface.
    fn is_interface(&self) -> bool {
        false
    }

    /// Returns whether queue pairs hand slots to the kernel instead of copying frames. Sends then complete some time
    /// after the post.
    fn is_zero_copy(&self) -> bool {
        false
    }

    /// Returns whether received frames have timestamps of a NIC's clock.
    fn has_nic_stamps(&self) -> bool {
        false
    }

    /// Returns details of the link besides its kind, such as the interface and the source of timestamps.
    fn describe(&self) -> Option<String> {
        None
    }

    /// Adds the counters that the link keeps for all its queue pairs to `into`. These are the counters of the kernel,
    /// and the number of sent frames that are missing in the output file because a write failed.
    fn count(&self, _into: &mut SoftCounters) {}

    /// Starts to watch the kernel interface of the link. Returns `None` if the link has no interface.
    fn watch(self: Arc<Self>, _status: &Arc<Status>) -> Result<Option<Watcher>> {
        Ok(None)
    }

    /// Does background work that must not depend on polling, such as handling expired timers. Called several times per
    /// second.
    fn drive(&self) {}

    /// Returns the functions that hand the queues over to another program, or `None` if the kind of the link cannot do
    /// this.
    fn hand_over(&self) -> Option<&dyn HandOver> {
        None
    }

    /// Returns the error of the link's files, if there was one.
    fn error(&self) -> Option<Error> {
        None
    }

    /// Writes pending output to the link's file.
    fn finish(&self) -> Result<()> {
        Ok(())
    }
}
