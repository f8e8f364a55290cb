//! The device, its port, its protection domains and its events.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::clock::{ClockSource, Timebase};
use crate::error::{Error, Result, VerbError};
use crate::provider::soft::channel::SoftChannel;
use crate::provider::soft::counter::Counter;
use crate::provider::soft::cq::{PollFaults, SoftCq, Stamps};
use crate::provider::soft::link::{Link, Watcher};
use crate::provider::soft::memory::Keys;
use crate::provider::soft::pd::SoftPd;
use crate::provider::soft::qp::QpShared;
use crate::provider::soft::rss::Rss;
use crate::provider::soft::spec::Profile;
use crate::provider::soft::status::Status;
use crate::provider::soft::{LinkSpec, SoftCounters, SoftSpec};
use crate::provider::{
    AsyncEvent, Capabilities, Capability, CqApi, CqFlags, CqGranted, CqSpec, Device, DeviceInfo, EventKind, GidEntry,
    GidKind, LinkLayer, PollFields, PortAttributes, PortState, Provider,
};
use crate::units::{Gid, Nanos, QpNum, Ticks};

/// What every device has.
const HAS: [Capability; 5] = [
    Capability::Events,
    Capability::ExtendedCq,
    Capability::SingleThreaded,
    Capability::Inline,
    Capability::ExtendedSend,
];

/// What a device has besides that follows the standard: the kernel's software device has no raw packets and no clock.
const HAS_BY_STANDARD: [Capability; 5] = [
    Capability::RawPacket,
    Capability::Timestamps,
    Capability::WallclockTimestamps,
    Capability::IgnoreOverrun,
    Capability::Rss,
];

/// What a device has besides whose wire is a fabric.
const HAS_ON_FABRIC: [Capability; 7] = [
    Capability::Datagram,
    Capability::Rc,
    Capability::Uc,
    Capability::Srq,
    Capability::MemoryWindow,
    Capability::Atomic,
    Capability::Multicast,
];

/// What everything of a device shares.
#[derive(Debug)]
pub(super) struct Shared {
    /// That of the device itself among all that is made on its cable.
    pub(super) id: u32,
    pub(super) spec: SoftSpec,
    // Before the link that it watches.
    _watcher: Option<Watcher>,
    pub(super) link: Link,
    pub(super) rss: Arc<Rss>,
    pub(super) keys: Arc<Keys>,
    pub(super) capabilities: Capabilities,
    /// What the port is like; a link that watches an interface changes it.
    status: Arc<Status>,
    gone: AtomicBool,
    /// Numbers of what is made on it, where no fabric gives them.
    numbers: AtomicU32,
    pub(super) cqs: AtomicU32,
    pub(super) srqs: AtomicU32,
    pub(super) queues: Mutex<Queues>,
    wall: (u64, Ticks),
    counter: Arc<Counter>,
}

/// The queue pairs of a device, and what those counted that are gone.
#[derive(Debug, Default)]
pub(super) struct Queues {
    pub(super) live: Vec<Weak<QpShared>>,
    pub(super) retired: SoftCounters,
}

impl Shared {
    pub(super) fn has(&self, capability: Capability) -> bool {
        self.capabilities.has.contains(&capability)
    }

    #[inline]
    pub(super) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn is_up(&self) -> bool {
        self.status.is_up()
    }

    pub(super) fn raise(&self, kind: EventKind, element: u32) {
        self.status.raise(kind, element);
    }

    /// A number that no other queue of this device has or had.
    pub(super) fn number(&self) -> u32 {
        match self.link.fabric() {
            Some(fabric) => fabric.number(),
            None => self.numbers.fetch_add(1, Ordering::Relaxed) & 0xff_ffff,
        }
    }

    /// The address in this place.
    pub(super) fn gid_at(&self, index: u8) -> Option<Gid> {
        self.status.gids().get(usize::from(index)).copied().filter(|gid| !gid.is_zero())
    }

    /// Whether an address is one of the port's.
    pub(super) fn owns(&self, gid: Gid) -> bool {
        !gid.is_zero() && self.status.gids().contains(&gid)
    }

    /// The largest payload of a packet of connections and datagrams, in bytes.
    pub(super) fn path_mtu(&self) -> u32 {
        match self.spec.profile {
            Profile::Spec => self.spec.mtu,
            // What is left of an Ethernet frame, rounded down to what the standard knows.
            Profile::Rxe => (8..=12).rev().map(|bits| 1 << bits).find(|mtu| mtu + 80 <= self.spec.mtu).unwrap_or(256),
        }
    }

    /// The longest message of a connection, in bytes.
    pub(super) fn max_message(&self) -> u32 {
        match self.spec.profile {
            Profile::Spec => 1 << 31,
            Profile::Rxe => 8 << 20,
        }
    }

    pub(super) fn srq_is_gone(&self) {
        self.srqs.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn check(&self, verb: &'static str) -> Result<(), VerbError> {
        if self.is_gone() { Err(VerbError::new(verb, libc::EIO)) } else { Ok(()) }
    }
}

/// A software device. Clones are the same device.
#[derive(Clone, Debug)]
pub struct SoftDevice(pub(super) Arc<Shared>);

impl SoftDevice {
    /// Makes a device.
    ///
    /// # Errors
    /// The MTU is none; the generator cannot make such frames; a capture cannot be read or written; an interface is not
    /// there or not ours to use.
    pub fn new(spec: SoftSpec) -> Result<Self> {
        if !(68..=65_000).contains(&spec.mtu) {
            return Err(Error::Wire(format!("{}: an MTU of {} bytes: it is 68 to 65000", spec.name, spec.mtu)));
        }
        let gids = std::iter::once(spec.gid()).chain(spec.gids.iter().copied()).collect();
        let status = Arc::new(Status::new(gids));
        let link = Link::new(&spec)?;
        if matches!(spec.link, LinkSpec::Xdp(_)) && !spec.faults.spares_queues() {
            return Err(Error::Wire(format!(
                "{}: a wire that has the slots themselves has no made-up faults",
                spec.name
            )));
        }
        let watcher = link.watch(&status)?;
        let standard = HAS_BY_STANDARD.into_iter().filter(|_| spec.profile == Profile::Spec);
        let fabric = HAS_ON_FABRIC.into_iter().filter(|_| link.fabric().is_some());
        let all = HAS.into_iter().chain(standard).chain(fabric);
        let has: Vec<_> = all.filter(|capability| !spec.refuse.contains(capability)).collect();
        let stamped = has.contains(&Capability::Timestamps);
        let counter = Counter::new(&spec.clock, spec.timestamp_mask, spec.counter.as_ref());
        let limits = spec.limits;
        let capabilities = Capabilities {
            firmware: env!("CARGO_PKG_VERSION").to_owned(),
            ports: 1,
            max_qp: limits.max_qp,
            max_qp_wr: limits.max_qp_wr.min(1 << 16),
            max_sge: limits.max_sge,
            max_cq: limits.max_cq,
            max_cqe: limits.max_cqe,
            max_mr: limits.max_mr,
            max_mr_size: u64::MAX,
            max_srq: 0,
            max_srq_wr: 0,
            max_rd_atomic: 0,
            max_init_rd_atomic: 0,
            path_migration: false,
            completion_vectors: 1,
            timestamp_mask: if stamped { spec.timestamp_mask } else { 0 },
            clock_khz: if stamped { counter.timebase().ticks(Nanos(1_000_000_000)).0 / 1_000 } else { 0 },
            has,
        };
        let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
        let nanos = if spec.clock.timebase().source == ClockSource::Virtual { 0 } else { nanos };
        let nanos = nanos.wrapping_add_signed(spec.wall_ahead);
        let connects = |most| if link.fabric().is_some() { most } else { 0 };
        let capabilities = Capabilities {
            max_srq: connects(limits.max_srq),
            max_srq_wr: connects(capabilities.max_qp_wr),
            max_rd_atomic: connects(u32::from(limits.max_rd_atomic)),
            max_init_rd_atomic: connects(u32::from(limits.max_rd_atomic)),
            ..capabilities
        };
        Ok(Self(Arc::new(Shared {
            id: link.fabric().map_or(0, |fabric| fabric.number()),
            _watcher: watcher,
            link,
            rss: Arc::new(Rss::new(&spec.rss)),
            keys: Arc::new(Keys::new()),
            capabilities,
            status,
            gone: AtomicBool::new(false),
            numbers: AtomicU32::new(0x11),
            cqs: AtomicU32::new(0),
            srqs: AtomicU32::new(0),
            queues: Mutex::default(),
            wall: (nanos, spec.clock.now()),
            counter: Arc::new(counter),
            spec,
        })))
    }

    /// The first address of its port.
    pub fn gid(&self) -> Gid {
        self.0.gid_at(0).unwrap_or_default()
    }

    /// Changes the addresses of the port, all of them: `GID_CHANGE`. Zero is an empty place. Queue pairs and address
    /// handles that use one that is gone reach nobody, and nobody them.
    pub fn set_gids(&self, gids: &[Gid]) {
        self.0.status.set_gids(gids);
    }

    /// Takes the link down or up again: `PORT_ERR`, `PORT_ACTIVE`. While it is down what is sent is lost, and nothing is
    /// received.
    pub fn set_link(&self, up: bool) {
        self.0.status.set_link(up);
    }

    /// Takes the device away: `DEVICE_FATAL`, and every verb from now on fails with `EIO`.
    pub fn remove(&self) {
        if !self.0.gone.swap(true, Ordering::Relaxed) {
            self.0.raise(EventKind::DeviceFatal, 0);
        }
    }

    /// What the device has counted, over all queue pairs, those that are gone included.
    pub fn counters(&self) -> SoftCounters {
        let queues = self.0.queues.lock().unwrap_or_else(PoisonError::into_inner);
        let mut sum = queues.retired;
        queues.live.iter().filter_map(Weak::upgrade).for_each(|qp| sum.add(&qp.counts.read()));
        self.0.link.count(&mut sum);
        sum
    }

    /// What each queue pair that there is has counted.
    pub fn queue_counters(&self) -> Vec<(QpNum, SoftCounters)> {
        let queues = self.0.queues.lock().unwrap_or_else(PoisonError::into_inner);
        queues.live.iter().filter_map(Weak::upgrade).map(|qp| (qp.number, qp.counts.read())).collect()
    }

    /// What went wrong on the wire: a capture that is damaged (its valid part was played), or one that could not be
    /// written.
    pub fn wire_error(&self) -> Option<Error> {
        self.0.link.error()
    }

    /// What its wire is, where the kind of the link alone does not say all.
    pub fn describe_link(&self) -> Option<String> {
        self.0.link.describe()
    }

    /// Writes out what was sent into a capture file.
    ///
    /// # Errors
    /// It could not be written, now or before.
    pub fn finish(&self) -> Result<()> {
        self.0.link.finish()
    }
}

impl Device for SoftDevice {
    type Pd = SoftPd;
    type Cq = SoftCq;
    type Channel = SoftChannel;

    fn name(&self) -> &str {
        &self.0.spec.name
    }

    fn capabilities(&self) -> &Capabilities {
        &self.0.capabilities
    }

    fn port(&self, port: u8) -> Result<PortAttributes, VerbError> {
        self.0.check("ibv_query_port")?;
        match port {
            1 => Ok(PortAttributes {
                state: if self.0.is_up() { PortState::Active } else { PortState::Down },
                link_layer: LinkLayer::Ethernet,
                max_mtu: if self.0.spec.profile == Profile::Rxe { 4096 } else { self.0.spec.mtu },
                active_mtu: self.0.path_mtu(),
                max_message: if self.0.link.fabric().is_some() { self.0.max_message() } else { self.0.spec.mtu },
                gids: self.0.status.gids().len() as u32,
                pkeys: 1,
                lid: 0,
                lmc: 0,
            }),
            _ => Err(VerbError::new("ibv_query_port", libc::EINVAL)),
        }
    }

    fn timebase(&self) -> Timebase {
        self.0.counter.timebase()
    }

    fn wallclock_is_hosts(&self) -> bool {
        let real = self.0.spec.clock.timebase().source != ClockSource::Virtual;
        real && self.0.spec.wall_ahead == 0 && !self.0.link.has_nic_stamps()
    }

    fn raw_clock(&self) -> Result<Ticks, VerbError> {
        const VERB: &str = "ibv_query_rt_values_ex";
        self.0.check(VERB)?;
        if !self.0.has(Capability::Timestamps) {
            return Err(VerbError::new(VERB, libc::EOPNOTSUPP));
        }
        self.0.counter.read()
    }

    fn gids(&self, port: u8) -> Result<Vec<GidEntry>, VerbError> {
        self.port(port)?;
        let gids = self.0.status.gids();
        let entry = |(index, gid): (usize, &Gid)| GidEntry {
            index: index as u32,
            gid: *gid,
            kind: GidKind::RoceV2,
            interface: 0,
        };
        Ok(gids.iter().enumerate().filter(|(_, gid)| !gid.is_zero()).map(entry).collect())
    }

    fn pkey(&self, port: u8, index: u16) -> Result<u16, VerbError> {
        /// Full membership of the default partition.
        const DEFAULT: u16 = 0xffff;
        self.port(port)?;
        if index == 0 { Ok(DEFAULT) } else { Err(VerbError::new("ibv_query_pkey", libc::EINVAL)) }
    }

    fn alloc_pd(&self) -> Result<SoftPd, VerbError> {
        self.0.check("ibv_alloc_pd")?;
        Ok(SoftPd::new(&self.0))
    }

    fn create_channel(&self) -> Result<SoftChannel, VerbError> {
        const VERB: &str = "ibv_create_comp_channel";
        self.0.check(VERB)?;
        match self.0.has(Capability::Events) {
            true => SoftChannel::new(&self.0),
            false => Err(VerbError::new(VERB, libc::EOPNOTSUPP)),
        }
    }

    fn create_cq(&self, spec: &CqSpec, channel: Option<&SoftChannel>) -> Result<(SoftCq, CqGranted), VerbError> {
        self.0.check("ibv_create_cq_ex")?;
        let limits = self.0.spec.limits;
        let foreign = channel.is_some_and(|channel| !channel.is_of(&self.0));
        if spec.depth == 0 || spec.depth > limits.max_cqe || spec.vector > 0 || foreign {
            return Err(VerbError::new("ibv_create_cq_ex", libc::EINVAL));
        }
        if self.0.cqs.load(Ordering::Relaxed) >= limits.max_cq {
            return Err(VerbError::new("ibv_create_cq_ex", libc::ENOMEM));
        }
        let mut granted = CqGranted {
            depth: self.0.spec.profile.slots(spec.depth),
            fields: spec.fields & (PollFields::STANDARD | PollFields::TIMESTAMP | PollFields::WALLCLOCK),
            flags: spec.flags,
            api: if self.0.has(Capability::ExtendedCq) { CqApi::Extended } else { CqApi::Classic },
            stamps: ClockSource::None,
            refused: Vec::new(),
            why: Vec::new(),
        };
        // Stamps are among what is read by cursor.
        let wishes = [
            (Capability::ExtendedCq, PollFields::all() - PollFields::BYTE_LEN - PollFields::QP_NUM, CqFlags::all()),
            (Capability::Cvlan, PollFields::CVLAN, CqFlags::empty()),
            (Capability::FlowTag, PollFields::FLOW_TAG, CqFlags::empty()),
            (Capability::TagMatching, PollFields::TM_INFO, CqFlags::empty()),
            (Capability::Timestamps, PollFields::TIMESTAMP, CqFlags::empty()),
            (Capability::WallclockTimestamps, PollFields::WALLCLOCK, CqFlags::empty()),
            (Capability::SingleThreaded, PollFields::empty(), CqFlags::SINGLE_THREADED),
            (Capability::IgnoreOverrun, PollFields::empty(), CqFlags::IGNORE_OVERRUN),
        ];
        for (capability, fields, flags) in wishes {
            let wanted = spec.fields.intersects(fields) || spec.flags.intersects(flags);
            if wanted && !self.0.has(capability) {
                granted.fields -= fields;
                granted.flags -= flags;
                granted.refused.push(capability);
            }
        }
        let stamps = if granted.fields.contains(PollFields::WALLCLOCK) {
            granted.stamps = ClockSource::DeviceWallclock;
            let clock = &self.0.spec.clock;
            match clock.timebase().source {
                ClockSource::Virtual => {
                    Stamps::Wallclock(clock.clone(), clock.timebase(), self.0.wall.0, self.0.wall.1)
                }
                _ => Stamps::HostWallclock(self.0.spec.wall_ahead),
            }
        } else if granted.fields.contains(PollFields::TIMESTAMP) {
            // A counter whose frequency is not known counts all the same.
            granted.stamps = match self.0.counter.timebase().source {
                ClockSource::None => ClockSource::DeviceTicks,
                source => source,
            };
            Stamps::Ticks(self.0.counter.clone())
        } else {
            Stamps::None
        };
        let faults = PollFaults::new(&self.0.spec.faults, granted.fields.contains(PollFields::WALLCLOCK));
        self.0.cqs.fetch_add(1, Ordering::Relaxed);
        let ignore_overrun = granted.flags.contains(CqFlags::IGNORE_OVERRUN);
        let channel = channel.cloned();
        let cq = SoftCq::new(&self.0, granted.depth, granted.fields, ignore_overrun, stamps, faults, channel);
        Ok((cq, granted))
    }

    fn wait_async_event(&self, patience: Duration) -> Option<AsyncEvent> {
        self.0.link.drive();
        self.0.status.wait(patience)
    }
}

/// Software devices under their names.
#[derive(Clone, Debug, Default)]
pub struct SoftProvider(Vec<SoftDevice>);

impl SoftProvider {
    /// Those devices.
    pub fn new(devices: Vec<SoftDevice>) -> Self {
        Self(devices)
    }
}

impl Provider for SoftProvider {
    type Device = SoftDevice;

    fn devices(&self) -> Result<Vec<DeviceInfo>> {
        let info = |device: &SoftDevice| DeviceInfo {
            driver: "soft".to_owned(),
            capabilities: Ok(device.capabilities().clone()),
            ..DeviceInfo::unusable(device.name().to_owned(), String::new())
        };
        Ok(self.0.iter().map(info).collect())
    }

    fn open(&self, name: &str) -> Result<SoftDevice> {
        let device = self.0.iter().find(|device| device.name() == name);
        device.cloned().ok_or_else(|| VerbError::new("ibv_open_device", libc::ENODEV).on(name))
    }
}
