//! Resolves neighbours without the kernel: sends requests, receives answers, and ages entries (RFC 826, RFC 4861).
//!
//! The neighbour entries are in tables ([`Forwarding`]). One background thread writes the tables, and the workers read
//! them. Workers put received messages and neighbour requests into queues. The background thread runs the state machine
//! (`machine`) and puts request frames into another queue. A worker sends these frames between two batches. No worker
//! waits for a queue or for the background thread. The queues and token buckets limit the cost of a flood.

mod frames;
mod machine;
mod state;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rtrb::Producer;

use crate::forwarding::{self, Forwarding, ForwardingReader, ForwardingWriter, MAX_NEIGHBORS, ResolutionState};
use crate::responder::is_host;
use crate::rings::{FromWorkers, ToWorkers, WorkerEnd};
use dataplane_core::error::Result;
use dataplane_core::header::MacAddr;
use dataplane_core::header::ndp::is_link_local;
use dataplane_core::mem::{Batch, MetaFlags};
use dataplane_core::pipeline::{
    CounterReport, Ctx, NextHop, PortInfo, Problem, Setup, StopSignal, Task, new_port_numbers,
};
use dataplane_core::units::Period;
use dataplane_tables::bucket::TokenBucket;
use frames::GeneratedFrame;
use machine::{NeighborAction, ReceivedMessage, Settings, StateMachine};

pub use machine::NeighborMessageKind;

/// Longest time that a request of a worker waits for the background thread.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Interval at which timeouts are checked, in milliseconds.
const TIMEOUT_INTERVAL: u64 = 50;
/// The times at which the addresses of this host are announced, in milliseconds from the start or from a change of the
/// link. RFC 5227, section 1.1, requires two announcements two seconds apart.
const ANNOUNCEMENTS: [u64; 2] = [0, 2000];
/// Number of elements of each queue of a stage: the queues of received messages, and the queue of frames to send.
const QUEUE: usize = 1024;
/// Largest number of neighbour requests that the background thread handles in one step. On average, each worker sends
/// at most 1,000 requests per second for neighbours without an entry.
const MAX_REQUESTS_PER_STEP: usize = 512;
/// Interval, in milliseconds, at which the writer sets the event [`forwarding::ReportedEvent::NextUse`] of all
/// unresolved neighbours again. The next packet to an unresolved neighbour causes a new request, so a refused or lost
/// request is repeated.
const RETRY_INTERVAL: u64 = 1000;
/// Limit of unsolicited messages that a stage of a worker passes on: messages per second, and burst size.
const HINT_LIMIT: (u64, u64) = (100, 64);
/// Largest number of frames that a stage sends between two batches.
const FRAMES: usize = 32;

/// The parameters that a config can set.
#[derive(Clone, Copy, Debug)]
pub struct ResolveParameters {
    /// Largest number of neighbours of each port.
    pub max_neighbors: u16,
    /// The time for which an answer is valid.
    pub reachable: Period,
    /// The time after which an unused neighbour is removed.
    pub ageing: Period,
}

/// The information about a neighbour in a received message.
#[derive(Clone, Copy, Debug)]
pub struct NeighborInfo {
    /// IP address of the neighbour.
    pub address: IpAddr,
    /// MAC address of the neighbour, if the message has one. A message without a MAC address refers to the known MAC
    /// address.
    pub mac: Option<MacAddr>,
    /// The kind of the message.
    pub kind: NeighborMessageKind,
    /// Whether the message has the override flag (RFC 4861). ARP messages and solicitations count as messages with the
    /// flag.
    pub overrides: bool,
}

/// State that the stages and the resolver share. Resolution is off until a stage enables it.
#[derive(Debug)]
pub struct Resolution {
    ports: Vec<PortInfo>,
    /// Whether a stage receives the messages about IPv4 neighbours, and about IPv6 neighbours.
    listens: [AtomicBool; 2],
    /// Whether this host announces itself as a host, not as a router.
    host: AtomicBool,
    answers: FromWorkers<ReceivedMessage>,
    hints: FromWorkers<ReceivedMessage>,
    open: OnceLock<OpenResolution>,
    /// The neighbours that [`ResolutionClient::load`] has read from the old program of an upgrade, until the background
    /// task takes over these neighbours.
    loaded: Mutex<Vec<(NextHop, MacAddr)>>,
    /// The object that this object replaces, until the background task has taken over the neighbours.
    earlier: Mutex<Option<Arc<Resolution>>>,
}

#[derive(Debug)]
struct OpenResolution {
    settings: Settings,
    /// Name of the stage that enabled resolution.
    stage: String,
    tables: Arc<Forwarding>,
    /// The writer of the tables. The background task holds this lock for one step at a time.
    writer: Mutex<Box<ForwardingWriter>>,
    /// Whether the background task has started.
    is_started: AtomicBool,
    /// The number of each next hop of the config, and the number of clients that use the next hop.
    numbers: Mutex<HashMap<NextHop, (u32, usize)>>,
    frames: ToWorkers<GeneratedFrame>,
    /// For each port, whether its link has changed.
    changed: Vec<AtomicBool>,
    counts: [AtomicU64; ResolutionCount::ALL.len()],
}

/// The counters.
#[derive(Clone, Copy, Debug)]
#[repr(usize)]
enum ResolutionCount {
    Known,
    MaxKnown,
    Asked,
    Refused,
    Evicted,
    Ignored,
}

impl ResolutionCount {
    /// All counters, with their names: known neighbours, the largest number of known neighbours so far, requests sent,
    /// neighbours refused, neighbours evicted, and messages ignored.
    const ALL: [(Self, &'static str); 6] = [
        (Self::Known, "neighbors"),
        (Self::MaxKnown, "neighbors_max"),
        (Self::Asked, "asked"),
        (Self::Refused, "refused"),
        (Self::Evicted, "evicted"),
        (Self::Ignored, "ignored"),
    ];
}

impl OpenResolution {
    fn set(&self, count: ResolutionCount, to: u64) {
        self.counts[count as usize].store(to, Ordering::Relaxed);
    }
}

impl Resolution {
    /// Returns the shared state of the run.
    fn of(setup: &mut Setup<'_>) -> Arc<Self> {
        setup.shared_by_stages(|setup| {
            Arc::new(Self {
                ports: setup.ports().to_vec(),
                listens: Default::default(),
                host: AtomicBool::default(),
                answers: FromWorkers::new(QUEUE),
                hints: FromWorkers::new(QUEUE),
                open: OnceLock::new(),
                loaded: Mutex::default(),
                earlier: Mutex::new(
                    setup.earlier_shared_by_stages::<Self>().filter(|earlier| earlier.open.get().is_some()),
                ),
            })
        })
    }

    /// Enables resolution for a stage. The first call registers the background task that resolves neighbours.
    ///
    /// # Errors
    /// No port has an address to send requests from, or another stage uses other parameters.
    pub fn enable(
        setup: &mut Setup<'_>,
        parameters: ResolveParameters,
    ) -> std::result::Result<ResolutionClient, Problem> {
        let resolution = Self::of(setup);
        if resolution.ports.iter().all(|port| port.addresses.is_empty()) {
            let problem = Problem::at("source", "no port has an address to send requests from");
            return Err(problem.help("add addresses = [\"192.0.2.1/24\"] to a [[port]]"));
        }
        let millis = |period: Period| period.as_nanos() / 1_000_000;
        let settings = Settings {
            // The neighbours of all ports are in one table. Each port gets an equal share of the entries, so that no
            // port takes the share of another port.
            most: usize::from(parameters.max_neighbors).min(MAX_NEIGHBORS / resolution.ports.len()),
            reachable: millis(parameters.reachable),
            ageing: millis(parameters.ageing),
        };
        let open = resolution.open.get_or_init(|| {
            let (tables, writer) = ForwardingWriter::for_ports(&resolution.ports, setup.hold_time());
            setup.on_behalf_of::<Self, _>(|setup| {
                setup.task("resolver", Resolver { resolution: resolution.clone(), state: None });
                let (changed, checked) = (resolution.clone(), resolution.clone());
                setup.on_port_change(move |port, _| changed.announce(port));
                setup.check_later(move || checked.check_listeners());
            });
            OpenResolution {
                settings,
                stage: setup.stage().to_owned(),
                writer: Mutex::new(writer),
                is_started: AtomicBool::new(false),
                numbers: Mutex::default(),
                tables,
                frames: ToWorkers::new(QUEUE),
                changed: resolution
                    .ports
                    .iter()
                    .map(|port| AtomicBool::new(!resolution.continues(port, settings)))
                    .collect(),
                counts: Default::default(),
            }
        });
        if open.settings != settings {
            // If the existing resolver belongs to the running pipeline, this call is part of a change of the settings.
            // The program then prepares all stages again with a new resolver. Otherwise, two stages of one config have
            // different settings, and the program reports the problem.
            setup.renew_shared_by_stages::<Self>();
            let problem =
                Problem::at("source", format!("stage `{}` resolves neighbours with other parameters", open.stage));
            return Err(problem.help("set the same most, reachable and ageing in both stages"));
        }
        let reports_counters = setup.worker_number() == 0 && open.stage == setup.stage();
        let (reader, frames) = (open.tables.register_reader(), open.frames.join());
        let (hops, numbers) = (Vec::new(), Vec::new());
        let mut client =
            ResolutionClient { resolution: resolution.clone(), reader, hops, numbers, frames, reports_counters };
        for hop in setup.next_hops().all() {
            let number = open.number(*hop);
            client
                .numbers
                .push(number.ok_or_else(|| Problem::at("source", "the routes have more than 16,384 gateways"))?);
            client.hops.push(*hop);
        }
        Ok(client)
    }

    /// Returns the object that this object replaces, if the neighbours of the replaced object are valid with the new
    /// `settings`. Returns `None` after the background task has taken over the neighbours.
    fn earlier(&self, settings: Settings) -> Option<Arc<Self>> {
        let earlier = self.earlier.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
        let before = earlier.open.get()?.settings;
        let times = |settings: Settings| (settings.reachable, settings.ageing);
        // With another number of ports, `most` of each port may differ although the config has the same `most`.
        let is_valid =
            times(before) == times(settings) && (before.most == settings.most || earlier.ports != self.ports);
        is_valid.then_some(earlier)
    }

    /// Returns whether the replaced object has valid neighbours for a port, and the port is unchanged.
    fn continues(&self, port: &PortInfo, settings: Settings) -> bool {
        self.earlier(settings).is_some_and(|earlier| earlier.ports.contains(port))
    }

    /// Requests announcements of this host's addresses, because the link of a port has changed.
    fn announce(&self, port: u8) {
        if let Some(changed) = self.open.get().and_then(|open| open.changed.get(usize::from(port))) {
            changed.store(true, Ordering::Relaxed);
        }
    }

    /// Checks that a stage receives the answers.
    fn check_listeners(&self) -> std::result::Result<(), Problem> {
        let mut addresses = self.ports.iter().flat_map(|port| &port.addresses);
        let [v4, v6] = self.listens.each_ref().map(|listens| listens.load(Ordering::Relaxed));
        let Some(unheard) = addresses.find(|own| if own.addr().is_ipv4() { !v4 } else { !v6 }) else { return Ok(()) };
        let (kind, stage) = if unheard.addr().is_ipv4() { ("ARP", "arp") } else { ("ICMPv6", "icmp") };
        let problem = Problem::at("source", format!("no stage receives the answers of neighbours ({kind} messages)"));
        Err(problem.help(format!("add a stage with use = \"{stage}\"")))
    }
}

impl OpenResolution {
    /// Returns the number of a next hop in the tables.
    fn number(&self, hop: NextHop) -> Option<u32> {
        let mut numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((number, users)) = numbers.get_mut(&hop) {
            *users += 1;
            return Some(*number);
        }
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let number = writer.reserve_next_hop(hop).ok()?;
        numbers.insert(hop, (number, 1));
        Some(number)
    }

    /// Releases the entry of a next hop if no client uses the next hop any more.
    fn release(&self, hop: NextHop) {
        let mut numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, users)) = numbers.get_mut(&hop) {
            *users -= 1;
            if *users == 0 {
                numbers.remove(&hop);
                self.writer.lock().unwrap_or_else(PoisonError::into_inner).release(hop);
            }
        }
    }
}

/// The interface through which a worker's stage resolves neighbours.
#[derive(Debug)]
pub struct ResolutionClient {
    resolution: Arc<Resolution>,
    /// Reader of the neighbour table.
    pub reader: ForwardingReader,
    /// The next hops of the config.
    pub hops: Vec<NextHop>,
    /// The numbers of the next hops in the tables. Element 0 belongs to next hop 1 of the config, element 1 to next hop
    /// 2.
    pub numbers: Vec<u32>,
    /// The frames that wait to be sent.
    frames: WorkerEnd<GeneratedFrame>,
    /// Whether this client reports the counters that all workers share.
    reports_counters: bool,
}

impl Drop for ResolutionClient {
    fn drop(&mut self) {
        if let Some(open) = self.resolution.open.get() {
            self.hops.iter().for_each(|hop| open.release(*hop));
        }
    }
}

impl ResolutionClient {
    /// Largest number of packets that [`ResolutionClient::generate`] generates.
    pub const FRAMES: usize = FRAMES;

    /// Generates packets from the frames that wait to be sent.
    pub fn generate(&mut self, batch: &mut Batch) {
        for _ in 0..FRAMES {
            // If there is no free slot for a frame, the frame is lost. The state machine sends the request again.
            if !self.frames.pop().is_some_and(|frame| frame.generate(batch)) {
                return;
            }
        }
    }

    /// Returns the resolved neighbours in the format that [`ResolutionClient::load`] reads. Returns `None` if another
    /// client of the run returns the neighbours.
    pub fn save(&self) -> Option<Vec<u8>> {
        let open = self.resolution.open.get().filter(|_| self.reports_counters)?;
        let all = (0..open.tables.neighbor_slots()).filter_map(|slot| open.tables.neighbor_at(slot));
        let resolved = all.filter_map(|(hop, state)| match state {
            ResolutionState::At(mac) => Some((hop, mac)),
            ResolutionState::Unknown | ResolutionState::Failed => None,
        });
        Some(state::save(resolved))
    }

    /// Takes over the neighbours that [`ResolutionClient::save`] of another program has returned. The resolver verifies
    /// each neighbour at its next use.
    ///
    /// # Errors
    /// Fails if the version is unknown or the neighbours are damaged.
    pub fn load(&self, state: &[u8]) -> std::result::Result<(), String> {
        let Some(open) = self.resolution.open.get() else { return Ok(()) };
        let neighbors = state::load(state)?;
        {
            // The background task takes over the neighbours later. The tables get the MAC addresses now, so that
            // packets find them at once.
            let mut writer = open.writer.lock().unwrap_or_else(PoisonError::into_inner);
            for (hop, mac) in &neighbors {
                if usize::from(hop.port) < self.resolution.ports.len() {
                    // A neighbour without room in the table is resolved again.
                    let _ = writer.set_neighbor(*hop, ResolutionState::At(*mac), forwarding::ReportedEvent::None);
                }
            }
            writer.publish(&open.tables);
        }
        *self.resolution.loaded.lock().unwrap_or_else(PoisonError::into_inner) = neighbors;
        Ok(())
    }

    /// Reports the counters. All stages share the counters, so only one stage of one worker reports them.
    pub fn counters(&self, report: &mut dyn CounterReport) {
        if let Some(open) = self.resolution.open.get().filter(|_| self.reports_counters) {
            for (count, name) in ResolutionCount::ALL {
                report.add(name, open.counts[count as usize].load(Ordering::Relaxed));
            }
            report.add("requests_lost", open.tables.count(forwarding::TableCount::LostRequests));
        }
    }
}

/// Passes the content of received messages to the resolver. Each stage that receives ARP or ICMPv6 messages has a
/// listener.
#[derive(Debug, Default)]
pub struct NeighborListener(Option<OpenListener>);

#[derive(Debug)]
struct OpenListener {
    resolution: Arc<Resolution>,
    hint_limit: TokenBucket,
    answers: Producer<ReceivedMessage>,
    hints: Producer<ReceivedMessage>,
}

impl NeighborListener {
    /// Creates a listener for messages about the addresses that `kind` accepts.
    pub fn new(setup: &mut Setup<'_>, kind: impl Fn(&IpAddr) -> bool) -> Self {
        let resolution = Resolution::of(setup);
        let v4 = kind(&IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED));
        resolution.listens[usize::from(!v4)].store(true, Ordering::Relaxed);
        let hint_limit = TokenBucket::new(HINT_LIMIT.0, HINT_LIMIT.1, 0);
        let (answers, hints) = (resolution.answers.join(), resolution.hints.join());
        Self(Some(OpenListener { resolution, hint_limit, answers, hints }))
    }

    /// Sets whether the stage advertises this host as a router.
    pub fn with_router_flag(self, setup: &mut Setup<'_>, router: bool) -> Self {
        if let Some(OpenListener { resolution, .. }) = &self.0 {
            let resolution = resolution.clone();
            setup.on_start(move || resolution.host.store(!router, Ordering::Relaxed));
        }
        self
    }

    /// Returns whether resolution is enabled.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.0.as_ref().is_some_and(|listener| listener.resolution.open.get().is_some())
    }

    /// Passes the content of a message received on a port to the resolver, unless the message only confirms the known
    /// MAC address. Awaited answers are always passed on. All other messages are rate-limited. Messages with a VLAN tag
    /// are ignored, because they belong to another link.
    #[cold]
    pub fn receive(&mut self, port: u8, flags: MetaFlags, info: NeighborInfo, ctx: &Ctx) {
        let Some(OpenListener { resolution, hint_limit, answers, hints }) = &mut self.0 else { return };
        let Some(open) = resolution.open.get().filter(|_| !flags.contains(MetaFlags::VLAN)) else { return };
        let NeighborInfo { address, mac, mut kind, overrides } = info;
        let is_own_address = resolution.ports.iter().flat_map(|port| &port.addresses).any(|own| own.addr() == address);
        let is_own_mac = |mac: MacAddr| resolution.ports.iter().any(|port| MacAddr(port.mac) == mac);
        let is_unicast_of_other_host =
            mac.is_none_or(|mac| !mac.is_multicast() && mac != MacAddr::ZERO && !is_own_mac(mac));
        let hop = NextHop { address, port };
        let known = open.tables.neighbor_state(hop);
        let passed = match known {
            _ if is_own_address || !is_unicast_of_other_host || !is_host(address) => false,
            None => kind == NeighborMessageKind::Request && resolution.is_on_link(hop),
            Some((_, true)) if kind == NeighborMessageKind::Reply => {
                let heard = ReceivedMessage { hop, mac, kind, overrides };
                if answers.push(heard).is_ok() {
                    return;
                }
                false
            }
            // The known MAC address is confirmed, so there is nothing to do.
            Some((ResolutionState::At(current), _)) if mac.is_none_or(|mac| mac == current) => return,
            Some(_) => {
                // An answer that is not awaited counts as an announcement.
                kind = if kind == NeighborMessageKind::Reply { NeighborMessageKind::Announcement } else { kind };
                true
            }
        };
        let now = ctx.now.0.saturating_sub(ctx.start.0);
        let passed = passed && hint_limit.take(now, 1);
        if !passed || hints.push(ReceivedMessage { hop, mac, kind, overrides }).is_err() {
            open.counts[ResolutionCount::Ignored as usize].fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Resolution {
    /// Returns whether an address is on the link of a port.
    fn is_on_link(&self, hop: NextHop) -> bool {
        let of_link = matches!(hop.address, IpAddr::V6(address) if is_link_local(address));
        let port = self.ports.get(usize::from(hop.port));
        port.is_some_and(|port| of_link || port.addresses.iter().any(|own| own.contains(&hop.address)))
    }
}

/// The state of the running resolver.
struct ResolverState {
    resolution: Arc<Resolution>,
    /// The state machine of each port.
    machines: Vec<StateMachine>,
    actions: Vec<NeighborAction>,
    /// Time of the last timeout check.
    last_timeout_check: u64,
    /// The last time at which the event `NextUse` of all unresolved neighbours was set again (see [`RETRY_INTERVAL`]).
    last_retry: u64,
    /// For each port: when its link last changed, and how many announcements were sent since.
    announced: Vec<(u64, usize)>,
}

impl ResolverState {
    /// Returns `None` if no stage enabled resolution, or if a resolver already exists.
    fn new(resolution: Arc<Resolution>) -> Option<Self> {
        let open = resolution.open.get()?;
        if open.is_started.swap(true, Ordering::Relaxed) {
            return None;
        }
        use std::hash::{BuildHasher, RandomState};
        let random = RandomState::new();
        let ports = 0..resolution.ports.len();
        let machines = ports.map(|port| StateMachine::new(open.settings, random.hash_one(port))).collect();
        let announced = vec![(0, ANNOUNCEMENTS.len()); resolution.ports.len()];
        Some(Self { resolution, machines, actions: Vec::new(), last_timeout_check: 0, last_retry: 0, announced })
    }

    /// Takes over the resolved neighbours of the replaced object, so that the workers find these neighbours when
    /// they switch to the new pipeline.
    fn take_over(&mut self) {
        let Self { resolution, machines, actions, .. } = self;
        let Some(open) = resolution.open.get() else { return };
        let earlier = resolution.earlier(open.settings);
        *resolution.earlier.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let Some(earlier) = earlier else { return };
        let numbers = new_port_numbers(&earlier.ports, &resolution.ports);
        let Some(before) = earlier.open.get() else { return };
        let mut writer = open.writer.lock().unwrap_or_else(PoisonError::into_inner);
        for slot in 0..before.tables.neighbor_slots() {
            let Some((hop, ResolutionState::At(mac))) = before.tables.neighbor_at(slot) else { continue };
            let Some(port) = numbers.get(usize::from(hop.port)).copied().flatten() else { continue };
            if let Some(machine) = machines.get_mut(usize::from(port)) {
                let hop = NextHop { port, ..hop };
                machine.take_over(hop, mac, writer.has_routes(hop), actions);
            }
        }
        for action in actions.drain(..) {
            if let NeighborAction::Set(hop, resolved, event) = action
                && writer.set_neighbor(hop, resolved, event).is_err()
                && let Some(machine) = machines.get_mut(usize::from(hop.port))
            {
                machine.refuse(hop);
            }
        }
        writer.publish(&open.tables);
    }

    /// Runs one step of the resolver, `now` milliseconds after the start of the resolver.
    fn step(&mut self, now: u64) {
        let Self { resolution, machines, actions, last_timeout_check, last_retry, announced } = self;
        let Some(open) = resolution.open.get() else { return };
        let mut writer = open.writer.lock().unwrap_or_else(PoisonError::into_inner);
        for (hop, mac) in resolution.loaded.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            if let Some(machine) = machines.get_mut(usize::from(hop.port)) {
                machine.take_over(hop, mac, writer.has_routes(hop), actions);
            }
        }
        // Limit the number of messages per step, because messages may arrive faster than this loop handles them.
        for queue in [&resolution.answers, &resolution.hints] {
            let heard = std::iter::from_fn(|| queue.pop()).take(QUEUE);
            for heard in heard {
                if let Some(machine) = machines.get_mut(usize::from(heard.hop.port)) {
                    machine.receive(&heard, now, actions);
                }
            }
        }
        for hop in std::iter::from_fn(|| open.tables.next_request()).take(MAX_REQUESTS_PER_STEP) {
            if let Some(machine) = machines.get_mut(usize::from(hop.port)) {
                let is_askable = frames::is_askable(&resolution.ports, hop);
                match writer.has_routes(hop) {
                    true => machine.request_gateway(hop, is_askable, now, actions),
                    false => machine.request(hop, is_askable, now, actions),
                }
            }
        }
        if now >= *last_timeout_check + TIMEOUT_INTERVAL {
            *last_timeout_check = now;
            machines.iter_mut().for_each(|machine| machine.check_timeouts(now, actions));
        }
        if now >= *last_retry + RETRY_INTERVAL {
            *last_retry = now;
            writer.allow_requests_again();
        }
        // The queues are only full if no worker empties them. Lost requests are sent again.
        let send = |frame: GeneratedFrame| _ = open.frames.push(frame);
        for action in actions.drain(..) {
            match action {
                NeighborAction::Set(hop, resolved, event) => {
                    let written = writer.set_neighbor(hop, resolved, event);
                    if let (Err(_), Some(machine)) = (written, machines.get_mut(usize::from(hop.port))) {
                        machine.refuse(hop);
                    }
                }
                NeighborAction::Forget(hop) => writer.unset_neighbor(hop),
                NeighborAction::Ask(hop, at) => {
                    let port = resolution.ports.get(usize::from(hop.port));
                    _ = port.and_then(|port| frames::request(port, hop, at)).map(send);
                }
            }
        }
        for (number, (since, times)) in (0..=u8::MAX).zip(announced) {
            let (port, changed) = (&resolution.ports[usize::from(number)], &open.changed[usize::from(number)]);
            // A new series of announcements starts only after the last series has ended. A link that goes up and down
            // repeatedly therefore causes no flood of announcements.
            if *times == ANNOUNCEMENTS.len() && changed.swap(false, Ordering::Relaxed) {
                (*since, *times) = (now, 0);
                machines[usize::from(number)].forget_all(actions);
            }
            if ANNOUNCEMENTS.get(*times).is_some_and(|at| *since + *at <= now) {
                *times += 1;
                let router = !resolution.host.load(Ordering::Relaxed);
                port.addresses.iter().for_each(|own| send(frames::announcement(number, port, own.addr(), router)));
            }
        }
        writer.publish(&open.tables);
        let sum = |of: fn(&StateMachine) -> u64| machines.iter().map(of).sum();
        let known = sum(|machine| machine.len() as u64);
        open.set(ResolutionCount::Known, known);
        open.counts[ResolutionCount::MaxKnown as usize].fetch_max(known, Ordering::Relaxed);
        open.set(ResolutionCount::Asked, sum(|machine| machine.asked));
        open.set(ResolutionCount::Refused, sum(|machine| machine.refused));
        open.set(ResolutionCount::Evicted, sum(|machine| machine.evicted));
    }
}

/// The background task that resolves neighbours.
struct Resolver {
    resolution: Arc<Resolution>,
    state: Option<ResolverState>,
}

impl Task for Resolver {
    fn start(&mut self) -> Result<()> {
        self.state = ResolverState::new(self.resolution.clone());
        self.state.iter_mut().for_each(ResolverState::take_over);
        Ok(())
    }

    fn run(&mut self, stop: &StopSignal) -> Result<()> {
        let Some(state) = &mut self.state else { return Ok(()) };
        let start = Instant::now();
        loop {
            state.step(start.elapsed().as_millis() as u64);
            if stop.wait(POLL_INTERVAL) {
                return Ok(());
            }
        }
    }
}
