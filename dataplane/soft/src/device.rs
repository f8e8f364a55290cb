//! The software device: port, protection domains, completion queues and events.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::channel::SoftChannel;
use crate::completion::Stamps;
use crate::counter::Counter;
use crate::counters::SoftCounters;
use crate::cq::SoftCq;
use crate::cq_core::PollFaults;
use crate::hand_over::HandOver;
use crate::memory::Keys;
use crate::nic::{self, RawSettings, SoftFlowCounters};
use crate::numbers::Identity;
use crate::open_device::OpenDevice;
use crate::pd::SoftPd;
use crate::profile::Profile;
use crate::queues::Queues;
use crate::quirk::SoftQuirk;
use crate::shared::Shared;
use crate::spec::SoftSpec;
use crate::status::Status;
use crate::switch::LearningSwitch;
use dataplane_core::clock::{ClockSource, Timebase};
use dataplane_core::error::{Error, Result, VerbError};
use dataplane_core::units::{Gid, Nanos, QpNum, Ticks};
use dataplane_core::verbs::{
    AsyncEvent, Capabilities, Capability, CqApi, CqFlags, CqGranted, CqSpec, Device, DeviceInfo, FlowCounters,
    GidEntry, GidKind, LinkLayer, PollFields, PortAttributes, PortState, Provider, RawDevice, RawPacketCaps, RawSpec,
};

/// The capabilities of every device.
const BASE_CAPABILITIES: [Capability; 5] = [
    Capability::Events,
    Capability::ExtendedCq,
    Capability::SingleThreaded,
    Capability::Inline,
    Capability::ExtendedSend,
];

/// The additional capabilities of a device with [`Profile::Spec`]. A device that imitates rxe, the kernel's software
/// RoCE driver, has no raw packets, no clock and no parent domains.
const SPEC_CAPABILITIES: [Capability; 6] = [
    Capability::RawPacket,
    Capability::Timestamps,
    Capability::WallclockTimestamps,
    Capability::IgnoreOverrun,
    Capability::Rss,
    Capability::ParentDomain,
];

/// The additional capabilities of a device whose link has a fabric (connections and datagrams in memory).
const FABRIC_CAPABILITIES: [Capability; 7] = [
    Capability::Datagram,
    Capability::Rc,
    Capability::Uc,
    Capability::Srq,
    Capability::MemoryWindow,
    Capability::Atomic,
    Capability::Multicast,
];

/// A software device. Clones refer to the same device.
#[derive(Clone, Debug)]
pub struct SoftDevice(Arc<OpenDevice>, Arc<RawSettings>);

impl SoftDevice {
    /// Creates a device.
    ///
    /// # Errors
    /// - The MTU or another setting is out of range, or the link does not support the setting.
    /// - The generator cannot create frames of this size.
    /// - A capture file cannot be read or written.
    /// - An interface does not exist, or the kernel refuses its use.
    pub fn new(spec: SoftSpec) -> Result<Self> {
        if !(68..=65_000).contains(&spec.mtu) {
            return Err(Error::Wire(format!(
                "{}: an MTU of {} bytes is out of range: 68 to 65000",
                spec.name, spec.mtu
            )));
        }
        if spec.port.lmc > 7 {
            return Err(Error::Wire(format!("{}: an LMC of {} is out of range: 0 to 7", spec.name, spec.port.lmc)));
        }
        let gids = std::iter::once(spec.gid()).chain(spec.gids.iter().copied()).collect();
        let status = Arc::new(Status::new(gids));
        let link = spec.link.open(spec.mtu, spec.max_frame() as usize, spec.stamped)?;
        if link.is_zero_copy() && !spec.faults.no_queue_faults() {
            return Err(Error::Wire(format!("{}: a zero-copy link does not support injected faults", spec.name)));
        }
        let link_layer = spec.link_layer();
        if link_layer == LinkLayer::InfiniBand && link.fabric().is_none() {
            return Err(Error::Wire(format!("{}: only a loopback link supports an InfiniBand port", spec.name)));
        }
        let watcher = link.clone().watch(&status)?;
        let standard = SPEC_CAPABILITIES.into_iter().filter(|_| spec.profile == Profile::Spec);
        let fabric = FABRIC_CAPABILITIES.into_iter().filter(|_| link.fabric().is_some());
        // Raw packets are Ethernet frames.
        let ethernet = link_layer == LinkLayer::Ethernet;
        let standard = standard.filter(|capability| ethernet || *capability != Capability::RawPacket);
        let is_nic = spec.profile == Profile::Spec && ethernet && !link.is_zero_copy();
        let nic = nic::CAPABILITIES.into_iter().filter(|_| is_nic);
        let all = BASE_CAPABILITIES.into_iter().chain(standard).chain(fabric).chain(nic);
        let listed = all.filter(|capability| {
            !spec.disabled_capabilities.contains(capability) && !spec.hidden_qp_types.contains(capability)
        });
        let has: Vec<_> = listed.collect();
        let stamped = has.contains(&Capability::Timestamps);
        let counter = Counter::new(&spec.clock, spec.counter.as_ref());
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
            timestamp_mask: if stamped { spec.timestamp_mask() } else { 0 },
            clock_khz: if stamped { counter.timebase().ticks(Nanos(1_000_000_000)).0 / 1_000 } else { 0 },
            has,
        };
        let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
        let nanos = if spec.clock.timebase().source == ClockSource::Virtual { 0 } else { nanos };
        let nanos = nanos.wrapping_add_signed(spec.wall_ahead());
        let connects = |most| if link.fabric().is_some() { most } else { 0 };
        let capabilities = Capabilities {
            max_srq: connects(limits.max_srq),
            max_srq_wr: connects(capabilities.max_qp_wr),
            max_rd_atomic: connects(u32::from(limits.max_rd_atomic)),
            max_init_rd_atomic: connects(u32::from(limits.max_rd_atomic)),
            ..capabilities
        };
        let numbers = link.fabric().map(|fabric| fabric.numbers.clone()).unwrap_or_default();
        let shared = Shared {
            id: link.fabric().map(|_| numbers.take()),
            identity: Identity::new(),
            profile: spec.profile,
            limits,
            faults: spec.faults,
            refused_change: spec.refused_change,
            quirks: spec.quirks.clone(),
            switch: LearningSwitch::default(),
            clock: spec.clock.clone(),
            port: spec.port.clone(),
            link_layer,
            mtu: spec.mtu,
            max_frame: spec.max_frame(),
            keys: Arc::new(Keys::new()),
            capabilities,
            status,
            gone: AtomicBool::new(false),
            numbers,
            cqs: AtomicU32::new(0),
            srqs: AtomicU32::new(0),
        };
        let raw = RawSettings::of_device(&spec.rss);
        let open = Arc::new(OpenDevice {
            shared: Arc::new(shared),
            _watcher: watcher,
            link,
            queues: Queues::default(),
            wall: (nanos, spec.clock.now()),
            counter: Arc::new(counter),
            spec,
        });
        Ok(Self(open, Arc::new(raw)))
    }

    /// Returns the first GID of the port.
    pub fn gid(&self) -> Gid {
        self.0.shared.gid_at(0).unwrap_or_default()
    }

    /// Replaces the whole GID table, and raises `GID_CHANGE`. A GID of zero is an empty entry. Queue pairs and address
    /// handles that use a removed GID can no longer send or receive.
    pub fn set_gids(&self, gids: &[Gid]) {
        self.0.shared.status.set_gids(gids);
    }

    /// Takes the link down or up, and raises `PORT_ERR` or `PORT_ACTIVE`. While the link is down, the device receives
    /// no frames. If the link is a kernel interface, sends fail. With other links, sends succeed, but the frames are
    /// lost.
    pub fn set_link(&self, up: bool) {
        self.0.shared.status.set_link(up);
    }

    /// Simulates the removal of the device. Raises `DEVICE_FATAL`. All further verbs fail with `EIO`.
    pub fn remove(&self) {
        self.0.shared.remove();
    }

    /// Returns the counters, summed over all queue pairs, including dropped queue pairs.
    pub fn counters(&self) -> SoftCounters {
        let mut sum = self.0.queues.counters();
        self.0.link.count(&mut sum);
        sum
    }

    /// Returns the counters of each existing queue pair.
    pub fn queue_counters(&self) -> Vec<(QpNum, SoftCounters)> {
        self.0.queues.each()
    }

    /// Checks whether this number of queue pairs of the port can receive frames.
    ///
    /// # Errors
    /// Fails with a suggested fix if the interface has fewer queues.
    pub fn check_queues(&self, queues: u16) -> Result<()> {
        self.0.link.check_queues(queues)
    }

    /// Distributes the received frames among the first `queues` queue pairs of the port. The other queue pairs receive no
    /// further frames, but keep the frames that have already arrived. After the first call, a new queue pair whose index
    /// is not below `queues` receives no frames. Without a call, all queue pairs receive frames. Links of the kinds
    /// `generator` and `pcap` divide their frames when a queue pair is created, and ignore the call. Any thread can call
    /// this method.
    ///
    /// # Errors
    /// Fails if the kernel refuses the change.
    pub fn distribute(&self, queues: u16) -> Result<()> {
        self.0.link.distribute(queues)
    }

    /// Returns the error of the link, if there was an error. For example, a capture file is damaged, so that only its
    /// valid part was replayed, or a capture file could not be written.
    pub fn wire_error(&self) -> Option<Error> {
        self.0.link.error()
    }

    /// Returns a description of the link, such as the interface and the source of timestamps. `None` if there are no
    /// details besides the kind of the link.
    pub fn describe_link(&self) -> Option<String> {
        self.0.link.describe()
    }

    /// Returns the functions that hand the queues of the link over to another program, or `None` if the link cannot do
    /// this.
    pub(crate) fn hand_over(&self) -> Option<&dyn HandOver> {
        self.0.link.hand_over()
    }

    /// Writes the sent frames to the capture file.
    ///
    /// # Errors
    /// The file could not be written, now or earlier.
    pub fn finish(&self) -> Result<()> {
        self.0.link.finish()
    }
}

// SAFETY: `alloc_pd` gives every protection domain a new identity, which only the parent domains of this domain share.
// A key is valid only for this identity. The device checks the key of every access.
unsafe impl Device for SoftDevice {
    type Pd = SoftPd;
    type Cq = SoftCq;
    type Channel = SoftChannel;

    fn name(&self) -> &str {
        &self.0.spec.name
    }

    fn capabilities(&self) -> &Capabilities {
        &self.0.shared.capabilities
    }

    fn checks_every_key(&self) -> bool {
        self.0.spec.checks_every_key
    }

    fn port(&self, port: u8) -> Result<PortAttributes, VerbError> {
        self.0.shared.check("ibv_query_port")?;
        match port {
            1 => Ok(PortAttributes {
                state: if self.0.shared.is_up() { PortState::Active } else { PortState::Down },
                link_layer: self.0.shared.link_layer,
                max_mtu: if self.0.spec.profile == Profile::Rxe { 4096 } else { self.0.spec.mtu },
                active_mtu: self.0.shared.path_mtu(),
                max_message: if self.0.link.fabric().is_some() { self.0.shared.max_message() } else { self.0.spec.mtu },
                gids: self.0.shared.status.gids().len() as u32,
                pkeys: self.0.spec.port.pkeys.len() as u16,
                lid: self.0.spec.port.base_lid(),
                lmc: self.0.spec.port.lmc,
                grh_required: self.0.spec.port.grh_required,
                // The speed of a link in memory is not limited.
                lanes: 0,
                lane_speed: 0,
            }),
            _ => Err(VerbError::new("ibv_query_port", libc::EINVAL)),
        }
    }

    fn timebase(&self) -> Timebase {
        self.0.counter.timebase()
    }

    fn wallclock_is_system(&self) -> bool {
        let real = self.0.spec.clock.timebase().source != ClockSource::Virtual;
        real && self.0.spec.wall_ahead() == 0 && !self.0.link.has_nic_stamps()
    }

    fn raw_clock(&self) -> Result<Ticks, VerbError> {
        const VERB: &str = "ibv_query_rt_values_ex";
        self.0.shared.check(VERB)?;
        if !self.0.shared.has(Capability::Timestamps) {
            return Err(VerbError::new(VERB, libc::EOPNOTSUPP));
        }
        self.0.counter.read()
    }

    fn gids(&self, port: u8) -> Result<Vec<GidEntry>, VerbError> {
        self.port(port)?;
        let gids = self.0.shared.status.gids();
        let is_ethernet = self.0.shared.link_layer == LinkLayer::Ethernet;
        let kind = if is_ethernet { GidKind::RoceV2 } else { GidKind::InfiniBand };
        let entry = |(index, gid): (usize, &Gid)| GidEntry { index: index as u32, gid: *gid, kind, interface: 0 };
        Ok(gids.iter().enumerate().filter(|(_, gid)| !gid.is_zero()).map(entry).collect())
    }

    fn pkey(&self, port: u8, index: u16) -> Result<u16, VerbError> {
        self.port(port)?;
        let pkey = self.0.spec.port.pkeys.get(usize::from(index)).copied();
        pkey.ok_or(VerbError::new("ibv_query_pkey", libc::EINVAL))
    }

    fn alloc_pd(&self) -> Result<SoftPd, VerbError> {
        self.0.shared.check("ibv_alloc_pd")?;
        Ok(SoftPd::new(&self.0, &self.1))
    }

    fn create_channel(&self) -> Result<SoftChannel, VerbError> {
        const VERB: &str = "ibv_create_comp_channel";
        self.0.shared.check(VERB)?;
        match self.0.shared.has(Capability::Events) {
            true => SoftChannel::new(&self.0),
            false => Err(VerbError::new(VERB, libc::EOPNOTSUPP)),
        }
    }

    fn create_cq(&self, spec: &CqSpec, channel: Option<&SoftChannel>) -> Result<(SoftCq, CqGranted), VerbError> {
        self.0.shared.check("ibv_create_cq_ex")?;
        let limits = self.0.spec.limits;
        let foreign = channel.is_some_and(|channel| !channel.is_of(&self.0));
        if spec.depth == 0 || spec.depth > limits.max_cqe || spec.vector > 0 || foreign {
            return Err(VerbError::new("ibv_create_cq_ex", libc::EINVAL));
        }
        if self.0.shared.cqs.load(Ordering::Relaxed) >= limits.max_cq {
            return Err(VerbError::new("ibv_create_cq_ex", libc::ENOMEM));
        }
        let mut granted = CqGranted {
            depth: self.0.spec.profile.slots(spec.depth),
            fields: spec.fields & (PollFields::all() - PollFields::TM_INFO),
            flags: spec.flags,
            api: match spec.api {
                _ if !self.0.shared.has(Capability::ExtendedCq) => CqApi::Classic,
                CqApi::Auto => CqApi::Extended,
                api => api,
            },
            stamps: ClockSource::None,
            refused: Vec::new(),
            why: Vec::new(),
        };
        // All fields except the standard fields and the checksum need an extended queue, and so do all flags.
        let requested = [
            (Capability::ExtendedCq, PollFields::all() - PollFields::STANDARD - PollFields::CHECKSUM, CqFlags::all()),
            (Capability::Cvlan, PollFields::CVLAN, CqFlags::empty()),
            (Capability::FlowTag, PollFields::FLOW_TAG, CqFlags::empty()),
            (Capability::RssHash, PollFields::RSS_HASH, CqFlags::empty()),
            (Capability::RxChecksum, PollFields::CHECKSUM, CqFlags::empty()),
            (Capability::TagMatching, PollFields::TM_INFO, CqFlags::empty()),
            (Capability::Timestamps, PollFields::TIMESTAMP, CqFlags::empty()),
            (Capability::WallclockTimestamps, PollFields::WALLCLOCK, CqFlags::empty()),
            (Capability::SingleThreaded, PollFields::empty(), CqFlags::SINGLE_THREADED),
            (Capability::IgnoreOverrun, PollFields::empty(), CqFlags::IGNORE_OVERRUN),
        ];
        for (capability, fields, flags) in requested {
            let wanted = spec.fields.intersects(fields) || spec.flags.intersects(flags);
            // A classic queue also reports whether the checksums are correct, in the completion flags of `ibv_poll_cq`.
            let classic = spec.api == CqApi::Classic && capability != Capability::RxChecksum;
            if wanted && (classic || !self.0.shared.has(capability)) {
                granted.fields -= fields;
                granted.flags -= flags;
                // Do not report the extended interface as refused if the caller requested a classic queue.
                granted.refused.extend((!classic || capability != Capability::ExtendedCq).then_some(capability));
            }
        }
        if self.0.shared.has_quirk(SoftQuirk::NoPathFields) {
            granted.fields -= PollFields::SLID | PollFields::SL | PollFields::DLID_PATH_BITS;
        }
        let stamps = if granted.fields.contains(PollFields::WALLCLOCK) {
            granted.stamps = ClockSource::DeviceWallclock;
            let clock = &self.0.spec.clock;
            match clock.timebase().source {
                ClockSource::Virtual => {
                    Stamps::Wallclock(clock.clone(), clock.timebase(), self.0.wall.0, self.0.wall.1)
                }
                _ => Stamps::HostWallclock(self.0.spec.wall_ahead()),
            }
        } else if granted.fields.contains(PollFields::TIMESTAMP) {
            // A counter with an unknown frequency still provides ticks.
            granted.stamps = match self.0.counter.timebase().source {
                ClockSource::None => ClockSource::DeviceTicks,
                source => source,
            };
            Stamps::Ticks(self.0.counter.clone())
        } else {
            Stamps::None
        };
        let faults = PollFaults::new(&self.0.spec.faults, granted.fields.contains(PollFields::WALLCLOCK));
        self.0.shared.cqs.fetch_add(1, Ordering::Relaxed);
        let channel = channel.map(|channel| channel.events().clone());
        let cq = SoftCq::new(&self.0, spec.context, &granted, stamps, faults, channel);
        Ok((cq, granted))
    }

    fn create_cq_in(
        &self,
        domain: &SoftPd,
        spec: &CqSpec,
        channel: Option<&SoftChannel>,
    ) -> Result<(SoftCq, CqGranted), VerbError> {
        const VERB: &str = "ibv_create_cq_ex";
        let extended = self.0.shared.has(Capability::ExtendedCq) && spec.api != CqApi::Classic;
        match (domain.is_parent_of(&self.0), extended) {
            (false, _) => Err(VerbError::new(VERB, libc::EINVAL)),
            (true, false) => Err(VerbError::new(VERB, libc::EOPNOTSUPP)),
            (true, true) => self.create_cq(spec, channel),
        }
    }

    fn wait_async_event(&self, timeout: Duration) -> Option<AsyncEvent> {
        self.0.link.drive();
        self.0.shared.status.wait(timeout)
    }
}

impl RawDevice for SoftDevice {
    fn raw_caps(&self) -> RawPacketCaps {
        nic::caps(&self.0.shared)
    }

    fn with_raw(self, spec: RawSpec) -> Self {
        Self(self.0, Arc::new(RawSettings::new(spec)))
    }

    fn create_flow_counters(&self) -> Result<Arc<dyn FlowCounters>, VerbError> {
        const VERB: &str = "ibv_create_counters";
        self.0.shared.check(VERB)?;
        match self.0.shared.has(Capability::FlowRules) && !self.0.shared.has_quirk(SoftQuirk::PlainFlowRules) {
            true => Ok(Arc::new(SoftFlowCounters::new(self.0.shared.identity))),
            false => Err(VerbError::new(VERB, libc::EOPNOTSUPP)),
        }
    }

    fn check_raw(&self, spec: &RawSpec, queues: u16) -> Result<()> {
        // The message does not name the device. A software device has the name of its port, and the caller adds this
        // name.
        RawSettings::check(spec, &self.0.shared, queues).map_err(|why| Error::Config(why.to_string()))
    }
}

/// The software devices of a process, by name.
#[derive(Clone, Debug, Default)]
pub struct SoftProvider(Vec<SoftDevice>);

impl SoftProvider {
    /// Creates a provider of these devices.
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
