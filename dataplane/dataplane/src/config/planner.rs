//! Runs all checks that need no device, and builds the plan.

use super::check;
use super::cores;
use super::diagnostics::Diagnostics;
use super::graph;
use super::load::Loaded;
use super::memory;
use super::plan::{Catalog, Plan};
use super::runtime::Runtime;
use super::types::{Control, Metrics};
use dataplane_core::topology::Topology;

/// Checks that a config is consistent, uses only known kinds of stages, and is possible on this host. Returns `None` if
/// the diagnostics contain an error, including the errors that [`load`](super::load()) reported.
pub fn plan(
    loaded: &Loaded<'_>,
    catalog: &dyn Catalog,
    topology: &Topology,
    diagnostics: &mut Diagnostics,
) -> Option<Plan> {
    let mut ports = check::ports(loaded, diagnostics);
    cores::nodes(loaded, &mut ports, topology, diagnostics);
    let cores = cores::cores(loaded, &ports, topology, diagnostics);
    check::spread(loaded, &ports, cores.as_ref().map_or(1, Vec::len), diagnostics);
    let memory = memory::memory(loaded, &ports, diagnostics);
    let graph = graph::resolve(loaded, catalog, diagnostics);
    if diagnostics.has_errors() {
        return None;
    }
    let (buffers, min_buffers, cut) = memory?;
    // Use the final buffer layout, which differs from the config if an AF_XDP link needs other sizes.
    let requested = loaded.runtime.as_ref()?;
    let requested_layout = requested.layout();
    let mut runtime = Runtime { buffer_size: cut.size, headroom: cut.headroom, ..requested.clone() };
    if let Control::Path(path) = &mut runtime.control {
        *path = loaded.source().resolve(path);
    }
    if let Metrics::Unix(path) = &mut runtime.metrics {
        *path = loaded.source().resolve(path);
    }
    let ports = ports.into_iter().collect::<Option<Vec<_>>>()?;
    // The stages declare their memory when the runtime prepares them.
    let stage_memory = Default::default();
    let (cores, nodes, order) = (cores?, graph.nodes, graph.order);
    Some(Plan { runtime, cores, buffers, min_buffers, requested_layout, ports, nodes, stage_memory, order })
}
