//! Finds neighbours without the kernel: asks, hears, remembers and forgets (RFC 826, RFC 4861).
//!
//! What is known lies in tables that workers read ([`Forwarding`]) and one thread writes. Workers put what they hear and
//! what they need into queues; the thread thinks ([`machine`]) and puts what is to be asked into another, as whole frames,
//! which a worker sends between two batches. So nothing here waits for anything on a worker, and a flood costs no more than
//! the queues hold and the buckets let through.

mod frames;
mod machine;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crossbeam_queue::ArrayQueue;

use crate::error::{Error, Result};
use crate::header::MacAddr;
use crate::header::ndp::is_of_link;
use crate::mem::{Batch, MetaFlags};
use crate::pipeline::{Ctx, NextHop, PortInfo, Problem, Setup};
use crate::stages::forwarding::{Forwarding, Reader, Resolved, Writer};
use crate::stages::responder::is_host;
use crate::stages::table::bucket::TokenBucket;
use frames::Frame;
use machine::{Act, Heard, Machine, Settings};

pub(crate) use machine::Claim;

/// How long a question may wait.
const NAP: Duration = Duration::from_millis(10);
/// How often it is looked what has become of questions, in milliseconds.
const TURN: u64 = 50;
/// When a link is told of the addresses of this host, in milliseconds from the start or from a change of the link (RFC 5227,
/// section 1.1: twice, two seconds apart).
const ANNOUNCEMENTS: [u64; 2] = [0, 2000];
/// What workers have heard, and frames that they are to send.
const QUEUE: usize = 1024;
/// Needs of workers that are looked at in one go.
const NEEDS: usize = 64;
/// What a stage of a worker passes on of what nobody asked for, in a second and at once.
const HINTS: (u64, u64) = (100, 64);
/// The most frames that a stage sends between two batches.
const FRAMES: usize = 32;

/// What may be chosen in the config.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wishes {
    /// The most neighbours.
    pub(crate) most: u16,
    /// Seconds that an answer is believed.
    pub(crate) reachable: u16,
    /// Seconds that one is kept that nobody uses.
    pub(crate) ageing: u32,
}

/// What a station says of itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Word {
    /// Its address.
    pub(crate) address: IpAddr,
    /// Where it is; without one, where it is known to be.
    pub(crate) mac: Option<MacAddr>,
    /// Why it says so.
    pub(crate) claim: Claim,
    /// Whether what is known is to give way.
    pub(crate) overrides: bool,
}

/// What the stages of a run and the thread share. It is closed until a stage wants neighbours to be found.
#[derive(Debug)]
pub(crate) struct Resolution {
    ports: Vec<PortInfo>,
    /// Whether a stage hears messages of IPv4, and of IPv6.
    hears: [AtomicBool; 2],
    /// Whether neighbours are told that this host is no router.
    host: AtomicBool,
    open: OnceLock<Open>,
}

#[derive(Debug)]
struct Open {
    settings: Settings,
    /// The name of the stage that wants it.
    stage: String,
    tables: Arc<Forwarding>,
    writer: Mutex<Option<Box<Writer>>>,
    numbers: Mutex<HashMap<NextHop, u32>>,
    answers: ArrayQueue<Heard>,
    hints: ArrayQueue<Heard>,
    frames: ArrayQueue<Frame>,
    /// By port: whether its link is another than before.
    changed: Vec<AtomicBool>,
    counts: [AtomicU64; Count::ALL.len()],
}

/// What is counted.
#[derive(Clone, Copy, Debug)]
#[repr(usize)]
enum Count {
    Known,
    Asked,
    Refused,
    Evicted,
    Ignored,
}

impl Count {
    /// All, with their names: neighbours of which something is known, questions sent, neighbours that were not taken, that
    /// made room for others, and what was heard and not looked at.
    const ALL: [(Self, &'static str); 5] = [
        (Self::Known, "neighbors"),
        (Self::Asked, "asked"),
        (Self::Refused, "refused"),
        (Self::Evicted, "evicted"),
        (Self::Ignored, "ignored"),
    ];
}

impl Open {
    fn set(&self, count: Count, to: u64) {
        self.counts[count as usize].store(to, Ordering::Relaxed);
    }
}

impl Resolution {
    /// That of the run.
    fn of(setup: &mut Setup<'_>) -> Arc<Self> {
        let ports = setup.ports().to_vec();
        setup.common(|| {
            Arc::new(Self { ports, hears: Default::default(), host: AtomicBool::default(), open: OnceLock::new() })
        })
    }

    /// A stage wants neighbours to be found.
    ///
    /// # Errors
    /// No port has an address to ask with, or another stage has other wishes.
    pub(crate) fn want(setup: &mut Setup<'_>, wishes: Wishes) -> std::result::Result<Asker, Problem> {
        let resolution = Self::of(setup);
        if resolution.ports.iter().all(|port| port.addresses.is_empty()) {
            let problem = Problem::at("source", "no port has an address to ask with");
            return Err(problem.help("add addresses = [\"192.0.2.1/24\"] to a [[port]]"));
        }
        let millis = |seconds: u32| u64::from(seconds) * 1000;
        let settings = Settings {
            most: usize::from(wishes.most),
            reachable: millis(wishes.reachable.into()),
            ageing: millis(wishes.ageing),
        };
        let open = resolution.open.get_or_init(|| {
            let names: Vec<String> = resolution.ports.iter().map(|port| port.name.clone()).collect();
            let tables = Forwarding::new(&names);
            for (number, port) in (0..=u8::MAX).zip(&resolution.ports) {
                tables.set_link(number, MacAddr(port.mac), u32::from(port.mtu));
            }
            Open {
                settings,
                stage: setup.stage().to_owned(),
                writer: Mutex::new(tables.writer()),
                numbers: Mutex::default(),
                tables,
                answers: ArrayQueue::new(QUEUE),
                hints: ArrayQueue::new(QUEUE),
                frames: ArrayQueue::new(QUEUE),
                changed: resolution.ports.iter().map(|_| AtomicBool::new(true)).collect(),
                counts: Default::default(),
            }
        });
        if open.settings != settings {
            let problem = Problem::at("source", format!("stage `{}` finds neighbours by other rules", open.stage));
            return Err(problem.help("give both the same most, reachable and ageing"));
        }
        let hops = setup.next_hops().all();
        let numbers = hops.iter().map(|hop| open.number(*hop)).collect::<Option<Vec<u32>>>();
        let numbers = numbers.ok_or_else(|| Problem::at("source", "the routes have more gateways than 16,384"))?;
        let tells = setup.worker().0 == 0 && open.stage == setup.stage();
        let reader = open.tables.join();
        Ok(Asker { resolution, reader, numbers, tells })
    }

    /// The link of a port has changed: it is told of the addresses of this host.
    pub(crate) fn announce(&self, port: u8) {
        if let Some(changed) = self.open.get().and_then(|open| open.changed.get(usize::from(port))) {
            changed.store(true, Ordering::Relaxed);
        }
    }

    /// What is missing to find neighbours that somebody wants to be found: the stage that wants it, and the problem.
    pub(crate) fn flaw(&self) -> Option<(&str, Problem)> {
        let open = self.open.get()?;
        let mut addresses = self.ports.iter().flat_map(|port| &port.addresses);
        let [v4, v6] = self.hears.each_ref().map(|hears| hears.load(Ordering::Relaxed));
        let deaf = addresses.find(|own| if own.addr().is_ipv4() { !v4 } else { !v6 })?;
        let (kind, stage) = if deaf.addr().is_ipv4() { ("ARP", "arp") } else { ("ICMPv6", "icmp") };
        let problem = Problem::at("source", format!("nothing hears the answers of neighbours: no stage takes {kind}"));
        Some((&open.stage, problem.help(format!("add a stage with use = \"{stage}\""))))
    }
}

impl Open {
    /// The number of a next hop in the tables.
    fn number(&self, hop: NextHop) -> Option<u32> {
        let mut numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = numbers.get(&hop) {
            return Some(*known);
        }
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let number = writer.as_mut()?.number(hop).ok()?;
        numbers.insert(hop, number);
        Some(number)
    }
}

/// By which a stage of a worker asks for neighbours.
#[derive(Debug)]
pub(crate) struct Asker {
    resolution: Arc<Resolution>,
    /// What is known.
    pub(crate) reader: Reader,
    /// By number less 1 of a next hop of the config: its number in the tables.
    pub(crate) numbers: Vec<u32>,
    /// Whether it tells the numbers that all share.
    tells: bool,
}

impl Asker {
    /// The most frames that [`Asker::emit`] makes.
    pub(crate) const FRAMES: usize = FRAMES;

    /// Makes packets of the frames that are to be sent.
    pub(crate) fn emit(&self, batch: &mut Batch) {
        let Some(open) = self.resolution.open.get() else { return };
        for _ in 0..FRAMES {
            // One that finds no slot is lost: it is asked again.
            if !open.frames.pop().is_some_and(|frame| frame.put(batch)) {
                return;
            }
        }
    }

    /// Reports what is counted: by one stage of one worker, as all share it.
    pub(crate) fn counters(&self, report: &mut dyn FnMut(&str, u64)) {
        if let Some(open) = self.resolution.open.get().filter(|_| self.tells) {
            for (count, name) in Count::ALL {
                report(name, open.counts[count as usize].load(Ordering::Relaxed));
            }
        }
    }
}

/// By which a stage that sees messages passes on what they say.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ear {
    resolution: Option<Arc<Resolution>>,
    hints: Option<TokenBucket>,
}

impl Ear {
    /// One for messages about addresses of a kind.
    pub(crate) fn new(setup: &mut Setup<'_>, kind: impl Fn(&IpAddr) -> bool) -> Self {
        let resolution = Resolution::of(setup);
        let v4 = kind(&IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED));
        resolution.hears[usize::from(!v4)].store(true, Ordering::Relaxed);
        Self { resolution: Some(resolution), hints: Some(TokenBucket::new(HINTS.0, HINTS.1, 0)) }
    }

    /// One of a stage that tells neighbours whether this host is a router.
    pub(crate) fn of_router(self, router: bool) -> Self {
        if let Some(resolution) = &self.resolution {
            resolution.host.store(!router, Ordering::Relaxed);
        }
        self
    }

    /// Whether anybody wants to know.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.resolution.as_ref().is_some_and(|resolution| resolution.open.get().is_some())
    }

    /// Passes on what was heard on a port, as far as it is news: answers that are waited for, and of all else so much in a
    /// second. What is said on a VLAN is not about the link of the port.
    #[cold]
    pub(crate) fn hear(&mut self, port: u8, flags: MetaFlags, word: Word, ctx: &Ctx) {
        let Some(resolution) = &self.resolution else { return };
        let Some(open) = resolution.open.get().filter(|_| !flags.contains(MetaFlags::VLAN)) else { return };
        let Word { address, mac, mut claim, overrides } = word;
        let own = resolution.ports.iter().flat_map(|port| &port.addresses).any(|own| own.addr() == address);
        let this = |mac: MacAddr| resolution.ports.iter().any(|port| MacAddr(port.mac) == mac);
        let one = mac.is_none_or(|mac| !mac.is_multicast() && mac != MacAddr::ZERO && !this(mac));
        let hop = NextHop { address, port };
        let hint = open.tables.hint(hop);
        let passed = match hint {
            _ if own || !one || !is_host(address) => false,
            None => claim == Claim::Asks && resolution.is_on_link(hop),
            Some((_, true)) if claim == Claim::Answer => {
                let heard = Heard { hop, mac, claim, overrides };
                if open.answers.push(heard).is_ok() {
                    return;
                }
                false
            }
            // It is known to be there.
            Some((Resolved::At(known), _)) if mac.is_none_or(|mac| mac == known) => return,
            Some(_) => {
                // An answer that nobody waits for is no more than an announcement.
                claim = if claim == Claim::Answer { Claim::Announces } else { claim };
                true
            }
        };
        let now = ctx.now.0.saturating_sub(ctx.start.0);
        let passed = passed && self.hints.as_mut().is_some_and(|hints| hints.take(now, 1));
        if !passed || open.hints.push(Heard { hop, mac, claim, overrides }).is_err() {
            open.counts[Count::Ignored as usize].fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Resolution {
    /// Whether an address is one of the link of a port.
    fn is_on_link(&self, hop: NextHop) -> bool {
        let of_link = matches!(hop.address, IpAddr::V6(address) if is_of_link(address));
        let port = self.ports.get(usize::from(hop.port));
        port.is_some_and(|port| of_link || port.addresses.iter().any(|own| own.contains(&hop.address)))
    }
}

/// What the thread has in mind.
struct Mind {
    resolution: Arc<Resolution>,
    writer: Box<Writer>,
    machine: Machine,
    acts: Vec<Act>,
    /// When it last looked what has become of questions.
    turned: u64,
    /// By port: since when its link is as it is, and how often it was told of this host since.
    told: Vec<(u64, usize)>,
}

impl Mind {
    /// `None`: nobody wants it, or somebody has it already.
    fn new(resolution: Arc<Resolution>) -> Option<Self> {
        let open = resolution.open.get()?;
        let writer = open.writer.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        use std::hash::{BuildHasher, RandomState};
        let machine = Machine::new(open.settings, RandomState::new().hash_one(0));
        let told = vec![(0, ANNOUNCEMENTS.len()); resolution.ports.len()];
        Some(Self { resolution, writer, machine, acts: Vec::new(), turned: 0, told })
    }

    /// Does what there is to do, so many milliseconds after the start.
    fn step(&mut self, now: u64) {
        let Self { resolution, writer, machine, acts, turned, told } = self;
        let Some(open) = resolution.open.get() else { return };
        // No more than there are now: more may come faster than they are looked at.
        for queue in [&open.answers, &open.hints] {
            let heard = std::iter::from_fn(|| queue.pop()).take(QUEUE);
            heard.for_each(|heard| machine.heard(&heard, now, acts));
        }
        for hop in std::iter::from_fn(|| open.tables.question()).take(NEEDS) {
            machine.wanted(hop, frames::is_askable(&resolution.ports, hop), now, acts);
        }
        if now >= *turned + TURN {
            *turned = now;
            machine.turn(now, acts);
        }
        // A queue that is full is one that no worker empties: what is lost is asked again.
        let send = |frame: Frame| _ = open.frames.push(frame);
        for act in acts.drain(..) {
            match act {
                Act::Set(hop, resolved, mark) => {
                    if writer.set_neighbor(hop, resolved, mark).is_err() {
                        machine.drop(hop);
                    }
                }
                Act::Forget(hop) => writer.unset_neighbor(hop),
                Act::Ask(hop, at) => {
                    let port = resolution.ports.get(usize::from(hop.port));
                    _ = port.and_then(|port| frames::question(port, hop, at)).map(send);
                }
            }
        }
        for (number, (since, times)) in (0..=u8::MAX).zip(told) {
            let (port, changed) = (&resolution.ports[usize::from(number)], &open.changed[usize::from(number)]);
            // One that comes and goes is not told more often than one that stays.
            if *times == ANNOUNCEMENTS.len() && changed.swap(false, Ordering::Relaxed) {
                (*since, *times) = (now, 0);
                machine.forget(number, acts);
            }
            if ANNOUNCEMENTS.get(*times).is_some_and(|at| *since + *at <= now) {
                *times += 1;
                let router = !resolution.host.load(Ordering::Relaxed);
                port.addresses.iter().for_each(|own| send(frames::announcement(number, port, own.addr(), router)));
            }
        }
        writer.publish(&open.tables);
        open.set(Count::Known, machine.len() as u64);
        open.set(Count::Asked, machine.asked);
        open.set(Count::Refused, machine.refused);
        open.set(Count::Evicted, machine.evicted);
    }
}

/// The thread that finds neighbours. Dropped, it ends.
#[derive(Debug)]
pub(crate) struct Resolver {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Resolver {
    /// Starts it, if a stage wants neighbours to be found.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn start(resolution: Arc<Resolution>) -> Result<Option<Self>> {
        let Some(mut mind) = Mind::new(resolution) else { return Ok(None) };
        let stop = Arc::new(AtomicBool::new(false));
        let told = stop.clone();
        let life = move || {
            let start = Instant::now();
            while !told.load(Ordering::Relaxed) {
                mind.step(start.elapsed().as_millis() as u64);
                thread::park_timeout(NAP);
            }
        };
        let thread = thread::Builder::new().name("resolver".to_owned()).spawn(life);
        let thread = thread.map_err(|error| Error::Wire(format!("no thread to find neighbours: {error}")))?;
        Ok(Some(Self { stop, thread: Some(thread) }))
    }
}

impl Drop for Resolver {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A panic there was printed there.
            let _ = thread.join();
        }
    }
}
