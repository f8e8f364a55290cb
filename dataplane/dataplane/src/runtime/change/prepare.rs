//! Checks a new config, and prepares the stages that the config adds or replaces.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use super::refusal::{busy, failed, mistakes, wrong_config};
use super::state::{POLL_INTERVAL, PipelineVersion, Retiring, RunState, lock};
use crate::config::{Diagnostics, LockedMemory, Offload, OffloadRequest, Plan, PortPlan, Qp, Source, StageOffload};
use crate::runtime::assemble::{ContinuingStages, RunningPipeline, assemble_change};
use crate::runtime::{Assembly, difference, offload};
use dataplane_control::Refusal;
use dataplane_control::change::{ConfigMistake, Operation};
use dataplane_core::file::Identity;
use dataplane_core::mem::{Memlock, Shortage};
use dataplane_core::pipeline::{CapabilitySet, ChecksumState, Objects, Registry};

/// The end of the message for a change that needs a restart because the sandbox has removed privileges.
const WITHOUT_SANDBOX: &str = "; with sandbox = false in [runtime], such a change needs no restart";

/// The maximum time that a change waits for a file that the stages of an earlier change still write.
const FILE_TIMEOUT: Duration = Duration::from_secs(1);

/// A checked change.
pub(super) struct PreparedChange {
    pub(super) operations: Vec<Operation>,
    pub(super) warnings: Vec<ConfigMistake>,
    /// The new pipeline, and the names of the stages that continue. `None` if the change needs a restart.
    pub(super) assembly: Option<(Assembly, BTreeSet<String>)>,
    /// The stages that leave checksums to the devices.
    pub(super) left: Vec<String>,
}

/// For a revert, the pipeline from before the reverted change.
#[derive(Clone, Copy)]
pub(super) struct Reverts<'a> {
    pub(super) objects: &'a Objects,
    /// The names of the stages that the reverted change has not replaced.
    pub(super) kept: &'a BTreeSet<String>,
}

impl RunState {
    /// Checks a config, and prepares the stages that the config adds or replaces.
    pub(super) fn prepare(
        &self,
        current: &PipelineVersion,
        registry: &Registry,
        source: &Source,
        reads_all_files: bool,
        reverts: Option<Reverts<'_>>,
    ) -> Result<PreparedChange, Refusal> {
        let (_, ports) = self.current_ports();
        let mut renewed = BTreeMap::new();
        loop {
            let mut diagnostics = Diagnostics::new(source);
            let running = RunningPipeline {
                plan: &current.plan,
                objects: &current.objects,
                stand_ins: &current.stand_ins,
                config_file: self.config_file.as_deref(),
                renewed: &renewed,
                reads_all_files,
                reverts: reverts.map(|reverts| (reverts.objects, reverts.kept)),
            };
            let assembly = assemble_change(source, registry, self.topology.clone(), running, &mut diagnostics);
            let assembly = assembly.map_err(|error| failed(&error))?;
            let Some(mut assembly) = assembly.filter(|_| !diagnostics.has_errors()) else {
                return Err(wrong_config(&diagnostics));
            };
            let warnings = mistakes(&diagnostics);
            let continuing = assembly.continuing.take();
            let stages = continuing.as_ref().map(|stages| &stages.renewed);
            let mut operations =
                difference::operations(&current.plan, &assembly.plan, registry, stages.unwrap_or(&BTreeMap::new()));
            let Some(ContinuingStages { kept, .. }) = continuing else {
                return Ok(PreparedChange { operations, warnings, assembly: None, left: Vec::new() });
            };
            // The program opens the devices of added ports later, so stages leave no checksums to these devices.
            let computes = |port: &PortPlan| {
                let known = ports.iter().find(|known| known.name == port.config.name);
                known.is_some_and(|port| port.device.computes_checksums())
            };
            let computes: Vec<bool> = assembly.plan.ports.iter().map(computes).collect();
            let mut restarts = self.offload_operations(&current.plan, &mut assembly, &computes);
            restarts.extend(self.port_privilege_operations(&current.plan, &assembly.plan));
            restarts.extend(self.core_operations(&current.plan, &assembly.plan));
            let is_refused = |operation: &Operation| {
                let is_same =
                    |refused: &Operation| (refused.operation, &refused.name) == (operation.operation, &operation.name);
                restarts.iter().any(is_same)
            };
            operations.retain(|operation| !is_refused(operation));
            operations.extend(restarts);
            if reverts.is_none() {
                operations.extend(self.privilege_operations(current, &assembly, &kept));
            }
            let left: Vec<Vec<String>> =
                assembly.programs.iter_mut().map(|program| program.offload_checksums(&computes)).collect();
            let left = left.into_iter().next().unwrap_or_default();
            // A running stage cannot switch between leaving checksums to the devices and computing checksums, so
            // prepare such a stage again.
            let is_changed = |stage: &&String| left.contains(stage) != current.left.contains(stage);
            let why = |stage: &String| {
                if left.contains(stage) {
                    "because other stages change, the devices now compute the checksums instead of this stage"
                } else {
                    "because other stages change, this stage now computes the checksums instead of the devices"
                }
            };
            let changed: Vec<_> =
                kept.iter().filter(is_changed).map(|stage| (stage.clone(), why(stage).to_owned())).collect();
            if changed.is_empty() {
                return Ok(PreparedChange { operations, warnings, assembly: Some((assembly, kept)), left });
            }
            renewed.extend(changed);
        }
    }

    /// Keeps the offloads that the program has requested from the devices, because the devices are already open.
    /// For each missing offload, and for each device that would hide wrong checksums, returns an operation that needs a
    /// restart. `computes` has an entry for each port: whether its device computes the checksums of sent packets.
    fn offload_operations(&self, before: &Plan, assembly: &mut Assembly, computes: &[bool]) -> Vec<Operation> {
        let mut wanted = assembly.plan.clone();
        wanted.ports.iter_mut().for_each(|port| {
            port.requests.clear();
            port.verifiers.clear();
        });
        let mut sent = Vec::new();
        if let Some(program) = assembly.programs.first() {
            offload::request(&mut wanted, program);
            sent = program.sent_checksums(wanted.ports.len());
        }
        let mut operations = Vec::new();
        for (port, wanted) in assembly.plan.ports.iter_mut().zip(&wanted.ports) {
            let earlier = before.ports.iter().find(|earlier| earlier.config.name == port.config.name);
            let of_added = || PortPlan { requests: self.possible_requests(wanted), ..wanted.clone() };
            let before = earlier.cloned().unwrap_or_else(of_added);
            port.requests.clone_from(&before.requests);
            port.verifiers.clone_from(&before.verifiers);
            // The VLAN tag, the flow tag and the RSS hash of a packet are known only if the device reports them. The
            // checksum offloads are optional: without these offloads, the stages compute and verify the checksums.
            let is_needed =
                |offload| matches!(offload, StageOffload::VlanTag | StageOffload::FlowTag | StageOffload::RssHash);
            let lacks = |offload| {
                is_needed(offload) && offload::is_requested(wanted, offload) && !offload::is_requested(&before, offload)
            };
            for request in wanted.requests.iter().filter(|request| lacks(request.offload)) {
                let why = format!(
                    "the device must report {}, which is only requested at the start of the program",
                    request.offload
                );
                operations.push(difference::port_operation(earlier.is_some(), &port.config.name, &why));
            }
        }
        // A device that computes checksums would give a packet with a wrong checksum a correct checksum.
        for ((port, computes), checksums) in assembly.plan.ports.iter().zip(computes).zip(sent) {
            let is_configured = port.config.offloads().contains(&Offload::Checksum);
            if *computes
                && !is_configured
                && let Some(ChecksumState::MayLack { changed_by }) = checksums
            {
                let cause = match changed_by {
                    Some(stage) => format!(
                        "stage `{stage}` may change packets after the `checksum` stage: put stage `{stage}` before the \
                         `checksum` stage"
                    ),
                    None => "some packets pass no `checksum` stage".to_owned(),
                };
                let why = format!(
                    "the device has computed the checksums of sent packets since the start, and would hide wrong \
                     checksums, because {cause}"
                );
                operations.push(difference::port_operation(true, &port.config.name, &why));
            }
        }
        operations
    }

    /// Returns the offloads that the program can request from the device of an added port. If the packet buffers have
    /// no room for the results of receive offloads, the device can only compute the checksums of sent packets.
    fn possible_requests(&self, wanted: &PortPlan) -> Vec<OffloadRequest> {
        let is_possible =
            |request: &&OffloadRequest| self.keeps_recv_info || request.offload == StageOffload::SendChecksum;
        wanted.requests.iter().filter(is_possible).cloned().collect()
    }

    /// For each added port that needs a privilege that the program has given up, returns an operation that needs a
    /// restart.
    fn port_privilege_operations(&self, before: &Plan, after: &Plan) -> Vec<Operation> {
        if !before.runtime.sandbox {
            return Vec::new();
        }
        let held = rustix::thread::capabilities(None).map_or(CapabilitySet::empty(), |held| held.effective);
        missing_privileges(before, after, &self.written, held, Memlock::of_this_process())
    }

    /// For each stage that writes a file still in use, or that needs a privilege that the program has given up, returns
    /// an operation that needs a restart.
    fn privilege_operations(
        &self,
        current: &PipelineVersion,
        assembly: &Assembly,
        kept: &BTreeSet<String>,
    ) -> Vec<Operation> {
        let mut operations = Vec::new();
        let is_replaced = |(stage, _): &(&String, _)| !kept.contains(*stage);
        // The stages that end with this change still write their files until the change is complete.
        let ending = current.objects.records.iter().filter(is_replaced);
        let in_use: Vec<&PathBuf> = ending.flat_map(|(_, record)| &record.written).collect();
        for (stage, record) in assembly.resources.records.iter().filter(is_replaced) {
            let is_in_use = |path: &&PathBuf| in_use.iter().any(|used| is_same_file(used, path));
            let is_unavailable = |path: &&PathBuf| current.plan.runtime.sandbox && !self.written.contains(*path);
            if let Some(file) = record.written.iter().find(is_in_use) {
                let why = format!("the running stage still writes {}", file.display());
                operations.push(difference::stage_restart(stage, &why, ", or name another file"));
            } else if let Some(file) = record.written.iter().find(is_unavailable) {
                let why = format!("the program has given up the right to write {}", file.display());
                operations.push(difference::stage_restart(stage, &why, WITHOUT_SANDBOX));
            }
        }
        let kept_capabilities = self.capabilities.iter().copied().collect::<CapabilitySet>();
        let held = rustix::thread::capabilities(None).map_or(CapabilitySet::empty(), |held| held.effective);
        let needed = assembly.resources.services.capabilities.iter().copied().collect::<CapabilitySet>();
        if current.plan.runtime.sandbox && !(kept_capabilities | held).contains(needed) {
            let added = assembly.plan.nodes.iter().map(|node| &node.name).filter(|name| !kept.contains(*name));
            let names = added.cloned().collect::<Vec<_>>().join(", ");
            let why = "the program has given up a capability that the stage needs";
            operations.push(difference::stage_restart(&names, why, WITHOUT_SANDBOX));
        }
        operations
    }

    /// Waits until the threads of earlier changes have completed the files that the new stages write.
    ///
    /// # Errors
    /// Fails if a file is still in use after [`FILE_TIMEOUT`].
    pub(super) fn await_files(&self, assembly: &Assembly, kept: &BTreeSet<String>) -> Result<(), Refusal> {
        let records = assembly.resources.records.iter().filter(|(stage, _)| !kept.contains(*stage));
        let outputs = assembly.plan.ports.iter().filter_map(|port| port.config.link.as_ref()?.output());
        let new: Vec<&Path> =
            records.flat_map(|(_, record)| &record.written).map(PathBuf::as_path).chain(outputs).collect();
        let in_use = || {
            let retiring = lock(&self.retiring);
            let is_active = |retiring: &&Retiring| !retiring.thread.is_finished();
            let mut in_use = retiring.iter().filter(is_active).flat_map(|retiring| &retiring.written);
            in_use.find(|used| new.iter().any(|path| is_same_file(used, path))).cloned()
        };
        let begin = Instant::now();
        while let Some(file) = in_use() {
            if begin.elapsed() >= FILE_TIMEOUT {
                let message = format!("the pipeline of an earlier change still writes {}", file.display());
                return Err(busy(message, "try again, or name another file"));
            }
            thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }
}

/// For each added port that needs a privilege that the program has given up, returns an operation that needs a restart.
/// Returns such an operation also for added workers that need more locked memory than the limit allows. `written` has the
/// files that the program may write, and `held` has the capabilities of the program.
fn missing_privileges(
    before: &Plan,
    after: &Plan,
    written: &BTreeSet<PathBuf>,
    held: CapabilitySet,
    memlock: Memlock,
) -> Vec<Operation> {
    let (running, workers) = (before.cores.len(), after.cores.len());
    // The kernel counts the memory of AF_XDP sockets separately, and programs cannot read this counter.
    let locked = before.locked_memory(&before.ports, running).xdp;
    let memlock_xdp = Memlock { locked, ..memlock };
    let kept = after.ports.iter().filter(|port| before.port(&port.config.name).is_some());
    let mut to_lock = after.locked_memory(kept, workers.saturating_sub(running));
    let shortage = memlock_xdp.shortage(to_lock.xdp).filter(|_| to_lock.xdp > 0);
    let of_workers = shortage.map(|shortage| {
        let why = format!("each added worker locks packet memory for each xdp port, {}", no_memory(shortage));
        difference::workers_operation(&format!("{why}; restart the program{WITHOUT_SANDBOX}"))
    });
    let of_port = |port: &PortPlan| {
        let output = port.config.link.as_ref().and_then(|link| link.output());
        let output = output.filter(|path| !written.contains(*path));
        let of_file = output.map(|file| format!("the program has given up the right to write {}", file.display()));
        // An added port locks packet memory of all workers of the new config. The packet buffers of a worker stay the
        // same, because another number or size of buffers needs a restart.
        let added = after.locked_memory([port], workers);
        to_lock = LockedMemory { rdma: to_lock.rdma + added.rdma, xdp: to_lock.xdp + added.xdp };
        let (memlock, bytes) = if port.config.is_rdma() { (memlock, to_lock.rdma) } else { (memlock_xdp, to_lock.xdp) };
        let why = of_file.or_else(|| missing_privilege(port, held, memlock, bytes))?;
        let why = format!("{why}; restart the program{WITHOUT_SANDBOX}");
        Some(difference::port_operation(false, &port.config.name, &why))
    };
    of_workers.into_iter().chain(difference::added_ports(before, after).filter_map(of_port)).collect()
}

/// If the program has given up a privilege that an added port needs, returns the reason why the program cannot add the
/// port. `held` has the capabilities of the program, and `to_lock` is the number of bytes that the added ports lock.
fn missing_privilege(port: &PortPlan, held: CapabilitySet, memlock: Memlock, to_lock: u64) -> Option<String> {
    let link = port.config.link.as_ref().map(|link| link.capabilities());
    let raw = (port.config.is_rdma() && port.config.qp == Qp::RawPacket).then_some(CapabilitySet::NET_RAW);
    let needed = link.into_iter().chain(raw).collect::<CapabilitySet>();
    if !held.contains(needed) {
        return Some("the program has given up a capability that the port needs".to_owned());
    }
    let shortage = port.config.locks_memory().then(|| memlock.shortage(to_lock)).flatten()?;
    Some(format!("the port locks packet memory, {}", no_memory(shortage)))
}

/// Returns the reason why the program cannot lock enough memory.
fn no_memory(Shortage { needed, limit }: Shortage) -> String {
    format!(
        "the program does not have CAP_IPC_LOCK, {needed} bytes are needed, and the limit on locked memory is {limit} bytes"
    )
}

fn is_same_file(one: &Path, other: &Path) -> bool {
    one == other || Identity::of(one).is_some_and(|identity| Identity::of(other) == Some(identity))
}

#[cfg(feature = "ibverbs")]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;
    use crate::runtime::raw::tests::plan;
    use dataplane_core::topology::Topology;

    #[test]
    fn added_port_needs_only_the_privileges_that_its_device_checks() {
        let limit = |limit| Memlock { limit, locked: 0, privileged: false };
        let connection = "connection = { listen = '127.0.0.1:1' }";
        let raw = plan("", true);
        let rc = plan(&format!("qp = 'rc'\n{connection}"), true);
        let (none, net_raw) = (CapabilitySet::empty(), CapabilitySet::NET_RAW);
        assert!(missing_privilege(&raw, none, limit(u64::MAX), 1 << 30).unwrap().ends_with("that the port needs"));
        assert_eq!(missing_privilege(&raw, net_raw, limit(u64::MAX), 1 << 30), None);
        assert_eq!(missing_privilege(&rc, none, limit(u64::MAX), 1 << 30), None);
        let why = missing_privilege(&rc, none, limit(8 << 20), 1 << 30).unwrap();
        assert!(why.contains("CAP_IPC_LOCK") && why.ends_with("is 8388608 bytes"), "{why}");
        assert_eq!(missing_privilege(&rc, none, Memlock { privileged: true, ..limit(8 << 20) }, 1 << 30), None);
    }

    #[test]
    fn added_port_locks_the_packet_memory_of_all_workers_of_the_new_config() {
        let port = "[[port]]\nname = 'b'\ndevice = 'mlx5_0'\nqp = 'rc'\nconnection = { listen = '127.0.0.1:1' }\n";
        // The limit allows the memory of one worker, but not of two workers.
        let limit = plan_of(1, "").packet_memory() * 3 / 2;
        let memlock = Memlock { limit, locked: 0, privileged: false };
        for (before, after, is_missing) in [(1, 1, false), (1, 2, true), (2, 1, false), (2, 2, true)] {
            let missing = names_of_missing(&plan_of(before, ""), &plan_of(after, port), memlock);
            assert_eq!(missing, if is_missing { vec!["b"] } else { vec![] });
        }
    }

    #[test]
    fn memory_of_af_xdp_sockets_counts_for_each_worker_and_each_port() {
        let port = |name: &str| {
            format!(
                "[[port]]\nname = '{name}'\ndevice = 'host'\nmtu = 1500\nlink = {{ kind = 'xdp', interface = '{name}' }}\n"
            )
        };
        let (one, two) = (port("b"), port("b") + &port("c"));
        let limit = |times: u64| Memlock {
            limit: plan_of(1, "").packet_memory() * times / 2,
            // The kernel counts the memory of AF_XDP sockets separately.
            locked: 1 << 40,
            privileged: false,
        };
        for (before, after, times, expected) in [
            ((1, &one), (1, &one), 3, &[][..]),
            ((1, &one), (2, &one), 3, &["workers"]),
            ((1, &one), (2, &one), 5, &[]),
            ((1, &one), (1, &two), 3, &["c"]),
            ((1, &one), (1, &two), 5, &[]),
            ((1, &one), (2, &two), 7, &["c"]),
            ((1, &one), (2, &two), 9, &[]),
            ((2, &one), (1, &one), 3, &[]),
        ] {
            let (before, after) = (plan_of(before.0, before.1), plan_of(after.0, after.1));
            assert_eq!(names_of_missing(&before, &after, limit(times)), expected);
        }
    }

    fn names_of_missing(before: &Plan, after: &Plan, memlock: Memlock) -> Vec<String> {
        let missing = missing_privileges(before, after, &BTreeSet::new(), CapabilitySet::all(), memlock);
        missing.into_iter().map(|operation| operation.name).collect()
    }

    fn plan_of(workers: usize, port: &str) -> Plan {
        let text = format!(
            "[runtime]\nworkers = {workers}\nbuffers = 16384\n[[port]]\nname = 'a'\ndevice = 'soft'\n\
                 link = {{ kind = 'generator' }}\n{port}[pipeline]\ninput = ['a']\n[[pipeline.stage]]\nuse = 'tx'\n\
                 port = 'a'\n"
        );
        let source = Source::new("x.toml", &text, &[]);
        let mut diagnostics = Diagnostics::new(&source);
        let loaded = config::load(&source, &mut diagnostics);
        let plan = config::plan(&loaded, &dataplane_stages::registry(), &Topology::uniform(4), &mut diagnostics);
        plan.unwrap_or_else(|| panic!("{}", diagnostics.render(false)))
    }
}
