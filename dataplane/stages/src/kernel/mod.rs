//! Mirrors the kernel's routes, neighbours, addresses and links into the tables that stages look up.
//!
//! A background task first reads the whole state from the kernel (a dump). The task then follows the changes and writes
//! them to [`Forwarding`], without stopping the workers. Some changes are missed: the kernel may drop messages,
//! and the kernel does not report the IPv4 routes of an interface that goes down, or of a removed nexthop object. The task
//! then reads the whole state again (a resync) and writes only the differences. During a resync, the kernel may report a change that is already
//! part of the state that the task reads. If the task cannot determine whether the change or the read state is newer,
//! the task starts another resync.
//!
//! The task also asks the kernel to resolve the neighbours that workers need. Neighbours have separate sockets
//! (`NeighborSockets`). During many route changes, the task reads these sockets after each part, so that route changes
//! do not delay a new neighbour.

mod messages;
mod overflow;
mod rib;
mod socket;
mod state;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::forwarding::{Forwarding, ForwardingWriter, TableCount};
use crate::parameter::MEMORY_HELP;
use dataplane_core::error::{Error, Result};
use dataplane_core::pipeline::{CapabilitySet, PortInfo, Setup, StopSignal, Task};
use overflow::Overflow;
use socket::{Events, ReadResult, Requests};
use state::MirrorState;

/// Longest time that a worker's neighbour request waits.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Delay of a resync after a change that the kernel does not report in full. Such changes often come in groups, and one
/// resync covers the whole group.
const RESYNC_DELAY: Duration = Duration::from_millis(50);
/// How often workers may request an unresolved neighbour again.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Interval of the periodic resync.
const RESYNC_INTERVAL: Duration = Duration::from_secs(60);
/// Interval at which the mirror checks whether the kernel's own neighbour tables overflow.
const OVERFLOW_INTERVAL: Duration = Duration::from_secs(5);
/// Delay before a retry after a failure.
const FAILURE_DELAY: Duration = Duration::from_secs(1);

/// Returns the tables that mirror the kernel. All stages of a run share the tables. The first call registers the
/// background task that mirrors the kernel's state.
pub fn tables(setup: &mut Setup<'_>) -> Arc<Forwarding> {
    setup.shared_by_stages(|setup| {
        let (tables, writer) = ForwardingWriter::for_ports(setup.ports(), setup.hold_time());
        let mirror = KernelMirror::new(tables.clone(), writer, setup.ports());
        setup.task("kernel-mirror", mirror);
        // The mirror asks the kernel to resolve neighbours.
        setup.needs_capabilities(CapabilitySet::NET_ADMIN);
        tables
    })
}

/// The background task that mirrors the kernel state of this network namespace.
struct KernelMirror {
    tables: Arc<Forwarding>,
    /// The writer of the tables, until the task is started.
    writer: Option<Box<ForwardingWriter>>,
    ports: Vec<PortInfo>,
    /// The size of the socket buffer, in bytes.
    backlog: usize,
    resync_interval: Duration,
    /// The known state, the sockets for routes, links and addresses, and the sockets for neighbours. `None` until the
    /// task is started.
    open: Option<(MirrorState, Events, Requests, NeighborSockets)>,
}

impl KernelMirror {
    fn new(tables: Arc<Forwarding>, writer: Box<ForwardingWriter>, ports: &[PortInfo]) -> Self {
        let (backlog, resync_interval) = (socket::BACKLOG, RESYNC_INTERVAL);
        Self { tables, writer: Some(writer), ports: ports.to_vec(), backlog, resync_interval, open: None }
    }
}

/// The sockets for neighbours.
struct NeighborSockets {
    events: Events,
    requests: Requests,
    /// The time at which to read all neighbours: after an error, or because the tables have room again. Changes are not
    /// read before this time.
    read_at: Option<Instant>,
    /// The last time at which the workers were allowed to request all unresolved neighbours again.
    last_retry: Instant,
}

impl NeighborSockets {
    fn open(backlog: usize) -> std::io::Result<Self> {
        let (events, requests) = (Events::open(&socket::NEIGHBOR_GROUPS, backlog)?, Requests::open()?);
        Ok(Self { events, requests, read_at: None, last_retry: Instant::now() })
    }

    /// Applies queued changes of neighbours, and sends the requests of the workers to the kernel. Returns `false` if an
    /// error delays the changes.
    fn serve(&mut self, state: &mut MirrorState) -> bool {
        let now = Instant::now();
        if now.saturating_duration_since(self.last_retry) >= RETRY_INTERVAL {
            self.last_retry = now;
            state.retry_unresolved();
            if state.take_neighbors_to_retry() {
                self.read_at.get_or_insert(now);
            }
        }
        if self.read_at.is_none_or(|at| at <= now) {
            let reads_all = self.read_at.take().is_some();
            let read = self.events.read(|message| state.apply(message));
            let read = read.and_then(|result| match reads_all || result == ReadResult::Lost {
                true => state.read_neighbors(&mut self.requests),
                false => Ok(()),
            });
            if let Err(error) = read {
                state.warn_about_neighbors(&error);
                self.read_at = Some(now + FAILURE_DELAY);
            }
        }
        state.request_neighbors(&mut self.requests);
        self.read_at.is_none()
    }
}

impl Task for KernelMirror {
    /// Reads the kernel's state, so that the workers have the routes for their first packet.
    fn start(&mut self) -> Result<()> {
        let failed = |what: &str, error: std::io::Error| Error::Kernel(format!("{what}: {error}"));
        let writer = self.writer.take().ok_or_else(|| Error::Kernel("the mirror was already started".to_owned()))?;
        // Subscribe first: changes during the dump are then in the queue of events.
        let events = Events::open(&socket::ROUTE_GROUPS, self.backlog)
            .map_err(|error| failed("cannot subscribe to changes", error))?;
        let cannot_open = |error| failed("cannot open a netlink socket", error);
        let mut requests = Requests::open().map_err(cannot_open)?;
        let mut neighbors = NeighborSockets::open(self.backlog).map_err(cannot_open)?;
        let mut state = MirrorState::new(self.tables.clone(), writer, &self.ports)
            .map_err(|error| Error::Memory(format!("{error}; help: {MEMORY_HELP}")))?;
        state
            .resync(&mut requests, &mut |state| _ = neighbors.serve(state))
            .map_err(|error| failed("cannot read routes", error))?;
        state.set_workers_running();
        self.open = Some((state, events, requests, neighbors));
        Ok(())
    }

    fn run(&mut self, stop: &StopSignal) -> Result<()> {
        if let Some((state, events, requests, neighbors)) = &mut self.open {
            follow(state, events, requests, neighbors, self.resync_interval, stop);
        }
        Ok(())
    }
}

/// Follows the changes until `stop` is set.
fn follow(
    state: &mut MirrorState,
    events: &Events,
    requests: &mut Requests,
    neighbors: &mut NeighborSockets,
    resync_interval: Duration,
    stop: &StopSignal,
) {
    let (mut resync_at, mut last_resync) = (None::<Instant>, Instant::now());
    let mut resync_duration = Duration::ZERO;
    let (mut overflow, mut last_check) = (Overflow::default(), None::<Instant>);
    while !stop.is_set() {
        let waited = Events::wait([events, &neighbors.events], POLL_INTERVAL);
        if !neighbors.serve(state) {
            // The socket may still be readable, so the next wait would end at once.
            stop.wait(POLL_INTERVAL);
        }
        match waited.and_then(|()| events.read(|message| state.apply(message))) {
            Ok(received) => {
                let lost = received == ReadResult::Lost;
                if lost {
                    tracing::debug!("kernel: messages were lost, reading the whole state again");
                }
                if received == ReadResult::All {
                    state.end_replay();
                }
                if lost || state.take_resync_needed() {
                    // A routing daemon can delete nexthop objects all the time. The delay leaves at least half of the time to
                    // changes.
                    resync_at = resync_at.or(Some(Instant::now() + RESYNC_DELAY.max(resync_duration)));
                }
            }
            Err(error) => {
                tracing::warn!("kernel: cannot receive changes: {error}");
                resync_at = resync_at.or(Some(Instant::now() + FAILURE_DELAY));
                stop.wait(POLL_INTERVAL);
            }
        }
        if last_resync.elapsed() >= resync_interval {
            last_resync = Instant::now();
            resync_at = resync_at.or(Some(last_resync));
        }
        if resync_at.is_some_and(|at| at <= Instant::now()) {
            resync_at = None;
            state.tables().add(TableCount::Resyncs, 1);
            let begin = Instant::now();
            if let Err(error) = state.resync(requests, &mut |state| _ = neighbors.serve(state)) {
                tracing::warn!("kernel: cannot read the whole state again: {error}");
                resync_at = Some(Instant::now() + FAILURE_DELAY);
            }
            resync_duration = begin.elapsed();
        }
        if last_check.is_none_or(|last| last.elapsed() >= OVERFLOW_INTERVAL) {
            last_check = Some(Instant::now());
            // A failure changes nothing: the tables are read again at the next check.
            for warning in overflow.check(requests).unwrap_or_default() {
                tracing::warn!("kernel: {warning}");
            }
        }
        state.publish();
    }
}

/// A target of the fuzzer: applies netlink messages of the kernel to the state of the mirror.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(input: &[u8]) {
    use dataplane_core::harness::port;

    let ports = [("a", "a0"), ("b", "b0")]
        .map(|(name, interface)| PortInfo { interface: Some(interface.to_owned()), ..port(name) });
    let (tables, writer) = ForwardingWriter::for_ports(&ports, dataplane_core::pipeline::HoldTime::default());
    let mut state = MirrorState::new(tables.clone(), writer, &ports).expect("memory for the tables");
    let reader = tables.register_reader();
    socket::fuzz(input, |message| state.apply(message));
    state.publish();
    state.retry_unresolved();
    let _ = (state.take_resync_needed(), state.take_neighbors_to_retry());
    for ingress in 0..2 {
        if let Some((v4, v6)) = reader.routes(ingress) {
            for group in [v4.lookup(0x0a01_0001), v6.lookup(1 << 120)].into_iter().flatten() {
                let _ = reader.path(group, 7);
            }
        }
        let _ = (reader.mac(ingress), reader.mtu(ingress), reader.address(ingress, true));
    }
}
