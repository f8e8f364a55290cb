//! The plan: a config with all names resolved. The plan has passed all checks that need no device.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::port::{Port, Qp};
use super::raw::FlowRuleConfig;
use super::runtime::Runtime;
use super::source::Span;
use dataplane_core::pipeline::OnPanic;
use dataplane_core::units::{CoreId, NumaNode};
use dataplane_soft::config::{Buffers, LinkConfig};

/// The properties of the kinds of stages that a plan depends on.
pub trait Catalog {
    /// Returns the valid values of `use`.
    fn names(&self) -> Vec<String>;
    /// Returns the shape of a kind of stage, or `None` if there is no such kind.
    fn shape(&self, kind: &str) -> Option<StageShape>;
}

/// The outputs of a kind of stage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StageShape {
    /// The names of the outputs.
    pub outputs: Vec<String>,
    /// Whether the stage has no next stage, as is the case for `tx` and `drop`. If the stage chooses no output for a
    /// packet, the packet ends at this stage.
    pub terminal: bool,
}

/// The target of an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// The stage with this index.
    Stage(usize),
    /// No stage. The packets are dropped and counted.
    Drop,
}

/// A stage of a plan.
#[derive(Clone, Debug, Serialize)]
pub struct NodePlan {
    /// The name of the stage in the config.
    pub name: String,
    /// The kind of the stage.
    #[serde(rename = "use")]
    pub kind: String,
    /// The position in the config.
    #[serde(skip)]
    pub span: Span,
    /// The target of packets for which the stage chooses no output. `None` if such packets end at this stage.
    pub next: Option<Target>,
    /// The outputs of the stage, with their targets. If the config does not connect an output, the target is
    /// [`Target::Drop`]. The report counts the packets under the name of the stage and of the output.
    pub outputs: Vec<(String, Target)>,
    /// The index of the stage that observes the drops of this stage.
    #[serde(rename = "drops", skip_serializing_if = "Option::is_none")]
    pub drop_observer: Option<usize>,
    /// What happens if the stage panics.
    pub on_panic: OnPanic,
    /// The parameters of the stage.
    pub parameters: toml::Table,
}

/// A port of a plan.
#[derive(Clone, Debug, Serialize)]
pub struct PortPlan {
    /// The config of the port, with resolved paths.
    #[serde(flatten)]
    pub config: Port,
    /// The position in the config.
    #[serde(skip)]
    pub span: Span,
    /// Whether received packets enter the pipeline.
    pub input: bool,
    /// Whether the config sets no MTU, so that the port has the MTU of the interface or the default MTU.
    #[serde(skip)]
    pub has_default_mtu: bool,
    /// The NUMA node of the port: `numa_node` of the config, or the node that the kernel reports for the device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<NumaNode>,
    /// The index of the port at the other end of a `loopback` link. May be the index of this port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<usize>,
    /// The offloads that stages can use. The device grants the offloads that it supports.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub requests: Vec<OffloadRequest>,
    /// The names of the stages that verify checksums because the device does not report them. Only an RDMA port with
    /// several workers and `offload = ["auto"]` has such stages: mlx5 does not report the checksums of received packets
    /// to several workers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub verifiers: Vec<String>,
}

impl PortPlan {
    /// Returns whether the lanes of the port post receive buffers. All inputs post receive buffers. In zero-copy mode of
    /// AF_XDP, the NIC writes also the frames for the kernel into posted buffers, so such a port posts receive buffers
    /// although it only sends.
    pub(crate) fn posts_receives(&self) -> bool {
        self.input || self.config.link.as_ref().is_some_and(|link| link.always_posts_receives())
    }

    /// Returns whether the network interface of the RDMA device is in promiscuous mode while the port is open.
    pub fn is_promiscuous(&self) -> bool {
        let port = &self.config;
        let by_rules = || match &port.flow {
            Some(rules) => {
                rules.iter().any(FlowRuleConfig::receives_other_addresses)
                    && !rules.iter().any(FlowRuleConfig::follows_interface)
            }
            None => true,
        };
        let is_promiscuous = || port.promiscuous.unwrap_or_else(|| self.input && by_rules());
        port.is_rdma() && port.qp == Qp::RawPacket && is_promiscuous()
    }
}

/// An offload that stages can use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OffloadRequest {
    /// The offload.
    pub offload: StageOffload,
    /// The names of the stages.
    pub stages: Vec<String>,
}

/// The kinds of offloads that stages can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StageOffload {
    /// The device computes the checksums of sent packets.
    SendChecksum,
    /// The device verifies the checksums of received packets.
    ReceiveChecksum,
    /// The device reports the VLAN tag that it removed.
    VlanTag,
    /// The device reports the tag of the flow rule.
    FlowTag,
    /// The device reports the RSS hash.
    RssHash,
}

impl fmt::Display for StageOffload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SendChecksum => "send checksums",
            Self::ReceiveChecksum => "receive checksums",
            Self::VlanTag => "removed VLAN tags",
            Self::FlowTag => "tags of flow rules",
            Self::RssHash => "RSS hashes",
        })
    }
}

/// Locked packet memory, in bytes. The kernel compares each of the two numbers with the limit (`RLIMIT_MEMLOCK`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LockedMemory {
    /// The memory that RDMA devices pin (`mm->pinned_vm` of the kernel).
    pub(crate) rdma: u64,
    /// The memory of AF_XDP sockets (`user->locked_vm` of the kernel).
    pub(crate) xdp: u64,
}

/// A config that passed all checks that need no device.
#[derive(Clone, Debug, Serialize)]
pub struct Plan {
    /// The workers, their memory and the worker loop.
    pub runtime: Runtime,
    /// The cores of the workers, in order.
    pub cores: Vec<CoreId>,
    /// The number of packet buffers of each worker.
    pub buffers: u32,
    /// The minimum number of packet buffers of each worker: the rings of all ports and one burst.
    #[serde(skip)]
    pub min_buffers: u32,
    /// The layout of a buffer that the config requests. `runtime` has the final layout, which a link can change.
    #[serde(skip)]
    pub requested_layout: Buffers,
    /// The ports, in the order of the config.
    pub ports: Vec<PortPlan>,
    /// The stages, in the order of the config. Packets enter at the first stage.
    pub nodes: Vec<NodePlan>,
    /// The memory that each stage allocates in addition to packet buffers, in bytes. Each value is the sum over all
    /// workers.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub stage_memory: BTreeMap<String, u64>,
    /// The indices of the stages in topological order: every stage comes before its targets.
    pub order: Vec<usize>,
}

impl Plan {
    /// Returns the index of the port with this name.
    pub fn port(&self, name: &str) -> Option<usize> {
        self.ports.iter().position(|port| port.config.name == name)
    }

    /// Returns the index of the stage with this name.
    pub fn node(&self, name: &str) -> Option<usize> {
        self.nodes.iter().position(|node| node.name == name)
    }

    /// Returns the packet memory of all workers, in bytes.
    pub(crate) fn packet_memory(&self) -> u64 {
        self.memory_of(self.cores.len())
    }

    /// Returns the packet memory of a number of workers, in bytes.
    fn memory_of(&self, workers: usize) -> u64 {
        u64::from(self.buffers) * u64::from(self.runtime.buffer_size) * workers as u64
    }

    /// Returns the packet memory that a number of workers lock for some ports. Each worker registers its packet memory
    /// once for each port.
    pub(crate) fn locked_memory<'a>(
        &self,
        ports: impl IntoIterator<Item = &'a PortPlan>,
        workers: usize,
    ) -> LockedMemory {
        let bytes = self.memory_of(workers);
        let mut locked = LockedMemory::default();
        for port in ports.into_iter().filter(|port| port.config.locks_memory()) {
            *(if port.config.is_rdma() { &mut locked.rdma } else { &mut locked.xdp }) += bytes;
        }
        locked
    }

    fn target(&self, target: Target) -> &str {
        match target {
            Target::Stage(index) => self.nodes.get(index).map_or("?", |node| node.name.as_str()),
            Target::Drop => "drop",
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let runtime = &self.runtime;
        let cores: Vec<String> = self.cores.iter().map(CoreId::to_string).collect();
        writeln!(f, "workers   {} (cores {}), bursts of {}", cores.len(), cores.join(", "), runtime.burst)?;
        writeln!(
            f,
            "memory    {} buffers of {} bytes ({} headroom) per worker, {}",
            self.buffers, runtime.buffer_size, runtime.headroom, runtime.hugepages
        )?;
        for (stage, bytes) in &self.stage_memory {
            writeln!(f, "          {:.1} MiB in stage `{stage}`", *bytes as f64 / f64::from(1 << 20))?;
        }
        writeln!(f, "\nports")?;
        for port in &self.ports {
            let config = &port.config;
            let qp = config.qp.name();
            let link = config.link.as_ref().map_or(String::new(), |link| match (link, port.peer) {
                (LinkConfig::Loopback(_), Some(peer)) => {
                    format!(" loopback to {}", self.ports.get(peer).map_or("?", |peer| peer.config.name.as_str()))
                }
                _ => {
                    let interface = link.interface().map_or(String::new(), |interface| format!(" on {interface}"));
                    format!(" {}{interface}", link.kind())
                }
            });
            let node = port.node.map_or(String::new(), |node| format!(", node {node}"));
            let input = if port.input { ", input" } else { "" };
            let rx = if port.posts_receives() { format!(", rx {}", config.rx_depth) } else { String::new() };
            let (mtu, tx) = (config.max_packet(), config.tx_depth);
            writeln!(f, "  {}: {}{link}, {qp}, mtu {mtu}{rx}, tx {tx}{node}{input}", config.name, config.device)?;
            for request in &port.requests {
                writeln!(f, "    device offload: {} (stages: {})", request.offload, request.stages.join(", "))?;
            }
            if !port.verifiers.is_empty() {
                let (what, stages) = (StageOffload::ReceiveChecksum, port.verifiers.join(", "));
                writeln!(f, "    no device offload of {what} with several workers (verified by the stages: {stages})")?;
            }
        }
        writeln!(f, "\nstages")?;
        for node in self.order.iter().filter_map(|&index| self.nodes.get(index)) {
            let edges = node.next.iter().map(|&next| format!("→ {}", self.target(next)));
            let outputs = node.outputs.iter().map(|(label, target)| format!("{label} → {}", self.target(*target)));
            let drops =
                node.drop_observer.iter().map(|&at| format!("drops observed by {}", self.target(Target::Stage(at))));
            let edges: Vec<String> = edges.chain(outputs).chain(drops).collect();
            let edges = if edges.is_empty() { "packets end here".to_owned() } else { edges.join(", ") };
            let kind = if node.kind == node.name { String::new() } else { format!(" ({})", node.kind) };
            writeln!(f, "  {}{kind}: {edges}", node.name)?;
        }
        Ok(())
    }
}
