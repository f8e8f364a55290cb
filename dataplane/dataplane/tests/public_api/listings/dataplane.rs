pub mod app {
    mod control {
        mod upgrade {
            impl Read for &TimedStream<'_> {}
            impl Write for &TimedStream<'_> {}
        }
    }
    mod logs {
        impl Visit for Record {}
    }
    mod upgrade {
        impl Drop for Connection {}
    }
    pub struct App {
        private: _,
    }
    impl App {
        pub fn new() -> Self {}
        #[must_use]
        pub fn stage<S: Stage + DeserializeOwned + 'static>(
            mut self,
            name: &str,
        ) -> Self {}
        #[must_use]
        pub fn described_stage<S: Stage + DeserializeOwned + JsonSchema + 'static>(
            mut self,
            name: &str,
        ) -> Self {}
        #[must_use]
        pub fn command(
            mut self,
            command: clap::Command,
            run: fn(&ArgMatches) -> Result<()>,
        ) -> Self {}
        pub fn run(self) -> Result<()> {}
        pub fn exit_status_of<T: Into<OsString> + Clone>(
            &self,
            args: impl IntoIterator<Item = T>,
        ) -> i32 {}
    }
    impl Default for App {}
}
pub mod config {
    mod connection {
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
        pub struct Connection {
            pub rendezvous: RendezvousConfig,
            pub parameters: EndpointParameters,
        }
        impl<'de> Deserialize<'de> for Connection {}
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        pub struct RendezvousConfig {
            pub listen: Option<SocketAddr>,
            pub to: Option<SocketAddr>,
            pub peer: Option<String>,
            pub from: Option<IpAddr>,
            pub deadline: Period,
            pub step_deadline: Period,
        }
        impl Default for RendezvousConfig {}
    }
    mod diagnostics {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
        pub enum Level {
            Error,
            Warning,
        }
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct Mistake {
            pub level: Level,
            pub span: Span,
            pub message: String,
            pub help: Option<String>,
            pub is_host_problem: bool,
        }
        impl Mistake {
            pub fn error(span: Span, message: impl Into<String>) -> Self {}
            pub fn host_problem(span: Span, message: impl Into<String>) -> Self {}
            pub fn warning(span: Span, message: impl Into<String>) -> Self {}
            #[must_use]
            pub fn help(mut self, help: impl Into<String>) -> Self {}
        }
        #[derive(Clone, Debug, PartialEq, Eq, Serialize)]
        pub struct Record {
            pub level: Level,
            pub file: String,
            pub line: usize,
            pub column: usize,
            pub message: String,
            pub help: Option<String>,
        }
        #[derive(Clone, Debug)]
        pub struct Diagnostics {
            private: _,
        }
        impl Diagnostics {
            pub fn new(source: &Source) -> Self {}
            pub fn source(&self) -> &Source {}
            pub fn push(&mut self, mistake: Mistake) {}
            pub fn has_errors(&self) -> bool {}
            pub fn has_host_problem(&self) -> bool {}
            pub fn mistakes(&self) -> Vec<&Mistake> {}
            pub fn records(&self) -> Vec<Record> {}
            pub fn render(&self, colour: bool) -> String {}
            pub fn into_result(self) -> Result<()> {}
            pub fn into_error(self) -> Error {}
        }
    }
    mod load {
        #[derive(Debug)]
        pub struct Loaded<'s> {
            private: _,
        }
        pub fn load<'s>(
            source: &'s Source,
            diagnostics: &mut Diagnostics,
        ) -> Loaded<'s> {}
        impl<'s> Loaded<'s> {
            pub fn source(&self) -> &'s Source {}
            pub fn ports(&self) -> impl Iterator<Item = &Port> {}
            pub fn set_default_mtus(
                &mut self,
                running: Option<&Plan>,
                of_rdma: impl Fn(&Port) -> Option<u32>,
            ) {}
            pub fn named_ports(&self) -> impl Iterator<Item = (&str, Option<&Port>)> {}
            pub fn port_addresses(&self) -> Option<Vec<&[Address]>> {}
            pub fn may_lack_ports(&self) -> bool {}
            pub fn stage_name(&self, stage: usize) -> Option<&str> {}
            pub fn stage_count(&self) -> usize {}
            pub fn stage_kind(&self, stage: usize) -> Option<&str> {}
            pub fn stage_parameters(
                &self,
                stage: usize,
            ) -> Option<&Spanned<DeTable<'s>>> {}
            pub fn read_stage<T>(
                &self,
                stage: usize,
                schema: Option<&Schema>,
                mut read: impl FnMut(Spanned<DeTable<'s>>) -> Result<T, toml::de::Error>,
                diagnostics: &mut Diagnostics,
            ) -> Option<T> {}
            pub fn locate(&self, path: &str) -> Span {}
            pub fn locate_stage(&self, stage: usize, path: &str) -> Span {}
            pub fn find(&self, path: &str) -> Option<Span> {}
        }
    }
    mod plan {
        pub trait Catalog {
            fn names(&self) -> Vec<String>;
            fn shape(&self, kind: &str) -> Option<StageShape>;
        }
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct StageShape {
            pub outputs: Vec<String>,
            pub terminal: bool,
        }
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
        pub enum Target {
            Stage(usize),
            Drop,
        }
        #[derive(Clone, Debug, Serialize)]
        pub struct NodePlan {
            pub name: String,
            pub kind: String,
            pub span: Span,
            pub next: Option<Target>,
            pub outputs: Vec<(String, Target)>,
            pub drop_observer: Option<usize>,
            pub on_panic: OnPanic,
            pub parameters: toml::Table,
        }
        #[derive(Clone, Debug, Serialize)]
        pub struct PortPlan {
            pub config: Port,
            pub span: Span,
            pub input: bool,
            pub has_default_mtu: bool,
            pub node: Option<NumaNode>,
            pub peer: Option<usize>,
            pub requests: Vec<OffloadRequest>,
            pub verifiers: Vec<String>,
        }
        impl PortPlan {
            pub fn is_promiscuous(&self) -> bool {}
        }
        #[derive(Clone, Debug, PartialEq, Eq, Serialize)]
        pub struct OffloadRequest {
            pub offload: StageOffload,
            pub stages: Vec<String>,
        }
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
        pub enum StageOffload {
            SendChecksum,
            ReceiveChecksum,
            VlanTag,
            FlowTag,
            RssHash,
        }
        impl fmt::Display for StageOffload {}
        #[derive(Clone, Debug, Serialize)]
        pub struct Plan {
            pub runtime: Runtime,
            pub cores: Vec<CoreId>,
            pub buffers: u32,
            pub min_buffers: u32,
            pub requested_layout: Buffers,
            pub ports: Vec<PortPlan>,
            pub nodes: Vec<NodePlan>,
            pub stage_memory: BTreeMap<String, u64>,
            pub order: Vec<usize>,
        }
        impl Plan {
            pub fn port(&self, name: &str) -> Option<usize> {}
            pub fn node(&self, name: &str) -> Option<usize> {}
        }
        impl fmt::Display for Plan {}
    }
    mod planner {
        pub fn plan(
            loaded: &Loaded<'_>,
            catalog: &dyn Catalog,
            topology: &Topology,
            diagnostics: &mut Diagnostics,
        ) -> Option<Plan> {}
    }
    mod port {
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
        pub enum Qp {
            RawPacket,
            Ud,
            Rc,
            Uc,
        }
        impl Qp {
            pub const fn name(self) -> &'static str {}
        }
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
        pub struct Port {
            pub name: String,
            pub device: String,
            pub device_port: u8,
            pub numa_node: Option<u32>,
            pub qp: Qp,
            pub rx_depth: u32,
            pub tx_depth: u32,
            pub mtu: Option<u32>,
            pub mac: Option<MacAddr>,
            pub interface: Option<String>,
            pub required: bool,
            pub addresses: Vec<Address>,
            pub connection: Option<Connection>,
            pub rss: RssSpec,
            pub flow: Option<Vec<FlowRuleConfig>>,
            pub promiscuous: Option<bool>,
            pub offload: Option<Vec<Offload>>,
            pub rate_limit: Option<RateLimit>,
            pub link: Option<LinkConfig>,
            pub faults: Option<FaultSpec>,
            pub clock: Option<CounterSpec>,
            pub disabled_capabilities: Vec<Capability>,
        }
        impl Port {
            pub fn max_packet(&self) -> u32 {}
            pub fn is_rdma(&self) -> bool {}
            pub fn offloads(&self) -> &[Offload] {}
            pub fn has_auto_offloads(&self) -> bool {}
            pub fn has_recv_info(&self) -> bool {}
            pub fn kernel_interface(&self) -> Option<&str> {}
        }
    }
    mod raw {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        pub enum Offload {
            Auto,
            Checksum,
            VlanStrip,
            Fcs,
            DelayDrop,
        }
        impl Offload {
            pub const fn name(self) -> &'static str {}
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
        pub enum Frames {
            Matching,
            AllDefault,
            MulticastDefault,
            Sniffer,
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
        pub enum Action {
            Receive,
            Drop,
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
        pub struct FlowRuleConfig {
            pub frames: Frames,
            pub headers: Option<Match>,
            pub action: Action,
            pub count: Option<String>,
            pub tag: Option<u32>,
            pub priority: u16,
            pub dont_trap: bool,
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
        pub struct Match {
            pub ethernet: Option<EthernetHeader>,
            pub ipv4: Option<Ipv4Header>,
            pub ipv6: Option<Ipv6Header>,
            pub tcp: Option<Ports>,
            pub udp: Option<Ports>,
            pub vxlan: Option<Vxlan>,
            pub gre: Option<Gre>,
            pub mpls: Option<Mpls>,
            pub inner: Option<Headers>,
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
        pub struct Headers {
            pub ethernet: Option<EthernetHeader>,
            pub ipv4: Option<Ipv4Header>,
            pub ipv6: Option<Ipv6Header>,
            pub tcp: Option<Ports>,
            pub udp: Option<Ports>,
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
        pub struct EthernetHeader {
            pub dst: Option<MacAddr>,
            pub src: Option<MacAddr>,
            pub ether_type: Option<u16>,
            pub vlan: Option<u16>,
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
        pub struct Ipv4Header {
            pub src: Option<Ipv4Net>,
            pub dst: Option<Ipv4Net>,
            pub protocol: Option<u8>,
            pub tos: Option<u8>,
            pub ttl: Option<u8>,
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
        pub struct Ipv6Header {
            pub src: Option<Ipv6Net>,
            pub dst: Option<Ipv6Net>,
            pub flow_label: Option<u32>,
            pub next_header: Option<u8>,
            pub traffic_class: Option<u8>,
            pub hop_limit: Option<u8>,
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
        pub struct Ports {
            pub src: Option<u16>,
            pub dst: Option<u16>,
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
        pub struct Vxlan {
            pub vni: Option<u32>,
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
        pub struct Gre {
            pub protocol: Option<u16>,
            pub key: Option<u32>,
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
        pub struct Mpls {
            pub label: Option<u32>,
        }
        impl Match {
            pub fn outer(&self) -> Headers {}
        }
    }
    mod read {
        pub const MAX_SIZE: u64 = _;
        impl Source {
            pub fn read(
                path: &Path,
                overrides: &[(String, String)],
            ) -> Result<Self, Diagnostics> {}
        }
    }
    mod runtime {
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
        pub enum Idle {
            Spin,
            Pause,
            Sleep,
            Adaptive,
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
        pub enum MetricsRules {
            None,
            Named,
            All,
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
        pub enum Timestamps {
            Device,
            Wallclock,
            Software,
            None,
        }
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        pub struct BlackBox {
            pub folder: PathBuf,
            pub bursts: u32,
            pub bytes: u32,
        }
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        pub struct Runtime {
            pub workers: Workers,
            pub burst: u32,
            pub buffer_size: u32,
            pub headroom: u32,
            pub buffers: Option<u32>,
            pub hugepages: PageKind,
            pub strict_memory: bool,
            pub idle: Idle,
            pub timestamps: Timestamps,
            pub drain_timeout: Period,
            pub watchdog: Period,
            pub control: Control,
            pub control_group: Option<String>,
            pub metrics: Metrics,
            pub metrics_rules: MetricsRules,
            pub sandbox: bool,
            pub black_box: Option<BlackBox>,
        }
        impl Default for Runtime {}
    }
    mod schema {
        #[derive(Clone, Debug, PartialEq, Eq, Serialize)]
        pub struct Row {
            pub key: String,
            pub kind: String,
            pub default: Option<String>,
            pub description: String,
            pub required: bool,
        }
        pub fn schema<'k>(kinds: impl Iterator<Item = &'k StageKind>) -> Value {}
        pub fn schema_table(schema: &Schema) -> Vec<Row> {}
        pub struct Section {
            pub page: String,
            pub title: String,
            pub schema: Schema,
        }
        impl Section {
            pub fn rows(&self, sections: &[Self]) -> Vec<Row> {}
        }
        pub fn sections() -> Vec<Section> {}
    }
    mod source {
        pub type Span = Range<usize>;
        #[derive(Clone, Debug)]
        pub struct Source(_);
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct Position {
            pub name: String,
            pub line: usize,
            pub column: usize,
        }
        impl Source {
            pub fn new(
                path: impl Into<PathBuf>,
                text: impl Into<String>,
                overrides: &[(String, String)],
            ) -> Self {}
            pub fn text(&self) -> &str {}
            pub fn overrides(&self) -> impl Iterator<Item = &str> {}
            pub fn path(&self) -> &Path {}
            pub fn resolve(&self, path: &Path) -> PathBuf {}
            pub fn folder(&self) -> &Path {}
            #[must_use]
            pub fn with_file(
                &self,
                path: impl Into<PathBuf>,
                text: impl Into<String>,
            ) -> Self {}
            pub fn position(&self, span: &Span) -> Position {}
        }
    }
    mod types {
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub enum Control {
            Auto,
            None,
            Path(PathBuf),
        }
        as_string!(Control, "\"auto\", \"none\", or the path of a socket");
        impl fmt::Display for Control {}
        impl FromStr for Control {}
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub enum Metrics {
            None,
            Tcp(SocketAddr),
            Unix(PathBuf),
        }
        as_string!(
            Metrics,
            "\"none\", an address such as \"127.0.0.1:9464\", or a path such as \"unix:/run/metrics.sock\""
        );
        impl fmt::Display for Metrics {}
        impl FromStr for Metrics {}
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct Address(pub IpNet);
        as_string!(
            Address, "an address and its prefix length, such as \"192.0.2.1/24\""
        );
        impl fmt::Display for Address {}
        impl FromStr for Address {}
    }
    pub use connection::{Connection, RendezvousConfig};
    pub use dataplane_core::parse_errors::{nearest, suggest};
    pub use dataplane_soft::config::{
        FrameStamps, HOST, LinkConfig, LinkParameters, SOFT,
    };
    pub use diagnostics::{Diagnostics, Level, Mistake, Record};
    pub use load::{Loaded, load};
    pub use plan::{
        Catalog, NodePlan, OffloadRequest, Plan, PortPlan, StageOffload, StageShape,
        Target,
    };
    pub use planner::plan;
    pub use port::{Port, Qp};
    pub use raw::{
        Action, EthernetHeader, FlowRuleConfig, Frames, Gre, Headers, Ipv4Header,
        Ipv6Header, Match, Mpls, Offload, Ports, Vxlan,
    };
    pub use read::MAX_SIZE;
    pub use runtime::{BlackBox, Idle, MetricsRules, Runtime, Timestamps};
    pub use schema::{Row, Section, schema, schema_table, sections};
    pub use source::{Position, Source, Span};
    pub use types::{Address, Control, Metrics};
}
pub mod prelude {
    pub use crate::app::App;
    pub use dataplane_core::prelude::*;
}
pub mod runtime {
    mod assemble {
        pub struct Assembly {
            pub plan: Plan,
            pub ports: Vec<PortInfo>,
            pub topology: Topology,
            pub source: Source,
            private: _,
        }
        impl Assembly {
            pub fn reads_files(&self) -> bool {}
        }
        pub fn assemble(
            source: &Source,
            registry: &Registry,
            topology: Topology,
            diagnostics: &mut Diagnostics,
        ) -> Result<Option<Assembly>> {}
        pub fn assemble_offline(
            source: &Source,
            registry: &Registry,
            diagnostics: &mut Diagnostics,
        ) -> Result<Option<Assembly>> {}
    }
    mod black_box {
        impl std::fmt::Debug for BlackBox {}
    }
    mod change {
        mod history {
            pub fn digest_of<'a>(
                text: &'a str,
                settings: impl Iterator<Item = &'a str>,
            ) -> String {}
        }
        mod transaction {
            #[derive(Clone, Debug, Default)]
            pub struct ApplyOptions {
                pub base: Option<String>,
                pub confirm: Option<Duration>,
                pub cause: &'static str,
                pub reads_all_files: bool,
            }
            #[derive(Clone)]
            pub struct Changer(_);
            impl Changer {
                pub fn source(&self, path: &str, text: &str) -> Source {}
                pub fn file_of_run(&self) -> Result<Source, Refusal> {}
                pub fn plan(
                    &self,
                    registry: &Registry,
                    source: &Source,
                ) -> Result<ChangePlan, Refusal> {}
                pub fn apply(
                    &self,
                    registry: &Registry,
                    source: &Source,
                    options: &ApplyOptions,
                ) -> Result<Applied, Refusal> {}
                pub fn confirm(&self) -> Result<Applied, Refusal> {}
                pub fn rollback(&self, registry: &Registry) -> Result<Applied, Refusal> {}
                pub fn revert_overdue(
                    &self,
                    registry: &Registry,
                ) -> Option<Result<Applied, Refusal>> {}
                pub fn is_overdue(&self) -> bool {}
                pub fn is_unconfirmed(&self) -> bool {}
                pub fn history(&self) -> History {}
            }
        }
        pub use history::digest_of;
        pub use transaction::{ApplyOptions, Changer};
    }
    mod lanes {
        pub struct PortLanes {
            private: _,
        }
        impl PortLanes {
            pub fn open(
                assembly: Assembly,
                clock: &HostClock,
                is_stopped: impl Fn() -> bool,
            ) -> Result<Self> {}
            pub fn parts(&mut self) -> (&mut [Box<dyn Lane>], &mut Pool) {}
            pub fn plan(&self) -> &Plan {}
            pub fn ports(&self) -> &[PortInfo] {}
            pub fn is_link_up(&self, port: usize) -> Option<bool> {}
            pub fn describe(&self, port: usize) -> String {}
            pub fn clocks(&self, port: usize) -> Vec<ClockReport> {}
            pub fn pages(&self) -> (PageKind, usize) {}
            pub fn counters(&self, port: usize) -> BTreeMap<String, u64> {}
            pub fn close(self) -> (Vec<Error>, usize) {}
        }
    }
    mod run {
        #[derive(Clone, Copy, Debug, Default)]
        pub struct Options {
            pub duration: Option<Duration>,
            pub packets: Option<u64>,
        }
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct RunEvent {
            pub worker: Option<usize>,
            pub stage: Option<String>,
            pub port: Option<String>,
            pub message: String,
        }
        pub struct Run {
            private: _,
        }
        impl Run {
            pub fn start(assembly: Assembly, options: Options) -> Result<Self> {}
            pub fn start_unless(
                assembly: Assembly,
                options: Options,
                cancelled: impl FnMut() -> bool,
            ) -> Result<Self> {}
            pub fn plan(&self) -> Arc<config::Plan> {}
            pub fn source(&self) -> Source {}
            pub fn config_file(&self) -> Option<&Path> {}
            pub fn port_infos(&self) -> Vec<PortInfo> {}
            pub fn tables(&self) -> Vec<Arc<StageTable>> {}
            pub fn changer(&self) -> Changer {}
            pub fn progress(&self) -> Progress {}
            pub fn loops(&self) -> Vec<Option<u64>> {}
            pub fn snapshot(&self) -> Option<Snapshot> {}
            pub fn is_stopped(&self) -> bool {}
            pub fn stop(&self) {}
            pub fn stopper(&self) -> impl Fn() + Send + Sync + 'static {}
            pub fn is_finished(&self) -> bool {}
            pub fn stalls(&self) -> Vec<RunEvent> {}
            pub fn events(&self) -> Vec<RunEvent> {}
            pub fn join(self) -> Result<Report> {}
        }
    }
    mod snapshot {
        #[derive(Clone)]
        pub struct Snapshot {
            private: _,
        }
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum WorkerState {
            Running,
            Late,
            Ended,
        }
        impl Snapshot {
            pub fn report(&self) -> &Report {}
            pub fn latency(&self) -> &Latency {}
            pub fn workers(&self) -> &[WorkerState] {}
            pub fn since(&self, earlier: Option<&Self>) -> Recent {}
        }
    }
    mod trace {
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct Hop {
            pub stage: String,
            pub hit: Option<String>,
            pub output: Option<String>,
        }
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum PathEnd {
            Sent(String),
            Dropped(String),
            Consumed,
            Held,
            TooLong(u32),
            Panicked { stage: String, message: String },
        }
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct Trace {
            pub hops: Vec<Hop>,
            pub end: PathEnd,
            pub bytes: Vec<u8>,
            pub copy: bool,
        }
        impl Trace {
            pub fn path(&self) -> Vec<&str> {}
        }
        pub struct Tracer {
            private: _,
        }
        impl Tracer {
            pub fn new(assembly: Assembly) -> Result<Self> {}
            pub fn port(&self, name: &str) -> Option<usize> {}
            pub fn trace(
                &mut self,
                port: usize,
                time: Nanos,
                packet: &[u8],
            ) -> Vec<Trace> {}
            pub fn counters(&mut self, stage: &str) -> BTreeMap<String, u64> {}
        }
    }
    pub use assemble::{Assembly, assemble, assemble_offline};
    pub use change::digest_of;
    pub use change::{ApplyOptions, Changer};
    pub use lanes::PortLanes;
    pub use run::{Options, Run, RunEvent};
    pub use snapshot::{Snapshot, WorkerState};
    pub use trace::{Hop, PathEnd, Trace, Tracer};
}
pub mod testing {
    mod pipeline {
        pub struct Pipeline {
            private: _,
        }
        impl Pipeline {
            pub fn from_toml(text: &str) -> Result<Self> {}
            pub fn from_file(path: &Path) -> Result<Self> {}
            pub fn new(source: &Source, registry: &Registry) -> Result<Self> {}
            pub fn run<T: AsRef<[u8]>>(
                &mut self,
                port: &str,
                packets: &[T],
            ) -> Result<Vec<Trace>> {}
            pub fn advance(&mut self, nanos: u64) {}
            pub fn counter(&mut self, stage: &str, name: &str) -> Option<u64> {}
        }
    }
    pub use pipeline::Pipeline;
    pub use crate::runtime::{Hop, PathEnd, Trace};
    pub use dataplane_core::harness::{
        Fate, Frame, Harness, HarnessBuilder, Outcome, frame, port,
    };
    pub fn frames_of(path: impl AsRef<Path>) -> Result<Vec<Vec<u8>>> {}
}
pub use dataplane_control as control;
pub use dataplane_core::{Error, Result};
pub use dataplane_core::{
    clock, connect, error, header, lane, mem, pipeline, telemetry, topology, units, verbs,
};
#[cfg(feature = "ibverbs")]
pub use dataplane_ibverbs as ibverbs;
pub use dataplane_stages as stages;
pub use dataplane_tables as tables;
pub mod soft {
    pub use dataplane_soft::*;
}
