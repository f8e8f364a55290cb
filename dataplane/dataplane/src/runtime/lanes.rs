//! The lanes and the packet memory of one worker, also for programs that have a packet loop of their own.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::Assembly;
use crate::config::{self, Plan, Port, PortPlan};
use crate::runtime::devices::{self, PortDevice};
use crate::runtime::offload;
use dataplane_core::clock::{ClockReport, HostClock};
use dataplane_core::error::{Error, Result, VerbError};
use dataplane_core::lane::{Lane, LaneSpec};
use dataplane_core::mem::{BatchMemory, PageKind, Pool, Region, RegionSpec, SlotLayout};
use dataplane_core::pipeline::PortInfo;
use dataplane_core::topology::pin_current_thread;
use dataplane_core::units::{NumaNode, Period};
use dataplane_core::upgrade;
use dataplane_soft::upgrade::HandOver;

/// The lanes of one worker, and the pool of their packet buffers.
pub(super) struct OpenLanes {
    // Rust drops fields in order. The lanes come before the pool, so that the devices release the packet memory before
    // the pool frees the memory.
    pub(super) lanes: Vec<Box<dyn Lane>>,
    pub(super) pool: Pool,
    pub(super) pages: PageKind,
}

/// The packet memory of a worker of another program.
#[derive(Debug)]
pub(crate) struct SharedMemory {
    pub(crate) descriptor: OwnedFd,
    pub(crate) pages: PageKind,
    /// The stride and the headroom of the buffers in bytes, and the number of buffers.
    pub(crate) layout: [u32; 3],
}

impl SharedMemory {
    /// Returns the stride and the headroom of buffers, and the number of buffers.
    pub(crate) fn numbers(layout: SlotLayout) -> [u32; 3] {
        [layout.stride(), layout.headroom().into(), layout.count()]
    }

    /// Maps the memory for the worker with this number.
    fn open(self, layout: SlotLayout, worker: usize) -> Result<Pool> {
        let Self { descriptor, pages, layout: found } = self;
        let wanted = Self::numbers(layout);
        if found != wanted {
            let message = format!(
                "the packet memory of the running program does not fit: stride, headroom and number of buffers are \
                 {found:?}, but this program needs {wanted:?}; help: stop the running program, and start this program"
            );
            return Err(Error::Worker { worker, message });
        }
        upgrade::continue_pool(descriptor, layout, pages)
    }
}

/// Allocates the packet memory of a worker, and opens its lane on each port. With `memory`, the worker uses the packet
/// memory of a worker of another program instead. `place` is the index of the worker and the count of all workers.
/// `keeps_recv_info` is whether each packet buffer has room for the results of receive offloads
/// ([`RecvInfo`](dataplane_core::mem::RecvInfo)). Must be called on the worker's thread.
pub(super) fn open(
    plan: &Plan,
    ports: &[Arc<dyn PortDevice>],
    node: Option<NumaNode>,
    place: (usize, usize),
    keeps_recv_info: bool,
    memory: Option<SharedMemory>,
) -> Result<OpenLanes> {
    let runtime = &plan.runtime;
    let room = runtime.buffer_size.saturating_sub(runtime.headroom) as usize;
    let layout = SlotLayout::new(runtime.headroom as usize, room, plan.buffers as usize)?;
    let spec = RegionSpec { bytes: layout.bytes(), pages: runtime.hugepages, strict: runtime.strict_memory, node };
    let mut pool = match memory {
        Some(memory) => memory.open(layout, place.0)?,
        None => {
            let is_shared = ports.iter().any(|port| port.hand_over().is_some_and(HandOver::shares_memory));
            let allocate = if is_shared { Region::allocate_shared } else { Region::allocate };
            let (region, notices) = allocate(spec)?;
            for notice in notices {
                tracing::warn!(worker = place.0, "worker {}: {notice}", place.0);
            }
            Pool::new(region, layout)?
        }
    };
    let pages = pool.batch_memory().pages();
    if keeps_recv_info {
        pool = pool.with_recv_info();
    }
    let mut lanes: Vec<Box<dyn Lane>> = Vec::new();
    for (port, device) in plan.ports.iter().zip(ports) {
        let lane = device.open_lane(&mut pool, lane_spec(plan, port, place));
        lanes.push(lane.map_err(|error| named_interface(error, &port.config))?);
    }
    Ok(OpenLanes { lanes, pool, pages })
}

/// Returns an error that names the interface of a port, if a lane cannot be opened because the interface was deleted.
fn named_interface(error: Error, port: &Port) -> Error {
    let interface = port.link.as_ref().and_then(|link| link.interface());
    match (&error, interface) {
        (Error::Verb { source: VerbError { errno: libc::ENODEV | libc::ENXIO, .. }, .. }, Some(interface)) => {
            Error::Topology(format!(
                "port {}: there is no interface `{interface}` in this network namespace; help: `ip link` lists the interfaces",
                port.name
            ))
        }
        _ => error,
    }
}

/// Returns whether each packet buffer needs room for the results of receive offloads.
pub(super) fn keeps_recv_info(plan: &Plan) -> bool {
    plan.ports.iter().any(|port| !offload::received(port).is_empty())
}

/// Opens the lanes of a worker on added ports. `devices` has the index and the device of each added port. The lanes
/// post no receives before the worker uses the lanes. Returns each lane with the name of its port. Any thread can call
/// this function.
pub(super) fn open_added(
    plan: &Plan,
    devices: &[(usize, Arc<dyn PortDevice>)],
    memory: &BatchMemory,
    place: (usize, usize),
) -> Result<Vec<(String, Box<dyn Lane>)>> {
    let mut pool = Pool::detached(memory);
    let ports = devices.iter().filter_map(|(at, device)| Some((plan.ports.get(*at)?, device)));
    let mut open = |(port, device): (&PortPlan, &Arc<dyn PortDevice>)| {
        Ok((port.config.name.clone(), device.open_lane(&mut pool, lane_spec(plan, port, place))?))
    };
    ports.map(&mut open).collect()
}

/// Returns the requested properties of the lane of a worker on a port.
fn lane_spec(plan: &Plan, port: &PortPlan, place: (usize, usize)) -> LaneSpec {
    LaneSpec {
        kind: devices::kind(port.config.qp),
        queue: (place.0 as u16, place.1 as u16),
        recv_depth: if port.posts_receives() { port.config.rx_depth } else { 0 },
        send_depth: port.config.tx_depth,
        stamps: devices::stamping(plan),
        recv_fields: offload::received(port),
        sleeps: matches!(plan.runtime.idle, config::Idle::Sleep | config::Idle::Adaptive),
    }
}

/// Waits until every lane of a required port is connected. Raw-packet lanes need no peer. Other lanes exchange
/// parameters with their peer during the wait. After the wait, the packet loop continues to connect the lanes of the
/// ports with `required = false`. Returns `false` if `is_stopped` returned `true` during the wait.
pub(super) fn await_peers(
    plan: &Plan,
    ports: &[Arc<dyn PortDevice>],
    worker: usize,
    OpenLanes { lanes, pool, .. }: &mut OpenLanes,
    is_stopped: impl Fn() -> bool,
) -> Result<bool> {
    /// The interval between two checks. No packet can arrive before the lanes are connected.
    const CONNECT_POLL_INTERVAL: Duration = Duration::from_millis(1);
    let begin = Instant::now();
    loop {
        let mut unconnected = None;
        // Advance all lanes in each round, because the peer of one lane may be another lane of this worker.
        for (index, lane) in lanes.iter_mut().enumerate().filter(|(_, lane)| !lane.is_connected()) {
            let port = &plan.ports[index].config;
            lane.refill(pool).and_then(|()| lane.housekeep(pool)).map_err(|error| error.on(&port.name))?;
            unconnected = unconnected.or((port.required && !lane.is_connected()).then_some(index));
        }
        let Some(index) = unconnected else { return Ok(true) };
        if is_stopped() {
            return Ok(false);
        }
        let device = &ports[index];
        if begin.elapsed() > device.connect_timeout() {
            return Err(Error::Worker { worker, message: device.connect_error() });
        }
        thread::sleep(CONNECT_POLL_INTERVAL);
    }
}

/// The open ports of a config, for a program that has a packet loop of its own instead of a pipeline.
///
/// The program is the only worker: it receives from the lanes, sends on the lanes, and allocates packets from the pool.
/// The stages of the config do not run.
pub struct PortLanes {
    open: OpenLanes,
    ports: Vec<Arc<dyn PortDevice>>,
    infos: Vec<PortInfo>,
    plan: Plan,
}

impl PortLanes {
    /// Pins the current thread to the first core of the plan, and opens the ports. `clock` is the clock of the packet
    /// timestamps. Ends the wait for peers when `is_stopped` returns `true`.
    ///
    /// # Errors
    /// Returns an error if a device, a core or memory is not available, or if the wait for peers was ended.
    pub fn open(assembly: Assembly, clock: &HostClock, is_stopped: impl Fn() -> bool) -> Result<Self> {
        let Assembly { plan, ports: infos, topology, resources, .. } = assembly;
        let stop = resources.services.stop.clone();
        let ports = devices::open(&plan, &infos, |_| true, (clock, false), &stop)?;
        let ports: Vec<Arc<dyn PortDevice>> = ports.into_iter().map(|(_, device)| device).collect();
        let core = plan.cores.first().copied();
        if let Some(core) = core {
            pin_current_thread(core)?;
        }
        let node = core.and_then(|core| topology.core(core)).map(|core| core.node);
        let mut open = open(&plan, &ports, node, (0, 1), keeps_recv_info(&plan), None)?;
        if !await_peers(&plan, &ports, 0, &mut open, || stop.is_set() || is_stopped())? {
            return Err(Error::Topology("stopped before all ports were connected".to_owned()));
        }
        Ok(Self { open, ports, infos, plan })
    }

    /// Returns the lanes, in the order of the ports of the config, and the pool of their packet buffers.
    pub fn parts(&mut self) -> (&mut [Box<dyn Lane>], &mut Pool) {
        (&mut self.open.lanes, &mut self.open.pool)
    }

    /// Returns the plan of the config.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Returns the properties of the ports.
    pub fn ports(&self) -> &[PortInfo] {
        &self.infos
    }

    /// Returns whether the link of a port is up. Returns `None` if the device does not report the state of the port.
    pub fn is_link_up(&self, port: usize) -> Option<bool> {
        self.ports.get(port)?.is_link_up()
    }

    /// Returns the description of the device of a port.
    pub fn describe(&self, port: usize) -> String {
        self.ports.get(port).map_or_else(String::new, |port| port.describe())
    }

    /// Returns a report about each clock of the device of a port.
    pub fn clocks(&self, port: usize) -> Vec<ClockReport> {
        self.ports.get(port).map_or_else(Vec::new, |port| port.clocks())
    }

    /// Returns the kind and the number of the pages of the packet memory.
    pub fn pages(&self) -> (PageKind, usize) {
        let pages = self.open.pages;
        (pages, self.open.pool.layout().bytes().div_ceil(pages.size()))
    }

    /// Returns the device's own counters of a port. Counters with the value 0 may be missing.
    pub fn counters(&self, port: usize) -> BTreeMap<String, u64> {
        self.ports.get(port).map_or_else(BTreeMap::new, |port| port.counters())
    }

    /// Stops the lanes and takes back all packet buffers, then closes the ports. Returns the errors of the links and
    /// the number of packet buffers that are missing.
    pub fn close(self) -> (Vec<Error>, usize) {
        let Self { open: OpenLanes { mut lanes, mut pool, .. }, ports, plan, .. } = self;
        let deadline = Period(plan.runtime.drain_timeout.0).after_now();
        for lane in &mut lanes {
            // `stop` fails only if the queue pair is already stopped.
            let _ = lane.stop();
        }
        while lanes.iter_mut().any(|lane| lane.drain(&mut pool).is_ok_and(|left| left > 0)) && Instant::now() < deadline
        {
            std::hint::spin_loop();
        }
        lanes.iter_mut().for_each(|lane| lane.reset_and_reclaim(&mut pool));
        let missing = (pool.layout().count() as usize).saturating_sub(pool.available());
        drop(lanes);
        (ports.iter().flat_map(|port| port.finish()).collect(), missing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Diagnostics, Source};
    use dataplane_core::topology::Topology;

    #[test]
    fn error_of_a_deleted_interface_names_the_interface() {
        let text = "[[port]]\nname = 'a'\ndevice = 'host'\nmtu = 1500\nlink = { kind = 'packet', interface = 'eth9' }\n\
                    [pipeline]\ninput = ['a']\n[[pipeline.stage]]\nuse = 'drop'\n";
        let source = Source::new("x.toml", text, &[]);
        let mut diagnostics = Diagnostics::new(&source);
        let loaded = config::load(&source, &mut diagnostics);
        let plan = config::plan(&loaded, &dataplane_stages::registry(), &Topology::uniform(1), &mut diagnostics);
        let plan = plan.unwrap_or_else(|| panic!("{}", diagnostics.render(false)));
        for (errno, expected) in [
            (
                libc::ENODEV,
                "port a: there is no interface `eth9` in this network namespace; help: `ip link` lists the interfaces",
            ),
            (libc::EINVAL, "a: ibv_modify_qp failed: Invalid argument (os error 22)"),
        ] {
            let error = named_interface(VerbError::new("ibv_modify_qp", errno).on("a"), &plan.ports[0].config);
            assert_eq!(error.to_string(), expected);
        }
    }
}
