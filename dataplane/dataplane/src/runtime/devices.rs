//! Opens the devices of the ports of a plan.

use std::collections::BTreeMap;
#[cfg(feature = "ibverbs")]
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::config::{self, Connection, Plan, PortPlan, Qp};
use crate::runtime::peer::{
    self, ExchangeOptions, LateWiring, NextHopLookup, PathCache, PeerExchange, PeerLocation, PortAddresses,
    PortMessages, Rendezvous,
};
use crate::runtime::watch::Watch;
use crate::runtime::{offload, raw, soft};
use dataplane_core::clock::{ClockReport, HostClock};
use dataplane_core::error::{Error, Result};
use dataplane_core::lane::{self, Lane, LaneSpec, RawWiring, Stamping, Wiring};
use dataplane_core::mem::Pool;
use dataplane_core::pipeline::{PortChange, PortInfo, RunStop};
use dataplane_core::verbs::{Device, EventKind, QpType};
use dataplane_soft::upgrade::{self, HandOver};
use dataplane_soft::{LoopbackLink, PromiscuousMode, SoftDevice};

/// An open device behind a port, independent of the provider.
pub(crate) trait PortDevice: Send + Sync {
    /// Creates the lane of one worker. Must be called on the worker's thread.
    fn open_lane(&self, pool: &mut Pool, spec: LaneSpec) -> Result<Box<dyn Lane>>;

    /// Checks whether the port can have a lane for this number of workers.
    fn check_workers(&self, workers: usize) -> Result<()>;

    /// Distributes the received packets among the lanes of the first `workers` workers. The other lanes receive no
    /// further packets, but keep the packets that have already arrived.
    fn distribute(&self, workers: usize) -> Result<()>;

    /// Returns how long a worker waits for the peers of its lanes.
    fn connect_timeout(&self) -> Duration;

    /// Returns the reason why a lane is not connected yet.
    fn connect_error(&self) -> String;

    /// Returns the log lines about the device that were added since the last call.
    fn events(&self) -> Vec<String>;

    /// Registers a function. The event thread of the device calls the function whenever the port changes.
    fn on_change(&self, act: Box<dyn Fn(PortChange) + Send>);

    /// Returns a report about each clock of the device.
    fn clocks(&self) -> Vec<ClockReport>;

    /// Returns whether the device computes the checksums of sent packets.
    fn computes_checksums(&self) -> bool;

    /// Returns whether the link of the port is up. Returns `None` if the device does not report the state of the port.
    fn is_link_up(&self) -> Option<bool>;

    /// Returns a description of the device.
    fn describe(&self) -> String;

    /// Returns the device's own counters.
    fn counters(&self) -> BTreeMap<String, u64>;

    /// Returns the names of the device's own counters, also of the counters that [`PortDevice::counters`] leaves out
    /// because they are 0.
    fn counter_names(&self) -> Vec<&'static str>;

    /// Returns the error of the link so far, such as a full disk.
    fn error(&self) -> Option<Error>;

    /// Returns the functions that hand the queues over to another program, or `None` if the device cannot do this.
    fn hand_over(&self) -> Option<&dyn HandOver>;

    /// Returns the errors of the link, such as a damaged capture file, and the panics of the port's threads. All lanes
    /// must be closed before the call.
    fn finish(&self) -> Vec<Error>;
}

/// Returns a number of workers as the number of queues of a device.
pub(crate) fn queues(workers: usize) -> u16 {
    u16::try_from(workers).unwrap_or(u16::MAX)
}

/// Returns the type of the queue pairs of a port.
pub(crate) const fn kind(qp: Qp) -> QpType {
    match qp {
        Qp::RawPacket => QpType::RawPacket,
        Qp::Ud => QpType::Ud,
        Qp::Rc => QpType::Rc,
        Qp::Uc => QpType::Uc,
    }
}

/// Opens the devices of the ports that `is_opened` selects by name. If `takes_over` is `true`, the ports take over the
/// queues of another program. Returns each device with the index of its port. A panic of the event thread of a device,
/// or of the thread that connects a port to its peer, sets `stop`.
///
/// # Errors
/// Returns an error if a device is not available or does not support the config of its port, or if a capture file
/// cannot be opened.
pub(crate) fn open(
    plan: &Plan,
    infos: &[PortInfo],
    is_opened: impl Fn(&str) -> bool,
    (clock, takes_over): (&HostClock, bool),
    stop: &RunStop,
) -> Result<Vec<(usize, Arc<dyn PortDevice>)>> {
    let mut cables: BTreeMap<usize, LoopbackLink> = BTreeMap::new();
    let mut devices: Vec<(usize, Arc<dyn PortDevice>)> = Vec::new();
    let (lanes, stamps) = (plan.cores.len(), stamping(plan));
    let stamped = stamps == Stamping::Wallclock;
    let rendezvous: Vec<Arc<Rendezvous>> = plan.ports.iter().map(|_| Arc::new(Rendezvous::new(lanes))).collect();
    #[cfg(feature = "ibverbs")]
    let mut open_devices = verbs::OpenDevices::default();
    for (index, (port, info)) in plan.ports.iter().zip(infos).enumerate().filter(|(_, (_, info))| is_opened(&info.name))
    {
        let peer = port.config.connection.as_ref().and_then(|it| plan.port(it.rendezvous.peer.as_deref()?));
        let ports = (port, peer.map(|peer| &plan.ports[peer].config));
        let start_exchange = |connection: &Connection, next_hop| {
            start_exchange(plan, (port, index), (connection, next_hop), &rendezvous, stop)
        };
        let device: Arc<dyn PortDevice> = if !port.config.is_rdma() {
            let mut spec = soft::spec(index, port, info, lanes, stamped, clock, &mut cables)?;
            if takes_over {
                spec.link.take_over(port.input);
            }
            let device = SoftDevice::new(spec)?;
            // A later change may add a worker, and opens the queue of this worker before the worker runs. Because of
            // this call, the queue receives no packets until the change distributes the packets again.
            device.distribute(queues(lanes))?;
            // `raw::prepare` returns a device handle with the port's settings for raw packets. Only queue pairs that
            // are created with this handle have these settings.
            let (device, raw) = match raw::is_configured(port) {
                true => raw::prepare(device, port, lanes)?,
                false => (device, raw::PreparedRaw::default()),
            };
            let computes_checksums = raw.computes_checksums;
            let what = format!("{} {}", port.config.device, port.config.link.as_ref().map_or("", |link| link.kind()));
            let provider = ProviderParts {
                what,
                detail: soft::detail,
                counters: Box::new(move |device| soft::counters(device).into_iter().chain(raw.counted()).collect()),
                counter_names: soft::counter_names,
                computes_checksums,
                why: SoftDevice::wire_error,
                finish: soft::finish,
                check_queues: SoftDevice::check_queues,
                distribute: SoftDevice::distribute,
                hand_over: upgrade::hand_over,
                _promiscuous: None,
            };
            let watch = Arc::new(Watch::start(device.clone(), clock, stamps, stop)?);
            Arc::new(OpenPort::open(device, watch, provider, ports, start_exchange)?)
        } else {
            #[cfg(feature = "ibverbs")]
            {
                let (device, watch) = open_devices.open(&port.config.device, clock, stamps, stop)?;
                let (device, provider) = verbs::provider(device, &watch, port, lanes, Path::new("/sys"))?;
                Arc::new(OpenPort::open(device, watch, provider, ports, start_exchange)?)
            }
            #[cfg(not(feature = "ibverbs"))]
            {
                let (name, device) = (&info.name, &port.config.device);
                let message = format!(
                    "port `{name}`: `{device}` is a verbs device, but this program was built without the feature \
                     `ibverbs`; help: build the program with the feature, or set device = \"soft\" or \"host\""
                );
                return Err(Error::Config(message));
            }
        };
        devices.push((index, device));
    }
    Ok(devices)
}

/// Returns the source of packet timestamps in a run.
pub(crate) fn stamping(plan: &Plan) -> Stamping {
    match plan.runtime.timestamps {
        config::Timestamps::Device => Stamping::Device,
        config::Timestamps::Wallclock => Stamping::Wallclock,
        config::Timestamps::Software => Stamping::Host,
        config::Timestamps::None => Stamping::None,
    }
}

/// Starts the peer exchange of a port. If two ports of one config are peers, the exchange of the port that is first in
/// the config serves both ports.
fn start_exchange(
    plan: &Plan,
    (port, index): (&PortPlan, usize),
    (connection, next_hop): (&Connection, NextHopLookup),
    rendezvous: &[Arc<Rendezvous>],
    stop: &RunStop,
) -> Result<(Arc<Rendezvous>, Option<PeerExchange>)> {
    let name = &port.config.name;
    let config = &connection.rendezvous;
    let options = ExchangeOptions {
        deadline: config.deadline.0,
        step: config.step_deadline.0,
        allow_self: connection.parameters.allow_self,
    };
    let own = rendezvous[index].clone();
    let location = match (config.listen, config.to, config.peer.as_deref().and_then(|peer| plan.port(peer))) {
        (Some(address), ..) => PeerLocation::Listen(address, config.from),
        (_, Some(address), _) => PeerLocation::Connect(address),
        (_, _, Some(peer)) if peer < index => return Ok((own, None)),
        (_, _, Some(peer)) => PeerLocation::Local(rendezvous[peer].clone()),
        _ => return Err(Error::Config(format!("port `{name}`: the connection has no `listen`, `to` or `peer`"))),
    };
    let exchange = PeerExchange::start(name, location, options, (own.clone(), next_hop), stop)?;
    Ok((own, Some(exchange)))
}

/// A function that reads the counters of a device.
trait ReadCounters<D>: Fn(&D) -> BTreeMap<String, u64> + Send + Sync {}

impl<D, F: Fn(&D) -> BTreeMap<String, u64> + Send + Sync> ReadCounters<D> for F {}

/// The part of a port that depends on the provider.
struct ProviderParts<D> {
    /// The description of the device.
    what: String,
    /// Returns more details for the description. The details are complete once the lanes are open.
    detail: fn(&D) -> Option<String>,
    counters: Box<dyn ReadCounters<D>>,
    /// Returns the names of all counters of the device.
    counter_names: fn(&D) -> Vec<&'static str>,
    /// Whether the device computes the checksums of sent packets.
    computes_checksums: bool,
    /// Returns the error of the link. If a verb failed, this error is more precise than the `errno` of the verb.
    why: fn(&D) -> Option<Error>,
    finish: fn(&D) -> Vec<Error>,
    /// Checks whether the device can have this number of queues.
    check_queues: fn(&D, u16) -> Result<()>,
    /// Distributes the received packets among the first queues of the device.
    distribute: fn(&D, u16) -> Result<()>,
    /// Returns the functions that hand the queues over to another program, if the device can do this.
    hand_over: fn(&D) -> Option<&dyn HandOver>,
    /// Promiscuous mode of the interface of an RDMA device. The mode ends when the port is closed.
    _promiscuous: Option<PromiscuousMode>,
}

/// A port that is open on a device of one provider.
struct OpenPort<D: Device> {
    // Rust drops fields in order, so the exchange thread ends before the device and its protection domain are closed.
    connection: Option<PortConnection>,
    /// The name of the port in the config.
    name: String,
    device: D,
    pd: D::Pd,
    /// The resolved paths to the peers of the lanes.
    paths: Arc<PathCache<D::Pd>>,
    /// The port number on the device, from 1.
    number: u8,
    watch: Arc<Watch>,
    provider: ProviderParts<D>,
}

/// The state that a port needs to connect its lanes.
struct PortConnection {
    messages: PortMessages,
    rendezvous: Arc<Rendezvous>,
    exchange: Option<PeerExchange>,
    connect_timeout: Duration,
    addresses: Arc<PortAddresses>,
}

impl<D: Device> OpenPort<D> {
    /// Opens a port. `watch` is the event thread of the device. `peer` is the port that the key `peer` names.
    fn open(
        device: D,
        watch: Arc<Watch>,
        provider: ProviderParts<D>,
        (plan, peer): (&PortPlan, Option<&config::Port>),
        start_exchange: impl FnOnce(&Connection, NextHopLookup) -> Result<(Arc<Rendezvous>, Option<PeerExchange>)>,
    ) -> Result<Self> {
        let config = &plan.config;
        let number = config.device_port;
        let connection = match &config.connection {
            None => None,
            Some(connection) => {
                let parameters = config.endpoint_parameters(connection, peer);
                let addresses = Arc::new(PortAddresses::new(kind(config.qp), parameters));
                let next_hop = peer::kernel_lookup(device.clone(), number, addresses.clone());
                // Register the handler before the first query, so that no later change is missed.
                let (name, theirs, known) = (config.name.clone(), device.clone(), addresses.clone());
                watch.on_port(number, move |_| {
                    // The query fails while the port is down. `known` then keeps its addresses.
                    if let Err(error) = known.query(&theirs)
                        && known.changes() == 0
                    {
                        tracing::warn!(port = name, "port `{name}` is not connected yet: {error}");
                    }
                });
                // Check the parameters against the device before waiting for a peer.
                let is_down = || device.port(number).is_ok_and(|port| !port.is_active());
                match addresses.query(&device) {
                    Err(error) if config.required || !is_down() => return Err(error),
                    Err(error) => {
                        tracing::warn!(port = config.name, "port `{}` is not connected yet: {error}", config.name);
                    }
                    Ok(()) => {}
                }
                let messages = PortMessages::of(config);
                let connector = addresses.connector();
                connector.map_or(Ok(()), |(connector, _)| messages.check(device.name(), connector.local()))?;
                let (rendezvous, exchange) = start_exchange(connection, next_hop)?;
                // Wait longer than the exchange, because the error of the exchange is more precise than a timeout of
                // the worker.
                let connect_timeout =
                    connection.rendezvous.deadline.0.saturating_add(connection.rendezvous.step_deadline.0);
                Some(PortConnection { messages, rendezvous, exchange, connect_timeout, addresses })
            }
        };
        let pd = device.alloc_pd().map_err(|error| error.on(device.name()))?;
        let name = config.name.clone();
        let paths = Arc::new(PathCache::new(&pd));
        Ok(Self { connection, name, device, pd, paths, number, watch, provider })
    }
}

impl<D: Device> PortDevice for OpenPort<D> {
    fn open_lane(&self, pool: &mut Pool, spec: LaneSpec) -> Result<Box<dyn Lane>> {
        let Self { device, pd, paths, .. } = self;
        let wiring: Box<dyn Wiring<D>> = match &self.connection {
            None => Box::new(RawWiring { port: self.number }),
            Some(it) => {
                let lane = (spec.queue.0, pool.layout().room(), spec.recv_depth > 0);
                let (rendezvous, addresses) = (it.rendezvous.clone(), it.addresses.clone());
                Box::new(LateWiring::new(paths.clone(), lane, it.messages.clone(), rendezvous, addresses))
            }
        };
        let watch = &self.watch;
        let lane = lane::open(device, pd, pool, spec, wiring, watch.pending_events(), watch.clocks());
        // The error of the link is more precise than the error of the failed verb.
        let lane = lane.map_err(|error| (self.provider.why)(device).unwrap_or(error))?;
        offload::check_granted(spec.recv_fields, lane.granted().fields)
            .map_err(|why| Error::Config(format!("port `{}`: {why}", self.name)))?;
        Ok(lane)
    }

    fn check_workers(&self, workers: usize) -> Result<()> {
        (self.provider.check_queues)(&self.device, queues(workers))
    }

    fn distribute(&self, workers: usize) -> Result<()> {
        (self.provider.distribute)(&self.device, queues(workers))
    }

    fn connect_timeout(&self) -> Duration {
        self.connection.as_ref().map_or(Duration::ZERO, |connection| connection.connect_timeout)
    }

    fn connect_error(&self) -> String {
        let Some(connection) = &self.connection else {
            return format!("{}: the queue pair did not become ready", self.name);
        };
        let last_error = connection.exchange.as_ref().and_then(PeerExchange::last_error);
        last_error.unwrap_or_else(|| format!("{}: {}", self.name, connection.rendezvous.describe()))
    }

    fn events(&self) -> Vec<String> {
        self.watch.lines()
    }

    fn on_change(&self, act: Box<dyn Fn(PortChange) + Send>) {
        self.watch.on_port(self.number, move |kind| {
            act(match kind {
                EventKind::PortActive => PortChange::LinkUp,
                EventKind::PortErr => PortChange::LinkDown,
                EventKind::GidChange => PortChange::Addresses,
                _ => PortChange::Other,
            });
        });
    }

    fn clocks(&self) -> Vec<ClockReport> {
        self.watch.clock_reports()
    }

    fn computes_checksums(&self) -> bool {
        self.provider.computes_checksums
    }

    fn is_link_up(&self) -> Option<bool> {
        self.device.port(self.number).ok().map(|attributes| attributes.is_active())
    }

    fn describe(&self) -> String {
        let what = &self.provider.what;
        (self.provider.detail)(&self.device).map_or_else(|| what.clone(), |detail| format!("{what} {detail}"))
    }

    fn counters(&self) -> BTreeMap<String, u64> {
        (self.provider.counters)(&self.device)
    }

    fn counter_names(&self) -> Vec<&'static str> {
        (self.provider.counter_names)(&self.device)
    }

    fn error(&self) -> Option<Error> {
        (self.provider.why)(&self.device)
    }

    fn hand_over(&self) -> Option<&dyn HandOver> {
        (self.provider.hand_over)(&self.device)
    }

    fn finish(&self) -> Vec<Error> {
        let mut errors = (self.provider.finish)(&self.device);
        errors.extend(self.watch.failures().into_iter().map(Error::Wire));
        let exchange = self.connection.as_ref().and_then(|connection| connection.exchange.as_ref());
        errors.extend(exchange.and_then(PeerExchange::failure).map(Error::Peer));
        errors
    }
}

/// Devices of libibverbs.
#[cfg(feature = "ibverbs")]
mod verbs {
    use super::{Arc, BTreeMap, Duration, HostClock, Path, PortPlan, ProviderParts, Result, RunStop, Stamping, Watch};
    use crate::runtime::hw_counters::{self, OutOfBuffer};
    use crate::runtime::{promiscuous, raw};
    use dataplane_core::verbs::Provider as _;
    use dataplane_ibverbs::{VerbsDevice, VerbsProvider};

    /// The interval between two reads of the counter of lost packets. The counter has 32 bits. At 200 million
    /// lost packets per second, the counter wraps around after 21 seconds.
    const COUNTER_INTERVAL: Duration = Duration::from_secs(10);

    /// The open devices. Ports on the same device share the device and its event thread.
    #[derive(Default)]
    pub(super) struct OpenDevices(BTreeMap<String, (VerbsDevice, Arc<Watch>)>);

    impl OpenDevices {
        pub(super) fn open(
            &mut self,
            name: &str,
            clock: &HostClock,
            stamps: Stamping,
            stop: &RunStop,
        ) -> Result<(VerbsDevice, Arc<Watch>)> {
            if let Some(open) = self.0.get(name) {
                return Ok(open.clone());
            }
            let device = VerbsProvider.open(name)?;
            let open = (device.clone(), Arc::new(Watch::start(device, clock, stamps, stop)?));
            self.0.insert(name.to_owned(), open.clone());
            Ok(open)
        }
    }

    /// Returns the device with the settings of the port, and the [`ProviderParts`] of the port. `watch` is the event
    /// thread of the device, and `sysfs` is the folder at which sysfs is mounted.
    pub(super) fn provider(
        device: VerbsDevice,
        watch: &Watch,
        plan: &PortPlan,
        workers: usize,
        sysfs: &Path,
    ) -> Result<(VerbsDevice, ProviderParts<VerbsDevice>)> {
        let port = &plan.config;
        let (device, raw) = raw::prepare_rdma(device, plan, workers)?;
        // Start promiscuous mode before the flow rules exist, so that the port gets all frames from the start.
        let promiscuous = promiscuous::start(sysfs, plan)?;
        let computes_checksums = raw.computes_checksums;
        let what = format!("{} port {}", port.device, port.device_port);
        let lost = OutOfBuffer::open(sysfs, &port.device, port.device_port).map(Arc::new);
        if lost.is_none() && hw_counters::can_lose(plan) {
            let why = hw_counters::in_another_namespace(sysfs, &port.device, port.device_port);
            why.iter().for_each(|why| tracing::warn!(port = port.name, "port `{}`: {why}", port.name));
        }
        if let Some(lost) = lost.clone() {
            watch.every(COUNTER_INTERVAL, move || {
                lost.lost();
            });
        }
        let counters = Box::new(move |_: &VerbsDevice| {
            let mut counters = raw.counted();
            counters.extend(lost.iter().map(|lost| ("rx_out_of_buffer".to_owned(), lost.lost())));
            counters
        });
        let (why, finish) = (|_: &VerbsDevice| None, |_: &VerbsDevice| Vec::new());
        Ok((
            device,
            ProviderParts {
                what,
                detail: |_| None,
                counters,
                counter_names: |_| Vec::new(),
                computes_checksums,
                why,
                finish,
                // With RDMA devices, the number of workers stays the same during a run.
                check_queues: |_, _| Ok(()),
                distribute: |_, _| Ok(()),
                // The queue pairs of the hardware belong to the process.
                hand_over: |_| None,
                _promiscuous: promiscuous,
            },
        ))
    }
}

#[cfg(test)]
mod tests;
