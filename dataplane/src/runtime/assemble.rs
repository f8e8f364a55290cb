//! Config and registry become programs: everything that can be checked without a device is checked here.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::config::{self, Catalog, Diagnostics, Loaded, Mistake, Plan, Source, StageShape};
use crate::file;
use crate::mem::Preference;
use crate::pipeline::{
    Facts, Files, NodeSpec, PortInfo, Problem, Program, Registry, Reloads, Resources, Setup, Stage, Target,
};
use crate::provider::soft::{Capture, mac_of};
use crate::stages::forwarding::Forwarding;
use crate::stages::resolution::Resolution;
use crate::topology::Topology;

/// A config that has been checked in full: the plan, and a program for every worker.
pub struct Assembly {
    /// The plan.
    pub plan: Plan,
    /// The ports as stages know them.
    pub ports: Vec<PortInfo>,
    /// The machine that it was planned for.
    pub topology: Topology,
    pub(crate) programs: Vec<Program>,
    /// The tables that follow the kernel's, if a stage asks for them.
    pub(crate) forwarding: Option<Arc<Forwarding>>,
    /// How neighbours are found, if a stage asks for that.
    pub(crate) resolution: Option<Arc<Resolution>>,
    /// What is read anew when the run is told to.
    pub(crate) reloads: Reloads,
    /// Those that the config names, and the config.
    pub(crate) files: Files,
}

impl Assembly {
    /// Whether a stage has something to read anew ([`Run::reload`](super::Run::reload)).
    pub fn can_reload(&self) -> bool {
        !self.reloads.is_empty()
    }
}

impl Catalog for Registry {
    fn names(&self) -> Vec<String> {
        self.kinds().map(|kind| kind.name.clone()).collect()
    }

    fn shape(&self, kind: &str) -> Option<StageShape> {
        let kind = self.get(kind)?;
        let outputs = kind.outputs.iter().map(|(name, _)| (*name).to_owned()).collect();
        Some(StageShape { outputs, terminal: kind.terminal })
    }
}

/// Checks a config: syntax, names, parameters, tables, the graph and its contracts. All mistakes go to the diagnostics;
/// `None` if there was one.
pub fn assemble(
    source: &Source,
    registry: &Registry,
    topology: Topology,
    diagnostics: &mut Diagnostics,
) -> Option<Assembly> {
    build(source, registry, topology, false, diagnostics)
}

/// The same for a pipeline that is only looked at: it is planned for a machine that has the cores of any config, and its
/// stages write no files.
pub fn assemble_offline(source: &Source, registry: &Registry, diagnostics: &mut Diagnostics) -> Option<Assembly> {
    /// More than any config has workers.
    const CORES: u32 = 4096;
    let cores = Topology::uniform(CORES).cores().to_vec();
    // Without nodes, so that any will do.
    let topology = Topology::from_parts(cores, Vec::new(), Vec::new(), Vec::new());
    build(source, registry, topology, true, diagnostics)
}

fn build(
    source: &Source,
    registry: &Registry,
    topology: Topology,
    offline: bool,
    diagnostics: &mut Diagnostics,
) -> Option<Assembly> {
    let loaded = config::load(source, diagnostics);
    let plan = config::plan(&loaded, registry, &topology, diagnostics);
    let ports = ports(&loaded, offline);
    let folder = source.path().parent().unwrap_or(Path::new(""));
    let mut resources = Resources::new(ports.clone(), folder);
    files(&loaded, &mut resources.files, diagnostics);
    if !offline {
        captures(&loaded, diagnostics);
    }
    resources.offline = offline;
    let workers = plan.as_ref().map_or(1, |plan| plan.cores.len());
    let order: Vec<usize> =
        plan.as_ref().map_or_else(|| (0..loaded.stage_count()).collect(), |plan| plan.order.clone());
    let mut programs = Vec::new();
    for worker in 0..workers {
        // Tables are made here, not on the worker's thread, and are as much its memory as packets are.
        let core = plan.as_ref().and_then(|plan| topology.core(*plan.cores.get(worker)?));
        let _near = core.filter(|_| topology.nodes().len() > 1).and_then(|core| Preference::new(core.node));
        let stages = stages(&loaded, registry, &mut resources, &order, (worker, workers), diagnostics);
        let (Some(plan), Some(stages)) = (&plan, stages) else { return None };
        let program = program(plan, registry, &order, stages);
        if worker == 0 {
            check(&loaded, (plan, registry), &order, &program, diagnostics);
        }
        if diagnostics.has_errors() {
            return None;
        }
        programs.push(program);
    }
    let resolution = resources.common::<Resolution>();
    if let Some((stage, problem)) = resolution.as_deref().and_then(Resolution::flaw) {
        let index = order.iter().find(|index| loaded.stage_name(**index) == Some(stage)).or(order.first());
        diagnostics.push(mistake(&loaded, *index?, stage, problem));
        return None;
    }
    let forwarding = resources.common();
    let (reloads, files) = (resources.reloads, resources.files);
    Some(Assembly { plan: plan?, ports, topology, programs, forwarding, resolution, reloads, files })
}

/// Notes the config and the files of ports. One that is written may be no other of them.
fn files(loaded: &Loaded<'_>, files: &mut Files, diagnostics: &mut Diagnostics) {
    let source = loaded.source();
    // It is the first, so there is no other yet.
    let _ = files.read(source.path(), "the config itself");
    let links: Vec<(usize, &str, &config::Pcap)> = pcap_links(loaded).collect();
    for (_, name, input) in links.iter().filter_map(|(index, name, link)| Some((index, name, link.input.as_ref()?))) {
        // Nothing is written so far.
        let _ = files.read(&source.resolve(input), &format!("the input of port `{name}`"));
    }
    for (index, name, output) in
        links.iter().filter_map(|(index, name, link)| Some((index, name, link.output.as_ref()?)))
    {
        if let Err(why) = files.write(&source.resolve(output), &format!("the output of port `{name}`")) {
            let at = loaded.locate(&format!("port[{index}].link.output"));
            diagnostics.push(Mistake::error(at, why).help(Files::HELP));
        }
    }
}

/// The ports that play or write captures: the place, the name and the link of each.
fn pcap_links<'l>(loaded: &'l Loaded<'_>) -> impl Iterator<Item = (usize, &'l str, &'l config::Pcap)> {
    loaded.named_ports().enumerate().filter_map(|(index, (name, port))| match port?.link.as_ref()? {
        config::Link::Pcap(link) => Some((index, name, link)),
        _ => None,
    })
}

/// Captures that ports are to receive from and that are not there, or are none, which are not read whole; and those that
/// cannot be written.
fn captures(loaded: &Loaded<'_>, diagnostics: &mut Diagnostics) {
    for (index, _, link) in pcap_links(loaded) {
        let mut mistake = |key: &str, path: &Path, why: &str, help: &str| {
            let at = loaded.locate(&format!("port[{index}].link.{key}"));
            // The path may be empty.
            let message = format!("{}{why}", path.display());
            diagnostics.push(Mistake::error(at, message.trim_start_matches([':', ' '])).help(help));
        };
        let resolve = |path: &PathBuf| loaded.source().resolve(path);
        if let Some(path) = link.input.as_ref().map(resolve)
            && let Err(why) = Capture::probe(&path)
        {
            let help = "name a regular file in pcap or pcapng of Ethernet frames; a relative path starts at the config";
            mistake("input", &path, &format!(": {why}"), help);
        }
        if let Some(path) = link.output.as_ref().map(resolve)
            && let Err(why) = file::can_be_written(&path)
        {
            let help = "name a file that you may write, in a folder that you may; a relative path starts at the config";
            mistake("output", &path, &format!(" cannot be written: {why}"), help);
        }
    }
}

fn ports(loaded: &Loaded<'_>, offline: bool) -> Vec<PortInfo> {
    // The port of a TAP is at the other end of the wire than the interface.
    let interface = |port: &config::Port| {
        let link = port.link.as_ref().filter(|link| !offline && !matches!(link, config::Link::Tap(_)))?;
        mac_of(link.interface()?)
    };
    let info = |(index, (name, port)): (usize, (&str, Option<&config::Port>))| PortInfo {
        name: name.to_owned(),
        mac: match port.and_then(|port| port.mac) {
            Some(mac) => mac.0,
            // Locally administered, and different for every port.
            None => port.and_then(interface).unwrap_or([2, 0, 0, 0, 0, (index as u8).wrapping_add(1)]),
        },
        mtu: port.map_or(u16::MAX, |port| port.mtu.min(u32::from(u16::MAX)) as u16),
        interface: port.and_then(config::Port::kernel_interface).map(str::to_owned),
        addresses: port.map_or_else(Vec::new, |port| port.addresses.iter().map(|address| address.0).collect()),
    };
    loaded.named_ports().enumerate().map(info).collect()
}

/// Makes and prepares the stages of one worker. What does not fit goes to the diagnostics.
fn stages(
    loaded: &Loaded<'_>,
    registry: &Registry,
    resources: &mut Resources,
    order: &[usize],
    worker: (usize, usize),
    diagnostics: &mut Diagnostics,
) -> Option<Vec<Box<dyn Stage>>> {
    let mut made = Vec::new();
    for &index in order {
        let Some(kind) = loaded.stage_kind(index).and_then(|kind| registry.get(kind)) else { continue };
        let stage = loaded.read_stage(index, |table| kind.make(toml::de::Deserializer::from(table)), diagnostics);
        made.extend(stage.map(|stage| (index, loaded.stage_name(index).unwrap_or(&kind.name).to_owned(), stage)));
    }
    resources.wanted = made.iter().map(|(_, _, stage)| stage.needs()).collect();
    let mut stages = Vec::new();
    for (index, name, mut stage) in made {
        let problems = Setup::new(resources, &name, worker.0, worker.1).prepare(&mut *stage);
        if problems.is_empty() {
            stages.push(stage);
        }
        for problem in problems {
            diagnostics.push(mistake(loaded, index, &name, problem));
        }
    }
    (stages.len() == order.len()).then_some(stages)
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
    // The order has every stage of the plan.
    let place = |index: usize| order.iter().position(|&at| at == index).unwrap_or(usize::MAX);
    let target = |target: config::Target| match target {
        config::Target::Stage(index) => Target::Node(place(index)),
        config::Target::Drop => Target::Drop,
    };
    let nodes = order.iter().zip(stages).map(|(&index, stage)| {
        let node = &plan.nodes[index];
        let reasons = registry.get(&node.kind).map_or(&[][..], |kind| kind.reasons);
        NodeSpec {
            name: node.name.clone(),
            kind: node.kind.clone(),
            stage,
            next: node.next.map_or(Target::Drop, target),
            outputs: node.outputs.iter().map(|(name, to)| (name.clone(), target(*to))).collect(),
            drops: node.drops.map(place),
            reasons: reasons.iter().map(|(name, _)| *name).collect(),
        }
    });
    Program::new(nodes.collect())
}

fn check(
    loaded: &Loaded<'_>,
    (plan, registry): (&Plan, &Registry),
    order: &[usize],
    program: &Program,
    diagnostics: &mut Diagnostics,
) {
    let stamps = match plan.runtime.timestamps {
        config::Timestamps::None => Facts::empty(),
        _ => Facts::STAMP,
    };
    for (place, problem) in program.check(stamps) {
        let index = order[place];
        diagnostics.push(mistake(loaded, index, &plan.nodes[index].name, problem));
    }
    for (place, node) in program.nodes().iter().enumerate() {
        let watcher = node.drops.and_then(|at| program.nodes().get(at));
        let looks = |watcher: &&NodeSpec| registry.get(&watcher.kind).is_some_and(|kind| kind.observes_drops);
        if let Some(watcher) = watcher.filter(|watcher| !looks(watcher)) {
            let problem = Problem::at("drops", format!("`{}` does not look at what others drop", watcher.name));
            let problem = problem.help("name a stage that does, such as one with use = \"capture\"");
            diagnostics.push(mistake(loaded, order[place], &node.name, problem));
        }
    }
    let most = crate::mem::BATCH / program.multiplicity();
    if plan.runtime.burst as usize > most {
        let more = program.nodes().iter().filter(|node| node.stage.copies() || node.stage.makes() > 0);
        let names: Vec<String> = more.map(|node| format!("`{}`", node.name)).collect();
        let (burst, names, batch) = (plan.runtime.burst, names.join(", "), crate::mem::BATCH);
        let message = format!(
            "a burst of {burst} may become more than the {batch} packets of a batch, by what comes out of {names}"
        );
        let mistake = Mistake::error(loaded.locate("runtime.burst"), message);
        diagnostics.push(mistake.help(match most {
            0 => format!("take some of them out: a packet may become {batch} at the most"),
            _ => format!("set burst = {most} or less in [runtime]"),
        }));
    }
}
