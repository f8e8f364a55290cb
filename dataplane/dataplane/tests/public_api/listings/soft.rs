mod channel {
    #[derive(Clone, Debug)]
    pub struct SoftChannel {
        private: _,
    }
    impl CompletionChannel for SoftChannel {}
}
mod counter {
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub struct CounterSpec {
        pub khz: u64,
        pub reports_khz: bool,
        pub bits: u32,
        pub drift_ppb: i64,
        pub start: u64,
        pub wall_ahead: Offset,
        pub events: Vec<CounterEvent>,
    }
    impl Default for CounterSpec {}
    impl CounterSpec {
        pub fn mask(&self) -> u64 {}
    }
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub struct CounterEvent {
        pub at: Period,
        pub kind: CounterEventKind,
        pub value: i64,
    }
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum CounterEventKind {
        Jump,
        Set,
        Freeze,
        Resume,
        Drift,
        FailReads,
        AllowReads,
    }
}
mod counters {
    counters! {
        rx_packets, rx_bytes, rx_out_of_buffer, rx_too_long, rx_gso_too_long,
        rx_unmatched, rx_missed, rx_completed, rx_split, tx_packets, tx_bytes,
        tx_link_down, tx_queue_full, tx_refused, tx_lost, qkey_violations,
        pkey_violations, tx_retries, rnr_naks, rx_duplicates, kernel_rx_dropped,
        kernel_rx_ring_full, kernel_rx_no_buffer, kernel_rx_invalid, kernel_tx_invalid,
        faults,
    }
}
mod cq {
    #[derive(Debug)]
    pub struct SoftCq(_, _);
    #[derive(Debug)]
    pub struct SoftCursor<'cq> {
        private: _,
    }
    impl Cursor for SoftCursor<'_> {}
    unsafe impl CompletionQueue for SoftCq {}
}
mod device {
    #[derive(Clone, Debug)]
    pub struct SoftDevice(_, _);
    impl SoftDevice {
        pub fn new(spec: SoftSpec) -> Result<Self> {}
        pub fn gid(&self) -> Gid {}
        pub fn set_gids(&self, gids: &[Gid]) {}
        pub fn set_link(&self, up: bool) {}
        pub fn remove(&self) {}
        pub fn counters(&self) -> SoftCounters {}
        pub fn queue_counters(&self) -> Vec<(QpNum, SoftCounters)> {}
        pub fn check_queues(&self, queues: u16) -> Result<()> {}
        pub fn distribute(&self, queues: u16) -> Result<()> {}
        pub fn wire_error(&self) -> Option<Error> {}
        pub fn describe_link(&self) -> Option<String> {}
        pub fn finish(&self) -> Result<()> {}
    }
    unsafe impl Device for SoftDevice {}
    impl RawDevice for SoftDevice {}
    #[derive(Clone, Debug, Default)]
    pub struct SoftProvider(_);
    impl SoftProvider {
        pub fn new(devices: Vec<SoftDevice>) -> Self {}
    }
    impl Provider for SoftProvider {}
}
mod fabric {
    mod shared_receive {
        #[derive(Clone, Debug)]
        pub struct SoftSrq {
            private: _,
        }
        unsafe impl SharedReceiveQueue for SoftSrq {}
    }
    pub use shared_receive::SoftSrq;
}
mod fault {
    #[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
    pub struct FaultSpec {
        pub seed: u64,
        pub loss: f64,
        pub duplicate: f64,
        pub reorder: f64,
        pub corrupt: f64,
        pub delay: f64,
        pub delay_by: Period,
        pub clock_busy: f64,
        pub rx_error: f64,
        pub rx_status: WcStatus,
        pub tx_error: f64,
        pub tx_status: WcStatus,
        pub flap: f64,
        pub removal: f64,
        pub flap_frames: u32,
        pub post_error: f64,
        pub post_error_at: u64,
        pub post_errno: i32,
        pub bogus_completion: f64,
        pub poll_invalid: f64,
        pub poll_error: f64,
        pub no_flush: bool,
        pub memlock: Option<u64>,
        pub no_net_raw: bool,
    }
    impl Default for FaultSpec {}
    impl FaultSpec {
        pub fn is_none(&self) -> bool {}
    }
}
mod hand_over {
    #[derive(Debug)]
    pub struct HandedQueue {
        pub queue: u16,
        pub descriptors: Vec<OwnedFd>,
        pub position: Vec<u64>,
        pub posted: Vec<u32>,
    }
    pub trait HandOver: Send + Sync {
        fn shares_memory(&self) -> bool {}
        fn detach(&self, queues: u16, is_input: bool) -> io::Result<()>;
        fn detached(&self) -> io::Result<Option<Vec<HandedQueue>>>;
        fn resume(&self, is_touched: bool) -> io::Result<()>;
        fn attach(&self, queues: Vec<HandedQueue>) -> io::Result<()>;
    }
}
mod handle {
    #[derive(Clone, Debug)]
    pub struct SoftAh(_);
    impl AddressHandle for SoftAh {}
}
mod link {
    pub mod config {
        pub use generator::{GeneratorConfig, Size};
        pub use loopback::LoopbackConfig;
        pub use packet::PacketConfig;
        pub use pcap::{PcapConfig, Repeat};
        pub use tap::TapConfig;
        pub use xdp::XdpConfig;
        pub use super::parameters::{
            Buffers, FrameStamps, HOST, LinkKind, LinkMistake, LinkParameters,
            MAX_HEADER, PortLimits, SOFT,
        };
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
        pub enum LinkConfig {
            Loopback(LoopbackConfig),
            Generator(GeneratorConfig),
            Pcap(PcapConfig),
            Packet(PacketConfig),
            Tap(TapConfig),
            Xdp(XdpConfig),
        }
        impl<'de> Deserialize<'de> for LinkConfig {}
        impl std::ops::Deref for LinkConfig {}
        impl std::ops::DerefMut for LinkConfig {}
        pub fn link_kinds() -> [LinkKind; 6] {}
        pub fn kinds(device: Option<&str>) -> String {}
    }
    pub mod doctor {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
        pub enum Severity {
            Unseen,
            Slow,
            Breaks,
            Fails,
        }
        #[derive(Clone, Debug, PartialEq, Eq, Serialize)]
        pub struct Finding {
            pub severity: Severity,
            pub what: String,
            pub effect: String,
            pub fix: String,
        }
        impl Finding {
            pub fn new(
                severity: Severity,
                what: impl Into<String>,
                effect: impl Into<String>,
                fix: impl Into<String>,
            ) -> Self {}
        }
        #[derive(Clone, Debug)]
        pub struct Roots {
            pub sys: PathBuf,
            pub proc: PathBuf,
        }
        impl Roots {
            pub fn real() -> Self {}
            pub fn sys(&self, path: &str) -> Option<String> {}
            pub fn proc(&self, path: &str) -> Option<String> {}
            pub fn sys_names(&self, path: &str) -> Vec<String> {}
            pub fn proc_names(&self, path: &str) -> Vec<String> {}
            pub fn capabilities(&self) -> CapabilitySet {}
        }
        #[derive(Clone, Copy, Debug)]
        pub struct LinkCase<'a> {
            pub roots: &'a Roots,
            pub name: &'a str,
            pub facts: &'a InterfaceFacts,
            pub workers: usize,
        }
    }
    mod facts {
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct InterfaceFacts {
            pub is_up: bool,
            pub is_ethernet: bool,
            pub mtu: u32,
            pub driver: Option<String>,
            pub firmware: Option<String>,
            pub receive_ring: Option<(u32, u32)>,
            pub receive_queues: Option<u32>,
            pub lro: Option<bool>,
            pub gro: Option<bool>,
            pub strips_vlan_tags: Option<bool>,
            pub xdp: XdpFacts,
        }
        impl InterfaceFacts {
            pub fn of(name: &str) -> io::Result<Option<Self>> {}
        }
    }
    mod generator {
        pub(super) mod config {
            #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
            pub struct Size {
                pub size: u16,
                pub weight: u16,
            }
            #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
            pub struct GeneratorConfig {
                pub size: Option<u16>,
                pub sizes: Vec<Size>,
                pub flows: u32,
                pub rate: Option<u64>,
                pub count: Option<u64>,
                pub protocol: FrameKind,
                pub rewrite: bool,
                pub copy_out: bool,
                pub src_mac: MacAddr,
                pub dst_mac: MacAddr,
                pub src_ip: Option<IpAddr>,
                pub dst_ip: Option<IpAddr>,
                pub src_port: u16,
                pub dst_port: u16,
                pub vlan: Option<u16>,
                pub seed: u64,
            }
            impl GeneratorConfig {
                pub fn mix(&self) -> Vec<Size> {}
            }
            impl Default for GeneratorConfig {}
            impl LinkParameters for GeneratorConfig {}
        }
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
        pub enum FrameKind {
            Udp4,
            Tcp4,
            Udp6,
        }
        #[derive(Clone, Debug)]
        pub struct GeneratorSpec {
            pub sizes: Vec<(u16, u16)>,
            pub flows: u32,
            pub kind: FrameKind,
            pub vlan: Option<u16>,
            pub src_mac: [u8; 6],
            pub dst_mac: [u8; 6],
            pub src_ip: Option<IpAddr>,
            pub dst_ip: Option<IpAddr>,
            pub src_port: u16,
            pub dst_port: u16,
            pub seed: u64,
            pub count: Option<u64>,
            pub rate: Option<u64>,
            pub rewrite: bool,
            pub copy_out: bool,
        }
        impl Default for GeneratorSpec {}
    }
    mod interface {
        pub(super) mod netlink {
            pub fn next_hop(
                index: u32,
                source: IpAddr,
                destination: IpAddr,
            ) -> Option<[u8; 6]> {}
        }
        mod packet_socket {
            #[derive(Debug)]
            pub struct PromiscuousMode {
                private: _,
            }
            impl PromiscuousMode {
                pub fn start(name: &str) -> Result<Self> {}
            }
        }
        pub use netlink::next_hop;
        pub use packet_socket::PromiscuousMode;
        pub fn mac_of(name: &str) -> Option<[u8; 6]> {}
        pub fn mtu_of(name: &str) -> Option<u32> {}
    }
    mod loopback {
        pub(super) mod config {
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
            pub struct LoopbackConfig {
                pub peer: Option<String>,
            }
            impl LinkParameters for LoopbackConfig {}
        }
        #[derive(Clone, Debug)]
        pub struct LoopbackLink {
            private: _,
        }
        impl LoopbackLink {
            pub fn pair() -> (Self, Self) {}
            pub fn reflect() -> Self {}
        }
    }
    mod packet {
        pub(super) mod config {
            #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
            pub struct PacketConfig {
                pub interface: String,
                pub ring: u32,
                pub promiscuous: bool,
                pub qdisc_bypass: bool,
                pub outgoing: bool,
                pub stamps: FrameStamps,
            }
            impl LinkParameters for PacketConfig {}
        }
        mod spec {
            #[derive(Clone, Debug)]
            pub struct PacketSpec {
                pub interface: String,
                pub ring: u32,
                pub promiscuous: bool,
                pub qdisc_bypass: bool,
                pub outgoing: bool,
                pub hardware_stamps: bool,
                pub takes_over: bool,
            }
            impl PacketSpec {
                pub const RING: u32 = _;
                pub const RING_RANGE: [u32; 2] = _;
                pub fn new(interface: &str) -> Self {}
            }
        }
        pub use spec::PacketSpec;
    }
    mod parameters {
        pub const SOFT: &str = _;
        pub const HOST: &str = _;
        pub const MAX_HEADER: u32 = _;
        #[derive(Clone, Debug)]
        pub struct LinkKind {
            pub name: &'static str,
            pub device: &'static str,
            pub schema: Schema,
            pub tables: Vec<(&'static str, Schema)>,
        }
        pub trait LinkParameters: fmt::Debug {
            fn kind(&self) -> &'static str;
            fn interface(&self) -> Option<&str> {}
            fn interface_key(&self) -> &'static str {}
            fn default_mtu(&self) -> Option<u32> {}
            fn divides_when_opened(&self) -> bool {}
            fn owns_receive_queues(&self) -> bool {}
            fn is_host_end(&self) -> bool {}
            fn device(&self) -> &'static str {}
            fn locks_memory(&self) -> bool {}
            fn copies_frames(&self) -> bool {}
            fn buffers(&self, asked: Buffers, _longest: u32) -> Buffers {}
            fn max_headroom(&self) -> u32 {}
            fn capabilities(&self) -> CapabilitySet {}
            fn optional_capabilities(&self) -> CapabilitySet {}
            fn polls_driver(&self) -> bool {}
            fn always_posts_receives(&self) -> bool {}
            fn uncounted_losses(&self, _facts: &InterfaceFacts) -> Option<String> {}
            fn starved_kernel(&self) -> Option<Finding> {}
            fn host_problems(&self, _case: &LinkCase<'_>) -> Vec<Finding> {}
            fn check(&self, _port: &PortLimits<'_>, _mistakes: &mut Vec<LinkMistake>) {}
            fn input(&self) -> Option<&Path> {}
            fn output(&self) -> Option<&Path> {}
            fn resolve_paths(&mut self, _resolve: &dyn Fn(&Path) -> PathBuf) {}
            fn spec(
                &self,
                workers: u16,
                cable: &mut dyn FnMut() -> LoopbackLink,
            ) -> Result<LinkSpec>;
        }
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct Buffers {
            pub size: u32,
            pub headroom: u32,
        }
        #[derive(Clone, Copy, Debug)]
        pub struct PortLimits<'a> {
            pub name: &'a str,
            pub mtu: u32,
            pub has_faults: bool,
            pub is_damaged: bool,
        }
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct LinkMistake {
            pub place: String,
            pub message: String,
            pub help: String,
        }
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
        pub enum FrameStamps {
            Kernel,
            Hardware,
        }
    }
    mod pcap {
        mod capture {
            #[derive(Debug, Default)]
            pub struct Capture {
                pub damage: Option<Damage>,
                private: _,
            }
            #[derive(Debug)]
            pub struct Damage {
                pub offset: usize,
                pub reason: String,
            }
            impl Capture {
                pub fn len(&self) -> usize {}
                pub fn is_empty(&self) -> bool {}
                pub fn frame(&self, index: usize) -> &[u8] {}
                pub fn time(&self, index: usize) -> Nanos {}
                pub fn read(file: &[u8]) -> Result<Self, Refusal> {}
                pub fn load(file: &File) -> Result<Self, Refusal> {}
                pub fn probe(path: &Path) -> Result<(), Refusal> {}
            }
        }
        pub(super) mod config {
            #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
            pub struct PcapConfig {
                pub input: Option<PathBuf>,
                pub output: Option<PathBuf>,
                pub group: Option<String>,
                pub repeat: Repeat,
                pub pace: Pace,
                pub snaplen: u32,
            }
            impl Default for PcapConfig {}
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            pub enum Repeat {
                Times(u64),
                Forever,
            }
            impl Default for Repeat {}
            impl Serialize for Repeat {}
            impl<'de> Deserialize<'de> for Repeat {}
            impl LinkParameters for PcapConfig {}
        }
        pub use capture::Capture;
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
        pub enum Pace {
            Fast,
            File,
        }
        #[derive(Clone, Debug)]
        pub struct PcapSpec {
            pub input: Option<PathBuf>,
            pub output: Option<PathBuf>,
            pub readers: Readers,
            pub times: Option<u64>,
            pub pace: Pace,
            pub snaplen: u32,
        }
        impl Default for PcapSpec {}
    }
    mod tap {
        pub(super) mod config {
            #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
            pub struct TapConfig {
                pub name: String,
                pub mac: Option<MacAddr>,
                pub mtu: Option<u32>,
                pub up: bool,
                pub persistent: bool,
            }
            impl LinkParameters for TapConfig {}
        }
        #[derive(Clone, Debug)]
        pub struct TapSpec {
            pub name: String,
            pub mac: Option<[u8; 6]>,
            pub mtu: Option<u32>,
            pub up: bool,
            pub persistent: bool,
            pub takes_over: bool,
        }
        impl TapSpec {
            pub fn new(name: &str) -> Self {}
        }
    }
    mod xdp {
        pub(super) mod config {
            #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
            pub struct XdpConfig {
                pub interface: String,
                pub mode: Mode,
                pub copy: Copying,
                pub filter: Vec<Selector>,
                pub except: Vec<Selector>,
                pub promiscuous: bool,
                pub stamps: FrameStamps,
                pub busy_poll: Option<BusyPoll>,
            }
            impl LinkParameters for XdpConfig {}
        }
        pub(super) mod doctor {
            pub fn of_unused(case: &LinkCase<'_>) -> Vec<Finding> {}
        }
        mod facts {
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
            pub struct XdpFacts {
                pub support: Option<XdpSupport>,
                pub program: Option<XdpProgram>,
            }
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            pub struct XdpProgram {
                pub program: u32,
                pub link: Option<u32>,
            }
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
            pub struct XdpSupport {
                pub native: bool,
                pub zero_copy: bool,
            }
        }
        mod spec {
            #[derive(Clone, Debug)]
            pub struct XdpSpec {
                pub interface: String,
                pub mode: Mode,
                pub copying: Copying,
                pub filter: Filter,
                pub promiscuous: bool,
                pub hardware_stamps: bool,
                pub busy_poll: Option<BusyPoll>,
                pub queues: u16,
                pub takes_over: bool,
            }
            impl XdpSpec {
                pub fn new(interface: &str) -> Self {}
            }
            #[derive(Clone, Debug, Default, PartialEq, Eq)]
            pub struct Filter {
                pub take: Vec<Selector>,
                pub except: Vec<Selector>,
            }
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
            pub enum Mode {
                Auto,
                Native,
                Generic,
            }
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
            pub enum Copying {
                Auto,
                Zero,
                Copy,
            }
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
            pub struct Selector {
                pub ether_type: Option<u16>,
                pub vlan: Option<u16>,
                pub protocol: Option<u8>,
                pub port: Option<u16>,
                pub prefix: Option<IpNet>,
            }
            #[derive(
                Clone,
                Copy,
                Debug,
                PartialEq,
                Eq,
                Serialize,
                Deserialize,
                JsonSchema
            )]
            pub struct BusyPoll {
                pub duration: Period,
                pub budget: u32,
            }
            impl Default for BusyPoll {}
        }
        pub use facts::{XdpFacts, XdpProgram, XdpSupport};
        pub use spec::{BusyPoll, Copying, Filter, Mode, Selector, XdpSpec};
        pub const HEADROOM: u16 = _;
    }
    pub use facts::InterfaceFacts;
    pub use generator::{FrameKind, GeneratorSpec};
    pub use interface::{PromiscuousMode, mac_of, mtu_of, next_hop};
    pub use loopback::LoopbackLink;
    pub use packet::PacketSpec;
    pub use pcap::{Capture, Pace, PcapSpec};
    pub use tap::TapSpec;
    pub use xdp::doctor::of_unused as of_unused_interface;
    pub use xdp::{
        BusyPoll, Copying, Filter, HEADROOM as XDP_HEADROOM, Mode, Selector, XdpFacts,
        XdpProgram, XdpSpec, XdpSupport,
    };
    #[derive(Clone, Debug)]
    pub enum LinkSpec {
        Loopback(LoopbackLink),
        Generator(GeneratorSpec),
        Pcap(PcapSpec),
        Xdp(XdpSpec),
        Packet(PacketSpec),
        Tap(TapSpec),
    }
    impl LinkSpec {
        pub fn take_over(&mut self, is_input: bool) {}
    }
    copying_ends!(
        Generator : generator::Generator, Loopback : loopback::Port, Pcap : pcap::Player,
        Packet : Box < packet::PacketPort >, Tap : tap::TapPort
    );
}
mod memory {
    #[derive(Clone, Debug)]
    pub struct SoftMr(_);
    unsafe impl MemoryRegion for SoftMr {}
}
mod mw {
    #[derive(Debug)]
    pub struct SoftMw {
        private: _,
    }
    impl Drop for SoftMw {}
    impl MemoryWindow for SoftMw {}
}
mod pd {
    #[derive(Clone, Debug)]
    pub struct SoftPd(_);
    unsafe impl ProtectionDomain for SoftPd {}
}
mod port {
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct PortSpec {
        pub lid: u16,
        pub lmc: u8,
        pub grh_required: bool,
        pub pkeys: Vec<u16>,
    }
    impl Default for PortSpec {}
}
mod profile {
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum Profile {
        Spec,
        Rxe,
    }
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct SoftLimits {
        pub max_qp: u32,
        pub max_qp_wr: u32,
        pub max_sge: u32,
        pub max_cq: u32,
        pub max_cqe: u32,
        pub max_mr: u32,
        pub max_inline: u32,
        pub max_srq: u32,
        pub max_rd_atomic: u8,
    }
    impl Default for SoftLimits {}
}
mod qp {
    #[derive(Debug)]
    pub struct SoftQp {
        private: _,
    }
    impl Drop for SoftQp {}
    unsafe impl QueuePair for SoftQp {}
}
mod quirk {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum SoftQuirk {
        OnDemandPaging,
        NoPathFields,
        NoCqResize,
        RefusesUdOperations,
        ResetIsFinal,
        RefusesUnsignalled,
        GrantsLessInline,
        PlainFlowRules,
        BehindSwitch,
        RefusesFlowRules,
        UnspecifiedLinkLayer,
    }
}
mod spec {
    #[derive(Clone, Debug)]
    pub struct SoftSpec {
        pub name: String,
        pub profile: Profile,
        pub link: LinkSpec,
        pub mtu: u32,
        pub mac: [u8; 6],
        pub gids: Vec<Gid>,
        pub port: PortSpec,
        pub clock: HostClock,
        pub counter: Option<CounterSpec>,
        pub faults: FaultSpec,
        pub disabled_capabilities: Vec<Capability>,
        pub hidden_qp_types: Vec<Capability>,
        pub refused_change: Option<(QpState, QpState)>,
        pub quirks: Vec<SoftQuirk>,
        pub checks_every_key: bool,
        pub rss: RssSpec,
        pub stamped: bool,
        pub limits: SoftLimits,
    }
    impl SoftSpec {
        pub fn new(name: &str, link: LinkSpec) -> Self {}
        pub fn max_frame(&self) -> u32 {}
        pub fn gid(&self) -> Gid {}
    }
}
pub mod upgrade {
    pub use crate::hand_over::{HandOver, HandedQueue};
    pub fn hand_over(device: &SoftDevice) -> Option<&dyn HandOver> {}
}
pub use channel::SoftChannel;
pub use counter::{CounterEvent, CounterEventKind, CounterSpec};
pub use counters::SoftCounters;
pub use cq::{SoftCq, SoftCursor};
pub use dataplane_core::verbs::{RssFields, RssKey, RssSpec};
pub use device::{SoftDevice, SoftProvider};
pub use fabric::SoftSrq;
pub use fault::FaultSpec;
pub use handle::SoftAh;
pub use link::*;
pub use memory::SoftMr;
pub use mw::SoftMw;
pub use pd::SoftPd;
pub use port::PortSpec;
pub use profile::{Profile, SoftLimits};
pub use qp::SoftQp;
pub use quirk::SoftQuirk;
pub use spec::SoftSpec;
