pub mod acl {
    #[derive(Deserialize, JsonSchema)]
    pub struct Acl {
        private: _,
    }
    impl Stage for Acl {}
}
pub mod arp {
    #[derive(Debug, Deserialize, JsonSchema)]
    pub struct Arp {
        pub addresses: Vec<Ipv4Addr>,
        pub port: Option<String>,
        pub mac: Option<MacAddr>,
        private: _,
    }
    impl Stage for Arp {}
}
pub mod bridge {
    #[derive(Debug, Deserialize, JsonSchema)]
    pub struct Bridge {
        private: _,
    }
    impl Stage for Bridge {}
    impl StateTransfer for Bridge {}
    impl Generator for Bridge {}
}
pub mod capture {
    #[derive(Deserialize, JsonSchema)]
    pub struct Capture {
        private: _,
    }
    impl Stage for Capture {}
    impl DropObserver for Capture {}
}
pub mod checksum {
    #[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
    pub struct Checksum {
        private: _,
    }
    impl Stage for Checksum {}
    impl ChecksumOffload for Checksum {}
}
pub mod count {
    #[derive(Debug, Deserialize, JsonSchema)]
    pub struct Count {
        private: _,
    }
    impl Stage for Count {}
}
pub mod cross {
    #[derive(Clone, Debug, Deserialize, JsonSchema)]
    pub struct Cross {
        pub pairs: Vec<[String; 2]>,
        private: _,
    }
    impl Stage for Cross {}
}
pub mod drop {
    #[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
    pub struct Drop {}
    impl Stage for Drop {}
}
pub mod filter {
    #[derive(Deserialize, JsonSchema)]
    pub struct Filter {
        private: _,
    }
    #[derive(Debug)]
    pub struct FrameFilter(_);
    impl FrameFilter {
        pub fn parse(bytecode: &str) -> Result<Self, String> {}
        pub fn matches(&self, frame: &[u8]) -> bool {}
    }
    pub fn bytecode(expression: &str) -> Result<String, Problem> {}
    impl Stage for Filter {}
}
pub mod flow_tag {
    #[derive(Clone, Debug, Deserialize, JsonSchema)]
    pub struct FlowTag {
        pub tags: BTreeSet<u32>,
    }
    impl Stage for FlowTag {}
}
pub mod forwarding {
    mod groups {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum RouteKind {
            Forward = 1,
            Local = 2,
            Blackhole = 3,
            Unreachable = 4,
            Prohibit = 5,
            Throw = 6,
        }
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct Path {
            pub kind: RouteKind,
            pub egress: u8,
            pub next_hop: u32,
        }
    }
    mod listing {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct RouteHop {
            pub port: u8,
            pub via: Option<IpAddr>,
            pub weight: u16,
        }
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum RouteTarget {
            Special(RouteKind),
            Paths(Vec<RouteHop>),
        }
        pub type ListedRoute = (usize, IpNet, Arc<RouteTarget>);
    }
    mod neighbors {
        pub const MAX_NEIGHBORS: usize = _;
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum ResolutionState {
            At(MacAddr),
            Unknown,
            Failed,
        }
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum ReportedEvent {
            None,
            NextUse,
            Answer,
        }
    }
    mod refused {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
        pub enum Refused {
            Full,
            Retired,
        }
    }
    mod rows {
        #[derive(Debug, PartialEq, Eq, Serialize, JsonSchema)]
        pub struct NeighborRow {
            pub address: IpAddr,
            pub port: Option<String>,
            pub state: NeighborState,
            pub mac: Option<String>,
        }
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
        pub enum NeighborState {
            Static,
            Resolved,
            Unresolved,
            Failed,
        }
        pub struct NeighborTable {
            pub tables: Arc<Forwarding>,
            pub ports: Vec<String>,
        }
        impl Table for NeighborTable {}
        pub struct ConfigNeighbors(pub Vec<(IpAddr, Option<String>, String)>);
        impl Table for ConfigNeighbors {}
    }
    mod writer {
        pub const MAX_ROUTES: usize = _;
        #[derive(Debug)]
        pub struct ForwardingWriter {
            private: _,
        }
        impl ForwardingWriter {
            pub fn with_tables(
                port_names: Vec<String>,
                hold: HoldTime,
            ) -> (Arc<Forwarding>, Box<Self>) {}
            pub fn for_ports(
                ports: &[PortInfo],
                hold: HoldTime,
            ) -> (Arc<Forwarding>, Box<Self>) {}
            pub fn open(
                &mut self,
                shared: &Forwarding,
                table: usize,
            ) -> Result<bool, TableError> {}
            pub fn routes(&self) -> usize {}
            pub fn set_route(
                &mut self,
                table: usize,
                prefix: IpNet,
                target: &RouteTarget,
            ) -> Result<(), Refused> {}
            pub fn remove_route(&mut self, table: usize, prefix: IpNet) -> bool {}
            pub fn set_neighbor(
                &mut self,
                hop: NextHop,
                state: ResolutionState,
                event: ReportedEvent,
            ) -> Result<(), Refused> {}
            pub fn reserve_next_hop(&mut self, hop: NextHop) -> Result<u32, Refused> {}
            pub fn release(&mut self, hop: NextHop) {}
            pub fn add_neighbor(&mut self, hop: NextHop) -> Result<(), Refused> {}
            pub fn unset_neighbor(&mut self, hop: NextHop) {}
            pub fn listed_neighbors(&self) -> Vec<NextHop> {}
            pub fn neighbors_known(&self) -> usize {}
            pub fn neighbor_slots_freed(&self) -> u64 {}
            pub fn has_routes(&self, hop: NextHop) -> bool {}
            pub fn allow_requests_again(&self) {}
            pub fn publish_without_readers(&mut self, shared: &Forwarding) {}
            pub fn publish(&mut self, shared: &Forwarding) {}
        }
    }
    pub use groups::{Path, RouteKind};
    pub use listing::{ListedRoute, RouteHop, RouteTarget};
    pub use neighbors::{MAX_NEIGHBORS, ReportedEvent, ResolutionState};
    pub use refused::Refused;
    pub use rows::{ConfigNeighbors, NeighborRow, NeighborState, NeighborTable};
    pub use writer::{ForwardingWriter, MAX_ROUTES};
    pub const MAX_TABLES: usize = _;
    #[derive(Debug)]
    pub struct Forwarding {
        private: _,
    }
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[repr(usize)]
    pub enum TableCount {
        Routes,
        Neighbors,
        MaxNeighbors,
        Changes,
        Refused,
        Resyncs,
        Asked,
        LostRequests,
    }
    impl TableCount {
        pub const ALL: [(Self, &'static str); 8] = _;
    }
    impl Forwarding {
        pub fn register_reader(self: &Arc<Self>) -> ForwardingReader {}
        pub fn ports(&self) -> usize {}
        pub fn set_link(&self, port: u8, mac: MacAddr, mtu: u32) {}
        pub fn set_table(&self, port: u8, table: usize) {}
        pub fn set_addresses(&self, port: u8, v4: Ipv4Addr, v6: Ipv6Addr) {}
        pub fn next_hop_at(&self, slot: usize) -> Option<NextHop> {}
        pub fn routes_after(
            &self,
            after: Option<(usize, IpNet)>,
            limit: usize,
        ) -> Vec<ListedRoute> {}
        pub fn route_for(&self, table: usize, address: IpAddr) -> Option<ListedRoute> {}
        pub fn neighbor_slots(&self) -> usize {}
        pub fn neighbor_at(&self, slot: usize) -> Option<(NextHop, ResolutionState)> {}
        pub fn neighbor_state(&self, hop: NextHop) -> Option<(ResolutionState, bool)> {}
        pub fn next_request(&self) -> Option<NextHop> {}
        pub fn count(&self, count: TableCount) -> u64 {}
        pub fn add(&self, count: TableCount, by: u64) {}
        pub fn set(&self, count: TableCount, to: u64) {}
    }
    #[derive(Debug)]
    pub struct ForwardingReader {
        private: _,
    }
    impl ForwardingReader {
        pub fn mark_quiescent(&self) {}
        pub fn shared(&self) -> &Arc<Forwarding> {}
        pub fn routes(&self, ingress: u8) -> Option<(&View4, &View6)> {}
        pub fn path(&self, group: u32, flow_hash: u32) -> Option<Path> {}
        pub fn next_hop_state(&self, next_hop: u32) -> ResolutionState {}
        pub fn neighbor(&self, hop: NextHop) -> Option<ResolutionState> {}
        pub fn request_resolution(&self, hop: NextHop) {}
        pub fn mac(&self, port: u8) -> Option<MacAddr> {}
        pub fn mtu(&self, port: u8) -> Option<u32> {}
        pub fn address(&self, port: u8, v6: bool) -> Option<IpAddr> {}
        pub fn counters(&self, report: &mut dyn CounterReport) {}
    }
}
pub mod fragment {
    #[derive(Debug, Deserialize, JsonSchema)]
    pub struct Fragment {
        private: _,
    }
    impl Stage for Fragment {}
}
pub mod icmp {
    #[derive(Debug, Deserialize, JsonSchema)]
    pub struct Icmp {
        pub addresses: Vec<IpAddr>,
        pub port: Option<String>,
        pub mac: Option<MacAddr>,
        pub ttl: u8,
        pub router: bool,
        private: _,
    }
    impl Stage for Icmp {}
}
pub mod icmp_error {
    #[derive(Debug, Deserialize, JsonSchema)]
    pub struct IcmpError {
        private: _,
    }
    impl Stage for IcmpError {}
    impl StateTransfer for IcmpError {}
}
pub mod ingress {
    #[derive(Clone, Debug, Deserialize, JsonSchema)]
    pub struct Ingress {
        private: _,
    }
    impl Stage for Ingress {}
}
pub mod kernel {
    pub fn tables(setup: &mut Setup<'_>) -> Arc<Forwarding> {}
}
pub mod limit {
    #[derive(Debug, Deserialize, JsonSchema)]
    pub struct Limit {
        private: _,
    }
    impl Stage for Limit {}
    impl StateTransfer for Limit {}
}
pub mod mac_swap {
    #[derive(Clone, Debug, Deserialize, JsonSchema)]
    pub struct MacSwap {
        pub min_len: u16,
    }
    impl Stage for MacSwap {}
}
pub mod mirror {
    #[derive(Debug, Deserialize, JsonSchema)]
    pub struct Mirror {}
    impl Stage for Mirror {}
}
pub mod neighbor {
    #[derive(Debug, Deserialize, JsonSchema)]
    pub struct Neighbor {
        pub table: Vec<NeighborEntry>,
        pub source: Source,
        pub max_neighbors: Option<u16>,
        pub reachable: Option<Period>,
        pub ageing: Option<Period>,
        private: _,
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
    pub enum Source {
        Config,
        Kernel,
        Resolve,
    }
    #[derive(Clone, Debug, Deserialize, JsonSchema)]
    pub struct NeighborEntry {
        pub address: IpAddr,
        pub mac: MacAddr,
        pub port: Option<String>,
    }
    impl Stage for Neighbor {}
    impl StateTransfer for Neighbor {}
    impl Generator for Neighbor {}
}
pub mod parameter {
    #[derive(
        Clone,
        Copy,
        Debug,
        PartialEq,
        Eq,
        PartialOrd,
        Ord,
        Hash,
        Deserialize,
        JsonSchema
    )]
    pub struct Prefix(pub IpNet);
    impl FromStr for Prefix {}
    impl TryFrom<String> for Prefix {}
    impl fmt::Display for Prefix {}
    #[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
    pub struct Ports(pub RangeInclusive<u16>);
    impl FromStr for Ports {}
    impl TryFrom<NumberOrText> for Ports {}
    impl fmt::Display for Ports {}
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
    pub struct Protocol(pub Option<u8>);
    impl Protocol {
        pub fn has_ports(self) -> bool {}
    }
    impl FromStr for Protocol {}
    impl TryFrom<NumberOrText> for Protocol {}
    impl fmt::Display for Protocol {}
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
    pub enum Origin {
        Config,
        Kernel,
    }
}
pub mod parse {
    #[derive(Clone, Debug, Deserialize, JsonSchema)]
    pub struct Parse {
        pub verify_checksum: bool,
        pub verify_transport: bool,
        private: _,
    }
    impl Default for Parse {}
    impl Stage for Parse {}
}
pub mod reassemble {
    #[derive(Debug, Deserialize, JsonSchema)]
    pub struct Reassemble {
        private: _,
    }
    impl Stage for Reassemble {}
    impl Generator for Reassemble {}
}
pub mod resolution {
    mod machine {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum NeighborMessageKind {
            Reply,
            Announcement,
            Request,
        }
    }
    pub use machine::NeighborMessageKind;
    #[derive(Clone, Copy, Debug)]
    pub struct ResolveParameters {
        pub max_neighbors: u16,
        pub reachable: Period,
        pub ageing: Period,
    }
    #[derive(Clone, Copy, Debug)]
    pub struct NeighborInfo {
        pub address: IpAddr,
        pub mac: Option<MacAddr>,
        pub kind: NeighborMessageKind,
        pub overrides: bool,
    }
    #[derive(Debug)]
    pub struct Resolution {
        private: _,
    }
    impl Resolution {
        pub fn enable(
            setup: &mut Setup<'_>,
            parameters: ResolveParameters,
        ) -> std::result::Result<ResolutionClient, Problem> {}
    }
    #[derive(Debug)]
    pub struct ResolutionClient {
        pub reader: ForwardingReader,
        pub hops: Vec<NextHop>,
        pub numbers: Vec<u32>,
        private: _,
    }
    impl Drop for ResolutionClient {}
    impl ResolutionClient {
        pub const FRAMES: usize = _;
        pub fn generate(&mut self, batch: &mut Batch) {}
        pub fn save(&self) -> Option<Vec<u8>> {}
        pub fn load(&self, state: &[u8]) -> std::result::Result<(), String> {}
        pub fn counters(&self, report: &mut dyn CounterReport) {}
    }
    #[derive(Debug, Default)]
    pub struct NeighborListener(_);
    impl NeighborListener {
        pub fn new(setup: &mut Setup<'_>, kind: impl Fn(&IpAddr) -> bool) -> Self {}
        pub fn with_router_flag(self, setup: &mut Setup<'_>, router: bool) -> Self {}
        pub fn is_open(&self) -> bool {}
        pub fn receive(
            &mut self,
            port: u8,
            flags: MetaFlags,
            info: NeighborInfo,
            ctx: &Ctx,
        ) {}
    }
}
pub mod responder {}
pub mod route {
    #[derive(Deserialize, JsonSchema)]
    pub struct Route {
        private: _,
    }
    impl Stage for Route {}
}
pub mod sample {
    #[derive(Debug, Deserialize, JsonSchema)]
    pub struct Sample {
        private: _,
    }
    impl Stage for Sample {}
}
pub mod ttl {
    #[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
    pub struct Ttl {}
    impl Stage for Ttl {}
}
pub mod tx {
    #[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
    pub struct Tx {
        pub port: Option<String>,
        private: _,
    }
    impl Stage for Tx {}
}
pub mod vlan {
    #[derive(Clone, Debug, Deserialize, JsonSchema)]
    pub struct Vlan {
        pub op: Op,
        pub id: Option<u16>,
        pub pcp: Option<u8>,
        pub tpid: Option<u16>,
        pub map: Option<BTreeMap<String, u16>>,
        pub strict: bool,
        private: _,
    }
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
    pub enum Op {
        Push,
        Pop,
        Translate,
        Restore,
    }
    impl Stage for Vlan {}
}
pub fn registry() -> Registry {}
pub fn register(registry: &mut Registry) {}
