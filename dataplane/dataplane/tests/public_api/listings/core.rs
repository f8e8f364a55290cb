pub mod clock {
    mod host {
        #[derive(Clone, Debug)]
        pub struct HostClock(_);
        impl HostClock {
            pub fn new() -> Self {}
            pub fn manual() -> Self {}
            pub fn now(&self) -> Ticks {}
            pub fn nanos(&self) -> Nanos {}
            pub fn advance(&self, by: Nanos) {}
            pub fn timebase(&self) -> Timebase {}
        }
        impl Default for HostClock {}
    }
    mod mapping {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        pub enum ClockState {
            Invalid,
            Coarse,
            Synced,
            FreeRunning,
        }
        impl fmt::Display for ClockState {}
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct Mapping {
            pub timebase: Timebase,
            pub ticks: Ticks,
            pub nanos: Nanos,
            pub error: Nanos,
            pub rate_ppb: u64,
            pub epoch: u32,
            pub state: ClockState,
            private: _,
        }
        impl Mapping {
            pub fn host(&self, ticks: Ticks, now: Nanos) -> Nanos {}
        }
        #[derive(Debug)]
        pub struct DeviceClock {
            private: _,
        }
        impl DeviceClock {
            pub fn source(&self) -> ClockSource {}
            pub fn read(&self, seen: &mut u64) -> Option<Mapping> {}
        }
    }
    mod stamp {
        #[derive(
            Clone,
            Copy,
            Debug,
            PartialEq,
            Eq,
            PartialOrd,
            Ord,
            Serialize,
            Deserialize,
            JsonSchema
        )]
        #[non_exhaustive]
        pub enum ClockSource {
            None,
            DeviceTicks,
            DeviceWallclock,
            Software,
            Virtual,
            Mixed,
        }
        impl ClockSource {
            pub const ALL: [Self; 5] = _;
            pub const fn name(self) -> &'static str {}
        }
        impl fmt::Display for ClockSource {}
        #[derive(Clone, Copy, PartialEq, Eq)]
        pub struct Stamp(_);
        impl Stamp {
            pub const NONE: Self = _;
            pub const fn new(nanos: Nanos, source: ClockSource) -> Self {}
            pub const fn nanos(self) -> Nanos {}
            pub fn source(self) -> ClockSource {}
            pub const fn since(self, earlier: Self) -> Option<Nanos> {}
        }
        impl Default for Stamp {}
        impl PartialOrd for Stamp {}
        impl fmt::Debug for Stamp {}
    }
    mod stamper {
        #[derive(Clone, Debug, Default)]
        pub struct Clocks {
            pub host: HostClock,
            pub device: Vec<Arc<DeviceClock>>,
        }
        impl Clocks {
            pub fn stamper(&self, granted: ClockSource) -> Stamper {}
        }
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct StampCounts {
            pub device: u64,
            pub host: u64,
            pub implausible: u64,
        }
        #[derive(Clone, Debug)]
        pub struct Stamper {
            private: _,
        }
        impl Stamper {
            pub fn none() -> Self {}
            pub fn new(
                granted: ClockSource,
                host: &HostClock,
                device: Option<&Arc<DeviceClock>>,
            ) -> Self {}
            pub fn counts(&self) -> StampCounts {}
            pub fn source(&self) -> ClockSource {}
            pub fn host_source(&self) -> ClockSource {}
            pub fn stamp(&mut self, ticks: &[Ticks], stamps: &mut [Stamp]) {}
            pub fn stamp_all(&mut self, ticks: Ticks, n: usize) -> Stamp {}
        }
    }
    mod sync {
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Reading {
            pub before: Nanos,
            pub ticks: Ticks,
            pub after: Nanos,
        }
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum ClockFault {
            NoFrequency,
            WrapsTooFast,
            Query(VerbError),
            Interrupted,
            Lost,
            Frozen,
            Jumped(i64),
        }
        impl fmt::Display for ClockFault {}
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        pub struct ClockReport {
            pub source: ClockSource,
            pub state: ClockState,
            pub fault: Option<String>,
            pub drift_ppb: i64,
            pub error_ns: u64,
            pub steps: u64,
            pub missed: u64,
            pub jumps: u64,
            pub freezes: u64,
            pub offset_ns: i64,
        }
        impl fmt::Display for ClockReport {}
        #[derive(Debug)]
        pub struct ClockSync {
            private: _,
        }
        impl ClockSync {
            pub fn new(nominal: Timebase) -> Self {}
            #[must_use]
            pub fn mark_as_system_wallclock(mut self) -> Self {}
            pub fn clock(&self) -> Arc<DeviceClock> {}
            pub fn mapping(&self) -> Mapping {}
            pub fn state(&self) -> ClockState {}
            pub fn fault(&self) -> Option<ClockFault> {}
            pub fn is_unusable(&self) -> bool {}
            pub fn interval(&self) -> Nanos {}
            pub fn step(
                &mut self,
                host: &HostClock,
                mut read: impl FnMut() -> Result<Ticks, VerbError>,
            ) -> ClockState {}
            pub fn missed(&mut self, now: Nanos, fault: ClockFault) -> ClockState {}
            pub fn observe(&mut self, readings: &[Reading]) -> ClockState {}
            pub fn report(&self) -> ClockReport {}
        }
    }
    mod timebase {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct Timebase {
            pub source: ClockSource,
            pub mask: u64,
            private: _,
        }
        impl Timebase {
            pub fn new(source: ClockSource, khz: u64, mask: u64) -> Self {}
            pub const NONE: Self = _;
            pub fn between(&self, from: Ticks, to: Ticks) -> Nanos {}
            pub fn nanos(&self, ticks: Ticks) -> Nanos {}
            pub fn ticks(&self, span: Nanos) -> Ticks {}
            pub fn period(&self) -> Nanos {}
        }
    }
    pub use host::HostClock;
    pub use mapping::{ClockState, DeviceClock, Mapping};
    pub use stamp::{ClockSource, Stamp};
    pub use stamper::{Clocks, StampCounts, Stamper};
    pub use sync::{ClockFault, ClockReport, ClockSync, Reading};
    pub use timebase::Timebase;
}
pub mod connect {
    mod alternate {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        pub struct AlternatePath {
            pub lid: u16,
            pub gid: Option<Gid>,
            pub port: u8,
            pub source_gid_index: u8,
            pub pkey_index: u16,
            pub timeout: u8,
            pub service_level: u8,
            pub source_path_bits: u8,
            pub static_rate: u8,
        }
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        pub enum PathMigration {
            Migrated = 0,
            Rearm = 1,
            Armed = 2,
        }
    }
    mod connector {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct NegotiatedParameters {
            pub remote: QueuePairEndpoint,
            pub path: Path,
            pub path_mtu: u8,
            pub max_message: u32,
            pub max_rd_atomic: u8,
        }
        pub type QpModification = (QpAttributes, AttributeMask);
        #[derive(Clone, Debug)]
        pub struct Connector {
            private: _,
        }
        impl EndpointParameters {
            pub fn init(&self, kind: QpType) -> QpModification {}
        }
        impl Connector {
            pub fn new<D: Device>(
                device: &D,
                kind: QpType,
                parameters: EndpointParameters,
            ) -> Result<Self> {}
            #[must_use]
            pub fn queue(mut self, queue: u16) -> Self {}
            #[must_use]
            pub fn buffer(mut self, buffer: RemoteBuffer) -> Self {}
            pub fn device(&self) -> &str {}
            pub fn generation(&self) -> u32 {}
            pub fn local(&self) -> &LocalPort {}
            pub fn needs_gid(&self) -> bool {}
            pub fn parameters(&self) -> &EndpointParameters {}
            pub fn set_local(&mut self, local: LocalPort) {}
            pub fn endpoint<Q: QueuePair>(&self, qp: &Q) -> QueuePairEndpoint {}
            pub fn endpoint_for(
                &self,
                qpn: QpNum,
                receive_depth: u32,
            ) -> QueuePairEndpoint {}
            pub fn negotiate(
                &self,
                own: &QueuePairEndpoint,
                remote: &QueuePairEndpoint,
            ) -> Result<NegotiatedParameters, EndpointError> {}
            pub fn init(&self) -> QpModification {}
            pub fn rtr(&self, agreed: &NegotiatedParameters) -> QpModification {}
            pub fn rts(&self, agreed: &NegotiatedParameters) -> QpModification {}
            pub fn initialise<Q: QueuePair>(
                &self,
                qp: &mut Q,
            ) -> Result<(), ConnectError> {}
            pub fn connect<Q: QueuePair>(
                &self,
                qp: &mut Q,
                remote: &QueuePairEndpoint,
            ) -> Result<NegotiatedParameters, ConnectError> {}
            pub fn establish(
                &self,
                agreed: &NegotiatedParameters,
                mut modify: impl FnMut(
                    &QpAttributes,
                    AttributeMask,
                ) -> Result<(), VerbError>,
            ) -> Result<(), ConnectError> {}
            pub fn reset<Q: QueuePair>(
                &mut self,
                qp: &mut Q,
            ) -> Result<(), ConnectError> {}
            pub fn start_next_generation(&mut self) {}
        }
    }
    mod endpoint {
        pub const VERSION: u16 = _;
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct RemoteBuffer {
            pub addr: u64,
            pub rkey: Rkey,
            pub len: u64,
        }
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct QueuePairEndpoint {
            pub version: u16,
            pub transport: QpType,
            pub link_layer: LinkLayer,
            pub lid: u16,
            pub gid: Gid,
            pub gid_kind: GidKind,
            pub qpn: QpNum,
            pub psn: u32,
            pub path_mtu: u8,
            pub max_dest_rd_atomic: u8,
            pub max_message: u32,
            pub qkey: u32,
            pub generation: u32,
            pub queue: u16,
            pub receive_depth: u32,
            pub buffer: Option<RemoteBuffer>,
        }
        #[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
        #[non_exhaustive]
        pub enum EndpointError {
            Length(usize),
            Version(u16),
            Unknown { field: &'static str, value: u32 },
            QpNumber(u32),
            PacketNumber(u32),
            PathMtu(u8),
            Buffer,
            NoAddress,
            NoRoute,
            Transport { own: QpType, peer: QpType },
            LinkLayer { own: LinkLayer, peer: LinkLayer },
            GidKind { own: GidKind, peer: GidKind },
            AddressFamily { own: Gid, peer: Gid },
            PeerIsSelf,
            Queue { own: u16, peer: u16 },
            UnexpectedPsn { own: u32, peer: u32 },
        }
        impl QueuePairEndpoint {
            pub const SIZE: usize = _;
            pub fn to_bytes(&self) -> [u8; Self::SIZE] {}
            pub fn from_bytes(bytes: &[u8]) -> Result<Self, EndpointError> {}
            pub fn validate(&self) -> Result<(), EndpointError> {}
            pub fn check_peer(
                &self,
                own: &Self,
                allow_self: bool,
            ) -> Result<(), EndpointError> {}
        }
    }
    mod exchange {
        pub const MAX_QUEUES: usize = _;
        #[derive(Clone, Copy)]
        pub struct WaitLimits<'a> {
            pub until: Instant,
            pub step: Duration,
            pub cancelled: &'a dyn Fn() -> bool,
        }
        impl WaitLimits<'static> {
            pub fn new(all: Duration, step: Duration) -> Self {}
        }
        impl std::fmt::Debug for WaitLimits<'_> {}
        #[derive(Clone, Copy, Debug)]
        pub struct Offer<'a> {
            pub endpoints: &'a [QueuePairEndpoint],
            pub allow_self: bool,
        }
        #[derive(Debug)]
        pub struct Exchanged {
            pub remotes: Vec<QueuePairEndpoint>,
            pub address: SocketAddr,
            pub refused: u64,
            private: _,
        }
        impl Exchanged {
            pub fn confirm(
                mut self,
                limits: &WaitLimits<'_>,
            ) -> Result<PeerConnection, ConnectError> {}
        }
        #[derive(Debug)]
        pub struct PeerConnection(_);
        impl PeerConnection {
            pub fn is_closed(&self, timeout: Duration) -> bool {}
        }
        #[derive(Debug)]
        pub struct Listener {
            private: _,
        }
        impl Listener {
            pub fn bind(
                address: SocketAddr,
                from: Option<IpAddr>,
            ) -> Result<Self, ConnectError> {}
            pub fn address(&self) -> io::Result<SocketAddr> {}
            pub fn accept(
                &self,
                offer: &Offer<'_>,
                limits: &WaitLimits<'_>,
            ) -> Result<Exchanged, ConnectError> {}
        }
        pub fn connect(
            address: SocketAddr,
            offer: &Offer<'_>,
            limits: &WaitLimits<'_>,
        ) -> Result<Exchanged, ConnectError> {}
    }
    mod gids {
        pub fn default_gid(
            entries: &[GidEntry],
            kind: Option<GidKind>,
        ) -> Option<&GidEntry> {}
        pub fn same_host_gid(
            entries: &[GidEntry],
            kind: Option<GidKind>,
        ) -> Option<&GidEntry> {}
    }
    mod parameters {
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        pub struct EndpointParameters {
            pub port: u8,
            pub same_host: bool,
            pub allow_self: bool,
            pub gid: Option<Gid>,
            pub gid_kind: Option<GidKind>,
            pub gid_index: Option<u8>,
            pub pkey_index: u16,
            pub access: Access,
            pub qkey: u32,
            pub path_mtu: Option<u16>,
            pub grh: Option<bool>,
            pub hop_limit: u8,
            pub traffic_class: u8,
            pub flow_label: u32,
            pub service_level: u8,
            pub source_path_bits: u8,
            pub static_rate: u8,
            pub sq_psn: u32,
            pub rq_psn: Option<u32>,
            pub max_rd_atomic: u8,
            pub max_dest_rd_atomic: u8,
            pub min_rnr_timer: u8,
            pub timeout: u8,
            pub retry_count: u8,
            pub rnr_retry: u8,
            pub alternate: Option<AlternatePath>,
            pub path_migration: Option<PathMigration>,
        }
        impl Default for EndpointParameters {}
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct LocalPort {
            pub number: u8,
            pub link_layer: LinkLayer,
            pub needs_grh: bool,
            pub lid: u16,
            pub gid: Gid,
            pub gid_index: u8,
            pub gid_kind: GidKind,
            pub path_mtu: u8,
            pub max_message: u32,
        }
        pub fn mtu_code(bytes: u32) -> Option<u8> {}
        pub const fn mtu_bytes(code: u8) -> u32 {}
        impl EndpointParameters {
            pub const fn psn(&self, generation: u32) -> u32 {}
            pub fn expected_psn(&self, generation: u32) -> Option<u32> {}
            pub fn resolve<D: Device>(
                &self,
                device: &D,
                kind: QpType,
            ) -> Result<LocalPort> {}
        }
    }
    mod prepared {
        #[derive(Debug)]
        pub struct PreparedQueuePair<P: ProtectionDomain> {
            private: _,
        }
        #[derive(Debug)]
        pub struct ConnectedQueuePair<P: ProtectionDomain> {
            private: _,
        }
        impl<P: ProtectionDomain> PreparedQueuePair<P> {
            pub fn new<D: Device<Pd = P, Cq = P::Cq>>(
                device: &D,
                pd: &P,
                spec: &QpSpec,
                (send, recv): (&P::Cq, &P::Cq),
                srq: Option<&P::Srq>,
                parameters: EndpointParameters,
            ) -> Result<Self> {}
            #[must_use]
            pub fn queue(mut self, queue: u16) -> Self {}
            #[must_use]
            pub fn buffer(mut self, buffer: RemoteBuffer) -> Self {}
            pub fn endpoint(&self) -> QueuePairEndpoint {}
            pub fn queue_pair_mut(&mut self) -> &mut P::Qp {}
            pub fn initialise(&mut self) -> Result<(), ConnectError> {}
            pub fn connect(
                mut self,
                remote: &QueuePairEndpoint,
            ) -> Result<ConnectedQueuePair<P>, ConnectError> {}
        }
        impl<P: ProtectionDomain> ConnectedQueuePair<P> {
            pub fn queue_pair(&self) -> &P::Qp {}
            pub fn queue_pair_mut(&mut self) -> &mut P::Qp {}
            pub fn negotiated(&self) -> &NegotiatedParameters {}
            pub fn destination(&self) -> Option<Destination<'_, P::Ah>> {}
            pub fn reset(mut self) -> Result<PreparedQueuePair<P>, ConnectError> {}
            pub fn into_parts(self) -> (P::Qp, Connector, NegotiatedParameters) {}
        }
        pub fn connect_pair<A: ProtectionDomain, B: ProtectionDomain>(
            one: PreparedQueuePair<A>,
            other: PreparedQueuePair<B>,
        ) -> Result<(ConnectedQueuePair<A>, ConnectedQueuePair<B>), ConnectError> {}
    }
    mod wire {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Refusal {
            Malformed,
            Version,
            Queues,
            Endpoint,
            Busy,
            Other(u16),
        }
        impl std::fmt::Display for Refusal {}
        #[derive(Debug, thiserror::Error)]
        #[non_exhaustive]
        pub enum ExchangeError {
            Closed,
            Failed(io::Error),
            TimedOut,
            Displaced,
            WrongMagic,
            Version(u16),
            Message { kind: u16, length: u32 },
            Queues { own: usize, peer: usize },
            WrongToken,
            Endpoint(EndpointError),
            Refused(Refusal),
        }
    }
    pub use alternate::{AlternatePath, PathMigration};
    pub use connector::{Connector, NegotiatedParameters, QpModification};
    pub use endpoint::{EndpointError, QueuePairEndpoint, RemoteBuffer, VERSION};
    pub use exchange::{
        Exchanged, Listener, MAX_QUEUES, Offer, PeerConnection, WaitLimits, connect,
    };
    pub use gids::{default_gid, same_host_gid};
    pub use parameters::{EndpointParameters, LocalPort, mtu_bytes, mtu_code};
    pub use prepared::{ConnectedQueuePair, PreparedQueuePair, connect_pair};
    pub use wire::{ExchangeError, Refusal};
    #[derive(Debug, thiserror::Error)]
    #[non_exhaustive]
    pub enum ConnectError {
        Device(Error),
        Endpoint(EndpointError),
        Peer(ExchangeError),
        Deadline { last: Option<String> },
        Cancelled,
        Listen { address: SocketAddr, error: io::Error },
        Count(usize),
    }
    impl From<ConnectError> for Error {}
}
pub mod error {
    pub type Result<T, E = Error> = std::result::Result<T, E>;
    #[derive(Debug, thiserror::Error)]
    #[non_exhaustive]
    pub enum Error {
        Verb { device: String, source: VerbError },
        File { path: PathBuf, source: std::io::Error },
        Config(String),
        Memory(String),
        Topology(String),
        Wire(String),
        Peer(String),
        Kernel(String),
        Worker { worker: usize, message: String },
    }
    pub const THREAD_REMEDY: &str = _;
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct VerbError {
        pub verb: &'static str,
        pub errno: i32,
    }
    impl VerbError {
        pub const fn new(verb: &'static str, errno: i32) -> Self {}
        pub fn remedy(self) -> Option<&'static str> {}
        pub fn on(self, device: &str) -> Error {}
    }
    impl std::fmt::Display for VerbError {}
    impl std::error::Error for VerbError {}
    pub const MAX_NAME_CHARS: usize = _;
    pub fn shorten(name: &str) -> Cow<'_, str> {}
}
pub mod file {
    pub fn open(path: &Path) -> io::Result<File> {}
    pub fn read_text(path: &Path, most: u64) -> io::Result<Vec<u8>> {}
    pub fn host_remedy(error: &io::Error) -> Option<&'static str> {}
    pub fn can_be_written(path: &Path) -> io::Result<()> {}
    pub fn create_folders(path: &Path) -> io::Result<()> {}
    pub fn replace(path: &Path, content: &[u8]) -> io::Result<io::Result<()>> {}
    pub fn can_create_in(folder: &Path) -> io::Result<()> {}
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Readers {
        All,
        Owner,
        Group(u32),
    }
    impl Readers {
        pub fn owner_and(group: Option<&str>) -> io::Result<Self> {}
    }
    pub fn group_number(group: &str) -> io::Result<u32> {}
    #[derive(Debug, Clone, PartialEq, Eq, Hash)]
    pub struct Identity {
        private: _,
    }
    impl Identity {
        pub fn of(path: &Path) -> Option<Self> {}
    }
    #[derive(Debug)]
    pub struct LockedFile(_);
    impl LockedFile {
        pub fn input(path: &Path) -> io::Result<Self> {}
        pub fn output(path: &Path, readers: Readers) -> io::Result<Self> {}
        pub fn truncate(&self) -> io::Result<()> {}
    }
    impl Drop for LockedFile {}
    impl Deref for LockedFile {}
    impl Write for LockedFile {}
}
pub mod harness {
    pub use crate::header::build::Frame;
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum Fate {
        Next,
        Output(String),
        Dropped(String),
        Consumed,
        Held,
    }
    #[derive(Clone, Debug)]
    pub struct Outcome {
        pub fate: Fate,
        pub bytes: Vec<u8>,
        pub meta: Meta,
        pub copy: Option<String>,
    }
    pub struct Harness {
        private: _,
    }
    pub struct HarnessBuilder {
        private: _,
    }
    impl Harness {
        pub fn builder() -> HarnessBuilder {}
        pub fn from_toml<S: Stage + DeserializeOwned + 'static>(
            parameters: &str,
        ) -> Result<Self, String> {}
        pub fn run<T: AsRef<[u8]>>(&mut self, packets: &[T]) -> Vec<Outcome> {}
        pub fn tick(&mut self) -> Vec<Outcome> {}
        pub fn run_one(&mut self, packet: &[u8]) -> Outcome {}
        pub fn explain_one(&mut self, packet: &[u8]) -> Option<String> {}
        pub fn advance(&mut self, nanos: u64) {}
        pub fn set_ingress(&mut self, port: u8) {}
        pub fn set_hold_state(&mut self, state: HoldState) {}
        pub fn change<S: Stage + DeserializeOwned + 'static>(
            &mut self,
            parameters: &str,
        ) -> Result<(), Vec<Problem>> {}
        pub fn start_tasks(&mut self) -> crate::error::Result<Tasks> {}
        pub fn change_port(&self, port: u8, change: PortChange) {}
        pub fn counters(&self) -> Vec<(String, u64)> {}
        pub fn stage(&mut self) -> &mut dyn Stage {}
    }
    impl HarnessBuilder {
        #[must_use]
        pub fn ports(mut self, ports: &[PortInfo]) -> Self {}
        #[must_use]
        pub fn folder(mut self, folder: &Path) -> Self {}
        #[must_use]
        pub fn ingress(mut self, port: u8) -> Self {}
        #[must_use]
        pub fn after(mut self, stage: impl Stage + 'static) -> Self {}
        #[must_use]
        pub fn needed_facts(mut self, facts: Facts) -> Self {}
        pub fn build<S: Stage + DeserializeOwned + 'static>(
            self,
            parameters: &str,
        ) -> Result<Harness, String> {}
        pub fn build_from<S: Stage + 'static>(
            self,
            stage: S,
        ) -> Result<Harness, Problem> {}
    }
    pub fn port(name: &str) -> PortInfo {}
    pub fn frame<'a>() -> Frame<'a> {}
}
pub mod header {
    pub mod arp {
        pub const REQUEST: u16 = _;
        pub const REPLY: u16 = _;
        #[derive(
            Clone,
            Copy,
            Debug,
            FromBytes,
            IntoBytes,
            Immutable,
            KnownLayout,
            Unaligned
        )]
        #[repr(C)]
        pub struct Arp {
            pub hardware: U16,
            pub protocol: U16,
            pub hardware_len: u8,
            pub protocol_len: u8,
            pub operation: U16,
            pub sender_mac: MacAddr,
            pub sender_ip: [u8; 4],
            pub target_mac: MacAddr,
            pub target_ip: [u8; 4],
        }
        impl Header for Arp {}
        impl Arp {
            pub fn new(
                operation: u16,
                sender: (MacAddr, Ipv4Addr),
                target: (MacAddr, Ipv4Addr),
            ) -> Self {}
            pub fn answer(&mut self, mac: MacAddr) {}
        }
    }
    pub mod build {
        pub const MAX_TAGS: usize = _;
        #[derive(Clone, Copy, Debug)]
        pub enum Extension<'a> {
            HopByHop(&'a [u8]),
            DestinationOptions(&'a [u8]),
            Routing(&'a [u8]),
            Fragment(u16, bool, u32),
            Authentication(&'a [u8]),
        }
        #[derive(Clone, Copy, Debug)]
        pub struct Frame<'a> {
            private: _,
        }
        impl Default for Frame<'_> {}
        impl<'a> Frame<'a> {
            pub fn new() -> Self {}
            #[must_use]
            pub fn ethernet(mut self, source: MacAddr, destination: MacAddr) -> Self {}
            #[must_use]
            pub fn ether_type(mut self, ether_type: u16) -> Self {}
            #[must_use]
            pub fn vlan(self, tci: u16) -> Self {}
            #[must_use]
            pub fn tag(mut self, tpid: u16, tci: u16) -> Self {}
            #[must_use]
            pub fn arp(
                mut self,
                operation: u16,
                sender: (MacAddr, Ipv4Addr),
                target: (MacAddr, Ipv4Addr),
            ) -> Self {}
            #[must_use]
            pub fn ipv4(mut self, source: Ipv4Addr, destination: Ipv4Addr) -> Self {}
            #[must_use]
            pub fn ipv6(mut self, source: Ipv6Addr, destination: Ipv6Addr) -> Self {}
            #[must_use]
            pub fn ttl(mut self, ttl: u8) -> Self {}
            #[must_use]
            pub fn tos(mut self, tos: u8) -> Self {}
            #[must_use]
            pub fn identification(mut self, identification: u16) -> Self {}
            #[must_use]
            pub fn fragment(mut self, flags_offset: u16) -> Self {}
            #[must_use]
            pub fn flow_label(mut self, flow_label: u32) -> Self {}
            #[must_use]
            pub fn options(mut self, options: &'a [u8]) -> Self {}
            #[must_use]
            pub fn extensions(mut self, extensions: &'a [Extension<'a>]) -> Self {}
            #[must_use]
            pub fn udp(mut self, source: u16, destination: u16) -> Self {}
            #[must_use]
            pub fn tcp(mut self, source: u16, destination: u16) -> Self {}
            #[must_use]
            pub fn tcp_flags(mut self, flags: u8) -> Self {}
            #[must_use]
            pub fn tcp_numbers(mut self, sequence: u32, acknowledgement: u32) -> Self {}
            #[must_use]
            pub fn tcp_window(mut self, window: u16) -> Self {}
            #[must_use]
            pub fn tcp_options(mut self, options: &'a [u8]) -> Self {}
            #[must_use]
            pub fn echo_request(mut self, identifier: u16, sequence: u16) -> Self {}
            #[must_use]
            pub fn echo_reply(mut self, identifier: u16, sequence: u16) -> Self {}
            #[must_use]
            pub fn icmp(mut self, kind: u8, code: u8, rest: [u8; 4]) -> Self {}
            #[must_use]
            pub fn protocol(mut self, protocol: u8) -> Self {}
            #[must_use]
            pub fn payload(mut self, payload: &'a [u8]) -> Self {}
            #[must_use]
            pub fn pad_to(mut self, bytes: usize) -> Self {}
            pub fn frame_len(&self) -> usize {}
            pub fn build(&self) -> Vec<u8> {}
            pub fn write(&self, buffer: &mut [u8]) -> Option<usize> {}
        }
    }
    pub mod checksum {
        #[derive(Clone, Copy, Debug, Default)]
        pub struct Sum(_);
        impl Sum {
            #[must_use]
            pub fn bytes(self, bytes: &[u8]) -> Self {}
            #[must_use]
            pub fn u16(self, value: u16) -> Self {}
            #[must_use]
            pub fn without(self, value: u16) -> Self {}
            #[must_use]
            pub fn pseudo_ipv4(
                self,
                source: [u8; 4],
                destination: [u8; 4],
                protocol: u8,
                length: u16,
            ) -> Self {}
            #[must_use]
            pub fn pseudo_ipv6(
                self,
                source: &[u8; 16],
                destination: &[u8; 16],
                protocol: u8,
                length: u32,
            ) -> Self {}
            pub fn checksum(self) -> u16 {}
            pub fn udp_checksum(self) -> u16 {}
        }
        pub fn header_checksum_ok(header: &[u8; 20]) -> bool {}
        pub fn checksum(bytes: &[u8]) -> u16 {}
        pub fn update_u16(checksum: u16, old: u16, new: u16) -> u16 {}
        pub fn update_u32(checksum: u16, old: u32, new: u32) -> u16 {}
        pub fn update_bytes(checksum: u16, old: &[u8], new: &[u8]) -> u16 {}
    }
    pub mod ethernet {
        #[derive(
            Clone,
            Copy,
            Default,
            PartialEq,
            Eq,
            PartialOrd,
            Ord,
            Hash,
            FromBytes,
            IntoBytes,
            Immutable,
            KnownLayout,
            Unaligned,
        )]
        #[repr(transparent)]
        pub struct MacAddr(pub [u8; 6]);
        impl MacAddr {
            pub const BROADCAST: Self = _;
            pub const ZERO: Self = _;
            pub const fn is_multicast(self) -> bool {}
            pub fn is_broadcast(self) -> bool {}
            pub const fn is_local(self) -> bool {}
        }
        impl fmt::Display for MacAddr {}
        impl fmt::Debug for MacAddr {}
        impl From<[u8; 6]> for MacAddr {}
        #[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
        pub struct ParseMacError(_);
        impl FromStr for MacAddr {}
        impl<'de> Deserialize<'de> for MacAddr {}
        impl Serialize for MacAddr {}
        impl JsonSchema for MacAddr {}
        #[derive(
            Clone,
            Copy,
            Debug,
            FromBytes,
            IntoBytes,
            Immutable,
            KnownLayout,
            Unaligned
        )]
        #[repr(C)]
        pub struct Ethernet {
            pub destination: MacAddr,
            pub source: MacAddr,
            pub ether_type: U16,
        }
        impl Header for Ethernet {}
    }
    pub mod grh {
        #[derive(
            Clone,
            Copy,
            Debug,
            FromBytes,
            IntoBytes,
            Immutable,
            KnownLayout,
            Unaligned
        )]
        #[repr(C)]
        pub struct Grh {
            pub version_class_flow: U32,
            pub payload_length: U16,
            pub next_header: u8,
            pub hop_limit: u8,
            pub source: [u8; 16],
            pub destination: [u8; 16],
        }
        impl Header for Grh {}
        impl Grh {
            pub fn source_gid(&self) -> Ipv6Addr {}
            pub fn destination_gid(&self) -> Ipv6Addr {}
        }
        pub fn gid_to_ipv4(gid: Ipv6Addr) -> Option<Ipv4Addr> {}
    }
    pub mod icmp {
        pub const ECHO_REPLY: u8 = _;
        pub const UNREACHABLE: u8 = _;
        pub const ECHO_REQUEST: u8 = _;
        pub const TIME_EXCEEDED: u8 = _;
        pub const V6_UNREACHABLE: u8 = _;
        pub const V6_PACKET_TOO_BIG: u8 = _;
        pub const V6_TIME_EXCEEDED: u8 = _;
        pub const V6_PARAMETER_PROBLEM: u8 = _;
        pub const V6_ECHO_REQUEST: u8 = _;
        pub const V6_ECHO_REPLY: u8 = _;
        pub const V6_ROUTER_SOLICITATION: u8 = _;
        pub const V6_ROUTER_ADVERTISEMENT: u8 = _;
        pub const V6_NEIGHBOR_SOLICITATION: u8 = _;
        pub const V6_NEIGHBOR_ADVERTISEMENT: u8 = _;
        #[derive(
            Clone,
            Copy,
            Debug,
            FromBytes,
            IntoBytes,
            Immutable,
            KnownLayout,
            Unaligned
        )]
        #[repr(C)]
        pub struct Icmp {
            pub kind: u8,
            pub code: u8,
            pub checksum: U16,
            pub identifier: U16,
            pub sequence: U16,
        }
        impl Header for Icmp {}
    }
    pub mod ipv4 {
        pub const DONT_FRAGMENT: u16 = _;
        pub const MORE_FRAGMENTS: u16 = _;
        pub const FRAGMENT_OFFSET: u16 = _;
        #[derive(
            Clone,
            Copy,
            Debug,
            FromBytes,
            IntoBytes,
            Immutable,
            KnownLayout,
            Unaligned
        )]
        #[repr(C)]
        pub struct Ipv4 {
            pub version_ihl: u8,
            pub tos: u8,
            pub total_length: U16,
            pub identification: U16,
            pub fragment: U16,
            pub ttl: u8,
            pub protocol: u8,
            pub checksum: U16,
            pub source: [u8; 4],
            pub destination: [u8; 4],
        }
        impl Header for Ipv4 {}
        impl Ipv4 {
            pub fn source_addr(&self) -> Ipv4Addr {}
            pub fn destination_addr(&self) -> Ipv4Addr {}
            pub fn is_fragment(&self) -> bool {}
            pub fn fragment_offset(&self) -> u32 {}
            pub fn decrement_ttl(&mut self) -> bool {}
            pub fn set_dscp(&mut self, dscp: u8) {}
            pub fn set_source(&mut self, source: Ipv4Addr) {}
            pub fn set_destination(&mut self, destination: Ipv4Addr) {}
        }
        pub fn checksum_ok(datagram: &[u8]) -> bool {}
        pub fn write_checksum(datagram: &mut [u8]) -> Result<(), HeaderError> {}
    }
    pub mod ipv6 {
        #[derive(
            Clone,
            Copy,
            Debug,
            FromBytes,
            IntoBytes,
            Immutable,
            KnownLayout,
            Unaligned
        )]
        #[repr(C)]
        pub struct Ipv6 {
            pub version_class_flow: U32,
            pub payload_length: U16,
            pub next_header: u8,
            pub hop_limit: u8,
            pub source: [u8; 16],
            pub destination: [u8; 16],
        }
        impl Header for Ipv6 {}
        impl Ipv6 {
            pub fn source_addr(&self) -> Ipv6Addr {}
            pub fn destination_addr(&self) -> Ipv6Addr {}
            pub fn traffic_class(&self) -> u8 {}
            pub fn flow_label(&self) -> u32 {}
            pub fn decrement_hop_limit(&mut self) -> bool {}
        }
        #[derive(
            Clone,
            Copy,
            Debug,
            FromBytes,
            IntoBytes,
            Immutable,
            KnownLayout,
            Unaligned
        )]
        #[repr(C)]
        pub struct Extension {
            pub next_header: u8,
            pub length: u8,
            pub content: [u8; 6],
        }
        impl Header for Extension {}
        #[derive(
            Clone,
            Copy,
            Debug,
            FromBytes,
            IntoBytes,
            Immutable,
            KnownLayout,
            Unaligned
        )]
        #[repr(C)]
        pub struct Fragment {
            pub next_header: u8,
            pub reserved: u8,
            pub offset_more: U16,
            pub identification: U32,
        }
        impl Header for Fragment {}
        impl Fragment {
            pub fn offset(&self) -> u16 {}
            pub fn more(&self) -> bool {}
            pub fn is_atomic(&self) -> bool {}
        }
        #[derive(
            Clone,
            Copy,
            Debug,
            FromBytes,
            IntoBytes,
            Immutable,
            KnownLayout,
            Unaligned
        )]
        #[repr(C)]
        pub struct Authentication {
            pub next_header: u8,
            pub length: u8,
            pub reserved: U16,
            pub spi: U32,
            pub sequence: U32,
        }
        impl Header for Authentication {}
        pub const fn is_extension(next_header: u8) -> bool {}
    }
    pub mod ndp {
        pub const HOP_LIMIT: u8 = _;
        pub const SOURCE_LINK_ADDRESS: u8 = _;
        pub const TARGET_LINK_ADDRESS: u8 = _;
        pub const ROUTER: u32 = _;
        pub const SOLICITED: u32 = _;
        pub const OVERRIDE: u32 = _;
        pub const ALL_NODES: [u8; 16] = _;
        #[derive(
            Clone,
            Copy,
            Debug,
            FromBytes,
            IntoBytes,
            Immutable,
            KnownLayout,
            Unaligned
        )]
        #[repr(C)]
        pub struct Neighbor {
            pub kind: u8,
            pub code: u8,
            pub checksum: U16,
            pub flags: U32,
            pub target: [u8; 16],
        }
        impl Header for Neighbor {}
        #[derive(
            Clone,
            Copy,
            Debug,
            FromBytes,
            IntoBytes,
            Immutable,
            KnownLayout,
            Unaligned
        )]
        #[repr(C)]
        pub struct LinkAddress {
            pub kind: u8,
            pub length: u8,
            pub mac: MacAddr,
        }
        impl Header for LinkAddress {}
        pub fn link_address(mut options: &[u8], wanted: u8) -> Option<Option<MacAddr>> {}
        pub fn solicited_node(address: &[u8; 16]) -> [u8; 16] {}
        pub fn group_mac(group: &[u8; 16]) -> MacAddr {}
        pub fn is_link_local(address: Ipv6Addr) -> bool {}
    }
    pub mod parse {
        pub const MAX_EXTENSIONS: usize = _;
        bitflags::bitflags! {
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)] pub struct Flags
            : u8 { const IPV4 = 1 << 0; const IPV6 = 1 << 1; const ARP = 1 << 2; const
            FRAGMENT = 1 << 3; const FIRST_FRAGMENT = 1 << 4; const IP_OPTIONS = 1 << 5;
            const L4_OK = 1 << 6; }
        }
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Dissection {
            pub l3: u16,
            pub l4: u16,
            pub end: u16,
            pub ether_type: u16,
            pub outer_tci: u16,
            pub inner_tci: u16,
            pub vlan_tags: u8,
            pub protocol: u8,
            pub flags: Flags,
        }
        impl Dissection {
            pub fn vlan(&self) -> Option<u16> {}
        }
        malformed! {
            Runt = "runt", Oversize = "oversize", TruncatedVlan = "truncated_vlan",
            TooManyVlanTags = "too_many_vlan_tags", TruncatedArp = "truncated_arp",
            TruncatedIpv4 = "truncated_ipv4", BadIpv4Version = "bad_ipv4_version",
            BadIpv4HeaderLength = "bad_ipv4_header_length", Ipv4LengthAboveFrame =
            "ipv4_length_above_frame", Ipv4LengthBelowHeader =
            "ipv4_length_below_header", BadIpv4Checksum = "bad_ipv4_checksum",
            TruncatedIpv6 = "truncated_ipv6", BadIpv6Version = "bad_ipv6_version",
            Ipv6LengthAboveFrame = "ipv6_length_above_frame", TruncatedIpv6Extension =
            "truncated_ipv6_extension", TooManyIpv6Extensions =
            "too_many_ipv6_extensions", BadIpv6Extension = "bad_ipv6_extension",
            TruncatedTcp = "truncated_tcp", BadTcpDataOffset = "bad_tcp_data_offset",
            TruncatedUdp = "truncated_udp", BadUdpLength = "bad_udp_length",
            TruncatedIcmp = "truncated_icmp",
        }
        pub fn dissect(frame: &[u8]) -> Result<Dissection, Malformed> {}
        pub const USUAL_HEADERS_LEN: usize = _;
        pub fn dissect_usual(frame: &[u8]) -> Option<Dissection> {}
        pub fn dissect_head(
            head: &[u8; USUAL_HEADERS_LEN],
            len: usize,
        ) -> Option<Dissection> {}
        pub fn verify_ipv4_checksum(
            frame: &[u8],
            found: &Dissection,
        ) -> Result<(), Malformed> {}
        pub fn checksummed<'f>(
            frame: &'f [u8],
            found: &Dissection,
        ) -> Option<(Sum, &'f [u8])> {}
    }
    pub mod tcp {
        pub const FIN: u8 = _;
        pub const SYN: u8 = _;
        pub const RST: u8 = _;
        pub const PSH: u8 = _;
        pub const ACK: u8 = _;
        pub const URG: u8 = _;
        pub const ECE: u8 = _;
        pub const CWR: u8 = _;
        #[derive(
            Clone,
            Copy,
            Debug,
            FromBytes,
            IntoBytes,
            Immutable,
            KnownLayout,
            Unaligned
        )]
        #[repr(C)]
        pub struct Tcp {
            pub source: U16,
            pub destination: U16,
            pub sequence: U32,
            pub acknowledgement: U32,
            pub data_offset: u8,
            pub flags: u8,
            pub window: U16,
            pub checksum: U16,
            pub urgent: U16,
        }
        impl Header for Tcp {}
    }
    pub mod tunnel {
        pub const VXLAN_PORT: u16 = _;
        #[derive(
            Clone,
            Copy,
            Debug,
            FromBytes,
            IntoBytes,
            Immutable,
            KnownLayout,
            Unaligned
        )]
        #[repr(C)]
        pub struct Vxlan {
            pub flags: U32,
            pub vni_reserved: U32,
        }
        impl Header for Vxlan {}
        impl Vxlan {
            pub fn new(vni: u32) -> Self {}
            pub fn vni(&self) -> u32 {}
        }
        #[derive(
            Clone,
            Copy,
            Debug,
            FromBytes,
            IntoBytes,
            Immutable,
            KnownLayout,
            Unaligned
        )]
        #[repr(C)]
        pub struct Gre {
            pub flags_version: U16,
            pub protocol: U16,
        }
        pub const GRE_CHECKSUM: u16 = _;
        pub const GRE_KEY: u16 = _;
        pub const GRE_SEQUENCE: u16 = _;
        impl Header for Gre {}
    }
    pub mod udp {
        #[derive(
            Clone,
            Copy,
            Debug,
            FromBytes,
            IntoBytes,
            Immutable,
            KnownLayout,
            Unaligned
        )]
        #[repr(C)]
        pub struct Udp {
            pub source: U16,
            pub destination: U16,
            pub length: U16,
            pub checksum: U16,
        }
        impl Header for Udp {}
    }
    pub mod vlan {
        #[derive(
            Clone,
            Copy,
            Debug,
            FromBytes,
            IntoBytes,
            Immutable,
            KnownLayout,
            Unaligned
        )]
        #[repr(C)]
        pub struct VlanTag {
            pub tci: U16,
            pub ether_type: U16,
        }
        impl Header for VlanTag {}
        impl VlanTag {
            pub fn id(&self) -> u16 {}
            pub fn priority(&self) -> u8 {}
            pub fn drop_eligible(&self) -> bool {}
        }
        pub const fn id(tci: u16) -> u16 {}
        pub const fn priority(tci: u16) -> u8 {}
        pub const fn is_tag(ether_type: u16) -> bool {}
    }
    pub use ethernet::MacAddr;
    pub use zerocopy::byteorder::network_endian::{U16, U32};
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum HeaderError {
        Truncated,
        BadVersion,
        BadHeaderLength,
        BadLength,
        Unsupported,
    }
    impl fmt::Display for HeaderError {}
    impl std::error::Error for HeaderError {}
    pub trait Header: Copy + FromBytes + IntoBytes + Immutable + KnownLayout + Unaligned {
        const LEN: usize = _;
        fn header_len(&self) -> usize {}
        fn check(&self) -> Result<(), HeaderError> {}
        fn view(bytes: &[u8]) -> Result<&Self, HeaderError> {}
        fn view_mut(bytes: &mut [u8]) -> Result<&mut Self, HeaderError> {}
        fn parts(bytes: &[u8]) -> Result<Parts<'_, Self>, HeaderError> {}
    }
    #[derive(Clone, Copy, Debug)]
    pub struct Parts<'a, H> {
        pub header: &'a H,
        pub options: &'a [u8],
        pub rest: &'a [u8],
    }
    pub mod ether_type {
        pub const IPV4: u16 = _;
        pub const ARP: u16 = _;
        pub const VLAN: u16 = _;
        pub const IPV6: u16 = _;
        pub const QINQ: u16 = _;
        pub const QINQ_OLD: u16 = _;
        pub const ROCE: u16 = _;
        pub const TEB: u16 = _;
        pub const FIRST: u16 = _;
    }
    pub mod protocol {
        pub const HOP_BY_HOP: u8 = _;
        pub const ICMP: u8 = _;
        pub const TCP: u8 = _;
        pub const UDP: u8 = _;
        pub const ROUTING: u8 = _;
        pub const FRAGMENT: u8 = _;
        pub const GRE: u8 = _;
        pub const ESP: u8 = _;
        pub const AH: u8 = _;
        pub const ICMPV6: u8 = _;
        pub const NO_NEXT_HEADER: u8 = _;
        pub const DESTINATION_OPTIONS: u8 = _;
    }
}
pub mod lane {
    pub mod message {
        mod buffer {
            pub struct Buffer<D: Device>(_);
            impl<D: Device> Clone for Buffer<D> {}
            impl<D: Device> fmt::Debug for Buffer<D> {}
            impl<D: Device> Buffer<D> {
                pub fn len(&self) -> usize {}
                pub fn addr(&self) -> u64 {}
                pub fn lkey(&self) -> Lkey {}
                pub fn rkey(&self) -> Rkey {}
                pub fn sge(&self, part: Range<usize>) -> Sge {}
                pub fn remote(&self, offset: usize) -> Remote {}
                pub fn read(&self, offset: usize, into: &mut [u8]) {}
                pub fn to_vec(&self, part: Range<usize>) -> Vec<u8> {}
                pub fn write(&self, offset: usize, bytes: &[u8]) {}
            }
        }
        mod queue {
            pub type Ah<D> = <<D as Device>::Pd as ProtectionDomain>::Ah;
            pub type Mw<D> = <<D as Device>::Pd as ProtectionDomain>::Mw;
            pub struct MessageQueuePair<D: Device> {
                private: _,
            }
            impl<D: Device> fmt::Debug for MessageQueuePair<D> {}
            #[derive(Clone, Debug)]
            pub struct Binding<'a, D: Device> {
                pub wr_id: u64,
                pub flags: SendFlags,
                pub buffer: &'a Buffer<D>,
                pub part: Range<usize>,
                pub access: Access,
            }
            impl<D: Device> MessageQueuePair<D> {
                pub fn number(&self) -> QpNum {}
                pub fn kind(&self) -> QpType {}
                pub fn caps(&self) -> QpCaps {}
                pub fn state(&self) -> QpState {}
                pub fn query(&self) -> Result<QpAttributes, VerbError> {}
                pub fn modify(
                    &mut self,
                    attributes: &QpAttributes,
                    mask: AttributeMask,
                ) -> Result<(), VerbError> {}
                pub fn post_recv(
                    &mut self,
                    requests: &[RecvRequest<'_>],
                ) -> Result<(), PostError> {}
                pub fn post_send(
                    &mut self,
                    requests: &[SendRequest<'_, Ah<D>>],
                ) -> Result<(), PostError> {}
                pub fn bind_mw(
                    &mut self,
                    mw: &mut Mw<D>,
                    binding: &Binding<'_, D>,
                ) -> Result<(), PostError> {}
                pub fn attach_multicast(
                    &mut self,
                    group: Gid,
                    lid: u16,
                ) -> Result<(), VerbError> {}
                pub fn detach_multicast(
                    &mut self,
                    group: Gid,
                    lid: u16,
                ) -> Result<(), VerbError> {}
            }
            pub struct MessageSharedQueue<D: Device> {
                private: _,
            }
            impl<D: Device> fmt::Debug for MessageSharedQueue<D> {}
            impl<D: Device> MessageSharedQueue<D> {
                pub fn number(&self) -> u32 {}
                pub fn depth(&self) -> u32 {}
                pub fn post_recv(
                    &mut self,
                    requests: &[RecvRequest<'_>],
                ) -> Result<(), PostError> {}
                pub fn arm_limit(&mut self, limit: u32) -> Result<(), VerbError> {}
                pub fn limit(&self) -> Result<u32, VerbError> {}
                pub fn resize(&mut self, depth: u32) -> Result<(), VerbError> {}
            }
        }
        pub use buffer::Buffer;
        pub use queue::{Ah, Binding, MessageQueuePair, MessageSharedQueue, Mw};
        #[derive(Debug)]
        pub struct MessageDomain<D: Device> {
            private: _,
        }
        impl<D: Device> Clone for MessageDomain<D> {}
        impl<D: Device> MessageDomain<D> {
            pub fn new(device: &D) -> Result<Self, VerbError> {}
            pub fn alloc_parent(&self) -> Result<Self, VerbError> {}
            pub fn create_cq(
                &self,
                spec: &CqSpec,
                channel: Option<&D::Channel>,
            ) -> Result<(D::Cq, CqGranted), VerbError> {}
            pub fn device(&self) -> &D {}
            pub fn buffer(&self, bytes: usize, access: Access) -> Result<Buffer<D>> {}
            pub fn allocate(
                &self,
                spec: RegionSpec,
                access: Access,
            ) -> Result<Buffer<D>> {}
            pub fn create_ah(&self, path: &Path) -> Result<Ah<D>, VerbError> {}
            pub fn alloc_mw(&self, kind: MwKind) -> Result<Mw<D>, VerbError> {}
            pub fn create_srq(
                &self,
                spec: &SrqSpec,
            ) -> Result<MessageSharedQueue<D>, VerbError> {}
            pub fn create_qp(
                &self,
                spec: &QpSpec,
                send: &D::Cq,
                recv: &D::Cq,
                srq: Option<&MessageSharedQueue<D>>,
            ) -> Result<MessageQueuePair<D>, VerbError> {}
        }
        pub fn poll<C: CompletionQueue>(
            cq: &mut C,
            into: &mut Vec<Completion>,
            limit: usize,
        ) -> Result<usize, VerbError> {}
        pub fn poll_or_sleep<C: CompletionQueue, W: CompletionChannel>(
            cq: &mut C,
            channel: &W,
            into: &mut Vec<Completion>,
            limit: usize,
            timeout: Duration,
        ) -> Result<usize, VerbError> {}
    }
    mod pending_events {
        #[derive(Debug, Default)]
        pub struct PendingEvents {
            private: _,
        }
        impl PendingEvents {
            pub fn push(&self, event: AsyncEvent) {}
            pub fn changed_since(&self, seen: &mut u32) -> bool {}
            pub fn is_device_lost(&self) -> bool {}
            pub fn forget(
                &self,
                queue_pair: u32,
                work_queue: Option<u32>,
                queues: &[u32],
            ) {}
            pub fn take(&self, kinds: &[EventKind], numbers: &[u32]) -> bool {}
        }
    }
    mod queue_lane {
        pub fn open<D: Device>(
            device: &D,
            pd: &D::Pd,
            pool: &mut Pool,
            spec: LaneSpec,
            wiring: Box<dyn Wiring<D>>,
            pending_events: Arc<PendingEvents>,
            clocks: &Clocks,
        ) -> Result<Box<dyn Lane>> {}
    }
    mod wiring {
        pub type QpOf<D> = <<D as Device>::Pd as ProtectionDomain>::Qp;
        pub type AhOf<D> = <<D as Device>::Pd as ProtectionDomain>::Ah;
        pub struct LaneQueuePair<'lane, D: Device>(_);
        impl<'lane, D: Device> LaneQueuePair<'lane, D> {
            pub fn number(&self) -> QpNum {}
            pub fn caps(&self) -> QpCaps {}
            pub fn modify(
                &mut self,
                attributes: &QpAttributes,
                mask: AttributeMask,
            ) -> Result<(), VerbError> {}
            pub fn bind_peer(
                &mut self,
                to: Destination<'_, AhOf<D>>,
            ) -> Result<(), VerbError> {}
        }
        pub trait Wiring<D: Device>: fmt::Debug + Send {
            fn initialise(
                &mut self,
                qp: &mut LaneQueuePair<'_, D>,
            ) -> Result<(), VerbError>;
            fn connect(
                &mut self,
                qp: &mut LaneQueuePair<'_, D>,
            ) -> Result<bool, VerbError>;
            fn is_stale(&self) -> bool;
            fn prefix(&self) -> u16;
            fn longest(&self) -> u16;
        }
        #[derive(Clone, Copy, Debug)]
        pub struct RawWiring {
            pub port: u8,
        }
        impl<D: Device> Wiring<D> for RawWiring {}
    }
    pub use pending_events::PendingEvents;
    pub use queue_lane::open;
    pub use wiring::{AhOf, LaneQueuePair, QpOf, RawWiring, Wiring};
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct LaneCounters {
        pub rx: u64,
        pub rx_bytes: u64,
        pub rx_errors: u64,
        pub tx: u64,
        pub tx_bytes: u64,
        pub tx_full: u64,
        pub tx_errors: u64,
        pub tx_too_long: u64,
        pub tx_not_connected: u64,
        pub dropped_at_stop: u64,
        pub unmatched_completions: u64,
        pub recoveries: u64,
        pub rebuilds: u64,
        pub timed_out: u64,
        pub first_error: Option<WcStatus>,
    }
    pub trait LatencySink {
        fn record(&mut self, from: Stamp, to: Stamp, packets: u64);
    }
    pub trait Lane: Send {
        fn receive(
            &mut self,
            pool: &mut Pool,
            batch: &mut Batch,
            limit: usize,
        ) -> Result<usize, VerbError>;
        fn transmit(&mut self, pool: &mut Pool, batch: &mut Batch);
        fn reap(
            &mut self,
            pool: &mut Pool,
            latency: &mut dyn LatencySink,
        ) -> Result<(), VerbError>;
        fn refill(&mut self, pool: &mut Pool) -> Result<(), VerbError>;
        fn is_connected(&self) -> bool;
        fn housekeep(&mut self, pool: &mut Pool) -> Result<(), VerbError>;
        fn stop(&mut self) -> Result<(), VerbError>;
        fn drain(&mut self, pool: &mut Pool) -> Result<usize, VerbError>;
        fn reset_and_reclaim(&mut self, pool: &mut Pool);
        fn release_claim(&mut self);
        fn arm(&mut self) -> bool;
        fn waker(&self) -> Option<BorrowedFd<'_>>;
        fn clear_wakeups(&mut self);
        fn posted(&self) -> usize;
        fn sending(&self) -> usize;
        fn source_ended(&self) -> bool;
        fn counters(&self) -> &LaneCounters;
        fn stampers(&self) -> [&Stamper; 2];
        fn granted(&self) -> &CqGranted;
    }
    #[derive(Clone, Copy, Debug)]
    pub struct LaneSpec {
        pub kind: QpType,
        pub queue: (u16, u16),
        pub recv_depth: u32,
        pub send_depth: u32,
        pub stamps: Stamping,
        pub recv_fields: RecvFields,
        pub sleeps: bool,
    }
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Stamping {
        None,
        Host,
        Device,
        Wallclock,
    }
    impl Stamping {
        pub fn fields(self) -> PollFields {}
    }
    pub struct NoSink;
    impl LatencySink for NoSink {}
    pub const ACCESS: Access = _;
}
pub mod mem {
    mod advise {
        pub fn advise_huge_pages<T>(table: &[T]) {}
        pub fn prefetch<T>(place: *const T) {}
        pub fn prefetch_l2<T>(place: *const T) {}
    }
    mod batch {
        pub const BATCH: usize = _;
        #[derive(Debug)]
        pub struct Batch<Unsized: ?Sized = [()]> {
            private: _,
        }
        impl Batch {
            pub fn new(pool: &Pool) -> Box<Self> {}
            pub fn in_memory(memory: &BatchMemory) -> Box<Self> {}
            pub fn len(&self) -> usize {}
            pub fn is_empty(&self) -> bool {}
            pub fn set_ingress(&mut self, port: u8) {}
            pub fn ingress(&self) -> u8 {}
            pub fn is_plain_ipv4(&self) -> bool {}
            pub fn set_plain_ipv4(&mut self) {}
            pub fn bytes(&self) -> u64 {}
            pub fn lengths_are_within(&mut self, shortest: u16, longest: u16) -> bool {}
            pub fn free_into(&mut self, pool: &mut Pool) {}
        }
    }
    mod create {
        impl Batch {
            pub fn split_from(
                &mut self,
                index: usize,
                parts: [std::ops::Range<usize>; 2],
            ) -> Option<Packet<'_>> {}
            pub fn max_generated_len(&self) -> usize {}
            pub fn generate(&mut self, bytes: &[u8]) -> Option<Packet<'_>> {}
            pub fn push_bytes(
                &mut self,
                bytes: &[u8],
                stamp: Stamp,
                pool: &mut Pool,
            ) -> bool {}
            pub fn push_copies(
                &mut self,
                frame: &[u8],
                count: usize,
                stamp: Stamp,
                pool: &mut Pool,
                mut edit: impl FnMut(usize, &mut [u8]),
            ) -> usize {}
        }
    }
    mod desc {
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[repr(C, align(8))]
        pub struct Desc {
            pub slot: u32,
            pub offset: u16,
            pub len: u16,
        }
    }
    mod head {
        impl Batch {
            pub fn heads_mut<const N: usize>(&mut self) -> Heads<'_, N> {}
            pub fn heads_keeping_plain_ipv4<const N: usize>(&mut self) -> Heads<'_, N> {}
            pub fn located_heads<const N: usize>(&mut self) -> Heads<'_, N, true> {}
        }
        #[derive(Debug)]
        pub struct Head<'b, const N: usize> {
            pub bytes: &'b mut [u8; N],
            pub len: u16,
            pub meta: &'b mut Meta,
            private: _,
        }
        #[derive(Debug)]
        pub struct Heads<'b, const N: usize, const LOCATED: bool = false> {
            private: _,
        }
        impl<'b, const N: usize, const LOCATED: bool> Iterator
        for Heads<'b, N, LOCATED> {}
        impl<const N: usize, const LOCATED: bool> ExactSizeIterator
        for Heads<'_, N, LOCATED> {}
    }
    mod label {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub struct Edge(_);
        impl Edge {
            pub const MAX_OUTPUTS: usize = _;
            pub const fn new(index: u8) -> Self {}
            pub const fn index(self) -> usize {}
        }
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Verdict {
            Next,
            Edge(Edge),
            Dropped(Reason),
            Consumed,
            Held,
        }
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub enum HoldState {
            Fresh,
            Held,
            Overdue,
        }
    }
    mod memlock {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct Memlock {
            pub limit: u64,
            pub locked: u64,
            pub privileged: bool,
        }
        impl Memlock {
            pub fn of_this_process() -> Self {}
            pub fn shortage(&self, bytes: u64) -> Option<Shortage> {}
        }
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct Shortage {
            pub needed: u64,
            pub limit: u64,
        }
        impl fmt::Display for Shortage {}
    }
    mod meta {
        bitflags! {
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)] pub struct MetaFlags :
            u8 { const IPV4 = 1; const IPV6 = 1 << 1; const ARP = 1 << 2; const FRAGMENT
            = 1 << 3; const FIRST_FRAGMENT = 1 << 4; const L4 = 1 << 5; const VLAN = 1 <<
            6; const QINQ = 1 << 7; }
        }
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Colour {
            Green,
            Yellow,
            Red,
        }
        #[derive(Clone, Copy, Debug, Default)]
        #[repr(C)]
        pub struct Meta {
            pub l3: u16,
            pub l4: u16,
            pub ether_type: u16,
            pub vlan: u16,
            pub end: u16,
            pub flags: MetaFlags,
            pub protocol: u8,
            pub egress: u8,
            pub colour: Colour,
            pub user: u16,
            pub next_hop: u32,
            pub flow_hash: u32,
        }
        impl Meta {
            pub fn is_untagged_ipv4(&self) -> bool {}
        }
    }
    mod node {
        #[derive(Debug)]
        #[must_use = "dropping the value removes the memory policy"]
        pub struct PreferredNumaNode {
            private: _,
        }
        impl PreferredNumaNode {
            pub fn new(node: NumaNode) -> Option<Self> {}
        }
        impl Drop for PreferredNumaNode {}
    }
    mod packet {
        impl Batch {
            pub fn iter_mut(&mut self) -> Packets<'_> {}
            pub fn iter_mut_from(&mut self, index: usize) -> Packets<'_> {}
            pub fn contents(&self) -> impl ExactSizeIterator<Item = (&[u8], Stamp)> {}
            pub fn get_mut(&mut self, index: usize) -> Option<Packet<'_>> {}
        }
        #[derive(Debug)]
        pub struct Packet<'b> {
            private: _,
        }
        impl<'b> Packet<'b> {
            pub fn len(&self) -> usize {}
            pub fn slot(&self) -> u32 {}
            pub fn data(&self) -> &[u8] {}
            pub fn data_mut(&mut self) -> &mut [u8] {}
            pub fn headroom(&self) -> usize {}
            pub fn tailroom(&self) -> usize {}
            pub fn prepend(&mut self, bytes: usize) -> Option<&mut [u8]> {}
            pub fn trim_front(&mut self, bytes: usize) -> bool {}
            pub fn truncate(&mut self, len: usize) {}
            pub fn append(&mut self, bytes: usize) -> Option<&mut [u8]> {}
            pub fn ethernet_addresses_mut(&mut self) -> (&mut [u8; 6], &mut [u8; 6]) {}
            pub fn set_ethernet_addresses(&mut self, both: [u8; 12]) {}
            pub fn meta(&self) -> &Meta {}
            pub fn meta_mut(&mut self) -> &mut Meta {}
            pub fn stamp(&self) -> Stamp {}
            pub fn ingress(&self) -> u8 {}
            pub fn steer(&mut self, edge: Edge) {}
            pub fn drop(&mut self, reason: Reason) {}
            pub fn consume(&mut self) {}
            pub fn hold(&mut self) {}
            pub fn hold_state(&self) -> HoldState {}
            pub fn copy_to(&mut self, edge: Edge) {}
        }
        #[derive(Debug)]
        pub struct Packets<'b> {
            private: _,
        }
        impl<'b> Iterator for Packets<'b> {}
        impl ExactSizeIterator for Packets<'_> {}
    }
    mod pool {
        pub const GUARD: usize = _;
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct SlotLayout {
            private: _,
        }
        impl SlotLayout {
            pub fn new(headroom: usize, room: usize, count: usize) -> Result<Self> {}
            pub const fn room(&self) -> u32 {}
            pub const fn stride(&self) -> u32 {}
            pub const fn headroom(&self) -> u16 {}
            pub const fn count(&self) -> u32 {}
            pub const fn bytes(&self) -> usize {}
            pub const fn limit(&self) -> u32 {}
            pub const fn admits(&self, desc: Desc) -> bool {}
        }
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum SlotState {
            Free,
            Posted,
            Batched,
            Sending,
        }
        #[derive(Clone, Debug)]
        pub struct BatchMemory(_);
        impl BatchMemory {
            pub fn layout(&self) -> SlotLayout {}
            pub fn pages(&self) -> PageKind {}
        }
        #[derive(Debug)]
        pub struct Pool {
            private: _,
        }
        impl Pool {
            pub fn new(region: Region, layout: SlotLayout) -> Result<Self> {}
            pub fn detached(memory: &BatchMemory) -> Self {}
            #[must_use]
            pub fn take_over(&mut self, slots: &[u32]) -> bool {}
            pub fn take_over_rest(&mut self) {}
            pub fn absorb(&mut self, detached: &mut Self) {}
            pub fn batch_memory(&self) -> BatchMemory {}
            pub fn layout(&self) -> SlotLayout {}
            pub fn available(&self) -> usize {}
        }
    }
    mod reason {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct Reason(_);
        reasons! {
            Runt = "runt" :
            "the frame is shorter than the minimum that the stage accepts", Truncated =
            "truncated" :
            "a header, or the length in its length field, extends past the end of the frame",
            BadVersion = "bad_version" : "a version field does not match the protocol",
            BadHeaderLength = "bad_header_length" :
            "a header length is below its minimum", BadLength = "bad_length" :
            "a length field contradicts the headers around it", BadChecksum =
            "bad_checksum" : "a checksum is wrong", TooManyHeaders = "too_many_headers" :
            "the packet has more nested headers (VLAN tags, IPv6 extension headers) than the stage follows",
            Unsupported = "unsupported" : "the stage does not handle the protocol",
            TtlExpired = "ttl_expired" : "the TTL or hop limit has expired", NoRoute =
            "no_route" : "there is no route to the destination", NoNeighbor =
            "no_neighbor" : "the link-layer address of the next hop is unknown", Denied =
            "denied" : "a rule, or the default action, denies the packet", RateExceeded =
            "rate_exceeded" : "the packet exceeds the configured rate", VlanMismatch =
            "vlan_mismatch" :
            "a required VLAN tag is missing, or the VLAN is not in the list of allowed VLANs",
            NoHeadroom = "no_headroom" : "the headroom is too small for a new header",
            TooLong = "too_long" : "the packet is longer than the outgoing port accepts",
            NoPort = "no_port" : "no stage chose an outgoing port", Requested =
            "requested" : "the config sends the packet to `drop`", TxFull = "tx_full" :
            "the send queue was full", TxError = "tx_error" :
            "the device refused to send the packet, or failed while sending",
            NotConnected = "not_connected" :
            "the outgoing port is currently not connected to its peer", Undeclared =
            "undeclared_output" : "the stage chose an output that it does not declare",
            QueueFull = "queue_full" :
            "the stage already holds its maximum number of packets", Stopped = "stopped"
            :
            "a stage or a port held the packet when the worker stopped, when a change removed the stage, or when a change \
         replaced the stage by a stage that holds no packets",
            Panicked = "panicked" :
            "the stage panicked while it processed the batch of this packet", Quarantined
            = "quarantined" : "the stage is quarantined after a panic",
        }
        impl Reason {
            pub const CODES: usize = _;
            pub const MAX_STAGE_REASONS: u8 = _;
            pub const fn of_stage(index: u8) -> Self {}
            pub const fn code(self) -> u8 {}
            pub const fn from_code(code: u8) -> Self {}
            pub fn name(self, own: &[&'static str]) -> String {}
            pub fn meaning(name: &str) -> Option<&'static str> {}
        }
        impl fmt::Display for Reason {}
    }
    mod received {
        bitflags! {
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)] pub struct
            RecvFlags : u16 { const CHECKSUM_OK = 1; const VLAN_STRIPPED = 1 << 1; const
            HASH = 1 << 2; }
        }
        bitflags! {
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)] pub struct RecvFields :
            u8 { const CHECKSUM = 1; const VLAN = 1 << 1; const FLOW_TAG = 1 << 2; const
            HASH = 1 << 3; }
        }
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[repr(C)]
        pub struct RecvInfo {
            pub flags: RecvFlags,
            pub vlan: u16,
            pub flow_tag: u32,
            pub hash: u32,
        }
        impl RecvInfo {
            pub const NONE: Self = _;
        }
        impl Pool {
            #[must_use]
            pub fn with_recv_info(mut self) -> Self {}
        }
        impl Packet<'_> {
            pub fn recv_info(&self) -> RecvInfo {}
        }
    }
    mod region {
        #[derive(
            Clone,
            Copy,
            Debug,
            PartialEq,
            Eq,
            PartialOrd,
            Ord,
            Serialize,
            Deserialize,
            JsonSchema
        )]
        pub enum PageKind {
            Huge1G,
            Huge2M,
            Transparent,
            Normal,
        }
        impl PageKind {
            pub const fn size(self) -> usize {}
            pub fn reserve_command(
                self,
                pages: usize,
                node: Option<NumaNode>,
            ) -> String {}
        }
        impl fmt::Display for PageKind {}
        #[derive(Clone, Debug, PartialEq, Eq, Serialize)]
        pub struct Notice {
            pub message: String,
            pub remedy: String,
        }
        impl fmt::Display for Notice {}
        #[derive(Clone, Copy, Debug)]
        pub struct RegionSpec {
            pub bytes: usize,
            pub pages: PageKind,
            pub strict: bool,
            pub node: Option<NumaNode>,
        }
        #[derive(Debug)]
        pub struct Region {
            private: _,
        }
        unsafe impl Send for Region {}
        unsafe impl Sync for Region {}
        impl Region {
            pub fn allocate(spec: RegionSpec) -> Result<(Self, Vec<Notice>)> {}
            pub fn allocate_shared(spec: RegionSpec) -> Result<(Self, Vec<Notice>)> {}
            pub fn base(&self) -> NonNull<u8> {}
            pub fn len(&self) -> usize {}
            pub fn pages(&self) -> PageKind {}
        }
    }
    mod run {
        #[derive(Clone, Copy, Debug)]
        pub struct Run<'a> {
            private: _,
        }
        #[derive(Clone, Copy, Debug)]
        pub struct RunSource<'a> {
            private: _,
        }
        impl<'a> RunSource<'a> {
            pub fn new(descs: &'a [Desc]) -> Self {}
            pub fn run(&self) -> Run<'_> {}
        }
        impl<'a> Run<'a> {
            pub fn descs(&self) -> &'a [Desc] {}
            pub fn len(&self) -> usize {}
            pub fn is_empty(&self) -> bool {}
            pub fn bounds(&self) -> &'a Bounds {}
        }
        #[derive(Clone, Copy, Debug)]
        pub enum Stamps<'a> {
            Alike(Stamp),
            Each(&'a [Stamp]),
        }
    }
    pub mod shared {
        pub unsafe fn load(from: *const u8, into: &mut [u8]) {}
        pub unsafe fn store(to: *mut u8, bytes: &[u8]) {}
    }
    pub mod vector {
        pub fn are_ids(ids: &[u64], slots: &[u32], tag: u64) -> bool {}
        pub fn write_ids(ids: &mut [u64], slots: &[u32], base: u64) {}
        pub fn copy_below(to: &mut [u32], slots: &[u32], below: u32) -> bool {}
        pub fn fill(lengths: &mut [u32], length: u32) {}
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct Bounds {
            pub bytes: u32,
            pub shortest: u32,
            pub longest: u32,
            pub last: u32,
            pub end: u32,
        }
        impl Bounds {
            pub const NONE: Self = _;
            pub fn join(&mut self, other: &Self) {}
            pub fn covers(&self, exact: Self) -> bool {}
        }
        #[derive(Clone, Copy, Debug)]
        pub struct ReceivedLayout {
            pub prefix: u32,
            pub offset: u16,
            pub count: u32,
            pub room: u32,
        }
        pub fn write_descs(
            descs: &mut [[u32; 2]],
            slots: &[u32],
            lengths: &[u32],
            received: &ReceivedLayout,
            bounds: &mut Bounds,
        ) -> bool {}
        pub fn bounds(descs: &[DescWord]) -> Bounds {}
        pub fn starts(starts: &mut [usize], descs: &[DescWord], stride: u32) {}
        pub fn bytes(descs: &[DescWord]) -> u32 {}
        pub fn copy_slots(slots: &mut [u32], descs: &[DescWord]) {}
    }
    pub use advise::{advise_huge_pages, prefetch, prefetch_l2};
    pub use batch::{BATCH, Batch};
    pub use desc::Desc;
    pub use head::{Head, Heads};
    pub use label::{Edge, HoldState, Verdict};
    pub use memlock::{Memlock, Shortage};
    pub use meta::{Colour, Meta, MetaFlags};
    pub use node::PreferredNumaNode;
    pub use packet::{Packet, Packets};
    pub use pool::{BatchMemory, GUARD, Pool, SlotLayout, SlotState};
    pub use reason::Reason;
    pub use received::{RecvFields, RecvFlags, RecvInfo};
    pub use region::{Notice, PageKind, Region, RegionSpec};
    pub use run::{Run, RunSource, Stamps};
}
pub mod parse_errors {
    pub fn nearest<'c>(
        name: &str,
        candidates: impl IntoIterator<Item = &'c str>,
    ) -> Option<&'c str> {}
    pub fn has_control_character(name: &str) -> bool {}
    pub const NAME_HELP: &str = _;
    pub fn suggest(what: &str, name: &str, candidates: &[&str]) -> String {}
    pub fn missing_key(message: &str) -> Option<&str> {}
    pub fn missing(key: &str) -> (String, Option<String>) {}
    pub fn explain(
        text: &str,
        extra_keys: &'static [&'static str],
    ) -> (String, Option<String>) {}
}
pub mod pcapng {
    pub const ENHANCED_PACKET: u32 = _;
    pub const STATISTICS_BLOCK_LEN: u64 = _;
    #[derive(Clone, Copy, Debug)]
    pub struct CapturedPacket<'a> {
        pub interface: u32,
        pub nanos: u64,
        pub original: u32,
        pub bytes: &'a [u8],
        pub comment: &'a [u8],
        pub direction: Option<Direction>,
    }
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Direction {
        Inbound = 1,
        Outbound = 2,
    }
    impl CapturedPacket<'_> {
        pub fn size(&self) -> usize {}
    }
    pub fn section(application: &str, into: &mut Vec<u8>) {}
    pub fn commented_section(application: &str, comment: &str, into: &mut Vec<u8>) {}
    pub fn interface(name: &str, description: &str, snaplen: u32, into: &mut Vec<u8>) {}
    pub fn packet(packet: &CapturedPacket<'_>, into: &mut Vec<u8>) {}
    pub fn statistics(
        interface: u32,
        nanos: u64,
        received: u64,
        dropped: u64,
        into: &mut Vec<u8>,
    ) {}
}
pub mod pipeline {
    mod context {
        #[derive(Clone, Copy, Debug)]
        pub struct Ctx {
            pub start: Nanos,
            pub start_wallclock: Nanos,
            pub now: Nanos,
            pub worker: usize,
        }
        impl Ctx {
            pub fn nanos(&self, stamp: Stamp) -> u64 {}
        }
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct Cause<'a> {
            pub stage: &'a str,
            pub reason: &'a str,
        }
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum DefaultTarget {
            Next,
            Port(u8),
            Egress,
            Drop,
        }
    }
    mod contract {
        #[derive(Clone, Copy, Debug, Default)]
        pub struct StageInfo {
            pub outputs: &'static [(&'static str, &'static str)],
            pub reasons: &'static [(&'static str, &'static str)],
            pub drops: &'static [Reason],
            pub gauges: &'static [&'static str],
            pub terminal: bool,
            pub tables: &'static [TableInfo],
            pub state: StageState,
        }
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub enum StageState {
            Lost,
            Stateless,
            Kept(&'static str),
        }
        impl StageInfo {
            pub const fn new() -> Self {}
            #[must_use]
            pub const fn outputs(
                self,
                outputs: &'static [(&'static str, &'static str)],
            ) -> Self {}
            #[must_use]
            pub const fn reasons(
                self,
                reasons: &'static [(&'static str, &'static str)],
            ) -> Self {}
            #[must_use]
            pub const fn drops(self, drops: &'static [Reason]) -> Self {}
            #[must_use]
            pub const fn gauges(self, gauges: &'static [&'static str]) -> Self {}
            #[must_use]
            pub const fn tables(self, tables: &'static [TableInfo]) -> Self {}
            #[must_use]
            pub const fn stateless(self) -> Self {}
            #[must_use]
            pub const fn keeps(self, state: &'static str) -> Self {}
            #[must_use]
            pub const fn terminal(self) -> Self {}
        }
        #[derive(Clone, Copy, Debug)]
        pub struct Contract {
            pub needs: Facts,
            pub sets: Facts,
            pub sets_on_outputs: Facts,
            pub invalidates: Facts,
            pub copies: bool,
            pub splits: usize,
            pub holds: Option<Nanos>,
            pub exit: DefaultTarget,
            pub receives: RecvFields,
            pub ignores_checksums: bool,
            private: _,
        }
        impl Default for Contract {}
        impl Contract {
            pub const fn new() -> Self {}
            #[must_use]
            pub const fn needs(self, needs: Facts) -> Self {}
            #[must_use]
            pub const fn sets(self, sets: Facts) -> Self {}
            #[must_use]
            pub const fn sets_on_outputs(self, sets_on_outputs: Facts) -> Self {}
            #[must_use]
            pub const fn invalidates(self, invalidates: Facts) -> Self {}
            #[must_use]
            pub const fn copies(self) -> Self {}
            #[must_use]
            pub const fn splits(self, splits: usize) -> Self {}
            #[must_use]
            pub const fn holds(self, holds: Option<Nanos>) -> Self {}
            #[must_use]
            pub const fn exit(self, exit: DefaultTarget) -> Self {}
            #[must_use]
            pub const fn receives(self, receives: RecvFields) -> Self {}
            #[must_use]
            pub const fn computes_checksums<S: Any + ChecksumOffload>(self) -> Self {}
            #[must_use]
            pub const fn generates<S: Any + Generator>(self, max: usize) -> Self {}
            #[must_use]
            pub const fn observes_drops<S: Any + DropObserver>(self) -> Self {}
            #[must_use]
            pub const fn transfers_state<S: Any + StateTransfer>(self) -> Self {}
            #[must_use]
            pub const fn ignores_checksums(self) -> Self {}
        }
        pub trait ChecksumOffload {
            fn offload_checksums(&mut self);
        }
        pub trait Generator {
            fn generate(&mut self, ctx: &Ctx, batch: &mut Batch);
        }
        pub trait StateTransfer {
            fn save_state(&mut self) -> Option<Vec<u8>>;
            fn load_state(&mut self, state: &[u8]) -> Result<(), String>;
        }
        pub trait DropObserver {
            fn observe_drop(&mut self, ctx: &Ctx, packet: &Packet<'_>, cause: Cause<'_>);
        }
    }
    mod counters {
        pub trait CounterReport {
            fn add(&mut self, name: &str, value: u64);
            fn add_entry(&mut self, name: &str, is_named: bool, value: u64) {}
            fn set_version(&mut self, version: u64) {}
        }
    }
    mod facts {
        bitflags! {
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)] pub struct Facts : u16
            { const HEADERS = 1; const EGRESS = 1 << 1; const NEXT_HOP = 1 << 2; const
            COLOUR = 1 << 3; const STAMP = 1 << 4; const FLOW_HASH = 1 << 5; }
        }
    }
    mod graph {
        #[derive(Clone, Debug)]
        pub struct NodeCounters {
            pub packets: u64,
            pub batches: u64,
            pub consumed: u64,
            pub copied: u64,
            pub generated: u64,
            pub copies_missed: u64,
            pub outputs: [u64; Edge::MAX_OUTPUTS],
            pub dropped_next: u64,
            pub drops: [u64; Reason::CODES],
            pub panics: u64,
            pub is_quarantined: bool,
        }
        impl Default for NodeCounters {}
        pub trait Observer {
            fn before(&mut self, node: usize, stage: &mut dyn Stage, batch: &mut Batch) {}
            fn after(&mut self, node: usize, packet: &Packet<'_>, fate: &PacketFate) {}
            const WATCHES: bool = _;
            fn enters(&mut self, part: Part) {}
        }
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Part {
            Reap,
            Receive,
            Stage(usize, usize),
            Transmit,
            Refill,
        }
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum PacketFate {
            Next(Target),
            Output(usize, Target),
            Dropped(Reason),
            Consumed,
            Held,
            Copied(usize, Target, u32),
        }
        #[derive(Clone, Copy, Debug)]
        pub struct NoObserver;
        impl Observer for NoObserver {}
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct Succession {
            pub earlier: usize,
            pub later: usize,
            pub moves: bool,
        }
        pub struct Graph {
            private: _,
        }
        impl Graph {
            pub fn new(program: Program, ports: usize, pool: &Pool) -> Self {}
            pub fn in_memory(
                program: Program,
                ports: usize,
                memory: &BatchMemory,
            ) -> Self {}
            pub fn burst(&self) -> usize {}
            pub fn entry(&mut self, port: u8) -> &mut Batch {}
            pub fn outbox(&mut self, port: usize) -> &mut Batch {}
            pub fn counters(&self) -> impl Iterator<Item = (&str, &NodeCounters)> {}
            pub fn dropped(&self) -> u64 {}
            pub fn set_marker(&mut self, marker: Arc<StageMarker>) {}
            pub fn interrupted(&mut self) -> Option<(&str, &mut Batch)> {}
            pub fn quarantine(
                &mut self,
                ctx: &Ctx,
                pool: &mut Pool,
            ) -> Option<Quarantined> {}
            pub fn stages(
                &mut self,
            ) -> impl Iterator<Item = (&str, &mut Box<dyn Stage>)> {}
            pub fn visit(&mut self, mut visit: impl FnMut(&dyn Stage)) {}
            pub fn save_states(&mut self) -> Vec<(String, Vec<u8>)> {}
            pub fn load_states(&mut self, states: &[(String, Vec<u8>)]) -> Vec<String> {}
            pub fn tick(&mut self, ctx: &Ctx) {}
            pub fn process_held_or_generate<O: Observer>(
                &mut self,
                ctx: &Ctx,
                pool: &mut Pool,
                observer: &mut O,
            ) -> bool {}
            pub fn holds(&self) -> bool {}
            pub fn take_over(
                &mut self,
                earlier: &mut Self,
                successions: &[Succession],
                ports: Option<&[Option<u8>]>,
                pool: &mut Pool,
            ) {}
            pub fn finish(&mut self, is_finished: impl Fn(&str) -> bool) -> Vec<Error> {}
            pub fn take_counters(&mut self) -> impl Iterator<Item = NodeCounters> {}
            pub fn drop_held(&mut self, pool: &mut Pool) {}
            pub fn walk<O: Observer>(
                &mut self,
                ctx: &Ctx,
                pool: &mut Pool,
                observer: &mut O,
            ) {}
        }
    }
    mod headers {
        pub trait Headers {
            fn ethernet(&self) -> Option<&Ethernet>;
            fn ethernet_mut(&mut self) -> Option<&mut Ethernet>;
            fn ipv4(&self) -> Option<&Ipv4>;
            fn ipv4_mut(&mut self) -> Option<&mut Ipv4>;
            fn ipv6(&self) -> Option<&Ipv6>;
            fn ipv6_mut(&mut self) -> Option<&mut Ipv6>;
            fn tcp(&self) -> Option<&Tcp>;
            fn udp(&self) -> Option<&Udp>;
            fn icmp(&self) -> Option<&Icmp>;
        }
        impl Headers for Packet<'_> {}
    }
    mod held {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum HeldPackets {
            Keep,
            Drop,
        }
    }
    mod hops {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct NextHop {
            pub address: IpAddr,
            pub port: u8,
        }
        #[derive(Clone, Debug, Default)]
        pub struct NextHops {
            private: _,
        }
        impl NextHops {
            pub fn number(&mut self, hop: NextHop) -> u32 {}
            pub fn all(&self) -> &[NextHop] {}
        }
    }
    mod live {
        #[derive(Debug)]
        pub struct Live<T> {
            private: _,
        }
        #[derive(Debug)]
        pub struct LiveReader<T> {
            private: _,
        }
        impl<T> Default for Live<T> {}
        impl<T> Live<T> {
            pub fn reader(&self, first: T) -> LiveReader<T> {}
            pub fn publish(&self, mut make: impl FnMut(usize) -> T) {}
            pub fn settle(&self) -> bool {}
        }
        #[derive(Debug)]
        pub struct LiveTable<T> {
            private: _,
        }
        impl<T> LiveTable<T> {
            pub fn new(first: T) -> Self {}
            pub fn reader(&self) -> LiveReader<Arc<T>> {}
            pub fn publish(&self, value: T) {}
            pub fn settle(&self) -> bool {}
        }
        impl<T> LiveReader<T> {
            pub fn refresh(&mut self) {}
            pub fn refresh_with(&mut self, carry: impl FnOnce(&T, &mut T)) {}
        }
        impl<T> Deref for LiveReader<T> {}
        impl<T> DerefMut for LiveReader<T> {}
    }
    mod problem {
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct Problem {
            pub key: String,
            pub message: String,
            pub help: Option<String>,
            pub is_host_problem: bool,
        }
        impl Problem {
            pub fn at(key: impl Into<String>, message: impl Into<String>) -> Self {}
            pub fn host_problem(
                key: impl Into<String>,
                message: impl Into<String>,
            ) -> Self {}
            #[must_use]
            pub fn help(self, help: impl Into<String>) -> Self {}
        }
        impl fmt::Display for Problem {}
    }
    mod program {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Target {
            Node(usize),
            Port(usize),
            Egress,
            Drop,
        }
        pub struct NodeSpec {
            pub name: String,
            pub kind: String,
            pub stage: Box<dyn Stage>,
            pub next: Target,
            pub outputs: Vec<(String, Target)>,
            pub reasons: Vec<&'static str>,
            pub info: StageInfo,
            pub on_panic: OnPanic,
            pub drop_observer: Option<usize>,
        }
        #[derive(Clone, Copy, Debug)]
        pub struct StandIn {
            private: _,
        }
        impl StandIn {
            pub fn of(stage: &dyn Stage) -> Self {}
        }
        impl Stage for StandIn {}
        pub struct Program {
            private: _,
        }
        impl Program {
            pub fn new(mut nodes: Vec<NodeSpec>) -> Self {}
            pub fn observes_drops(&self, node: usize) -> bool {}
            pub fn nodes(&self) -> &[NodeSpec] {}
            pub fn stand_ins(&self) -> Vec<StandIn> {}
            pub fn max_packets_per_received(&self) -> usize {}
            pub fn check(&self, source: Facts) -> Vec<(usize, Problem)> {}
            pub fn check_bypasses(&self, source: Facts) -> Vec<(usize, usize, Problem)> {}
            pub fn readers(&self, part: RecvFields) -> Vec<&str> {}
            pub fn stages_with_checksums(&self) -> Vec<&str> {}
            pub fn sent_checksums(
                &self,
                ports: usize,
            ) -> Vec<Option<ChecksumState<'_>>> {}
            pub fn offload_checksums(&mut self, computes: &[bool]) -> Vec<String> {}
        }
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum ChecksumState<'p> {
            Computed,
            MayLack { changed_by: Option<&'p str> },
        }
    }
    mod quarantine {
        #[derive(
            Clone,
            Copy,
            Debug,
            Default,
            PartialEq,
            Eq,
            Serialize,
            Deserialize,
            JsonSchema
        )]
        pub enum OnPanic {
            Stop,
            Drop,
            Bypass,
        }
        #[derive(Debug, Default)]
        pub struct StageMarker(_);
        impl StageMarker {
            pub fn stage(&self) -> Option<usize> {}
        }
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct Quarantined {
            pub stage: String,
            pub on_panic: OnPanic,
            pub packets: usize,
            pub first: Option<Vec<u8>>,
        }
    }
    mod record {
        #[derive(Clone, Debug, Default)]
        pub struct StageRecord {
            pub stage_shared_types: BTreeSet<TypeId>,
            pub workers: Option<usize>,
            pub read: BTreeMap<PathBuf, Option<Fingerprint>>,
            pub written: BTreeSet<PathBuf>,
            private: _,
        }
        impl StageRecord {
            pub fn changed_file(&self) -> Option<&Path> {}
        }
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct Fingerprint(_);
        impl Fingerprint {
            pub fn of(path: &Path) -> Option<Self> {}
        }
    }
    mod registry {
        pub struct StageKind {
            pub name: String,
            pub summary: String,
            pub info: StageInfo,
            pub schema: Option<Schema>,
            private: _,
        }
        impl StageKind {
            pub fn make(
                &self,
                parameters: toml::de::Deserializer<'_>,
            ) -> Result<Box<dyn Stage>, toml::de::Error> {}
        }
        pub fn parameter_schema<T: JsonSchema>() -> Schema {}
        pub fn summary(schema: &Schema) -> String {}
        #[derive(Default)]
        pub struct Registry {
            private: _,
        }
        impl Registry {
            pub fn new() -> Self {}
            pub fn add<S: Stage + DeserializeOwned + 'static>(
                &mut self,
                name: &str,
            ) -> &mut Self {}
            pub fn add_described<S: Stage + DeserializeOwned + JsonSchema + 'static>(
                &mut self,
                name: &str,
            ) -> &mut Self {}
            pub fn get(&self, name: &str) -> Option<&StageKind> {}
            pub fn kinds(&self) -> impl Iterator<Item = &StageKind> {}
        }
    }
    mod setup {
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct PortInfo {
            pub name: String,
            pub mac: [u8; 6],
            pub mtu: u16,
            pub interface: Option<String>,
            pub addresses: Vec<IpNet>,
        }
        pub struct Setup<'a> {
            private: _,
        }
        impl<'a> Setup<'a> {
            pub fn new(
                resources: &'a mut Resources,
                stage: &str,
                worker: usize,
                workers: usize,
            ) -> Self {}
            pub fn reject(&mut self, problem: Problem) {}
            pub fn is_offline(&self) -> bool {}
            pub fn any_stage_needs(&mut self, facts: Facts) -> bool {}
            pub fn ports(&self) -> &[PortInfo] {}
            pub fn has_unchanged_port_numbers(&self) -> bool {}
            pub fn port(&self, name: &str, key: &str) -> Result<u8, Problem> {}
            pub fn path(&self, path: &Path) -> PathBuf {}
            pub fn declare_written_file(
                &mut self,
                path: &Path,
                key: &str,
            ) -> Result<(), Problem> {}
            pub fn declare_read_file(
                &mut self,
                path: &Path,
                key: &str,
            ) -> Result<(), Problem> {}
            pub fn declare_memory(
                &mut self,
                bytes: u64,
                key: &str,
                help: &str,
            ) -> Result<(), Problem> {}
            pub fn declare_worker_memory(
                &mut self,
                bytes: u64,
                key: &str,
                help: &str,
            ) -> Result<(), Problem> {}
            pub fn for_added_worker(mut self) -> Self {}
            pub fn next_hops(&mut self) -> &mut NextHops {}
            pub fn shared_by_workers<T: Send + Sync + 'static>(
                &mut self,
                make: impl FnOnce(&mut Self) -> Result<T, Problem>,
            ) -> Result<Arc<T>, Problem> {}
            pub fn earlier<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {}
            pub fn share<T: Send + Sync + 'static>(&mut self, object: Arc<T>) {}
            pub fn shared_by_stages<T: Send + Sync + 'static>(
                &mut self,
                make: impl FnOnce(&mut Self) -> Arc<T>,
            ) -> Arc<T> {}
            pub fn earlier_shared_by_stages<T: Send + Sync + 'static>(
                &self,
            ) -> Option<Arc<T>> {}
            pub fn renew_shared_by_stages<T: 'static>(&mut self) {}
            pub fn on_behalf_of<T: 'static, R>(
                &mut self,
                register: impl FnOnce(&mut Self) -> R,
            ) -> R {}
            pub fn table(&mut self, name: &str, table: impl Table) {}
            pub fn task(&mut self, name: &str, task: impl Task) {}
            pub fn run_stop(&self) -> RunStop {}
            pub fn hold_time(&self) -> HoldTime {}
            pub fn on_port_change(
                &mut self,
                handler: impl Fn(u8, PortChange) + Send + Sync + 'static,
            ) {}
            pub fn needs_capabilities(&mut self, capabilities: CapabilitySet) {}
            pub fn on_start(&mut self, start: impl FnOnce() + Send + 'static) {}
            pub fn check_later(
                &mut self,
                check: impl FnOnce() -> Result<(), Problem> + Send + 'static,
            ) {}
            pub fn stage(&self) -> &str {}
            pub fn worker_and_count(&mut self) -> (usize, usize) {}
            pub fn worker_number(&self) -> usize {}
        }
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum PortChange {
            LinkUp,
            LinkDown,
            Addresses,
            Other,
        }
        #[derive(Clone, Debug, Default)]
        pub struct HoldTime(_);
        impl HoldTime {
            pub fn set(&self, stages: impl IntoIterator<Item = Nanos>) {}
            pub fn get(&self) -> Duration {}
        }
        pub type PortHandler = Arc<dyn Fn(u8, PortChange) + Send + Sync>;
        #[derive(Default)]
        pub struct Services {
            pub tables: Vec<Arc<StageTable>>,
            pub tasks: Vec<TaskSpec>,
            pub port_handlers: Vec<(Owner, PortHandler)>,
            pub checks: Vec<(String, Check)>,
            pub starts: Vec<Box<dyn FnOnce() + Send>>,
            pub capabilities: Vec<CapabilitySet>,
            pub stop: RunStop,
            pub hold: HoldTime,
        }
        #[derive(Debug)]
        pub struct Objects {
            pub records: BTreeMap<String, StageRecord>,
            private: _,
        }
        #[derive(Clone, Copy)]
        pub struct ContinuingParts<'a> {
            pub keeps: &'a BTreeSet<String>,
            pub replaces: &'a BTreeSet<String>,
            pub renews: &'a BTreeSet<TypeId>,
            pub held: Option<&'a Objects>,
            pub ports: Option<&'a [PortInfo]>,
            pub workers: usize,
        }
        pub struct Resources {
            pub renewed: BTreeSet<TypeId>,
            pub records: BTreeMap<String, StageRecord>,
            pub files: Files,
            pub memory: StageMemory,
            pub services: Services,
            pub wanted: Facts,
            pub offline: bool,
            private: _,
        }
        #[derive(Debug, Default)]
        pub struct StageMemory {
            pub available: Option<u64>,
            pub stages: BTreeMap<String, u64>,
            pub allocated: u64,
        }
        #[derive(Default)]
        pub struct Files {
            private: _,
        }
        impl Files {
            pub const HELP: &str = _;
            pub fn read(&mut self, path: &Path, what: &str) -> Result<(), String> {}
            pub fn write(&mut self, path: &Path, what: &str) -> Result<(), String> {}
            pub fn written(&self) -> impl Iterator<Item = &Path> {}
        }
        impl Resources {
            pub fn new(ports: Vec<PortInfo>, folder: &Path) -> Self {}
            pub fn release(&mut self, stage: &str) {}
            pub fn changed_stage_shared_types(&self) -> BTreeSet<TypeId> {}
            pub fn register_kept_files(&mut self) {}
            pub fn ports(&self) -> &[PortInfo] {}
            pub fn complete_records(&mut self) {}
            pub fn into_parts(self) -> (Objects, Services) {}
            pub fn can_continue(
                &self,
                record: &StageRecord,
                renews: &BTreeSet<TypeId>,
            ) -> bool {}
        }
        pub fn new_port_numbers(
            earlier: &[PortInfo],
            now: &[PortInfo],
        ) -> Vec<Option<u8>> {}
        impl Objects {
            pub fn successor(
                &self,
                folder: &Path,
                continuing: ContinuingParts<'_>,
            ) -> Resources {}
            pub fn ports(&self) -> &[PortInfo] {}
            pub fn stage_shared_types(&self) -> BTreeSet<TypeId> {}
            pub fn has_shared(&self, stage: &str) -> bool {}
            pub fn shares_object_with(
                &self,
                earlier: &Self,
                stage: &str,
                kind: TypeId,
            ) -> bool {}
        }
    }
    mod table {
        pub trait Table: Send + Sync + 'static {
            type Row: Serialize + JsonSchema;
            fn needs_counters(&self) -> bool {}
            fn page(
                &self,
                query: &TableQuery<'_>,
            ) -> Result<TablePage<Self::Row>, String>;
            fn find(&self, key: &str) -> Result<Option<Self::Row>, String> {}
        }
        #[derive(Clone, Copy, Debug)]
        pub struct TableQuery<'a> {
            private: _,
        }
        impl<'a> TableQuery<'a> {
            pub fn new(
                after: Option<&'a str>,
                limit: usize,
                counters: &'a BTreeMap<String, u64>,
            ) -> Self {}
            pub fn after(&self) -> Option<&'a str> {}
            pub fn limit(&self) -> usize {}
            pub fn counter(&self, name: &str) -> u64 {}
        }
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct TablePage<R> {
            pub rows: Vec<R>,
            pub next: Option<String>,
        }
        impl<R> TablePage<R> {
            pub fn of_list<T>(
                list: &[T],
                query: &TableQuery<'_>,
                row: impl FnMut(&T) -> R,
            ) -> Result<Self, String> {}
        }
        pub struct StageTable {
            private: _,
        }
        impl fmt::Debug for StageTable {}
        impl StageTable {
            pub fn name(&self) -> &str {}
            pub fn stage(&self) -> &str {}
            pub fn needs_counters(&self) -> bool {}
            pub fn page(
                &self,
                query: &TableQuery<'_>,
            ) -> Result<TablePage<Box<RawValue>>, String> {}
            pub fn find(&self, key: &str) -> Result<Option<Box<RawValue>>, String> {}
        }
        #[derive(Clone, Copy, Debug)]
        pub struct TableInfo {
            pub name: &'static str,
            private: _,
        }
        impl TableInfo {
            pub const fn of<T: Table>(name: &'static str) -> Self {}
            pub fn row_schema(&self, generator: &mut SchemaGenerator) -> Schema {}
        }
    }
    mod task {
        pub trait Task: Send + 'static {
            fn start(&mut self) -> Result<()> {}
            fn run(&mut self, stop: &StopSignal) -> Result<()>;
        }
        #[derive(Clone, Debug, Default)]
        pub struct StopSignal(_);
        impl StopSignal {
            pub fn wait(&self, timeout: Duration) -> bool {}
            pub fn is_set(&self) -> bool {}
            pub fn set(&self) {}
        }
        #[derive(Clone, Debug, Default)]
        pub struct RunStop(_);
        impl RunStop {
            pub fn set(&self) {}
            pub fn is_set(&self) -> bool {}
        }
        pub fn thread_name(text: &str) -> String {}
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        pub enum Owner {
            Stage(String),
            Object(String, TypeId),
        }
        pub struct TaskSpec {
            pub name: String,
            pub task: Box<dyn Task>,
            pub owner: Owner,
        }
        #[derive(Default)]
        pub struct Tasks {
            private: _,
        }
        impl Tasks {
            pub fn start(mut specs: Vec<TaskSpec>, run: &RunStop) -> Result<Self> {}
            pub fn failures(&self) -> Vec<String> {}
            pub fn stop(&self) {}
        }
        impl Drop for Tasks {}
        pub fn panic_message(panic: &(dyn Any + Send)) -> &str {}
    }
    pub use context::{Cause, Ctx, DefaultTarget};
    pub use contract::{
        ChecksumOffload, Contract, DropObserver, Generator, StageInfo, StageState,
        StateTransfer,
    };
    pub use counters::CounterReport;
    pub use facts::Facts;
    pub use graph::{
        Graph, NoObserver, NodeCounters, Observer, PacketFate, Part, Succession,
    };
    pub use headers::Headers;
    pub use held::HeldPackets;
    pub use hops::{NextHop, NextHops};
    pub use live::{Live, LiveReader, LiveTable};
    pub use problem::Problem;
    pub use program::{ChecksumState, NodeSpec, Program, StandIn, Target};
    pub use quarantine::{OnPanic, Quarantined, StageMarker};
    pub use record::{Fingerprint, StageRecord};
    pub use registry::{Registry, StageKind, parameter_schema, summary};
    pub use rustix::thread::CapabilitySet;
    pub use setup::{
        ContinuingParts, Files, HoldTime, Objects, PortChange, PortHandler, PortInfo,
        Resources, Services, Setup, StageMemory, new_port_numbers,
    };
    pub use table::{StageTable, Table, TableInfo, TablePage, TableQuery};
    pub use task::{
        Owner, RunStop, StopSignal, Task, TaskSpec, Tasks, panic_message, thread_name,
    };
    pub trait Stage: Any + Send {
        fn process(&mut self, ctx: &Ctx, batch: &mut Batch);
        fn tick(&mut self, ctx: &Ctx) {}
        fn prepare(&mut self, setup: &mut Setup<'_>) -> Result<(), Problem> {}
        fn adopt(&mut self, earlier: &mut dyn Stage) -> HeldPackets {}
        fn info() -> StageInfo
        where
            Self: Sized,
        {}
        fn contract(&self) -> Contract {}
        fn counters(&self, report: &mut dyn CounterReport) {}
        fn explain(&mut self, packet: &Packet<'_>) -> Option<String> {}
        fn finish(&mut self) -> crate::error::Result<()> {}
    }
    impl dyn Stage {
        pub fn downcast<S: Stage>(&mut self) -> Option<&mut S> {}
    }
    impl Setup<'_> {
        pub fn prepare(mut self, stage: &mut dyn Stage) -> Vec<Problem> {}
    }
}
pub mod prelude {
    pub use crate::mem::{
        Batch, Colour, Edge, Head, Meta, MetaFlags, Packet, Reason, RecvFields,
        RecvFlags, RecvInfo,
    };
    pub use crate::pipeline::{
        Cause, ChecksumOffload, Contract, CounterReport, Ctx, DefaultTarget,
        DropObserver, Facts,
    };
    pub use crate::pipeline::{Generator, Headers, HeldPackets, Problem};
    pub use crate::pipeline::{
        Live, LiveReader, LiveTable, PortChange, Setup, Stage, StageInfo, StateTransfer,
        StopSignal, Task,
    };
    pub use crate::pipeline::{Table, TableInfo, TablePage, TableQuery};
}
pub mod stderr {
    pub fn write(text: &str) {}
    pub fn write_unless_full(text: &str) -> bool {}
}
pub mod sync {
    #[cfg(not(loom))]
    pub use std::sync::atomic::{
        AtomicBool, AtomicI64, AtomicPtr, AtomicU64, Ordering, fence,
    };
    #[cfg(not(loom))]
    pub use std::sync::{Arc, Mutex, MutexGuard};
}
pub mod telemetry {
    mod board {
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
        pub struct Progress {
            pub rx: u64,
            pub tx: u64,
            pub dropped: u64,
            pub loops: u64,
        }
        #[derive(Debug, Default)]
        pub struct SharedProgress(_);
        impl SharedProgress {
            pub fn publish(&self, progress: Progress) {}
            pub fn read(&self) -> Progress {}
        }
    }
    mod cost {
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
        pub struct CostReport {
            pub part: String,
            pub is_stage: bool,
            pub ticks: f64,
            pub ns: f64,
            pub burst: f64,
            pub bursts: u64,
            pub nearly_idle: bool,
            pub few_bursts: bool,
        }
        impl CostReport {
            pub const NEARLY_IDLE: f64 = _;
            pub const FEW_BURSTS: u64 = _;
            pub fn of_stage<'a>(costs: &'a [Self], stage: &str) -> Option<&'a Self> {}
        }
        #[derive(Clone, Debug)]
        pub struct Costs {
            private: _,
        }
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct CostSum {
            pub ticks: u64,
            pub packets: u64,
            pub bursts: u64,
        }
        impl Costs {
            pub fn new(parts: usize) -> Self {}
            pub fn parts(&self) -> usize {}
            pub fn record(&mut self, received: u64, parts: &[(u64, u64)]) {}
            pub fn add(&mut self, other: &Self) {}
            #[must_use]
            pub fn with_parts(&self, from: &[Option<usize>]) -> Self {}
            #[must_use]
            pub fn since(&self, earlier: &Self) -> Self {}
            pub fn clear(&mut self) {}
            pub fn report<'a>(
                &self,
                names: impl IntoIterator<Item = (&'a str, bool)>,
                per_tick: f64,
            ) -> Vec<CostReport> {}
            pub fn sums(&self) -> Vec<CostSum> {}
        }
    }
    mod display {
        #[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
        pub struct PacketsPerSecond(pub f64);
        #[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
        pub struct PerSecond(pub f64);
        #[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
        pub struct BitsPerSecond(pub f64);
        #[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
        pub struct Size(pub f64);
        #[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
        pub struct Duration(pub f64);
        impl fmt::Display for PacketsPerSecond {}
        impl fmt::Display for PerSecond {}
        impl fmt::Display for BitsPerSecond {}
        impl fmt::Display for Size {}
        impl fmt::Display for Duration {}
    }
    mod latency {
        #[derive(Clone, Debug)]
        pub struct Latency {
            private: _,
        }
        impl Latency {
            pub const MAX_NANOS: u64 = _;
            pub fn new() -> Self {}
            pub fn record(&mut self, from: Stamp, to: Stamp, packets: u64) {}
            pub fn add(&mut self, other: &Self) {}
            #[must_use]
            pub fn since(&self, earlier: &Self) -> Self {}
            pub fn clear(&mut self) {}
            pub fn buckets(&self, bounds: &[u64]) -> Vec<u64> {}
            pub fn sum(&self) -> f64 {}
            pub fn report(&self) -> LatencyReport {}
        }
        impl Default for Latency {}
    }
    mod ledger {
        #[derive(
            Clone,
            Debug,
            Default,
            PartialEq,
            Eq,
            Serialize,
            Deserialize,
            JsonSchema
        )]
        pub struct Ledger {
            pub rx: u64,
            pub generated: u64,
            pub copied: u64,
            pub tx: u64,
            pub dropped: u64,
            pub consumed: u64,
            pub held: u64,
            pub unaccounted: i64,
            pub drops: BTreeMap<String, u64>,
        }
        impl Ledger {
            pub fn add_drops(&mut self, stage: &str, reason: &str, packets: u64) {}
            pub fn balance(&mut self) {}
            pub fn add(&mut self, other: &Self) {}
        }
        impl fmt::Display for Ledger {}
    }
    mod recent {
        #[derive(
            Clone,
            Copy,
            Debug,
            Default,
            PartialEq,
            Serialize,
            Deserialize,
            JsonSchema
        )]
        pub struct Rates {
            pub rate_mpps: f64,
            pub rate_rx_mpps: f64,
            pub rate_gbps: f64,
            pub rate_rx_gbps: f64,
        }
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
        pub struct PortRates {
            pub name: String,
            pub rates: Rates,
            pub rx_lost: u64,
        }
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
        pub struct WorkerRates {
            pub core: u32,
            pub rates: Rates,
            pub loops: u64,
            pub idle_loops: u64,
        }
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
        pub struct Recent {
            pub duration_s: f64,
            pub rates: Rates,
            pub ports: Vec<PortRates>,
            pub workers: Vec<WorkerRates>,
            pub drops: BTreeMap<String, u64>,
            pub latency_ns: LatencyReport,
            pub costs: Vec<CostReport>,
        }
        impl Recent {
            pub fn between(earlier: Option<&Report>, now: &Report) -> Self {}
        }
        #[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
        pub struct LiveStatistics {
            pub pid: u32,
            pub version: String,
            pub config: String,
            pub report: Report,
            pub recent: Recent,
        }
        impl fmt::Display for LiveStatistics {}
    }
    mod report {
        #[derive(
            Clone,
            Copy,
            Debug,
            Default,
            PartialEq,
            Eq,
            Serialize,
            Deserialize,
            JsonSchema
        )]
        pub struct Totals {
            pub rx: u64,
            pub tx: u64,
        }
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        pub struct LatencyReport {
            pub count: u64,
            pub p50: u64,
            pub p90: u64,
            pub p99: u64,
            pub p999: u64,
            pub max: u64,
            pub source: ClockSource,
            pub by_source: BTreeMap<ClockSource, u64>,
            pub unmeasured: u64,
        }
        #[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
        pub struct PortReport {
            pub name: String,
            pub device: String,
            pub link_up: Option<bool>,
            pub packets: Totals,
            pub bytes: Totals,
            pub rx_errors: u64,
            pub tx_full: u64,
            pub tx_errors: u64,
            pub tx_too_long: u64,
            pub tx_not_connected: u64,
            pub stale: u64,
            pub recoveries: u64,
            pub rebuilds: u64,
            pub abandoned: u64,
            pub first_error: Option<String>,
            pub rx_lost: u64,
            pub tx_lost: u64,
            pub device_counters: BTreeMap<String, u64>,
            pub stamps: BTreeMap<ClockSource, u64>,
            pub stamps_implausible: u64,
            pub clocks: Vec<ClockReport>,
        }
        impl PortReport {
            pub const LOSSES: [&str; 5] = _;
        }
        #[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
        pub struct StageReport {
            pub name: String,
            pub kind: String,
            pub packets: u64,
            pub batches: u64,
            pub outputs: BTreeMap<String, u64>,
            pub drops: BTreeMap<String, u64>,
            pub consumed: u64,
            pub copied: u64,
            pub generated: u64,
            pub copies_missed: u64,
            pub panics: u64,
            pub quarantined: u64,
            pub counters: BTreeMap<String, u64>,
            pub counter_kinds: BTreeMap<String, CounterKind>,
        }
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub enum CounterKind {
            Total,
            Gauge,
            NamedEntry,
            Entry,
        }
        impl StageReport {
            pub fn counter_kind(&self, name: &str) -> CounterKind {}
        }
        #[derive(
            Clone,
            Copy,
            Debug,
            Default,
            PartialEq,
            Serialize,
            Deserialize,
            JsonSchema
        )]
        pub struct SleepReport {
            pub sleeps: u64,
            pub slept_s: f64,
            pub wakeups: u64,
            pub wakeup_s: f64,
            pub wakeup_max_ns: u64,
        }
        #[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
        pub struct WorkerReport {
            pub core: u32,
            pub loops: u64,
            pub idle_loops: u64,
            pub sleeps: Option<SleepReport>,
            pub bytes: Totals,
            pub ledger: Ledger,
            pub slots: u64,
            pub slots_missing: u64,
            pub pages: String,
            pub granted: BTreeMap<String, String>,
            pub error: Option<String>,
        }
        #[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
        pub struct RemovedWorkersReport {
            pub workers: u64,
            pub loops: u64,
            pub idle_loops: u64,
            pub sleeps: Option<SleepReport>,
            pub bytes: Totals,
            pub ledger: Ledger,
        }
        #[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
        pub struct Report {
            pub duration_s: f64,
            pub packets: Totals,
            pub bytes: Totals,
            pub rate_mpps: f64,
            pub rate_rx_mpps: f64,
            pub ledger: Ledger,
            pub latency_ns: LatencyReport,
            pub costs: Vec<CostReport>,
            pub ports: Vec<PortReport>,
            pub removed_ports: Vec<PortReport>,
            pub stages: Vec<StageReport>,
            pub workers: Vec<WorkerReport>,
            pub removed_workers: Option<RemovedWorkersReport>,
            pub errors: Vec<String>,
            pub logs_lost: u64,
        }
        impl Report {
            pub fn is_good(&self) -> bool {}
        }
        impl fmt::Display for Report {}
    }
    pub use board::{Progress, SharedProgress};
    pub use cost::{CostReport, CostSum, Costs};
    pub use display::{BitsPerSecond, Duration, PacketsPerSecond, PerSecond, Size};
    pub use latency::Latency;
    pub use ledger::Ledger;
    pub use recent::{LiveStatistics, PortRates, Rates, Recent, WorkerRates};
    pub use report::{
        CounterKind, LatencyReport, PortReport, RemovedWorkersReport, Report,
        SleepReport, StageReport, Totals, WorkerReport,
    };
}
pub mod topology {
    mod core_time {
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct CoreTime {
            pub idle: u64,
            pub steal: u64,
            pub total: u64,
        }
        impl CoreTime {
            pub fn parse(text: &str, core: u32) -> Option<Self> {}
            pub fn busy(&self) -> u64 {}
        }
    }
    mod discover {
        impl Topology {
            pub fn discover() -> Result<Self> {}
        }
    }
    mod pin {
        pub fn pin_current_thread(core: CoreId) -> Result<()> {}
    }
    mod place {
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
        pub enum Workers {
            Auto,
            Count(usize),
            Cores(Vec<CoreId>),
        }
        impl Topology {
            pub fn place(
                &self,
                workers: &Workers,
                near: &[NumaNode],
            ) -> Result<Vec<CoreId>> {}
        }
    }
    pub use core_time::CoreTime;
    pub use pin::pin_current_thread;
    pub use place::Workers;
    #[derive(Clone, Debug, PartialEq, Eq, Serialize)]
    pub struct Core {
        pub id: CoreId,
        pub physical: u32,
        pub package: u32,
        pub node: NumaNode,
        pub allowed: bool,
    }
    #[derive(Clone, Debug, PartialEq, Eq, Serialize)]
    pub struct Cache {
        pub level: u8,
        pub size: Bytes,
        pub cores: Vec<CoreId>,
    }
    #[derive(Clone, Debug, PartialEq, Eq, Serialize)]
    pub struct HugePages {
        pub size: Bytes,
        pub total: u64,
        pub free: u64,
    }
    #[derive(Clone, Debug, PartialEq, Eq, Serialize)]
    pub struct Node {
        pub id: NumaNode,
        pub memory: Bytes,
        pub allowed: bool,
        pub hugepages: Vec<HugePages>,
    }
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
    pub enum DeviceKind {
        Verbs,
        Net,
    }
    #[derive(Clone, Debug, PartialEq, Eq, Serialize)]
    pub struct Device {
        pub name: String,
        pub kind: DeviceKind,
        pub lower_interfaces: Vec<String>,
        pub node: Option<NumaNode>,
    }
    #[derive(Clone, Debug, PartialEq, Eq, Serialize)]
    pub struct Topology {
        private: _,
    }
    impl Topology {
        pub fn from_parts(
            mut cores: Vec<Core>,
            mut caches: Vec<Cache>,
            mut nodes: Vec<Node>,
            mut devices: Vec<Device>,
        ) -> Self {}
        #[must_use]
        pub fn with_offline(mut self, mut cores: Vec<CoreId>) -> Self {}
        pub fn uniform(cores: u32) -> Self {}
        pub fn cores(&self) -> &[Core] {}
        pub fn offline(&self) -> &[CoreId] {}
        pub fn caches(&self) -> &[Cache] {}
        pub fn nodes(&self) -> &[Node] {}
        pub fn devices(&self) -> &[Device] {}
        pub fn core(&self, id: CoreId) -> Option<&Core> {}
        pub fn node(&self, id: NumaNode) -> Option<&Node> {}
        pub fn has_memory(&self, id: NumaNode) -> bool {}
        pub fn node_of_device(&self, name: &str) -> Option<NumaNode> {}
        pub fn near(&self, node: NumaNode) -> impl Iterator<Item = CoreId> {}
        pub fn allowed(&self) -> impl Iterator<Item = &Core> {}
        pub fn allowed_list(&self) -> String {}
        pub fn format_cores(cores: impl IntoIterator<Item = CoreId>) -> String {}
    }
    impl fmt::Display for Topology {}
    pub fn parse_ranges(text: &str) -> Vec<u32> {}
}
pub mod units {
    mod quantity {
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
        pub struct Period(pub Duration);
        impl Period {
            pub const MAX: Self = _;
            pub const fn from_secs(seconds: u64) -> Self {}
            pub fn as_nanos(self) -> u64 {}
            pub fn after_now(self) -> Instant {}
        }
        impl fmt::Display for Period {}
        impl FromStr for Period {}
        impl Serialize for Period {}
        impl<'de> Deserialize<'de> for Period {}
        impl JsonSchema for Period {}
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct Bytes(pub u64);
        number_or_text!(
            Bytes, "a number of bytes, such as 2048, \"9k\" or \"2MiB\"",
            "^[0-9]+(\\.[0-9]+)? *([kKMGT]i?)?B?$", [2048, "9k", "2MiB"]
        );
        impl fmt::Display for Bytes {}
        impl FromStr for Bytes {}
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct PacketRate(pub u64);
        number_or_text!(
            PacketRate, "a number of packets per second, such as 1000 or \"1Mpps\"",
            "^[0-9]+(\\.[0-9]+)? *[kMGT]?pps$", [1000, "500kpps", "1Mpps"]
        );
        impl fmt::Display for PacketRate {}
        impl FromStr for PacketRate {}
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct BitRate(pub u64);
        number_or_text!(
            BitRate, "a number of bits per second, such as 1000000 or \"5Gbps\"",
            "^[0-9]+(\\.[0-9]+)? *[kMGT]?bps$", [1_000_000, "500kbps", "5Gbps"]
        );
        impl fmt::Display for BitRate {}
        impl FromStr for BitRate {}
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
        pub struct Offset(pub i64);
        impl fmt::Display for Offset {}
        impl FromStr for Offset {}
        impl Serialize for Offset {}
        impl<'de> Deserialize<'de> for Offset {}
        impl JsonSchema for Offset {}
    }
    mod range {
        pub fn within<'de, D, T, const MIN: u64, const MAX: u64>(
            deserializer: D,
        ) -> Result<T, D::Error>
        where
            D: Deserializer<'de>,
            T: TryFrom<u64>,
        {}
        pub fn within_some<'de, D, T, const MIN: u64, const MAX: u64>(
            deserializer: D,
        ) -> Result<Option<T>, D::Error>
        where
            D: Deserializer<'de>,
            T: TryFrom<u64>,
        {}
        pub fn bytes_within<'de, D, T, const MIN: u64, const MAX: u64>(
            deserializer: D,
        ) -> Result<T, D::Error>
        where
            D: Deserializer<'de>,
            T: TryFrom<u64>,
        {}
        pub fn bytes_within_some<'de, D, T, const MIN: u64, const MAX: u64>(
            deserializer: D,
        ) -> Result<Option<T>, D::Error>
        where
            D: Deserializer<'de>,
            T: TryFrom<u64>,
        {}
        pub fn within_signed<'de, D, const MIN: i64, const MAX: i64>(
            deserializer: D,
        ) -> Result<i64, D::Error>
        where
            D: Deserializer<'de>,
        {}
        pub fn probability<'de, D: Deserializer<'de>>(
            deserializer: D,
        ) -> Result<f64, D::Error> {}
    }
    pub use quantity::{BitRate, Bytes, Offset, PacketRate, Period};
    pub use range::{
        bytes_within, bytes_within_some, probability, within, within_signed, within_some,
    };
    number! {
        CoreId(u32)
    }
    number! {
        NumaNode(u32)
    }
    number! {
        QpNum(u32)
    }
    number! {
        Lkey(u32)
    }
    number! {
        Rkey(u32)
    }
    number! {
        Ticks(u64)
    }
    number! {
        Nanos(u64)
    }
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub struct Gid(pub [u8; 16]);
    impl Gid {
        pub fn is_zero(self) -> bool {}
        pub fn ipv4(self) -> Option<std::net::Ipv4Addr> {}
    }
    impl fmt::Display for Gid {}
    impl FromStr for Gid {}
    impl JsonSchema for Gid {}
    impl Serialize for Gid {}
    impl<'de> Deserialize<'de> for Gid {}
}
pub mod upgrade {
    pub fn region_descriptor(memory: &BatchMemory) -> Option<BorrowedFd<'_>> {}
    pub fn continue_pool(
        descriptor: OwnedFd,
        layout: SlotLayout,
        pages: PageKind,
    ) -> Result<Pool> {}
}
pub mod verbs {
    mod ah_cache {
        #[derive(Debug)]
        pub struct AhCache<P: ProtectionDomain> {
            private: _,
        }
        impl<P: ProtectionDomain> AhCache<P> {
            pub fn new(pd: &P, capacity: usize) -> Self {}
            pub fn get(&self, path: &Path) -> Option<&P::Ah> {}
            pub fn resolve(&mut self, path: &Path) -> Result<P::Ah, VerbError> {}
            pub fn flush(&mut self, port: u8) {}
            pub fn len(&self) -> usize {}
            pub fn is_empty(&self) -> bool {}
        }
    }
    mod attributes {
        codes! {
            QpType { Rc = 2 "IBV_QPT_RC", Uc = 3 "IBV_QPT_UC", Ud = 4 "IBV_QPT_UD",
            RawPacket = 8 "IBV_QPT_RAW_PACKET", XrcSend = 9 "IBV_QPT_XRC_SEND", XrcRecv =
            10 "IBV_QPT_XRC_RECV", Driver = 255 "IBV_QPT_DRIVER", }
        }
        codes! {
            QpState { Reset = 0 "IBV_QPS_RESET", Init = 1 "IBV_QPS_INIT", Rtr = 2
            "IBV_QPS_RTR", Rts = 3 "IBV_QPS_RTS", Sqd = 4 "IBV_QPS_SQD", Sqe = 5
            "IBV_QPS_SQE", Err = 6 "IBV_QPS_ERR", }
        }
        bitflags! {
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)] pub struct
            AttributeMask : u32 { const STATE = 1; const CUR_STATE = 1 << 1; const
            EN_SQD_ASYNC_NOTIFY = 1 << 2; const ACCESS_FLAGS = 1 << 3; const PKEY_INDEX =
            1 << 4; const PORT = 1 << 5; const QKEY = 1 << 6; const AV = 1 << 7; const
            PATH_MTU = 1 << 8; const TIMEOUT = 1 << 9; const RETRY_CNT = 1 << 10; const
            RNR_RETRY = 1 << 11; const RQ_PSN = 1 << 12; const MAX_QP_RD_ATOMIC = 1 <<
            13; const ALT_PATH = 1 << 14; const MIN_RNR_TIMER = 1 << 15; const SQ_PSN = 1
            << 16; const MAX_DEST_RD_ATOMIC = 1 << 17; const PATH_MIG_STATE = 1 << 18;
            const CAP = 1 << 19; const DEST_QPN = 1 << 20; const RATE_LIMIT = 1 << 25; }
        }
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct Path {
            pub global: bool,
            pub gid: Gid,
            pub source_gid_index: u8,
            pub hop_limit: u8,
            pub traffic_class: u8,
            pub flow_label: u32,
            pub dlid: u16,
            pub service_level: u8,
            pub source_path_bits: u8,
            pub static_rate: u8,
            pub port: u8,
        }
        impl Default for Path {}
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct QpAttributes {
            pub state: QpState,
            pub current_state: QpState,
            pub notify_drained: bool,
            pub access: Access,
            pub pkey_index: u16,
            pub port: u8,
            pub qkey: u32,
            pub path: Path,
            pub alternate_path: Path,
            pub alternate_pkey_index: u16,
            pub alternate_timeout: u8,
            pub path_migration: u8,
            pub path_mtu: u8,
            pub dest_qp: QpNum,
            pub rq_psn: u32,
            pub sq_psn: u32,
            pub max_rd_atomic: u8,
            pub max_dest_rd_atomic: u8,
            pub min_rnr_timer: u8,
            pub timeout: u8,
            pub retry_count: u8,
            pub rnr_retry: u8,
            pub rate_limit: u32,
        }
        impl Default for QpAttributes {}
        impl QpAttributes {
            pub fn to(state: QpState) -> (Self, AttributeMask) {}
            pub fn init(kind: QpType, port: u8, qkey: u32) -> (Self, AttributeMask) {}
            pub fn rtr() -> (Self, AttributeMask) {}
            pub fn rts(kind: QpType) -> (Self, AttributeMask) {}
        }
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum TransitionError {
            NoSuchTransition,
            Attributes { missing: AttributeMask, forbidden: AttributeMask },
        }
        impl fmt::Display for TransitionError {}
        impl std::error::Error for TransitionError {}
        pub fn check_transition(
            kind: QpType,
            from: QpState,
            to: QpState,
            mask: AttributeMask,
        ) -> Result<(), TransitionError> {}
    }
    mod completion {
        pub const MAX_RUN: usize = _;
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct Completion {
            pub wr_id: u64,
            pub status: WcStatus,
            pub vendor_err: u32,
            private: _,
        }
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct CompletionValues {
            pub opcode: u32,
            pub flags: WcFlags,
            pub byte_len: u32,
            pub imm: u32,
            pub qp_num: QpNum,
            pub src_qp: QpNum,
            pub slid: u32,
            pub pkey_index: Option<u16>,
            pub sl: u8,
            pub dlid_path_bits: u8,
            pub cvlan: u16,
            pub flow_tag: u32,
            pub rss_hash: Option<u32>,
            pub tag: TagInfo,
            pub ticks: Ticks,
            pub wallclock: Nanos,
        }
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct TagInfo {
            pub tag: u64,
            pub private: u32,
        }
        impl Completion {
            pub const fn new(
                wr_id: u64,
                status: WcStatus,
                vendor_err: u32,
                fields: PollFields,
                values: CompletionValues,
            ) -> Self {}
            pub const fn only(self, fields: PollFields) -> Self {}
            pub const fn values_mut(&mut self) -> &mut CompletionValues {}
            pub const fn raw_ticks(&self) -> Ticks {}
            pub fn opcode(&self) -> Option<WcOpcode> {}
            pub fn flags(&self) -> Option<WcFlags> {}
            pub fn byte_len(&self) -> Option<u32> {}
            pub fn imm(&self) -> Option<u32> {}
            pub fn invalidated_rkey(&self) -> Option<Rkey> {}
            pub fn qp_num(&self) -> Option<QpNum> {}
            pub fn src_qp(&self) -> Option<QpNum> {}
            pub fn slid(&self) -> Option<u32> {}
            pub fn pkey_index(&self) -> Option<u16> {}
            pub fn sl(&self) -> Option<u8> {}
            pub fn dlid_path_bits(&self) -> Option<u8> {}
            pub fn cvlan(&self) -> Option<u16> {}
            pub fn flow_tag(&self) -> Option<u32> {}
            pub fn rss_hash(&self) -> Option<u32> {}
            pub fn recv_info(&self) -> RecvInfo {}
            pub fn tag_info(&self) -> Option<TagInfo> {}
            pub fn ticks(&self) -> Option<Ticks> {}
            pub fn wallclock(&self) -> Option<Nanos> {}
        }
        pub trait Cursor {
            fn get(&self) -> Completion;
            fn advance(&mut self) -> Result<bool, VerbError>;
        }
        #[derive(Debug)]
        pub struct Completions {
            pub len: usize,
            pub failed: bool,
            pub in_order: bool,
            pub has_info: bool,
            pub wr_id: [u64; MAX_RUN],
            pub byte_len: [u32; MAX_RUN],
            pub ticks: [Ticks; MAX_RUN],
            pub status: [WcStatus; MAX_RUN],
            pub info: [RecvInfo; MAX_RUN],
        }
        impl Completions {
            pub fn new() -> Box<Self> {}
            pub fn clear(&mut self) {}
            pub fn infos(&self) -> &[RecvInfo] {}
            pub fn push(
                &mut self,
                wr_id: u64,
                status: WcStatus,
                byte_len: u32,
                ticks: Ticks,
            ) -> bool {}
        }
    }
    mod event {
        codes! {
            EventKind { CqErr = 0 "IBV_EVENT_CQ_ERR", QpFatal = 1 "IBV_EVENT_QP_FATAL",
            QpReqErr = 2 "IBV_EVENT_QP_REQ_ERR", QpAccessErr = 3
            "IBV_EVENT_QP_ACCESS_ERR", CommEst = 4 "IBV_EVENT_COMM_EST", SqDrained = 5
            "IBV_EVENT_SQ_DRAINED", PathMig = 6 "IBV_EVENT_PATH_MIG", PathMigErr = 7
            "IBV_EVENT_PATH_MIG_ERR", DeviceFatal = 8 "IBV_EVENT_DEVICE_FATAL",
            PortActive = 9 "IBV_EVENT_PORT_ACTIVE", PortErr = 10 "IBV_EVENT_PORT_ERR",
            LidChange = 11 "IBV_EVENT_LID_CHANGE", PkeyChange = 12
            "IBV_EVENT_PKEY_CHANGE", SmChange = 13 "IBV_EVENT_SM_CHANGE", SrqErr = 14
            "IBV_EVENT_SRQ_ERR", SrqLimitReached = 15 "IBV_EVENT_SRQ_LIMIT_REACHED",
            QpLastWqeReached = 16 "IBV_EVENT_QP_LAST_WQE_REACHED", ClientReregister = 17
            "IBV_EVENT_CLIENT_REREGISTER", GidChange = 18 "IBV_EVENT_GID_CHANGE", WqFatal
            = 19 "IBV_EVENT_WQ_FATAL", }
        }
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum EventSubject {
            CompletionQueue,
            QueuePair,
            SharedReceiveQueue,
            WorkQueue,
            Port,
            Device,
        }
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct CqEvent {
            pub queue: u32,
            pub context: u64,
        }
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct AsyncEvent {
            pub kind: EventKind,
            pub element: u32,
        }
        impl fmt::Display for AsyncEvent {}
    }
    mod flags {
        codes! {
            WrOpcode { RdmaWrite = 0 "IBV_WR_RDMA_WRITE", RdmaWriteWithImm = 1
            "IBV_WR_RDMA_WRITE_WITH_IMM", Send = 2 "IBV_WR_SEND", SendWithImm = 3
            "IBV_WR_SEND_WITH_IMM", RdmaRead = 4 "IBV_WR_RDMA_READ", AtomicCmpAndSwp = 5
            "IBV_WR_ATOMIC_CMP_AND_SWP", AtomicFetchAndAdd = 6
            "IBV_WR_ATOMIC_FETCH_AND_ADD", LocalInv = 7 "IBV_WR_LOCAL_INV", BindMw = 8
            "IBV_WR_BIND_MW", SendWithInv = 9 "IBV_WR_SEND_WITH_INV", Tso = 10
            "IBV_WR_TSO", Driver1 = 11 "IBV_WR_DRIVER1", Flush = 14 "IBV_WR_FLUSH",
            AtomicWrite = 15 "IBV_WR_ATOMIC_WRITE", }
        }
        codes! {
            WcOpcode { Send = 0 "IBV_WC_SEND", RdmaWrite = 1 "IBV_WC_RDMA_WRITE",
            RdmaRead = 2 "IBV_WC_RDMA_READ", CompSwap = 3 "IBV_WC_COMP_SWAP", FetchAdd =
            4 "IBV_WC_FETCH_ADD", BindMw = 5 "IBV_WC_BIND_MW", LocalInv = 6
            "IBV_WC_LOCAL_INV", Tso = 7 "IBV_WC_TSO", Flush = 8 "IBV_WC_FLUSH",
            AtomicWrite = 9 "IBV_WC_ATOMIC_WRITE", Recv = 128 "IBV_WC_RECV",
            RecvRdmaWithImm = 129 "IBV_WC_RECV_RDMA_WITH_IMM", TmAdd = 130
            "IBV_WC_TM_ADD", TmDel = 131 "IBV_WC_TM_DEL", TmSync = 132 "IBV_WC_TM_SYNC",
            TmRecv = 133 "IBV_WC_TM_RECV", TmNoTag = 134 "IBV_WC_TM_NO_TAG", Driver1 =
            135 "IBV_WC_DRIVER1", Driver2 = 136 "IBV_WC_DRIVER2", Driver3 = 137
            "IBV_WC_DRIVER3", }
        }
        bitflags! {
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)] pub struct
            SendFlags : u32 { const FENCE = 1; const SIGNALED = 1 << 1; const SOLICITED =
            1 << 2; const INLINE = 1 << 3; const IP_CSUM = 1 << 4; }
        }
        bitflags! {
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)] pub struct
            WcFlags : u32 { const GRH = 1; const WITH_IMM = 1 << 1; const IP_CSUM_OK = 1
            << 2; const WITH_INV = 1 << 3; const TM_SYNC_REQ = 1 << 4; const TM_MATCH = 1
            << 5; const TM_DATA_VALID = 1 << 6; }
        }
        bitflags! {
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)] pub struct
            PollFields : u64 { const BYTE_LEN = 1; const IMM = 1 << 1; const QP_NUM = 1
            << 2; const SRC_QP = 1 << 3; const SLID = 1 << 4; const SL = 1 << 5; const
            DLID_PATH_BITS = 1 << 6; const TIMESTAMP = 1 << 7; const CVLAN = 1 << 8;
            const FLOW_TAG = 1 << 9; const TM_INFO = 1 << 10; const WALLCLOCK = 1 << 11;
            const CHECKSUM = 1 << 32; const RSS_HASH = 1 << 33; const STANDARD = 0x7f;
            const RECV_INFO = 1 << 8 | 1 << 9 | 1 << 32 | 1 << 33; }
        }
        bitflags! {
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)] pub struct
            CqFlags : u32 { const SINGLE_THREADED = 1; const IGNORE_OVERRUN = 1 << 1; }
        }
        bitflags! {
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)] pub struct Access
            : u32 { const LOCAL_WRITE = 1; const REMOTE_WRITE = 1 << 1; const REMOTE_READ
            = 1 << 2; const REMOTE_ATOMIC = 1 << 3; const MW_BIND = 1 << 4; const
            ZERO_BASED = 1 << 5; const ON_DEMAND = 1 << 6; const HUGETLB = 1 << 7; const
            RELAXED_ORDERING = 1 << 20; }
        }
    }
    mod owner {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Claim {
            Temporary,
            Permanent,
        }
        #[derive(Debug)]
        pub struct QueueOwner {
            private: _,
        }
        impl QueueOwner {
            pub fn new(exclusive: bool) -> Self {}
            pub const fn is_exclusive(&self) -> bool {}
            pub fn claim_permanently(&self) -> bool {}
            pub fn claim(&self, kind: Claim) -> Option<ClaimGuard<'_>> {}
            pub fn release(&self) -> bool {}
        }
        #[derive(Debug)]
        pub struct ClaimGuard<'a>(_, _);
        impl Drop for ClaimGuard<'_> {}
    }
    mod raw {
        mod check {
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            pub struct MatchedField {
                pub name: &'static str,
                pub partial: bool,
            }
            impl FlowRule {
                pub fn matched_fields(&self) -> Vec<MatchedField> {}
                pub fn partial_masks(&self) -> Vec<&'static str> {}
                pub fn check(&self) -> Result<(), FlowError> {}
            }
        }
        mod flow {
            #[derive(Clone, Copy, PartialEq, Eq, Hash)]
            pub struct MaskedValue<const N: usize> {
                private: _,
            }
            impl<const N: usize> MaskedValue<N> {
                pub const ANY: Self = _;
                pub const fn exact(value: [u8; N]) -> Self {}
                pub fn masked(value: [u8; N], mask: [u8; N]) -> Self {}
                pub fn prefix(value: [u8; N], length: u8) -> Self {}
                pub const fn value(&self) -> &[u8; N] {}
                pub const fn mask(&self) -> &[u8; N] {}
                pub fn is_any(&self) -> bool {}
            }
            impl<const N: usize> Default for MaskedValue<N> {}
            impl<const N: usize> fmt::Debug for MaskedValue<N> {}
            impl From<u8> for MaskedValue<1> {}
            impl From<u16> for MaskedValue<2> {}
            impl From<u32> for MaskedValue<4> {}
            impl From<[u8; 6]> for MaskedValue<6> {}
            impl From<Ipv4Addr> for MaskedValue<4> {}
            impl From<Ipv6Addr> for MaskedValue<16> {}
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
            pub struct EthernetMatch {
                pub dst: MaskedValue<6>,
                pub src: MaskedValue<6>,
                pub ether_type: MaskedValue<2>,
                pub vlan_tag: MaskedValue<2>,
            }
            impl EthernetMatch {
                pub fn vlan(id: u16) -> MaskedValue<2> {}
            }
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
            pub struct Ipv4Match {
                pub src: MaskedValue<4>,
                pub dst: MaskedValue<4>,
                pub protocol: MaskedValue<1>,
                pub tos: MaskedValue<1>,
                pub ttl: MaskedValue<1>,
                pub flags: MaskedValue<1>,
            }
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
            pub struct Ipv6Match {
                pub src: MaskedValue<16>,
                pub dst: MaskedValue<16>,
                pub flow_label: MaskedValue<4>,
                pub next_header: MaskedValue<1>,
                pub traffic_class: MaskedValue<1>,
                pub hop_limit: MaskedValue<1>,
            }
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            pub enum IpMatch {
                V4(Ipv4Match),
                V6(Ipv6Match),
            }
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
            pub struct PortsMatch {
                pub src: MaskedValue<2>,
                pub dst: MaskedValue<2>,
            }
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            pub enum TransportMatch {
                Tcp(PortsMatch),
                Udp(PortsMatch),
            }
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
            pub struct HeaderMatch {
                pub ethernet: Option<EthernetMatch>,
                pub ip: Option<IpMatch>,
                pub transport: Option<TransportMatch>,
            }
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            pub enum TunnelMatch {
                Vxlan { vni: MaskedValue<4> },
                Gre {
                    flags: MaskedValue<2>,
                    protocol: MaskedValue<2>,
                    key: MaskedValue<4>,
                },
                Mpls { label: MaskedValue<4> },
            }
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            pub enum FlowTraffic {
                Headers {
                    outer: HeaderMatch,
                    tunnel: Option<(TunnelMatch, HeaderMatch)>,
                },
                AllDefault,
                MulticastDefault,
                Sniffer,
            }
            impl FlowTraffic {
                pub const ANY_HEADERS: Self = _;
            }
            #[derive(Clone, Debug)]
            pub struct FlowRule {
                pub port: u8,
                pub priority: u16,
                pub traffic: FlowTraffic,
                pub tag: Option<u32>,
                pub drop: bool,
                pub count: Option<Arc<dyn FlowCounters>>,
                pub dont_trap: bool,
            }
            impl FlowRule {
                pub fn new(traffic: FlowTraffic) -> Self {}
            }
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            pub struct FlowLimits {
                pub driver: &'static str,
                pub priorities: Option<u16>,
                pub rss_levels: u16,
                pub unsupported_fields: &'static [&'static str],
                pub unsupported_headers: &'static [&'static str],
                pub unsupported_actions: &'static [&'static str],
            }
            impl Default for FlowLimits {}
            impl FlowLimits {
                pub const NONE: Self = _;
                pub fn check(
                    &self,
                    rule: &FlowRule,
                    queues: u16,
                ) -> Result<(), FlowError> {}
            }
            #[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
            pub enum FlowError {
                Port,
                TransportWithoutIp(&'static str),
                EtherType { ether_type: u16, ip: &'static str },
                Protocol { protocol: u8, inside: &'static str },
                Tunnel {
                    tunnel: &'static str,
                    over: &'static str,
                    wanted: &'static str,
                },
                UnsupportedField { driver: &'static str, field: &'static str },
                UnsupportedHeader { driver: &'static str, header: &'static str },
                UnsupportedAction { driver: &'static str, action: &'static str },
                Priority {
                    driver: &'static str,
                    priority: u16,
                    last: u32,
                    queues: &'static str,
                },
                OtherDevice,
                Width { field: &'static str, value: u32, bits: u8 },
                ActionWithoutHeaders(&'static str),
                DontTrapWithoutHeaders,
                DontTrapWithSeveralQueues { driver: &'static str },
                DropWith(&'static str),
                Refused { error: VerbError, partial: Vec<&'static str> },
            }
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
            pub struct FlowCount {
                pub packets: u64,
                pub bytes: u64,
            }
            pub trait FlowCounters: Any + fmt::Debug + Send + Sync {
                fn read(&self) -> Result<FlowCount, VerbError>;
            }
        }
        mod offload {
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
            pub struct RawPacketCaps {
                pub flow_rules: bool,
                pub flow: FlowLimits,
                pub rx_checksum: bool,
                pub tx_checksum: bool,
                pub vlan_strip: bool,
                pub scatter_fcs: bool,
                pub delay_drop: bool,
                pub max_tso: u32,
                pub pacing: Option<(u32, u32)>,
                pub rss: Option<RssCaps>,
            }
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
            pub struct RssCaps {
                pub max_tables: u32,
                pub max_table_size: u32,
                pub max_work_queues: u32,
                pub fields: u64,
            }
            #[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
            pub enum RawError {
                Lacks { what: &'static str, remedy: &'static str },
                Range { what: &'static str, asked: u64, least: u64, most: u64 },
                Flow(FlowError),
                Burst(VerbError),
                Verb(VerbError),
            }
            impl RawError {
                pub const fn lacks(what: &'static str, remedy: &'static str) -> Self {}
                pub fn check_range(
                    what: &'static str,
                    asked: u64,
                    least: u64,
                    most: u64,
                ) -> Result<(), Self> {}
                pub fn verb_error(&self) -> VerbError {}
            }
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
            pub struct RawReceive {
                pub vlan_strip: bool,
                pub scatter_fcs: bool,
                pub delay_drop: bool,
            }
            impl RawReceive {
                pub fn check(&self, caps: &RawPacketCaps) -> Result<(), RawError> {}
                pub fn check_single_queue(&self) -> Result<(), RawError> {}
            }
            pub fn frame_length(received: u32, scatter_fcs: bool) -> u32 {}
            pub fn checksum_covers_payload(frame: &[u8]) -> bool {}
            #[derive(
                Clone,
                Copy,
                Debug,
                Default,
                PartialEq,
                Eq,
                Serialize,
                Deserialize,
                JsonSchema
            )]
            pub struct RateLimit {
                pub kbps: u32,
                pub burst: u32,
                pub typical_packet_size: u16,
            }
            impl RateLimit {
                pub fn check(&self, caps: &RawPacketCaps) -> Result<(), RawError> {}
            }
        }
        pub use check::MatchedField;
        pub use flow::{
            EthernetMatch, FlowCount, FlowCounters, FlowError, FlowLimits, FlowRule,
            FlowTraffic, HeaderMatch, IpMatch, Ipv4Match, Ipv6Match, MaskedValue,
            PortsMatch, TransportMatch, TunnelMatch,
        };
        pub use offload::{
            RateLimit, RawError, RawPacketCaps, RawReceive, RssCaps,
            checksum_covers_payload, frame_length,
        };
        pub trait RawDevice: Device {
            fn raw_caps(&self) -> RawPacketCaps;
            #[must_use]
            fn with_raw(self, spec: RawSpec) -> Self;
            fn create_flow_counters(&self) -> Result<Arc<dyn FlowCounters>, VerbError>;
            fn check_raw(&self, spec: &RawSpec, queues: u16) -> Result<(), Error> {}
        }
        #[derive(Clone, Debug)]
        pub struct RawSpec {
            pub receive: RawReceive,
            pub rss: RssSpec,
            pub rules: Vec<FlowRule>,
            pub max_tso_header: u16,
            pub checksum: bool,
            pub rate: Option<RateLimit>,
        }
        impl Default for RawSpec {}
        impl RawSpec {
            pub fn check(
                &self,
                caps: &RawPacketCaps,
                queues: u16,
            ) -> Result<(), RawError> {}
        }
    }
    mod request {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(C)]
        pub struct Sge {
            pub addr: u64,
            pub length: u32,
            pub lkey: Lkey,
        }
        #[derive(Clone, Copy, Debug)]
        pub struct RecvRequest<'a> {
            pub wr_id: u64,
            pub sges: &'a [Sge],
        }
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Remote {
            pub addr: u64,
            pub rkey: Rkey,
        }
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum SendOp<'a> {
            Send,
            SendWithImm(u32),
            SendWithInv(Rkey),
            RdmaWrite(Remote),
            RdmaWriteWithImm(Remote, u32),
            RdmaRead(Remote),
            CompareSwap { remote: Remote, compare: u64, swap: u64 },
            FetchAdd { remote: Remote, add: u64 },
            LocalInv(Rkey),
            Tso { header: &'a [u8], mss: u16 },
        }
        impl SendOp<'_> {
            pub const fn opcode(&self) -> WrOpcode {}
        }
        #[derive(Debug, PartialEq, Eq)]
        pub struct Destination<'a, A> {
            pub ah: &'a A,
            pub qp: QpNum,
            pub qkey: u32,
        }
        impl<A> Clone for Destination<'_, A> {}
        impl<A> Copy for Destination<'_, A> {}
        #[derive(Debug)]
        pub struct SendRequest<'a, A> {
            pub wr_id: u64,
            pub op: SendOp<'a>,
            pub flags: SendFlags,
            pub sges: &'a [Sge],
            pub to: Option<Destination<'a, A>>,
        }
        impl<A> Clone for SendRequest<'_, A> {}
        impl<A> Copy for SendRequest<'_, A> {}
        #[derive(Clone, Copy, Debug)]
        pub struct MwBind<'a, M> {
            pub wr_id: u64,
            pub flags: SendFlags,
            pub mr: &'a M,
            pub addr: u64,
            pub length: u64,
            pub access: Access,
        }
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct PostError {
            pub accepted: usize,
            pub error: VerbError,
        }
        impl fmt::Display for PostError {}
        impl std::error::Error for PostError {}
    }
    mod rss {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub struct RssFields {
            pub ipv4: bool,
            pub ipv6: bool,
            pub tcp: bool,
            pub udp: bool,
        }
        impl RssFields {
            pub const ALL: Self = _;
            pub const NONE: Self = _;
        }
        impl From<Vec<RssField>> for RssFields {}
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct RssKey(pub [u8; 40]);
        impl RssKey {
            pub const STANDARD: Self = _;
            pub const SYMMETRIC: Self = _;
        }
        impl fmt::Display for RssKey {}
        impl FromStr for RssKey {}
        impl Serialize for RssKey {}
        impl<'de> Deserialize<'de> for RssKey {}
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        pub struct RssSpec {
            pub key: RssKey,
            pub fields: RssFields,
        }
        impl RssSpec {
            pub const STANDARD: Self = _;
            pub const SYMMETRIC: Self = _;
        }
        impl Default for RssSpec {}
    }
    mod spec {
        #[derive(Clone, Debug, Serialize)]
        pub struct DeviceInfo {
            pub name: String,
            pub driver: String,
            pub node: Option<NumaNode>,
            pub capabilities: Result<Capabilities, String>,
            pub missing: Vec<Missing>,
            pub queue: Option<CqGranted>,
            pub library: Option<String>,
            pub quirks: Vec<String>,
        }
        impl DeviceInfo {
            pub fn unusable(name: String, why: String) -> Self {}
        }
        #[derive(Clone, Debug, PartialEq, Eq, Serialize)]
        pub struct Missing {
            pub capability: Capability,
            pub why: String,
        }
        #[derive(
            Clone,
            Copy,
            Debug,
            PartialEq,
            Eq,
            PartialOrd,
            Ord,
            Hash,
            Serialize,
            Deserialize,
            JsonSchema
        )]
        pub enum Capability {
            RawPacket,
            Datagram,
            Rc,
            Uc,
            Srq,
            MemoryWindow,
            Atomic,
            Multicast,
            Events,
            ExtendedCq,
            Timestamps,
            WallclockTimestamps,
            SingleThreaded,
            IgnoreOverrun,
            Inline,
            Rss,
            FlowTag,
            Cvlan,
            FlowRules,
            RxChecksum,
            TxChecksum,
            VlanStrip,
            Fcs,
            DelayDrop,
            RssHash,
            Tso,
            Pacing,
            TagMatching,
            ExtendedSend,
            ParentDomain,
        }
        impl Capability {
            pub const ALL: [Self; 30] = _;
            pub const fn name(self) -> &'static str {}
        }
        impl fmt::Display for Capability {}
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
        pub struct Capabilities {
            pub firmware: String,
            pub ports: u8,
            pub max_qp: u32,
            pub max_qp_wr: u32,
            pub max_sge: u32,
            pub max_cq: u32,
            pub max_cqe: u32,
            pub max_mr: u32,
            pub max_mr_size: u64,
            pub timestamp_mask: u64,
            pub clock_khz: u64,
            pub max_srq: u32,
            pub max_srq_wr: u32,
            pub max_rd_atomic: u32,
            pub max_init_rd_atomic: u32,
            pub path_migration: bool,
            pub completion_vectors: u32,
            pub has: Vec<Capability>,
        }
        codes! {
            PortState { Nop = 0 "IBV_PORT_NOP", Down = 1 "IBV_PORT_DOWN", Init = 2
            "IBV_PORT_INIT", Armed = 3 "IBV_PORT_ARMED", Active = 4 "IBV_PORT_ACTIVE",
            ActiveDefer = 5 "IBV_PORT_ACTIVE_DEFER", }
        }
        codes! {
            LinkLayer { Unspecified = 0 "IBV_LINK_LAYER_UNSPECIFIED", InfiniBand = 1
            "IBV_LINK_LAYER_INFINIBAND", Ethernet = 2 "IBV_LINK_LAYER_ETHERNET", }
        }
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct PortAttributes {
            pub state: PortState,
            pub link_layer: LinkLayer,
            pub max_mtu: u32,
            pub active_mtu: u32,
            pub max_message: u32,
            pub gids: u32,
            pub pkeys: u16,
            pub lid: u16,
            pub lmc: u8,
            pub grh_required: bool,
            pub lanes: u8,
            pub lane_speed: u64,
        }
        impl PortAttributes {
            pub fn speed(&self) -> u64 {}
            pub fn is_active(&self) -> bool {}
        }
        codes! {
            #[derive(Serialize, Deserialize, JsonSchema)] #[serde(rename_all =
            "snake_case")] GidKind unknown = #[serde(skip)] { #[serde(rename =
            "infiniband")] InfiniBand = 0 "IBV_GID_TYPE_IB", RoceV1 = 1
            "IBV_GID_TYPE_ROCE_V1", RoceV2 = 2 "IBV_GID_TYPE_ROCE_V2", }
        }
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Ece {
            pub vendor: u32,
            pub options: u32,
        }
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct GidEntry {
            pub index: u32,
            pub gid: Gid,
            pub kind: GidKind,
            pub interface: u32,
        }
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
        pub enum CqApi {
            Auto,
            Classic,
            Extended,
            ExtendedSingle,
        }
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
        pub enum SendApi {
            Classic,
            Extended,
        }
        #[derive(Clone, Copy, Debug, Default)]
        pub struct CqSpec {
            pub depth: u32,
            pub fields: PollFields,
            pub flags: CqFlags,
            pub vector: u32,
            pub api: CqApi,
            pub context: u64,
        }
        #[derive(Clone, Debug, PartialEq, Eq, Serialize)]
        pub struct CqGranted {
            pub depth: u32,
            pub fields: PollFields,
            pub flags: CqFlags,
            pub api: CqApi,
            pub stamps: ClockSource,
            pub refused: Vec<Capability>,
            pub why: Vec<String>,
        }
        impl fmt::Display for CqGranted {}
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
        pub struct QpCaps {
            pub send_depth: u32,
            pub recv_depth: u32,
            pub send_sges: u32,
            pub recv_sges: u32,
            pub inline: u32,
        }
        #[derive(Clone, Copy, Debug)]
        pub struct QpSpec {
            pub kind: QpType,
            pub caps: QpCaps,
            pub signal_all: bool,
            pub send_api: SendApi,
            pub queue: (u16, u16),
        }
        impl QpSpec {
            pub fn new(kind: QpType, caps: QpCaps) -> Self {}
        }
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct SrqSpec {
            pub depth: u32,
            pub sges: u32,
        }
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum MwKind {
            Type1 = 1,
            Type2 = 2,
        }
    }
    mod status {
        statuses! {
            Success = 0 "IBV_WC_SUCCESS", "success",
            "no error; every earlier unsignalled request of the send queue succeeded too";
            LocLenErr = 1 "IBV_WC_LOC_LEN_ERR", "local length error",
            "a message or a raw frame longer than the posted receive, or a send longer than the queue pair permits";
            LocQpOpErr = 2 "IBV_WC_LOC_QP_OP_ERR", "local QP operation error",
            "an opcode that this type of queue pair does not have, or an address handle of another protection domain";
            LocEecOpErr = 3 "IBV_WC_LOC_EEC_OP_ERR", "local EE context operation error",
            "a driver bug: this status is only for reliable datagrams, which no device supports";
            LocProtErr = 4 "IBV_WC_LOC_PROT_ERR", "local protection error",
            "a scatter/gather element with a wrong lkey, outside its region, of another protection domain, or without \
         local write access";
            WrFlushErr = 5 "IBV_WC_WR_FLUSH_ERR", "work request flushed error",
            "the queue pair is in the error state; the first failed completion has the reason";
            MwBindErr = 6 "IBV_WC_MW_BIND_ERR", "memory bind operation error",
            "a memory window of another protection domain, or access that its region does not permit";
            BadRespErr = 7 "IBV_WC_BAD_RESP_ERR", "bad response error",
            "a response that does not match the request: the peers disagree on the state of the connection";
            LocAccessErr = 8 "IBV_WC_LOC_ACCESS_ERR", "local access error",
            "the peer wrote with immediate data, and the local region does not permit the write";
            RemInvReqErr = 9 "IBV_WC_REM_INV_REQ_ERR", "remote invalid request error",
            "the peer has not enabled the operation, its receive is too small, or an atomic is not aligned to 8 bytes";
            RemAccessErr = 10 "IBV_WC_REM_ACCESS_ERR", "remote access error",
            "a wrong rkey, an address outside the peer's region, or access that the region does not permit";
            RemOpErr = 11 "IBV_WC_REM_OP_ERR", "remote operation error",
            "the peer could not finish the operation: its own completion has the reason";
            RetryExcErr = 12 "IBV_WC_RETRY_EXC_ERR", "transport retry counter exceeded",
            "no acknowledgement from the peer: the peer is gone, its number or address is wrong, or the path loses packets";
            RnrRetryExcErr = 13 "IBV_WC_RNR_RETRY_EXC_ERR",
            "receiver-not-ready retry counter exceeded",
            "the peer posted no receive in time"; LocRddViolErr = 14
            "IBV_WC_LOC_RDD_VIOL_ERR", "local RDD violation error",
            "a driver bug: this status is only for reliable datagrams, which no device supports";
            RemInvRdReqErr = 15 "IBV_WC_REM_INV_RD_REQ_ERR", "remote invalid RD request",
            "a driver bug: this status is only for reliable datagrams, which no device supports";
            RemAbortErr = 16 "IBV_WC_REM_ABORT_ERR", "remote aborted error",
            "the peer aborted the operation"; InvEecnErr = 17 "IBV_WC_INV_EECN_ERR",
            "invalid EE context number",
            "a driver bug: this status is only for reliable datagrams, which no device supports";
            InvEecStateErr = 18 "IBV_WC_INV_EEC_STATE_ERR", "invalid EE context state",
            "a driver bug: this status is only for reliable datagrams, which no device supports";
            FatalErr = 19 "IBV_WC_FATAL_ERR", "fatal error",
            "the device or the transport failed permanently: check for a DEVICE_FATAL event and read the kernel log";
            RespTimeoutErr = 20 "IBV_WC_RESP_TIMEOUT_ERR", "response timeout error",
            "the response of the peer came too late"; GeneralErr = 21
            "IBV_WC_GENERAL_ERR", "general error",
            "a kernel interface is down or deleted, or refused the frame; on an RDMA device, vendor_err has the cause";
            TmErr = 22 "IBV_WC_TM_ERR", "tag matching error",
            "the tag-matching list of the device differs from the list of the application";
            TmRndvIncomplete = 23 "IBV_WC_TM_RNDV_INCOMPLETE",
            "tag matching rendezvous left to software",
            "a rendezvous message that the device leaves for software to complete";
        }
    }
    mod wr_id {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum WrKind {
            Receive = 1,
            Send = 2,
            Marker = 3,
        }
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct WrId(pub u64);
        impl WrId {
            pub const NUMBER: u64 = _;
            pub const fn new(kind: WrKind, generation: u16, number: u64) -> Self {}
            pub const fn number(self) -> u64 {}
            pub const fn tag(self) -> u64 {}
        }
    }
    pub use crate::mem::{RecvFlags, RecvInfo};
    pub use ah_cache::AhCache;
    pub use attributes::{
        AttributeMask, Path, QpAttributes, QpState, QpType, TransitionError,
        check_transition,
    };
    pub use completion::{
        Completion, CompletionValues, Completions, Cursor, MAX_RUN, TagInfo,
    };
    pub use event::{AsyncEvent, CqEvent, EventKind, EventSubject};
    pub use flags::{Access, CqFlags, PollFields, SendFlags, WcFlags, WcOpcode, WrOpcode};
    pub use owner::{Claim, ClaimGuard, QueueOwner};
    pub use raw::{
        EthernetMatch, FlowCount, FlowCounters, FlowError, FlowLimits, FlowRule,
        FlowTraffic, HeaderMatch, IpMatch, Ipv4Match, Ipv6Match, MaskedValue,
        MatchedField, PortsMatch, RateLimit, RawDevice, RawError, RawPacketCaps,
        RawReceive, RawSpec, RssCaps, TransportMatch, TunnelMatch,
        checksum_covers_payload, frame_length,
    };
    pub use request::{
        Destination, MwBind, PostError, RecvRequest, Remote, SendOp, SendRequest, Sge,
    };
    pub use rss::{RssFields, RssKey, RssSpec};
    pub use spec::{
        Capabilities, Capability, CqApi, CqGranted, CqSpec, DeviceInfo, Ece, GidEntry,
        GidKind, LinkLayer, Missing, MwKind, PortAttributes, PortState, QpCaps, QpSpec,
        SendApi, SrqSpec,
    };
    pub use status::WcStatus;
    pub use wr_id::{WrId, WrKind};
    pub trait Provider: 'static {
        type Device: Device;
        fn devices(&self) -> Result<Vec<DeviceInfo>>;
        fn open(&self, name: &str) -> Result<Self::Device>;
    }
    pub unsafe trait Device: Clone + Send + Sync + 'static {
        type Pd: ProtectionDomain<Cq = Self::Cq>;
        type Cq: CompletionQueue;
        type Channel: CompletionChannel;
        fn name(&self) -> &str;
        fn capabilities(&self) -> &Capabilities;
        fn missing_reason(&self, _: Capability) -> Option<&str> {}
        fn checks_every_key(&self) -> bool;
        fn port(&self, port: u8) -> Result<PortAttributes, VerbError>;
        fn gids(&self, port: u8) -> Result<Vec<GidEntry>, VerbError>;
        fn gid(&self, port: u8, index: u32) -> Result<GidEntry, VerbError> {}
        fn pkey(&self, port: u8, index: u16) -> Result<u16, VerbError>;
        fn timebase(&self) -> Timebase;
        fn wallclock_is_system(&self) -> bool {}
        fn raw_clock(&self) -> Result<Ticks, VerbError>;
        fn alloc_pd(&self) -> Result<Self::Pd, VerbError>;
        fn create_channel(&self) -> Result<Self::Channel, VerbError>;
        fn create_cq(
            &self,
            spec: &CqSpec,
            channel: Option<&Self::Channel>,
        ) -> Result<(Self::Cq, CqGranted), VerbError>;
        fn create_cq_in(
            &self,
            domain: &Self::Pd,
            spec: &CqSpec,
            channel: Option<&Self::Channel>,
        ) -> Result<(Self::Cq, CqGranted), VerbError> {}
        fn wait_async_event(&self, timeout: Duration) -> Option<AsyncEvent>;
        fn poll_async_event(&self) -> Option<AsyncEvent> {}
    }
    pub trait CompletionChannel: Clone + Send + Sync + 'static {
        fn wait_event(&self, timeout: Duration) -> Result<Option<CqEvent>, VerbError>;
        fn wait(&self, timeout: Duration) -> Result<Option<u32>, VerbError> {}
        fn descriptor(&self) -> Option<BorrowedFd<'_>> {}
    }
    pub unsafe trait ProtectionDomain: Clone + Send + Sync + 'static {
        type Mr: MemoryRegion;
        type Qp: QueuePair<Mr = Self::Mr, Ah = Self::Ah, Mw = Self::Mw>;
        type Cq: CompletionQueue;
        type Srq: SharedReceiveQueue;
        type Ah: AddressHandle;
        type Mw: MemoryWindow;
        fn register_part(
            &self,
            region: Arc<Region>,
            part: Range<usize>,
            access: Access,
        ) -> Result<Self::Mr, VerbError>;
        fn register(
            &self,
            region: Arc<Region>,
            access: Access,
        ) -> Result<Self::Mr, VerbError> {}
        fn keep_mapped(&self, region: Arc<Region>);
        fn alloc_parent(&self) -> Result<Self, VerbError> {}
        fn alloc_mw(&self, kind: MwKind) -> Result<Self::Mw, VerbError>;
        fn create_ah(&self, path: &Path) -> Result<Self::Ah, VerbError>;
        fn create_srq(&self, spec: &SrqSpec) -> Result<Self::Srq, VerbError>;
        fn create_qp(
            &self,
            spec: &QpSpec,
            send: &Self::Cq,
            recv: &Self::Cq,
            srq: Option<&Self::Srq>,
        ) -> Result<Self::Qp, VerbError>;
    }
    pub fn register_error(error: VerbError, device: &str, bytes: usize) -> Error {}
    pub unsafe trait MemoryRegion: Clone + fmt::Debug + Send + Sync + 'static {
        fn lkey(&self) -> Lkey;
        fn rkey(&self) -> Rkey;
        fn region(&self) -> &Arc<Region>;
    }
    pub trait MemoryWindow: fmt::Debug + Send + 'static {
        fn kind(&self) -> MwKind;
        fn rkey(&self) -> Rkey;
    }
    pub trait AddressHandle: Clone + fmt::Debug + Send + Sync + 'static {
        fn path(&self) -> &Path;
    }
    pub unsafe trait CompletionQueue: Send {
        type Cursor<'cq>: Cursor where Self: 'cq;
        fn number(&self) -> u32;
        fn context(&self) -> u64;
        fn depth(&self) -> u32;
        fn start_poll(&mut self) -> Result<Option<Self::Cursor<'_>>, VerbError>;
        fn poll_run(
            &mut self,
            run: &mut Completions,
            limit: usize,
        ) -> Result<usize, VerbError>;
        fn release_claim(&self);
        fn arm(&mut self, solicited_only: bool) -> Result<(), VerbError>;
        fn resize(&mut self, depth: u32) -> Result<u32, VerbError>;
        fn moderate(&mut self, count: u16, period: u16) -> Result<(), VerbError> {}
    }
    pub unsafe trait SharedReceiveQueue: Clone + Send {
        fn number(&self) -> u32;
        fn depth(&self) -> u32;
        unsafe fn post_recv(
            &mut self,
            requests: &[RecvRequest<'_>],
        ) -> Result<(), PostError>;
        fn arm_limit(&mut self, limit: u32) -> Result<(), VerbError>;
        fn limit(&self) -> Result<u32, VerbError>;
        fn resize(&mut self, depth: u32) -> Result<(), VerbError>;
    }
    pub unsafe trait QueuePair: Send {
        type Mr: MemoryRegion;
        type Ah: AddressHandle;
        type Mw: MemoryWindow;
        fn number(&self) -> QpNum;
        fn kind(&self) -> QpType;
        fn caps(&self) -> QpCaps;
        fn work_queue(&self) -> Option<u32> {}
        fn state(&self) -> QpState;
        fn query(&self) -> Result<QpAttributes, VerbError>;
        fn ece(&self) -> Result<Ece, VerbError> {}
        fn set_ece(&mut self, ece: Ece) -> Result<Ece, VerbError> {}
        fn modify(
            &mut self,
            attributes: &QpAttributes,
            mask: AttributeMask,
        ) -> Result<(), VerbError>;
        fn bind_slots(
            &mut self,
            mr: &Self::Mr,
            layout: SlotLayout,
            recv_wr_id: u64,
        ) -> Result<(), VerbError>;
        unsafe fn post_recv(
            &mut self,
            requests: &[RecvRequest<'_>],
        ) -> Result<(), PostError>;
        unsafe fn post_recv_run(&mut self, slots: &[u32]) -> Result<(), PostError>;
        unsafe fn post_send(
            &mut self,
            requests: &[SendRequest<'_, Self::Ah>],
        ) -> Result<(), PostError>;
        fn bind_mw(
            &mut self,
            mw: &mut Self::Mw,
            bind: &MwBind<'_, Self::Mr>,
        ) -> Result<(), PostError>;
        fn destroy(self) -> Result<(), VerbError>
        where
            Self: Sized;
        fn bind_peer(&mut self, to: Destination<'_, Self::Ah>) -> Result<(), VerbError>;
        fn attach_multicast(&mut self, group: Gid, lid: u16) -> Result<(), VerbError>;
        fn detach_multicast(&mut self, group: Gid, lid: u16) -> Result<(), VerbError>;
        unsafe fn post_send_run(
            &mut self,
            run: &Run<'_>,
            first_wr_id: u64,
        ) -> Result<(), PostError>;
        fn sends_complete_immediately(&self) -> bool {}
        fn source_ended(&self) -> bool {}
    }
}
pub use error::{Error, Result};
