//! The ports of a plan become open devices.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::clock::{ClockReport, HostClock};
use crate::config::{self, Connection, Plan, PortPlan, Qp};
use crate::error::{Error, Result};
use crate::lane::{Lane, LaneSpec, RawWiring, Stamping, VerbsLane, Wiring};
use crate::mem::Pool;
use crate::pipeline::PortInfo;
use crate::provider::connect::{Connector, EndpointParameters};
use crate::provider::soft::{LoopbackLink, SoftDevice};
use crate::provider::{Device, QpType};
use crate::runtime::peer::{self, Introducer, Meeting, PeerWiring, Terms, Way, Ways};
use crate::runtime::soft;
use crate::runtime::watch::Watch;

/// An open device behind a port, whatever its provider.
pub(crate) trait PortDevice: Send + Sync {
    /// Makes one worker's lane, on the worker's own thread.
    fn open_lane(&self, pool: &mut Pool, spec: LaneSpec) -> Result<Box<dyn Lane>>;

    /// How long a worker waits for the peers of its lanes.
    fn patience(&self) -> Duration;

    /// Why its lanes still have no peer.
    fn why_alone(&self) -> String;

    /// What the device has reported since the last call, in words.
    fn events(&self) -> Vec<String>;

    /// Has `act` called, on another thread, whenever the port may have changed: its link went up, or down.
    fn on_change(&self, act: Box<dyn FnMut() + Send>);

    /// What is known of its clocks, where it has any of its own.
    fn clocks(&self) -> Vec<ClockReport>;

    /// The device, in words.
    fn describe(&self) -> String;

    /// The device's own counters.
    fn counters(&self) -> BTreeMap<String, u64>;

    /// All lanes are closed: what was wrong with its input or output.
    fn finish(&self) -> Vec<Error>;
}

/// The type of the queue pairs of a port.
pub(crate) const fn kind(qp: Qp) -> QpType {
    match qp {
        Qp::RawPacket => QpType::RawPacket,
        Qp::Ud => QpType::Ud,
        Qp::Rc => QpType::Rc,
        Qp::Uc => QpType::Uc,
    }
}

/// Opens the device of every port.
///
/// # Errors
/// A device is not to be had, or does not fit what the config says of its port; a capture cannot be read or written.
pub(crate) fn open(plan: &Plan, infos: &[PortInfo], clock: &HostClock) -> Result<Vec<Arc<dyn PortDevice>>> {
    let mut cables: BTreeMap<usize, LoopbackLink> = BTreeMap::new();
    let mut devices: Vec<Arc<dyn PortDevice>> = Vec::new();
    let (lanes, stamps) = (plan.cores.len(), stamping(plan));
    let stamped = stamps == Stamping::Wallclock;
    let meetings: Vec<Arc<Meeting>> = plan.ports.iter().map(|_| Arc::new(Meeting::new(lanes))).collect();
    #[cfg(feature = "verbs")]
    let mut hosts = verbs::Hosts::default();
    for (index, (port, info)) in plan.ports.iter().zip(infos).enumerate() {
        let meet = |connection: &Connection| meet(plan, port, index, connection, &meetings);
        devices.push(if port.config.device == config::SOFT {
            let device = SoftDevice::new(soft::spec(index, port, info, lanes, stamped, clock, &mut cables)?)?;
            let what = format!("{} {}", config::SOFT, port.config.link.as_ref().map_or("", config::Link::kind));
            let provider = Provider {
                what,
                detail: soft::detail,
                counters: Box::new(soft::counters),
                why: SoftDevice::wire_error,
                finish: soft::finish,
            };
            let watch = Arc::new(Watch::start(device.clone(), clock, stamps)?);
            Arc::new(Port::open(device, watch, provider, port, meet)?)
        } else {
            #[cfg(feature = "verbs")]
            {
                let (device, watch) = hosts.open(&port.config.device, clock, stamps)?;
                let (device, provider) = verbs::provider(device, port, lanes)?;
                Arc::new(Port::open(device, watch, provider, port, meet)?)
            }
            #[cfg(not(feature = "verbs"))]
            {
                let (name, device) = (&info.name, &port.config.device);
                let message = format!("port `{name}`: `{device}` is a verbs device, and this program has no verbs");
                return Err(Error::Config(message));
            }
        });
    }
    Ok(devices)
}

/// What the packets of a run are stamped by.
pub(crate) fn stamping(plan: &Plan) -> Stamping {
    match plan.runtime.timestamps {
        config::Timestamps::Device => Stamping::Device,
        config::Timestamps::Wallclock => Stamping::Wallclock,
        config::Timestamps::Software => Stamping::Host,
        config::Timestamps::None => Stamping::None,
    }
}

/// How a port finds its peer. Of two ports of one config the first does it for both.
fn meet(
    plan: &Plan,
    port: &PortPlan,
    index: usize,
    connection: &Connection,
    meetings: &[Arc<Meeting>],
) -> Result<(Arc<Meeting>, Option<Introducer>)> {
    let name = &port.config.name;
    let terms =
        Terms { deadline: connection.deadline.0, step: connection.step_deadline.0, allow_self: connection.allow_self };
    let own = meetings[index].clone();
    let way = match (connection.listen, connection.to, connection.peer.as_deref().and_then(|peer| plan.port(peer))) {
        (Some(address), ..) => Way::Listen(address, connection.from),
        (_, Some(address), _) => Way::To(address),
        (_, _, Some(peer)) if peer < index => return Ok((own, None)),
        (_, _, Some(peer)) => Way::Inside(meetings[peer].clone()),
        _ => return Err(Error::Config(format!("port `{name}`: its connection does not say how the peer is found"))),
    };
    let introducer = Introducer::start(name, way, terms, own.clone())?;
    Ok((own, Some(introducer)))
}

/// What a device counted.
trait Count<D>: Fn(&D) -> BTreeMap<String, u64> + Send + Sync {}

impl<D, F: Fn(&D) -> BTreeMap<String, u64> + Send + Sync> Count<D> for F {}

/// What is the provider's own about a port.
struct Provider<D> {
    /// The device, in words.
    what: String,
    /// What else there is to say of it, once its lanes are open.
    detail: fn(&D) -> Option<String>,
    counters: Box<dyn Count<D>>,
    /// Why the last verb failed, where more is known than its errno.
    why: fn(&D) -> Option<Error>,
    finish: fn(&D) -> Vec<Error>,
}

/// A port on a device of one provider.
struct Port<D: Device> {
    // Ends before the queues of the lanes could miss it.
    connection: Option<Connected>,
    /// What the config calls it.
    name: String,
    device: D,
    pd: D::Pd,
    /// To the peers of its lanes.
    ways: Arc<Ways<D::Pd>>,
    /// The port of the device, from 1.
    number: u8,
    watch: Arc<Watch>,
    provider: Provider<D>,
}

/// What a port needs to connect its lanes.
struct Connected {
    parameters: EndpointParameters,
    kind: QpType,
    meeting: Arc<Meeting>,
    introducer: Option<Introducer>,
    patience: Duration,
    /// Changes when the addresses of the device's port do.
    addresses: Arc<AtomicU32>,
}

impl<D: Device> Port<D> {
    /// `watch` is that of the device.
    fn open(
        device: D,
        watch: Arc<Watch>,
        provider: Provider<D>,
        plan: &PortPlan,
        meet: impl FnOnce(&Connection) -> Result<(Arc<Meeting>, Option<Introducer>)>,
    ) -> Result<Self> {
        let config = &plan.config;
        let number = if config.device == config::SOFT { 1 } else { config.device_port };
        let connection = match &config.connection {
            None => None,
            Some(connection) => {
                let (parameters, kind) = (peer::parameters(number, connection), kind(config.qp));
                // What does not fit the device is said before anybody is waited for.
                let mut local = parameters.resolve(&device, kind)?;
                let addresses = Arc::new(AtomicU32::new(0));
                let (theirs, again, changes) = (device.clone(), parameters.clone(), addresses.clone());
                watch.on_port(number, move || {
                    // While a port is down its addresses are what they were.
                    if let Ok(now) = again.resolve(&theirs, kind)
                        && now != local
                    {
                        local = now;
                        changes.fetch_add(1, Ordering::Relaxed);
                    }
                });
                let (meeting, introducer) = meet(connection)?;
                // An introducer's own word, after its deadline, is better than none.
                let patience = connection.deadline.0 + connection.step_deadline.0;
                Some(Connected { parameters, kind, meeting, introducer, patience, addresses })
            }
        };
        let pd = device.alloc_pd().map_err(|error| error.on(device.name()))?;
        let name = config.name.clone();
        let ways = Arc::new(Ways::new(&pd));
        Ok(Self { connection, name, device, pd, ways, number, watch, provider })
    }
}

impl<D: Device> PortDevice for Port<D> {
    fn open_lane(&self, pool: &mut Pool, spec: LaneSpec) -> Result<Box<dyn Lane>> {
        let Self { device, pd, ways, .. } = self;
        let wiring: Box<dyn Wiring<D>> = match &self.connection {
            None => Box::new(RawWiring { port: self.number }),
            Some(it) => {
                let connector = Connector::new(device, it.kind, it.parameters.clone())?;
                let lane = (it.kind, spec.queue.0, pool.layout().room());
                Box::new(PeerWiring::new((device, ways), connector, lane, it.meeting.clone(), it.addresses.clone()))
            }
        };
        // Of connections each lane's queue pair is the only one of its kind.
        let queue = if self.connection.is_some() { (0, 1) } else { spec.queue };
        let spec = LaneSpec { queue, ..spec };
        let watch = &self.watch;
        let lane = VerbsLane::open(device, pd, pool, spec, wiring, watch.alarms(), watch.clocks());
        // What the wire has to say is more than the verb that failed.
        let lane = lane.map_err(|error| (self.provider.why)(device).unwrap_or(error))?;
        Ok(Box::new(lane))
    }

    fn patience(&self) -> Duration {
        self.connection.as_ref().map_or(Duration::ZERO, |connection| connection.patience)
    }

    fn why_alone(&self) -> String {
        let Some(connection) = &self.connection else {
            return format!("{}: its queue pair does not get ready", self.name);
        };
        let said = connection.introducer.as_ref().and_then(Introducer::trouble);
        said.unwrap_or_else(|| format!("{}: {}", self.name, connection.meeting.describe()))
    }

    fn events(&self) -> Vec<String> {
        self.watch.lines()
    }

    fn on_change(&self, act: Box<dyn FnMut() + Send>) {
        self.watch.on_port(self.number, act);
    }

    fn clocks(&self) -> Vec<ClockReport> {
        self.watch.clock_reports()
    }

    fn describe(&self) -> String {
        let what = &self.provider.what;
        (self.provider.detail)(&self.device).map_or_else(|| what.clone(), |detail| format!("{what} {detail}"))
    }

    fn counters(&self) -> BTreeMap<String, u64> {
        (self.provider.counters)(&self.device)
    }

    fn finish(&self) -> Vec<Error> {
        (self.provider.finish)(&self.device)
    }
}

/// The devices of libibverbs.
#[cfg(feature = "verbs")]
mod verbs {
    use super::{Arc, BTreeMap, Device, HostClock, PortPlan, Provider, Qp, Result, Stamping, Watch};
    use crate::provider::verbs::{VerbsDevice, VerbsProvider};
    use crate::provider::{Capability, Provider as _};
    use crate::runtime::raw;

    /// Those that are open: ports of one device share it, and its events.
    #[derive(Default)]
    pub(super) struct Hosts(BTreeMap<String, (VerbsDevice, Arc<Watch>)>);

    impl Hosts {
        pub(super) fn open(
            &mut self,
            name: &str,
            clock: &HostClock,
            stamps: Stamping,
        ) -> Result<(VerbsDevice, Arc<Watch>)> {
            if let Some(open) = self.0.get(name) {
                return Ok(open.clone());
            }
            let device = VerbsProvider.open(name)?;
            let open = (device.clone(), Arc::new(Watch::start(device, clock, stamps)?));
            self.0.insert(name.to_owned(), open.clone());
            Ok(open)
        }
    }

    /// The device as a port wants it, and what is its own about the port.
    pub(super) fn provider(
        device: VerbsDevice,
        plan: &PortPlan,
        workers: usize,
    ) -> Result<(VerbsDevice, Provider<VerbsDevice>)> {
        let port = &plan.config;
        // A device without raw packets says so, and why, when a queue pair is made.
        let raw = port.qp == Qp::RawPacket && device.capabilities().has.contains(&Capability::RawPacket);
        let (device, counters) = if raw { raw::prepare(device, plan, workers)? } else { (device, Default::default()) };
        let what = format!("{} port {}", port.device, port.device_port);
        let counters = Box::new(move |_: &VerbsDevice| raw::counted(&counters));
        Ok((device, Provider { what, detail: |_| None, counters, why: |_| None, finish: |_| Vec::new() }))
    }
}
