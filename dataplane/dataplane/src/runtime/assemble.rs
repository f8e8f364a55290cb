//! Builds a [`Program`] for each worker from the config and the registry: the connected stages of the worker.
//! This module does all checks that need no device.

use std::any::TypeId;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::{difference, memory, offload, rdma_interface};
use crate::config::{self, Catalog, Diagnostics, Loaded, Mistake, Plan, Source, StageShape};
use dataplane_core::error::{Error, Result};
use dataplane_core::file;
use dataplane_core::pipeline::{
    ContinuingParts, Facts, Files, NodeSpec, Objects, PortInfo, Problem, Program, Registry, Resources, Setup, Stage,
    StageRecord, StandIn, Target,
};
use dataplane_core::topology::{Topology, Workers};
use dataplane_core::units::CoreId;
use dataplane_soft::config::LinkConfig;
use dataplane_soft::{Capture, mac_of};

/// A fully checked config: the plan, and a program for every worker.
pub struct Assembly {
    /// The plan.
    pub plan: Plan,
    /// The properties of the ports that stages can read.
    pub ports: Vec<PortInfo>,
    /// The topology that the plan is for.
    pub topology: Topology,
    /// The config.
    pub source: Source,
    pub(crate) programs: Vec<Program>,
    /// For each worker, a placeholder for each stage, by the name of the stage.
    pub(crate) stand_ins: Vec<BTreeMap<String, StandIn>>,
    /// The shared objects of the stages, the services that the stages registered, and all files that the config names.
    pub(crate) resources: Resources,
    /// For a change of a running pipeline, the stages that continue. `None` for the start of a run, and for a change
    /// that needs a restart.
    pub(crate) continuing: Option<ContinuingStages>,
}

/// The stages whose parameters a change of a running pipeline leaves the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct ContinuingStages {
    /// The names of the stages that continue.
    pub(crate) kept: BTreeSet<String>,
    /// The names of the stages that are prepared again, although their parameters are the same, each with the reason.
    pub(crate) renewed: BTreeMap<String, String>,
}

/// The running pipeline that a change starts from.
#[derive(Clone, Copy)]
pub(crate) struct RunningPipeline<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) objects: &'a Objects,
    pub(crate) stand_ins: &'a [BTreeMap<String, StandIn>],
    /// The config file with which the run started.
    pub(crate) config_file: Option<&'a Path>,
    /// The stages that must be prepared again, although their parameters are the same, each with the reason.
    pub(crate) renewed: &'a BTreeMap<String, String>,
    /// Whether the stages read all their files again. If `false`, the stages read only files that have changed.
    pub(crate) reads_all_files: bool,
    /// For the revert of a change, the objects of the pipeline before that change, and the names of the stages that the
    /// change has not replaced.
    pub(crate) reverts: Option<(&'a Objects, &'a BTreeSet<String>)>,
}

impl Assembly {
    /// Returns `true` if a stage reads a file. A change of the running pipeline can then read the file again.
    pub fn reads_files(&self) -> bool {
        self.resources.records.values().any(|record| !record.read.is_empty())
    }
}

impl Catalog for Registry {
    fn names(&self) -> Vec<String> {
        self.kinds().map(|kind| kind.name.clone()).collect()
    }

    fn shape(&self, kind: &str) -> Option<StageShape> {
        let kind = self.get(kind)?;
        let outputs = kind.info.outputs.iter().map(|(name, _)| (*name).to_owned()).collect();
        Some(StageShape { outputs, terminal: kind.info.terminal })
    }
}

/// Checks a config: syntax, names, parameters, tables, the graph, and whether each stage gets the packet properties
/// that it needs. All mistakes go to the diagnostics. Returns `None` if there is a mistake that prevents a run.
///
/// # Errors
/// Returns an error if this host lacks a resource that a stage needs, such as memory.
pub fn assemble(
    source: &Source,
    registry: &Registry,
    topology: Topology,
    diagnostics: &mut Diagnostics,
) -> Result<Option<Assembly>> {
    build(source, registry, topology, false, None, diagnostics)
}

/// Checks a config like [`assemble`], but for a pipeline that processes packets without ports and workers, such as in
/// `dataplane explain`. The check does not depend on this host: the plan is for a virtual topology with enough cores
/// for any config. The stages write no files.
///
/// # Errors
/// Returns the errors of [`assemble`].
pub fn assemble_offline(
    source: &Source,
    registry: &Registry,
    diagnostics: &mut Diagnostics,
) -> Result<Option<Assembly>> {
    /// More cores than the maximum number of workers.
    const CORES: u32 = 4096;
    let cores = Topology::uniform(CORES).cores().to_vec();
    // Without NUMA nodes in the topology, the check accepts any `numa_node` in the config.
    let topology = Topology::from_parts(cores, Vec::new(), Vec::new(), Vec::new());
    build(source, registry, topology, true, None, diagnostics)
}

/// Checks a config like [`assemble`], for a change of a running pipeline. If the change needs no restart, prepares only
/// the stages that the change adds or replaces. The programs of the result then have a placeholder
/// ([`StandIn`]) for each stage that continues.
///
/// # Errors
/// Returns the errors of [`assemble`].
pub(crate) fn assemble_change(
    source: &Source,
    registry: &Registry,
    topology: Topology,
    running: RunningPipeline<'_>,
    diagnostics: &mut Diagnostics,
) -> Result<Option<Assembly>> {
    build(source, registry, topology, false, Some(running), diagnostics)
}

fn build(
    source: &Source,
    registry: &Registry,
    topology: Topology,
    offline: bool,
    running: Option<RunningPipeline<'_>>,
    diagnostics: &mut Diagnostics,
) -> Result<Option<Assembly>> {
    let mut loaded = config::load(source, diagnostics);
    // The default MTU of a port is the MTU of an interface of this host. An offline check does not depend on this host.
    if !offline {
        let of_rdma = |port: &config::Port| rdma_interface::mtu(Path::new("/sys"), port);
        loaded.set_default_mtus(running.map(|running| running.plan), of_rdma);
    }
    let mut plan = config::plan(&loaded, registry, &topology, diagnostics);
    if let (Some(running), Some(plan)) = (running, &mut plan) {
        let (before, needed) = (running.plan, plan.min_buffers);
        if plan.runtime.workers == before.runtime.workers {
            // The workers stay on the cores that were chosen at the start of the run.
            plan.cores.clone_from(&before.cores);
        } else if !matches!(plan.runtime.workers, Workers::Cores(_)) {
            keep_cores(&mut plan.cores, &before.cores);
        }
        if plan.runtime.buffers == before.runtime.buffers && needed <= before.buffers {
            // The workers keep their packet memory.
            plan.buffers = before.buffers;
        }
        if difference::fixed_operations(before, plan).is_empty() {
            return change(&loaded, plan, registry, topology, running, diagnostics);
        }
    }
    let ports = ports(&loaded, offline);
    let mut resources = Resources::new(ports.clone(), source.folder());
    files(&loaded, source.path(), &mut resources.files, diagnostics);
    if let Some(file) = plan.as_ref().and_then(|plan| black_box_file(source, plan)) {
        // The run may write files in the folder of `file`, so register one example file. Ignore a conflict, because the
        // run chooses other names.
        let _ = resources.files.write(&file, "a file of the black box");
    }
    if !offline && running.is_none() {
        captures(&loaded, |_| true, diagnostics);
        check_black_box(&loaded, &plan, diagnostics);
    }
    resources.offline = offline;
    if !offline {
        resources.memory.available = memory::available();
    }
    let workers = plan.as_ref().map_or(1, |plan| plan.cores.len());
    let order: Vec<usize> =
        plan.as_ref().map_or_else(|| (0..loaded.stage_count()).collect(), |plan| plan.order.clone());
    let (mut programs, mut stand_ins) = (Vec::new(), Vec::new());
    for worker in 0..workers {
        // The stages build their tables here, not on the worker's thread. Prefer the worker's NUMA node for this
        // memory.
        let core = plan.as_ref().and_then(|plan| plan.cores.get(worker));
        let _preference = core.and_then(|core| memory::prefer_node_of(&topology, *core));
        let place = (worker, workers);
        let stages = prepare(&loaded, registry, &mut resources, &order, place, None, diagnostics)?;
        let (Some(plan), Some(stages)) = (&plan, stages) else { return Ok(None) };
        let mut program = program(plan, registry, &order, stages);
        // Each worker sets the same hold time, because all workers have the same stages.
        resources.services.hold.set(program.nodes().iter().filter_map(|node| node.stage.contract().holds));
        if worker == 0 {
            check(&loaded, plan, &order, &mut program, diagnostics);
        }
        if diagnostics.has_errors() {
            return Ok(None);
        }
        stand_ins.push(named(&mut program));
        programs.push(program);
    }
    run_checks(&loaded, &order, &mut resources, diagnostics);
    if diagnostics.has_errors() {
        return Ok(None);
    }
    let Some(mut plan) = plan else { return Ok(None) };
    plan.stage_memory.clone_from(&resources.memory.stages);
    if let (false, Some(program)) = (offline, programs.first()) {
        for (stage, message, help) in offload::request(&mut plan, program) {
            let index = order.iter().find(|index| loaded.stage_name(**index) == Some(&stage)).or(order.first());
            let span = index.map_or(0..0, |index| loaded.locate_stage(*index, ""));
            diagnostics.push(Mistake::warning(span, format!("stage `{stage}`: {message}")).help(help));
        }
    }
    let (source, continuing) = (source.clone(), None);
    Ok(Some(Assembly { plan, ports, topology, source, programs, stand_ins, resources, continuing }))
}

/// Changes the order and the choice of the cores `chosen`, so that as many workers as possible stay on their cores
/// `before`.
fn keep_cores(chosen: &mut Vec<CoreId>, before: &[CoreId]) {
    let others: Vec<CoreId> = chosen.iter().filter(|core| !before.contains(core)).copied().collect();
    let count = chosen.len();
    *chosen = before.iter().copied().chain(others).take(count).collect();
}

/// Returns a placeholder for each stage, by the name of the stage.
fn named(program: &mut Program) -> BTreeMap<String, StandIn> {
    let properties = program.stand_ins();
    program.nodes().iter().map(|node| node.name.clone()).zip(properties).collect()
}

/// Runs the checks that stages registered with [`Setup::check_later`], after the preparation of all stages.
fn run_checks(loaded: &Loaded<'_>, order: &[usize], resources: &mut Resources, diagnostics: &mut Diagnostics) {
    resources.complete_records();
    for (stage, check) in resources.services.checks.drain(..) {
        let index = order.iter().find(|index| loaded.stage_name(**index) == Some(&stage)).or(order.first());
        if let (Err(problem), Some(index)) = (check(), index) {
            diagnostics.push(mistake(loaded, *index, &stage, problem));
        }
    }
}

/// Prepares a change of a running pipeline. See [`assemble_change`].
fn change(
    loaded: &Loaded<'_>,
    plan: &Plan,
    registry: &Registry,
    topology: Topology,
    running: RunningPipeline<'_>,
    diagnostics: &mut Diagnostics,
) -> Result<Option<Assembly>> {
    let infos = changed_ports(loaded, plan, running);
    if infos.is_some() {
        captures(loaded, |name| running.plan.port(name).is_none(), diagnostics);
    }
    // A revert can use the objects of the earlier pipeline only if these objects were created for the same ports.
    let ports = infos.as_deref().unwrap_or(running.objects.ports());
    let reverts = running.reverts.filter(|(objects, _)| objects.ports() == ports);
    let earlier = |index: usize| {
        let node = &plan.nodes[index];
        running.plan.nodes.iter().find(|earlier| earlier.name == node.name && earlier.kind == node.kind)
    };
    // Returns the reason why a stage cannot continue, although its parameters stay the same.
    let renewal = |name: &str| {
        let record = running.objects.records.get(name);
        // A revert uses the objects of the earlier pipeline. These objects contain the earlier content of the files, so
        // the revert reads no file.
        let record = record.filter(|_| reverts.is_none());
        let read = record.and_then(|record| match running.reads_all_files {
            true => record.read.keys().next().map(PathBuf::as_path),
            false => record.changed_file(),
        });
        let read = read.map(|path| format!("the stage reads {} again", path.display()));
        running.renewed.get(name).cloned().or(read)
    };
    let name = |index: &usize| plan.nodes[*index].name.clone();
    let is_same =
        |index: &&usize| earlier(**index).is_some_and(|earlier| earlier.parameters == plan.nodes[**index].parameters);
    let mut first = ContinuingStages::default();
    for name in plan.order.iter().filter(is_same).map(name) {
        let why = match reverts {
            Some((_, kept)) if !kept.contains(&name) => {
                Some("the revert restores the files and shared objects of the stage".to_owned())
            }
            _ => renewal(&name),
        };
        match why {
            Some(why) => _ = first.renewed.insert(name, why),
            None => _ = first.kept.insert(name),
        }
    }
    let replaces: BTreeSet<String> = plan.order.iter().filter(|index| earlier(**index).is_some()).map(name).collect();
    // Objects that stages share, such as the table of resolved neighbours, depend on the ports.
    let mut renews = if infos.is_some() { running.objects.stage_shared_types() } else { BTreeSet::new() };
    let before_changes = diagnostics.clone();
    'renewed: loop {
        diagnostics.clone_from(&before_changes);
        let mut stages = first.clone();
        let held = reverts.map(|(objects, _)| objects);
        let (keeps, replaces, renews_now) = (&stages.kept, &replaces, &renews);
        let (ports, workers) = (infos.as_deref(), plan.cores.len());
        let continuing = ContinuingParts { keeps, replaces, renews: renews_now, held, ports, workers };
        let mut resources = running.objects.successor(loaded.source().folder(), continuing);
        files(loaded, running.config_file.unwrap_or(Path::new("-")), &mut resources.files, diagnostics);
        resources.register_kept_files();
        resources.memory.available = memory::available();
        let (mut programs, mut stand_ins) = (Vec::new(), Vec::new());
        for worker in 0..workers {
            let _preference = plan.cores.get(worker).and_then(|core| memory::prefer_node_of(&topology, *core));
            let place = (worker, workers);
            let mut kept =
                Kept { stages: &mut stages, stand_ins: running.stand_ins.get(worker), renews: &renews, workers };
            let order = &plan.order;
            let prepared = prepare(loaded, registry, &mut resources, order, place, Some(&mut kept), diagnostics)?;
            // If the existing shared object does not suit a stage, the stage requests a new object, and reports a
            // problem. Discard this problem, and prepare all stages again with the new object.
            let more: BTreeSet<TypeId> = resources.renewed.difference(&renews).copied().collect();
            if !more.is_empty() {
                renews.extend(more);
                continue 'renewed;
            }
            let Some(prepared) = prepared else { return Ok(None) };
            let mut program = program(plan, registry, &plan.order, prepared);
            if worker == 0 {
                check(loaded, plan, &plan.order, &mut program, diagnostics);
            }
            if diagnostics.has_errors() {
                return Ok(None);
            }
            stand_ins.push(named(&mut program));
            programs.push(program);
        }
        // A shared object continues only if the change neither adds nor removes a stage that uses the object. Otherwise
        // a new stage could start a part of the object a second time, such as a thread that already runs.
        let more = resources.changed_stage_shared_types();
        if !more.is_empty() {
            renews.extend(more);
            continue;
        }
        run_checks(loaded, &plan.order, &mut resources, diagnostics);
        if diagnostics.has_errors() {
            return Ok(None);
        }
        let mut plan = plan.clone();
        plan.stage_memory.clone_from(&resources.memory.stages);
        let source = loaded.source().clone();
        let ports = resources.ports().to_vec();
        let continuing = Some(stages);
        return Ok(Some(Assembly { plan, ports, topology, source, programs, stand_ins, resources, continuing }));
    }
}

/// Returns the properties of the ports after a change that adds or removes ports, or changes the order of the ports. A
/// port that stays keeps its properties. Returns `None` if the change has the same ports in the same order.
fn changed_ports(loaded: &Loaded<'_>, plan: &Plan, running: RunningPipeline<'_>) -> Option<Vec<PortInfo>> {
    if difference::has_same_ports(running.plan, plan) {
        return None;
    }
    let mut infos = ports(loaded, false);
    let known = |name: &str| running.objects.ports().iter().find(|info| info.name == name);
    let mut used = BTreeSet::new();
    for info in &mut infos {
        if let Some(known) = known(&info.name) {
            info.clone_from(known);
            used.insert(info.mac);
        }
    }
    for info in infos.iter_mut().filter(|info| known(&info.name).is_none()) {
        // The default MAC address of a port contains the number of the port. A port that stays keeps its address, even
        // if the number of this port changes, so an added port may need another address.
        let is_default = info.mac[..5] == [2, 0, 0, 0, 0];
        let mut last = 0..=u8::MAX;
        while is_default && used.contains(&info.mac) {
            let Some(next) = last.next() else { break };
            info.mac[5] = next;
        }
        used.insert(info.mac);
    }
    Some(infos)
}

/// The stages of one worker that continue after a change.
struct Kept<'a> {
    stages: &'a mut ContinuingStages,
    /// The placeholders for the running stages of the worker, by the name of the stage.
    stand_ins: Option<&'a BTreeMap<String, StandIn>>,
    renews: &'a BTreeSet<TypeId>,
    /// The number of workers after the change.
    workers: usize,
}

impl Kept<'_> {
    /// Returns `true` if the change adds the worker, and the stage continues on the other workers.
    fn joins(&self, name: &str) -> bool {
        self.stand_ins.is_none() && self.stages.kept.contains(name)
    }

    /// Returns the placeholder for a stage, if the stage continues. If the stage cannot continue, removes the stage
    /// from the stages that continue.
    fn stand_in(&mut self, name: &str, worker: usize, resources: &mut Resources) -> Option<StandIn> {
        // A worker that the change adds has no running stages.
        if !self.stages.kept.contains(name) || self.joins(name) {
            return None;
        }
        // All workers have the same stages, so the first worker decides.
        let record = resources.records.get(name).filter(|_| worker == 0);
        let shares = |record: &StageRecord| record.workers.is_some_and(|workers| workers != self.workers);
        let why = match record {
            Some(record) if shares(record) => Some("the stage divides a value among the workers"),
            Some(record) if !resources.can_continue(record, self.renews) => {
                Some("the ports, next hops, shared objects or needed facts of the pipeline change")
            }
            _ => None,
        };
        let suits = why.is_none();
        let stand_in = self.stand_ins.and_then(|stages| stages.get(name)).filter(|_| suits);
        if stand_in.is_none() {
            self.stages.kept.remove(name);
            let why = why.unwrap_or("the running stage is unknown");
            self.stages.renewed.insert(name.to_owned(), why.to_owned());
            resources.release(name);
        }
        stand_in.copied()
    }
}

/// Registers the file `config`, and the files of ports. If one part of the config writes a file, no other part may use
/// this file.
fn files(loaded: &Loaded<'_>, config: &Path, files: &mut Files, diagnostics: &mut Diagnostics) {
    let source = loaded.source();
    // The config is the first registered file, so there is no conflict yet.
    let _ = files.read(config, "the config itself");
    let links: Vec<(usize, &str, &LinkConfig)> = links(loaded).collect();
    for (name, input) in links.iter().filter_map(|(_, name, link)| Some((name, link.input()?))) {
        // No output is registered yet, so there is no conflict.
        let _ = files.read(&source.resolve(input), &format!("the input of port `{name}`"));
    }
    for (index, name, output) in links.iter().filter_map(|(index, name, link)| Some((index, name, link.output()?))) {
        if let Err(why) = files.write(&source.resolve(output), &format!("the output of port `{name}`")) {
            let at = loaded.locate(&format!("port[{index}].link.output"));
            diagnostics.push(Mistake::error(at, why).help(Files::HELP));
        }
    }
}

/// Returns the index, the name and the link of each port with a link.
fn links<'l>(loaded: &'l Loaded<'_>) -> impl Iterator<Item = (usize, &'l str, &'l LinkConfig)> {
    loaded.named_ports().enumerate().filter_map(|(index, (name, port))| Some((index, name, port?.link.as_ref()?)))
}

/// Checks that the input files of ports are captures, and that the output files can be written. Reads only the start of
/// each input file. `is_checked` selects the ports by name.
fn captures(loaded: &Loaded<'_>, is_checked: impl Fn(&str) -> bool, diagnostics: &mut Diagnostics) {
    for (index, _, link) in links(loaded).filter(|(_, name, _)| is_checked(name)) {
        let mut mistake = |key: &str, path: &Path, why: &str, help: &str| {
            let at = loaded.locate(&format!("port[{index}].link.{key}"));
            // If the path is empty, remove the separator at the start of the message.
            let message = format!("{}{why}", path.display());
            diagnostics.push(Mistake::error(at, message.trim_start_matches([':', ' '])).help(help));
        };
        let resolve = |path: &Path| loaded.source().resolve(path);
        if let Some(path) = link.input().map(resolve)
            && let Err(why) = Capture::probe(&path)
        {
            let help = "name a pcap or pcapng file with Ethernet frames, relative to the folder of the config";
            mistake("input", &path, &format!(": {why}"), help);
        }
        if let Some(path) = link.output().map(resolve)
            && let Err(why) = file::can_be_written(&path)
        {
            let help = "name a writable file in a writable folder, relative to the folder of the config";
            let why_not = format!(" cannot be written: {why}");
            match file::host_remedy(&why) {
                None => mistake("output", &path, &why_not, help),
                Some(help) => {
                    let at = loaded.locate(&format!("port[{index}].link.output"));
                    diagnostics.push(Mistake::host_problem(at, format!("{}{why_not}", path.display())).help(help));
                }
            }
        }
    }
}

/// Returns a path in the folder of the black box.
pub(super) fn black_box_file(source: &Source, plan: &Plan) -> Option<PathBuf> {
    let settings = plan.runtime.black_box.as_ref()?;
    Some(source.resolve(&settings.folder).join("black-box.pcapng"))
}

/// Checks that files can be created in the folder of the black box.
fn check_black_box(loaded: &Loaded<'_>, plan: &Option<Plan>, diagnostics: &mut Diagnostics) {
    let file = plan.as_ref().and_then(|plan| black_box_file(loaded.source(), plan));
    if let Some(file) = file
        && let Err(why) = file::can_be_written(&file)
    {
        let folder = file.parent().unwrap_or(&file).display();
        let message = format!("no file can be written in the folder {folder}: {why}");
        let help = "name a writable folder, relative to the folder of the config";
        diagnostics.push(Mistake::error(loaded.locate("runtime.black_box.folder"), message).help(help));
    }
}

fn ports(loaded: &Loaded<'_>, offline: bool) -> Vec<PortInfo> {
    // The port of a TAP link is at the opposite end of the kernel interface, so the port must not use the MAC address
    // of the interface.
    let of_interface = |port: &config::Port| match &port.link {
        _ if offline => None,
        Some(link) if link.is_host_end() => None,
        Some(link) => mac_of(link.interface()?),
        None => rdma_interface::mac(Path::new("/sys"), port),
    };
    let addresses = loaded.port_addresses().unwrap_or_default();
    let info = |(index, (name, port)): (usize, (&str, Option<&config::Port>))| PortInfo {
        name: name.to_owned(),
        mac: match port.and_then(|port| port.mac) {
            Some(mac) => mac.0,
            // A locally administered address, different for every port.
            None => port.and_then(of_interface).unwrap_or([2, 0, 0, 0, 0, (index as u8).wrapping_add(1)]),
        },
        mtu: port.map_or(u16::MAX, |port| port.max_packet().min(u32::from(u16::MAX)) as u16),
        interface: port.and_then(config::Port::kernel_interface).map(str::to_owned),
        addresses: addresses.get(index).map_or_else(Vec::new, |of| of.iter().map(|address| address.0).collect()),
    };
    loaded.named_ports().enumerate().map(info).collect()
}

/// Creates and prepares the stages of one worker. For a stage that continues after a change, returns a placeholder
/// instead. Adds problems of the config to the diagnostics. Returns an error for a problem of this host.
fn prepare(
    loaded: &Loaded<'_>,
    registry: &Registry,
    resources: &mut Resources,
    order: &[usize],
    worker: (usize, usize),
    mut kept: Option<&mut Kept<'_>>,
    diagnostics: &mut Diagnostics,
) -> Result<Option<Vec<Box<dyn Stage>>>> {
    let mut made = Vec::new();
    for &index in order {
        let Some(kind) = loaded.stage_kind(index).and_then(|kind| registry.get(kind)) else { continue };
        let read = |table| kind.make(toml::de::Deserializer::from(table));
        let stage = loaded.read_stage(index, kind.schema.as_ref(), read, diagnostics);
        made.extend(stage.map(|stage| (index, loaded.stage_name(index).unwrap_or(&kind.name).to_owned(), stage)));
    }
    resources.wanted = made.iter().map(|(_, _, stage)| stage.contract().needs).collect();
    if loaded.may_lack_ports() || loaded.port_addresses().is_none() {
        // The loader could not read a name or an address of a port. A stage that needs this name or address would
        // report a false mistake.
        return Ok(None);
    }
    let mut stages = Vec::new();
    for (index, name, mut stage) in made {
        if let Some(stand_in) = kept.as_mut().and_then(|kept| kept.stand_in(&name, worker.0, resources)) {
            stages.push(Box::new(stand_in) as Box<dyn Stage>);
            continue;
        }
        let setup = Setup::new(resources, &name, worker.0, worker.1);
        let joins = kept.as_ref().is_some_and(|kept| kept.joins(&name));
        let problems = if joins { setup.for_added_worker() } else { setup }.prepare(&mut *stage);
        if problems.is_empty() {
            stages.push(stage);
        }
        for problem in problems {
            if problem.is_host_problem {
                return Err(Error::Topology(format!("stage `{name}`: {problem}")));
            }
            diagnostics.push(mistake(loaded, index, &name, problem));
        }
    }
    Ok((stages.len() == order.len()).then_some(stages))
}

fn mistake(loaded: &Loaded<'_>, stage: usize, name: &str, problem: Problem) -> Mistake {
    let span = loaded.locate_stage(stage, &problem.key);
    let mistake = Mistake::error(span, format!("stage `{name}`: {}", problem.message));
    match problem.help {
        Some(help) => mistake.help(help),
        None => mistake,
    }
}

fn program(plan: &Plan, registry: &Registry, order: &[usize], stages: Vec<Box<dyn Stage>>) -> Program {
    // `order` contains every stage of the plan.
    let place = |index: usize| order.iter().position(|&at| at == index).unwrap_or(usize::MAX);
    let target = |target: config::Target| match target {
        config::Target::Stage(index) => Target::Node(place(index)),
        config::Target::Drop => Target::Drop,
    };
    let nodes = order.iter().zip(stages).map(|(&index, stage)| {
        let node = &plan.nodes[index];
        let info = registry.get(&node.kind).map(|kind| kind.info).unwrap_or_default();
        NodeSpec {
            name: node.name.clone(),
            kind: node.kind.clone(),
            stage,
            next: node.next.map_or(Target::Drop, target),
            outputs: node.outputs.iter().map(|(name, to)| (name.clone(), target(*to))).collect(),
            drop_observer: node.drop_observer.map(place),
            reasons: info.reasons.iter().map(|(name, _)| *name).collect(),
            info,
            on_panic: node.on_panic,
        }
    });
    Program::new(nodes.collect())
}

fn check(loaded: &Loaded<'_>, plan: &Plan, order: &[usize], program: &mut Program, diagnostics: &mut Diagnostics) {
    let stamps = match plan.runtime.timestamps {
        config::Timestamps::None => Facts::empty(),
        _ => Facts::STAMP,
    };
    for (place, problem) in program.check(stamps) {
        let index = order[place];
        diagnostics.push(mistake(loaded, index, &plan.nodes[index].name, problem));
    }
    // A stage that lacks a fact is already an error.
    let bypasses = if diagnostics.has_errors() { Vec::new() } else { program.check_bypasses(stamps) };
    for (place, later, problem) in bypasses {
        let [stage, later] = [place, later].map(|at| &program.nodes()[at].name);
        let message = format!("the stage cannot be bypassed, because `{later}` needs its results: {}", problem.message);
        let problem = Problem::at("on_panic", message).help("set on_panic = \"drop\" or on_panic = \"stop\"");
        diagnostics.push(mistake(loaded, order[place], stage, problem));
    }
    for (place, &index) in order.iter().enumerate() {
        let Some(watcher) = program.nodes()[place].drop_observer else { continue };
        if !program.observes_drops(watcher) {
            let [node, watcher] = [place, watcher].map(|at| &program.nodes()[at].name);
            let problem = Problem::at("drops", format!("`{watcher}` cannot observe the drops of other stages"));
            let problem = problem.help("name a stage that can observe drops, such as a stage with use = \"capture\"");
            diagnostics.push(mistake(loaded, index, node, problem));
        }
    }
    let most = dataplane_core::mem::BATCH / program.max_packets_per_received();
    if plan.runtime.burst as usize > most {
        let more = |node: &NodeSpec| node.stage.contract().copies || node.stage.contract().splits > 0;
        let names: Vec<String> =
            program.nodes().iter().filter(|node| more(node)).map(|node| format!("`{}`", node.name)).collect();
        let (burst, names, batch) = (plan.runtime.burst, names.join(", "), dataplane_core::mem::BATCH);
        let message = format!(
            "a burst of {burst} packets may become more than {batch} packets, the size of a batch, because of {names}"
        );
        // If the config has no key `burst`, the message points to a stage that creates packets.
        let burst = loaded.find("runtime.burst");
        let stage = (0..order.len()).find(|&place| more(&program.nodes()[place]));
        let at = burst.or_else(|| Some(plan.nodes[order[stage?]].span.clone())).unwrap_or(0..0);
        let mistake = Mistake::error(at, message);
        diagnostics.push(mistake.help(match most {
            0 => format!("remove some of these stages, so that one packet becomes at most {batch} packets"),
            _ => format!("set burst = {most} or less in [runtime]"),
        }));
    }
}
