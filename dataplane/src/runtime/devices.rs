//! The ports of a plan become open devices.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::clock::HostClock;
use crate::config::Plan;
use crate::error::{Error, Result};
use crate::lane::{ACCESS, Lane, LaneSpec, VerbsLane};
use crate::mem::Pool;
use crate::pipeline::PortInfo;
use crate::provider::{Device, MemoryRegion, ProtectionDomain};

/// An open device behind a port, whatever its provider.
pub(crate) trait PortDevice: Send + Sync {
    /// Makes one worker's lane, on the worker's own thread.
    fn open_lane(&self, pool: &Pool, spec: LaneSpec) -> Result<Box<dyn Lane>>;

    /// What the device has reported since the last call, in words.
    fn events(&self) -> Vec<String>;

    /// The device, in words.
    fn describe(&self) -> String;

    /// The device's own counters.
    fn counters(&self) -> BTreeMap<String, u64>;

    /// All lanes are closed: what was wrong with its input or output.
    fn finish(&self) -> Option<Error>;
}

/// Opens the device of every port.
pub(crate) fn open(plan: &Plan, infos: &[PortInfo], clock: &HostClock) -> Result<Vec<Arc<dyn PortDevice>>> {
    let _ = (plan, infos, clock);
    Ok(Vec::new())
}

fn open_lane<D: Device>(device: &D, pd: &D::Pd, pool: &Pool, spec: LaneSpec) -> Result<Box<dyn Lane>> {
    let mr = pd.register(pool.region().clone(), ACCESS).map_err(|error| error.on(device.name()))?;
    Ok(Box::new(VerbsLane::open(device, pd, mr, pool, spec)?))
}
