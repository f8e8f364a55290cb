//! Information and shared objects for stages during preparation.

use std::any::{Any, TypeId};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ipnet::IpNet;
use rustix::thread::CapabilitySet;

use crate::error::shorten;
use crate::file::Identity;
use crate::pipeline::hops::{NextHop, NextHops};
use crate::pipeline::record::{Fingerprint, StageRecord};
use crate::pipeline::{Facts, Owner, Problem, RunStop, StageTable, Table, Task, TaskSpec};
use crate::units::Nanos;

/// A port, as stages see it. The number of a port is its index in [`Setup::ports`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortInfo {
    /// The name of the port in the config.
    pub name: String,
    /// MAC address of the port.
    pub mac: [u8; 6],
    /// The largest payload of a frame, in bytes.
    pub mtu: u16,
    /// The name of the kernel interface behind the port, if there is one.
    pub interface: Option<String>,
    /// Addresses of this host on the port, each with the prefix length of its subnet.
    pub addresses: Vec<IpNet>,
}

/// Information and shared objects for a stage during preparation. For each worker in turn, the stages are prepared in
/// the order of the pipeline.
pub struct Setup<'a> {
    ports: &'a [PortInfo],
    earlier_ports: Option<&'a [PortInfo]>,
    /// The ports that the stage has used so far.
    used_ports: RefCell<UsedPorts>,
    folder: &'a Path,
    next_hops: &'a mut NextHops,
    shared: &'a mut HashMap<ObjectKey, SharedObject>,
    earlier: &'a HashMap<ObjectKey, SharedObject>,
    users: &'a BTreeMap<TypeId, BTreeSet<String>>,
    renewed: &'a mut BTreeSet<TypeId>,
    records: &'a mut BTreeMap<String, StageRecord>,
    files: &'a mut Files,
    memory: &'a mut StageMemory,
    services: &'a mut Services,
    wanted: Facts,
    offline: bool,
    /// The problems that [`Setup::reject`] recorded.
    pub(super) rejected: Vec<Problem>,
    stage: String,
    owner: Owner,
    worker: usize,
    workers: usize,
    /// Whether a change adds this worker, while the instances of the stage on the other workers continue.
    joins: bool,
}

/// An object that stages share.
type SharedObject = Arc<dyn Any + Send + Sync>;
/// The name of the stage whose instances share an object, and the type of the object. The name is empty for an object
/// that all stages share.
type ObjectKey = (String, TypeId);

/// The ports that a stage used during its preparation.
#[derive(Default)]
struct UsedPorts {
    numbers: BTreeMap<String, u8>,
    all: bool,
}

impl<'a> Setup<'a> {
    /// Creates the setup of one stage on one of `workers` workers.
    pub fn new(resources: &'a mut Resources, stage: &str, worker: usize, workers: usize) -> Self {
        Self {
            ports: &resources.ports,
            earlier_ports: resources.earlier_ports.as_deref(),
            used_ports: RefCell::default(),
            folder: &resources.folder,
            next_hops: &mut resources.next_hops,
            shared: &mut resources.shared,
            earlier: &resources.earlier,
            users: &resources.users,
            renewed: &mut resources.renewed,
            records: &mut resources.records,
            files: &mut resources.files,
            memory: &mut resources.memory,
            services: &mut resources.services,
            wanted: resources.wanted,
            offline: resources.offline,
            rejected: Vec::new(),
            stage: stage.to_owned(),
            owner: Owner::Stage(stage.to_owned()),
            worker,
            workers,
            joins: false,
        }
    }

    /// Records a problem and continues the preparation, so that all problems are reported at once. A stage with a
    /// problem never runs.
    pub fn reject(&mut self, problem: Problem) {
        self.rejected.push(problem);
    }

    /// Returns whether the pipeline processes packets without a run, as in `dataplane explain`. In this case, a stage
    /// must write no file and send nothing.
    pub fn is_offline(&self) -> bool {
        self.offline
    }

    /// Returns whether any stage of the pipeline needs one of these facts
    /// ([`Contract::needs`](super::Contract::needs)). A stage need not compute a fact that no stage needs.
    pub fn any_stage_needs(&mut self, facts: Facts) -> bool {
        let wanted = self.wanted.intersects(facts);
        self.record().wanted.push((facts, wanted));
        wanted
    }

    /// Completes the record of the stage after its preparation.
    pub(super) fn complete(&mut self) {
        let requested = std::mem::take(&mut self.next_hops.requested);
        let UsedPorts { numbers, all } = self.used_ports.take();
        let record = self.record();
        record.requested_hops.extend(requested);
        record.port_numbers.extend(numbers);
        record.uses_all_ports |= all;
    }

    fn record(&mut self) -> &mut StageRecord {
        self.records.entry(self.stage.clone()).or_default()
    }

    /// Returns the ports of the config. If a later change of the running pipeline adds, removes or renumbers a port,
    /// each stage that has called this method is prepared again.
    pub fn ports(&self) -> &[PortInfo] {
        self.used_ports.borrow_mut().all = true;
        self.ports
    }

    /// Returns `false` if a change of the running pipeline has removed a port, or has given a port another number. An
    /// object of the replaced stage ([`Setup::earlier`]) that contains numbers of ports is then invalid.
    pub fn has_unchanged_port_numbers(&self) -> bool {
        let is_same =
            |(number, port): (usize, &PortInfo)| self.ports.get(number).is_some_and(|now| now.name == port.name);
        self.earlier_ports.is_none_or(|ports| ports.iter().enumerate().all(is_same))
    }

    /// Returns the number of the port with this name.
    ///
    /// # Errors
    /// Fails if there is no such port. The problem points to `key`.
    pub fn port(&self, name: &str, key: &str) -> Result<u8, Problem> {
        let place = self.ports.iter().position(|port| port.name == name);
        let number = place.and_then(|place| u8::try_from(place).ok());
        if let Some(number) = number {
            self.used_ports.borrow_mut().numbers.insert(name.to_owned(), number);
        }
        number.ok_or_else(|| {
            let names: Vec<&str> = self.ports.iter().map(|port| port.name.as_str()).collect();
            let short = shorten(name);
            let problem = Problem::at(key, format!("there is no port `{short}`"));
            // Suggest no port for a long name: the comparison would be slow, and names of ports are short.
            let alike = |known: &&str| *short == *name && strsim::jaro_winkler(known, name) > 0.7;
            let rank = |known: &&str| (strsim::jaro_winkler(known, name) * 1000.0) as u32;
            let list = names.iter().map(|name| shorten(name)).collect::<Vec<_>>().join(", ");
            match names.iter().copied().filter(alike).max_by_key(rank) {
                Some(nearest) => problem.help(format!("did you mean `{nearest}`? Ports: {list}")),
                None if names.is_empty() => problem.help("add a [[port]]"),
                None => problem.help(format!("the ports are {list}")),
            }
        })
    }

    /// Resolves a path of the config. Relative paths are relative to the folder of the config.
    pub fn path(&self, path: &Path) -> PathBuf {
        self.folder.join(path)
    }

    /// Declares that the stage writes a file. No other part of the config may then write or read the file.
    ///
    /// # Errors
    /// Fails if another part of the config writes or reads the file. The problem points to `key`.
    pub fn declare_written_file(&mut self, path: &Path, key: &str) -> Result<(), Problem> {
        let user = format!("the file that stage `{}` writes", self.stage);
        self.record().written.insert(path.to_owned());
        self.files.write(path, &user).map_err(|why| Problem::at(key, why).help(Files::HELP))
    }

    /// Declares that the stage reads a file. No part of the config may then write the file.
    ///
    /// # Errors
    /// Fails if a part of the config writes the file. The problem points to `key`.
    pub fn declare_read_file(&mut self, path: &Path, key: &str) -> Result<(), Problem> {
        let user = format!("the file that stage `{}` reads", self.stage);
        let fingerprint = Fingerprint::of(path);
        self.record().read.entry(path.to_owned()).or_insert(fingerprint);
        self.files.read(path, &user).map_err(|why| Problem::at(key, why).help(Files::HELP))
    }

    /// Declares memory that the stage allocates for all workers together, in bytes. Declare large memory before the
    /// allocation. `dataplane check` prints the memory of each stage.
    ///
    /// # Errors
    /// Fails if the stages need more memory than the host has available. The problem points to `key`, and its help text
    /// is `help`.
    pub fn declare_memory(&mut self, bytes: u64, key: &str, help: &str) -> Result<(), Problem> {
        let before: u64 = self.memory.stages.values().sum::<u64>() - self.memory.allocated;
        *self.memory.stages.entry(self.stage.clone()).or_default() += bytes;
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        match self.memory.available {
            Some(available) if before.saturating_add(bytes) > available => {
                let others = match before {
                    0 => String::new(),
                    before => format!(", and other stages need {} MiB", mib(before)),
                };
                let (bytes, available) = (mib(bytes), available >> 20);
                let message = format!("this needs {bytes} MiB of memory{others}, but the host has {available} MiB");
                Err(Problem::at(key, message).help(help))
            }
            _ => Ok(()),
        }
    }

    /// Declares memory that the stage allocates for each worker. `bytes` is the memory of one worker, and must be equal
    /// for all workers. Call this method on each worker, before the allocation. See also [`Setup::declare_memory`].
    ///
    /// # Errors
    /// Returns the errors of [`Setup::declare_memory`].
    pub fn declare_worker_memory(&mut self, bytes: u64, key: &str, help: &str) -> Result<(), Problem> {
        let (worker, workers) = (self.worker, self.workers);
        let (declared, count) = &mut self.record().worker_memory;
        *count = workers;
        *declared += if worker == 0 { bytes } else { 0 };
        match self.worker {
            // The first worker is prepared first, and reserves the memory of all workers.
            0 => self.declare_memory(bytes * self.workers as u64, key, help),
            // A change has added this worker, and the stages of the other workers continue.
            _ if self.joins => self.declare_memory(bytes, key, help),
            _ => Ok(()),
        }
    }

    /// Marks the stage as an instance for an added worker. The instances of the stage on the other workers continue.
    pub fn for_added_worker(mut self) -> Self {
        self.joins = true;
        self
    }

    /// Returns the numbers of next hops.
    pub fn next_hops(&mut self) -> &mut NextHops {
        self.record().uses_next_hops = true;
        self.next_hops
    }

    /// Returns an object that the instances of this stage on all workers share, such as a large table. The first caller
    /// builds the object with `make`. The tasks and functions that `make` registers continue as long as the object
    /// exists.
    ///
    /// # Errors
    /// Returns the errors of `make`.
    pub fn shared_by_workers<T: Send + Sync + 'static>(
        &mut self,
        make: impl FnOnce(&mut Self) -> Result<T, Problem>,
    ) -> Result<Arc<T>, Problem> {
        let key = (self.stage.clone(), TypeId::of::<T>());
        if let Some(known) = self.shared.get(&key).cloned().and_then(|known| known.downcast::<T>().ok()) {
            return Ok(known);
        }
        let made = Arc::new(self.owned_by(Owner::Object(key.0.clone(), key.1), make)?);
        self.shared.insert(key, made.clone());
        Ok(made)
    }

    /// Returns the object of type `T` that the replaced stage shared ([`Setup::shared_by_workers`]). Returns `None` if
    /// this stage replaces no stage. The new stage can share this object again with [`Setup::share`], or build its own
    /// object from this object.
    pub fn earlier<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        self.earlier.get(&(self.stage.clone(), TypeId::of::<T>())).cloned()?.downcast().ok()
    }

    /// Shares an existing object. [`Setup::shared_by_workers`] then returns this object.
    pub fn share<T: Send + Sync + 'static>(&mut self, object: Arc<T>) {
        self.shared.insert((self.stage.clone(), TypeId::of::<T>()), object);
    }

    /// Returns the stage-shared object of the type `T`: all stages that call this method share this object. The first
    /// caller builds the object with `make`. If a change of the running pipeline adds or removes a stage that uses the
    /// object, the stages of the new pipeline build a new object.
    pub fn shared_by_stages<T: Send + Sync + 'static>(&mut self, make: impl FnOnce(&mut Self) -> Arc<T>) -> Arc<T> {
        let key = (String::new(), TypeId::of::<T>());
        self.record().stage_shared_types.insert(key.1);
        if self.users.get(&key.1).is_some_and(|users| !users.contains(&self.stage)) && !self.renewed.contains(&key.1) {
            // The running pipeline uses the object without this stage. Leave that object unchanged, and build a new
            // object.
            self.renewed.insert(key.1);
            self.shared.remove(&key);
        }
        if let Some(known) = self.shared.get(&key).cloned().and_then(|known| known.downcast::<T>().ok()) {
            return known;
        }
        let made = self.on_behalf_of::<T, _>(make);
        self.shared.insert(key, made.clone());
        made
    }

    /// Returns the object of the type `T` that the stages of the running pipeline share. Returns `None` if no pipeline
    /// runs, or if the running pipeline has no such object. If a change builds the object again, the function that
    /// builds the new object ([`Setup::shared_by_stages`]) can take over the content of the earlier object.
    pub fn earlier_shared_by_stages<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        self.earlier.get(&(String::new(), TypeId::of::<T>())).cloned()?.downcast().ok()
    }

    /// Requests a new object of the type `T`, because the existing object does not suit the parameters of this
    /// stage. If the object belongs to a running pipeline, the change prepares all stages that use the object again.
    pub fn renew_shared_by_stages<T: 'static>(&mut self) {
        self.renewed.insert(TypeId::of::<T>());
    }

    /// Calls `register` with this setup. The tasks and functions that `register` registers belong to the shared object
    /// of the type `T` ([`Setup::shared_by_stages`]). The tasks and functions therefore continue if this stage ends
    /// before the object.
    pub fn on_behalf_of<T: 'static, R>(&mut self, register: impl FnOnce(&mut Self) -> R) -> R {
        self.owned_by(Owner::Object(String::new(), TypeId::of::<T>()), register)
    }

    fn owned_by<R>(&mut self, owner: Owner, register: impl FnOnce(&mut Self) -> R) -> R {
        let owner = std::mem::replace(&mut self.owner, owner);
        let result = register(self);
        self.owner = owner;
        result
    }

    /// Registers a table that other programs can list while the pipeline runs. `name` selects the table in `dataplane
    /// show NAME`. Register the table only once for all workers, on the first worker or in
    /// [`Setup::shared_by_workers`].
    pub fn table(&mut self, name: &str, table: impl Table) {
        self.services.tables.push(Arc::new(StageTable::new(name, &self.stage, table)));
    }

    /// Registers a background task. `name` is the name of its thread. The task starts before this stage processes its
    /// first packet. The task ends after the workers, or when a change of the pipeline removes or replaces this stage.
    /// Register the task only once for all workers, on the first worker or in [`Setup::shared_by_workers`]. An offline
    /// pipeline starts no tasks.
    pub fn task(&mut self, name: &str, task: impl Task) {
        let owner = self.owner.clone();
        self.services.tasks.push(TaskSpec { name: name.to_owned(), task: Box::new(task), owner });
    }

    /// Returns the request to stop the run. A stage that waits during [`Stage::process`](super::Stage::process) must
    /// end its wait when the stop is requested.
    pub fn run_stop(&self) -> RunStop {
        self.services.stop.clone()
    }

    /// Returns the time for which the stages may hold a packet. The time is known after the preparation of all stages.
    pub fn hold_time(&self) -> HoldTime {
        self.services.hold.clone()
    }

    /// Registers a function that is called whenever a port changes, with the number of the port and the change. The
    /// function runs on the event thread of the port's device, never on a worker.
    pub fn on_port_change(&mut self, handler: impl Fn(u8, PortChange) + Send + Sync + 'static) {
        self.used_ports.borrow_mut().all = true;
        self.services.port_handlers.push((self.owner.clone(), Arc::new(handler)));
    }

    /// Declares capabilities that the stage or its tasks use during the run (capabilities(7)). At its start, a run
    /// gives up every capability that no part of the run declared. A later change that needs another capability is
    /// refused. Files that the stage declared with [`Setup::declare_written_file`] need no capability.
    pub fn needs_capabilities(&mut self, capabilities: CapabilitySet) {
        self.services.capabilities.push(capabilities);
    }

    /// Registers a function that changes an object which the running pipeline may use too, such as a stage-shared
    /// object. The function runs when the pipeline starts to process packets. If the preparation is discarded, for
    /// example because another stage has a problem, the function does not run.
    pub fn on_start(&mut self, start: impl FnOnce() + Send + 'static) {
        self.services.starts.push(Box::new(start));
    }

    /// Registers a check of requirements on other stages. The check runs after all stages of all workers are prepared.
    /// If the check fails, the program reports the problem for this stage.
    pub fn check_later(&mut self, check: impl FnOnce() -> Result<(), Problem> + Send + 'static) {
        self.services.checks.push((self.stage.clone(), Box::new(check)));
    }

    /// Returns the name of the stage in the config.
    pub fn stage(&self) -> &str {
        &self.stage
    }

    /// Returns the index (from 0) of the worker that runs this instance of the stage, and the number of workers. A
    /// stage needs the number of workers to divide a value among the workers, such as a rate. If a change of the
    /// running pipeline changes the number of workers, each stage that has called this method is prepared again.
    pub fn worker_and_count(&mut self) -> (usize, usize) {
        let workers = self.workers;
        self.record().workers = Some(workers);
        (self.worker, workers)
    }

    /// Returns the index (from 0) of the worker that runs this instance of the stage.
    pub fn worker_number(&self) -> usize {
        self.worker
    }
}

/// A change of a port, as its device reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortChange {
    /// The link is up.
    LinkUp,
    /// The link is down.
    LinkDown,
    /// The addresses of the port changed: its GID table, or the MAC address of the interface.
    Addresses,
    /// Another property changed, such as the partition keys.
    Other,
}

/// The longest time for which the stages of one worker together may hold a packet: the sum of [`Contract::holds`] of
/// all stages. Clones share the time.
///
/// [`Contract::holds`]: super::Contract::holds
#[derive(Clone, Debug, Default)]
pub struct HoldTime(Arc<AtomicU64>);

impl HoldTime {
    /// Sets the time to the sum of the times of the stages.
    pub fn set(&self, stages: impl IntoIterator<Item = Nanos>) {
        let sum = stages.into_iter().fold(0u64, |sum, hold| sum.saturating_add(hold.0));
        self.0.store(sum, Ordering::Relaxed);
    }

    /// Returns the time. 0 before the preparation of all stages.
    pub fn get(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

/// A function that is called with the number of a port and its change.
pub type PortHandler = Arc<dyn Fn(u8, PortChange) + Send + Sync>;

/// The tables, tasks, functions and checks that the stages of one run registered during preparation.
#[derive(Default)]
pub struct Services {
    /// Tables that other programs can list.
    pub tables: Vec<Arc<StageTable>>,
    /// Background tasks.
    pub tasks: Vec<TaskSpec>,
    /// Functions to call when a port changes, each with its owner.
    pub port_handlers: Vec<(Owner, PortHandler)>,
    /// Checks that run after the preparation, each with the name of its stage.
    pub checks: Vec<(String, Check)>,
    /// Functions that run when the pipeline starts to process packets.
    pub starts: Vec<Box<dyn FnOnce() + Send>>,
    /// The capabilities that stages and tasks use during the run.
    pub capabilities: Vec<CapabilitySet>,
    /// The request to stop the run.
    pub stop: RunStop,
    /// The time for which the stages may hold a packet.
    pub hold: HoldTime,
}

/// A check that runs after the preparation.
type Check = Box<dyn FnOnce() -> Result<(), Problem> + Send>;

/// The objects of a prepared pipeline. A change of the pipeline starts from these objects.
#[derive(Debug)]
pub struct Objects {
    ports: Vec<PortInfo>,
    next_hops: NextHops,
    shared: HashMap<ObjectKey, SharedObject>,
    /// The inputs of the preparation of each stage, by the name of the stage.
    pub records: BTreeMap<String, StageRecord>,
    /// The memory of each stage for all workers together, in bytes, by the name of the stage.
    memory: BTreeMap<String, u64>,
    stop: RunStop,
    hold: HoldTime,
}

/// The parts of a running pipeline that continue after a change.
#[derive(Clone, Copy)]
pub struct ContinuingParts<'a> {
    /// The names of the stages that continue.
    pub keeps: &'a BTreeSet<String>,
    /// The names of the stages that replace a stage with the same name.
    pub replaces: &'a BTreeSet<String>,
    /// The types of the stage-shared objects that are built again.
    pub renews: &'a BTreeSet<TypeId>,
    /// In a revert, the objects of the pipeline before the reverted change. The stages use these objects again, so the
    /// stages read no files.
    pub held: Option<&'a Objects>,
    /// The ports of the new pipeline. `None` if the ports stay the same.
    pub ports: Option<&'a [PortInfo]>,
    /// The number of workers of the new pipeline.
    pub workers: usize,
}

/// The objects that the stages of one run share during preparation.
pub struct Resources {
    ports: Vec<PortInfo>,
    /// For a change that changes the ports, the ports before the change.
    earlier_ports: Option<Vec<PortInfo>>,
    folder: PathBuf,
    next_hops: NextHops,
    shared: HashMap<ObjectKey, SharedObject>,
    /// The objects that the replaced stages shared, and the stage-shared objects of the running pipeline.
    earlier: HashMap<ObjectKey, SharedObject>,
    /// For each stage-shared object of the running pipeline, the names of the running stages that use the object.
    users: BTreeMap<TypeId, BTreeSet<String>>,
    /// The types of the stage-shared objects that must be built again.
    pub renewed: BTreeSet<TypeId>,
    /// The inputs of the preparation of each stage, by the name of the stage.
    pub records: BTreeMap<String, StageRecord>,
    /// The files that the config names.
    pub files: Files,
    /// The memory that the stages declared.
    pub memory: StageMemory,
    /// The services that the stages registered.
    pub services: Services,
    /// The facts that at least one stage needs.
    pub wanted: Facts,
    /// Whether the pipeline processes packets without a run. See [`Setup::is_offline`].
    pub offline: bool,
}

/// The memory that stages allocate in addition to packet buffers.
#[derive(Debug, Default)]
pub struct StageMemory {
    /// The memory that all stages together may use, in bytes. `None` means that no limit is known.
    pub available: Option<u64>,
    /// The memory of each stage for all workers together, in bytes, by the name of the stage.
    pub stages: BTreeMap<String, u64>,
    /// The part of this memory that is already allocated, because its stages are running.
    pub allocated: u64,
}

/// The files of a config. A file that is written has only one user, even if links give the file several names.
#[derive(Default)]
pub struct Files {
    known: HashMap<Identity, FileUse>,
    written: BTreeSet<PathBuf>,
}

/// The use of a file: a description for messages, and whether the file is written.
struct FileUse {
    what: String,
    is_written: bool,
}

impl Files {
    /// The help text for a file with two users.
    pub const HELP: &str = "name another file (a link to a file is the same file)";

    /// Records a file that is read.
    ///
    /// # Errors
    /// Fails if the file already has a conflicting use. The error names this use.
    pub fn read(&mut self, path: &Path, what: &str) -> Result<(), String> {
        self.note(path, what, false)
    }

    /// Records a file that is written. The same user may record the file several times.
    ///
    /// # Errors
    /// Fails if the file already has a conflicting use. The error names this use.
    pub fn write(&mut self, path: &Path, what: &str) -> Result<(), String> {
        self.written.insert(path.to_owned());
        self.note(path, what, true)
    }

    /// Returns the paths of the files that are written, including files that are not regular files.
    pub fn written(&self) -> impl Iterator<Item = &Path> {
        self.written.iter().map(PathBuf::as_path)
    }

    fn note(&mut self, path: &Path, what: &str, is_written: bool) -> Result<(), String> {
        let Some(identity) = Identity::of(path) else { return Ok(()) };
        let known = self.known.entry(identity).or_insert_with(|| FileUse { what: what.to_owned(), is_written });
        match known.what != what && (known.is_written || is_written) {
            true => Err(format!("{} is {}", path.display(), known.what)),
            false => Ok(()),
        }
    }
}

impl Resources {
    /// Creates the objects for a run with these ports. Relative paths are relative to `folder`.
    pub fn new(ports: Vec<PortInfo>, folder: &Path) -> Self {
        let (next_hops, shared) = (NextHops::default(), HashMap::new());
        Self {
            ports,
            earlier_ports: None,
            folder: folder.to_owned(),
            next_hops,
            shared,
            earlier: HashMap::new(),
            users: BTreeMap::new(),
            renewed: BTreeSet::new(),
            records: BTreeMap::new(),
            files: Files::default(),
            memory: StageMemory::default(),
            services: Services::default(),
            wanted: Facts::all(),
            offline: false,
        }
    }

    /// Marks a stage as replaced instead of continuing: moves the objects of the stage to the objects of replaced
    /// stages. The new instances of the stage can then use these objects during preparation ([`Setup::earlier`]).
    pub fn release(&mut self, stage: &str) {
        let moved: Vec<_> = self.shared.extract_if(|(owner, _), _| owner == stage).collect();
        self.earlier.extend(moved);
        self.records.remove(stage);
        if let Some(bytes) = self.memory.stages.remove(stage) {
            self.memory.allocated -= bytes;
        }
    }

    /// Returns the types of the stage-shared objects whose users have changed: the running pipeline and the new
    /// pipeline both use the object, but in different stages.
    pub fn changed_stage_shared_types(&self) -> BTreeSet<TypeId> {
        let now = users(&self.records);
        let is_changed = |(kind, users): &(&TypeId, &BTreeSet<String>)| now.get(kind).is_some_and(|now| now != *users);
        self.users.iter().filter(is_changed).map(|(kind, _)| *kind).collect()
    }

    /// Registers the files of the stages that continue.
    pub fn register_kept_files(&mut self) {
        for (stage, record) in &self.records {
            // Ignore the results: the check of the running config has found no conflict between these files.
            for path in record.read.keys() {
                let _ = self.files.read(path, &format!("the file that stage `{stage}` reads"));
            }
            for path in &record.written {
                let _ = self.files.write(path, &format!("the file that stage `{stage}` writes"));
            }
        }
    }

    /// Returns the ports that stages see.
    pub fn ports(&self) -> &[PortInfo] {
        &self.ports
    }

    /// Adds the list of next hops to the records. Drops the objects that no stage uses any more. Call this method after
    /// the preparation of all stages.
    pub fn complete_records(&mut self) {
        let hops: Arc<[NextHop]> = self.next_hops.hops.clone().into();
        for record in self.records.values_mut() {
            record.next_hops.get_or_insert_with(|| hops.clone());
        }
        let users = users(&self.records);
        self.shared.retain(|(stage, kind), _| !stage.is_empty() || users.contains_key(kind));
        self.earlier.clear();
    }

    /// Returns the objects and the services of the prepared pipeline.
    pub fn into_parts(self) -> (Objects, Services) {
        let objects = Objects {
            ports: self.ports,
            next_hops: self.next_hops,
            shared: self.shared,
            records: self.records,
            memory: self.memory.stages,
            stop: self.services.stop.clone(),
            hold: self.services.hold.clone(),
        };
        (objects, self.services)
    }

    /// Returns `true` if a running stage with this record can continue in the new pipeline. The results of
    /// [`Setup::any_stage_needs`], the ports and the next hops must be as in the record. No stage-shared object of the
    /// stage may be in `renews`. Does not check files. Call this method after the preparation of all stages that come
    /// before this stage.
    pub fn can_continue(&self, record: &StageRecord, renews: &BTreeSet<TypeId>) -> bool {
        let is_numbered = |(name, number): (&String, &u8)| {
            self.ports.get(usize::from(*number)).is_some_and(|port| port.name == *name)
        };
        (self.earlier_ports.is_none() || !record.uses_all_ports)
            && record.port_numbers.iter().all(is_numbered)
            && record.wanted.iter().all(|(facts, wanted)| self.wanted.intersects(*facts) == *wanted)
            && (!record.uses_next_hops || record.next_hops.as_deref() == Some(&self.next_hops.hops))
            && record.stage_shared_types.is_disjoint(renews)
    }
}

/// Returns the new number of each earlier port, or `None` for a removed port. The name identifies a port before and
/// after a change.
pub fn new_port_numbers(earlier: &[PortInfo], now: &[PortInfo]) -> Vec<Option<u8>> {
    let number = |port: &PortInfo| now.iter().position(|now| now.name == port.name);
    earlier.iter().map(|port| number(port).and_then(|number| u8::try_from(number).ok())).collect()
}

/// Returns the names of the stages that use each stage-shared object.
fn users(records: &BTreeMap<String, StageRecord>) -> BTreeMap<TypeId, BTreeSet<String>> {
    let mut users: BTreeMap<TypeId, BTreeSet<String>> = BTreeMap::new();
    for (stage, record) in records {
        for kind in &record.stage_shared_types {
            users.entry(*kind).or_default().insert(stage.clone());
        }
    }
    users
}

impl Objects {
    /// Creates the objects for the preparation of the stages that a change adds or replaces. Relative paths are
    /// relative to `folder`.
    pub fn successor(&self, folder: &Path, continuing: ContinuingParts<'_>) -> Resources {
        let ContinuingParts { keeps, replaces, renews, held, ports, workers } = continuing;
        let of = |objects: &Self, wanted: &dyn Fn(&str, TypeId) -> bool| {
            let entries = objects.shared.iter().filter(|((stage, kind), _)| wanted(stage, *kind));
            entries.map(|(key, object)| (key.clone(), object.clone())).collect::<HashMap<_, _>>()
        };
        let mut shared =
            of(self, &|stage, kind| if stage.is_empty() { !renews.contains(&kind) } else { keeps.contains(stage) });
        let kept = |(stage, _): &(&String, &StageRecord)| keeps.contains(*stage);
        let mut records: BTreeMap<String, StageRecord> =
            self.records.iter().filter(kept).map(|(stage, record)| (stage.clone(), record.clone())).collect();
        if let Some(held) = held {
            shared.extend(of(held, &|stage, _| !stage.is_empty() && !keeps.contains(stage)));
            for (stage, record) in held.records.iter().filter(|record| !kept(record)) {
                // The objects contain these versions of the files.
                let (read, requested_hops) = (record.read.clone(), record.requested_hops.clone());
                records.insert(stage.clone(), StageRecord { read, requested_hops, ..StageRecord::default() });
            }
        }
        let mut next_hops = held.unwrap_or(self).next_hops.clone();
        if held.is_none() {
            // Packets that a stage holds still have the numbers of the running pipeline, so do not reuse these numbers.
            let used: BTreeSet<u32> =
                self.records.values().flat_map(|record| &record.requested_hops).copied().collect();
            next_hops.free = (1..=next_hops.hops.len() as u32).filter(|number| !used.contains(number)).collect();
            if let Some(ports) = ports {
                next_hops.renumber_ports(&new_port_numbers(&self.ports, ports));
            }
        }
        let stages = self.memory.iter().filter(|(stage, _)| keeps.contains(*stage));
        let mut stages: BTreeMap<String, u64> = stages.map(|(stage, bytes)| (stage.clone(), *bytes)).collect();
        for (stage, bytes) in &mut stages {
            // The change removes the memory of the removed workers. The instances for added workers declare their
            // memory.
            let Some(StageRecord { worker_memory: (declared, count), .. }) = records.get_mut(stage) else { continue };
            *bytes -= *declared * count.saturating_sub(workers) as u64;
            *count = workers.min(*count);
        }
        let mut users = users(&self.records);
        users.retain(|kind, _| !renews.contains(kind));
        Resources {
            ports: ports.unwrap_or(&self.ports).to_vec(),
            earlier_ports: ports.map(|_| self.ports.clone()),
            folder: folder.to_owned(),
            next_hops,
            shared,
            earlier: of(self, &|stage, _| stage.is_empty() || replaces.contains(stage)),
            users,
            renewed: BTreeSet::new(),
            records,
            files: Files::default(),
            memory: StageMemory { available: None, allocated: stages.values().sum(), stages },
            services: Services { stop: self.stop.clone(), hold: self.hold.clone(), ..Services::default() },
            wanted: Facts::all(),
            offline: false,
        }
    }

    /// Returns the ports that the stages see.
    pub fn ports(&self) -> &[PortInfo] {
        &self.ports
    }

    /// Returns the types of the stage-shared objects that the stages use.
    pub fn stage_shared_types(&self) -> BTreeSet<TypeId> {
        users(&self.records).into_keys().collect()
    }

    /// Returns `true` if the instances of this stage share an object.
    pub fn has_shared(&self, stage: &str) -> bool {
        self.shared.keys().any(|(owner, _)| owner == stage)
    }

    /// Returns `true` if these objects and `earlier` contain the same object with this type, for this stage.
    pub fn shares_object_with(&self, earlier: &Self, stage: &str, kind: TypeId) -> bool {
        let key = (stage.to_owned(), kind);
        self.shared.get(&key).zip(earlier.shared.get(&key)).is_some_and(|(now, before)| Arc::ptr_eq(now, before))
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    /// Prepares one stage that uses these next hops, as a change of `before`. Returns the numbers of the next hops.
    fn prepared(before: Option<&Objects>, hops: &[u8]) -> (Objects, Vec<u32>) {
        let (none, renews) = (BTreeSet::new(), BTreeSet::new());
        let continuing =
            ContinuingParts { keeps: &none, replaces: &none, renews: &renews, held: None, ports: None, workers: 1 };
        let mut resources = match before {
            Some(before) => before.successor(Path::new(""), continuing),
            None => Resources::new(Vec::new(), Path::new("")),
        };
        let hop = |last: &u8| NextHop { address: IpAddr::from([192, 0, 2, *last]), port: 0 };
        let mut setup = Setup::new(&mut resources, "route", 0, 1);
        let numbers = hops.iter().map(|last| setup.next_hops().number(hop(last))).collect();
        setup.complete();
        resources.complete_records();
        (resources.into_parts().0, numbers)
    }

    #[test]
    fn numbers_of_unused_next_hops_are_used_again_after_one_more_change() {
        let (first, numbers) = prepared(None, &[1, 2]);
        assert_eq!(numbers, [1, 2]);
        // Held packets may still have the numbers of the first pipeline, so the number 1 is not used again yet.
        let (second, numbers) = prepared(Some(&first), &[2, 3]);
        assert_eq!(numbers, [2, 3]);
        let (mut objects, numbers) = prepared(Some(&second), &[4, 2, 3]);
        assert_eq!(numbers, [1, 2, 3]);
        for last in 5..200 {
            objects = prepared(Some(&objects), &[last]).0;
        }
        assert!(objects.next_hops.all().len() <= 4, "{:?}", objects.next_hops);
    }

    fn port(name: &str) -> PortInfo {
        let (interface, addresses) = (None, Vec::new());
        PortInfo { name: name.to_owned(), mac: [2, 0, 0, 0, 0, 1], mtu: 1500, interface, addresses }
    }

    #[test]
    fn stages_continue_unless_the_ports_that_they_use_change() {
        let ports = ["a", "b"].map(port);
        let mut resources = Resources::new(ports.to_vec(), Path::new(""));
        let mut prepare = |stage: &str, work: &dyn Fn(&mut Setup<'_>)| {
            let mut setup = Setup::new(&mut resources, stage, 0, 1);
            work(&mut setup);
            setup.complete();
        };
        prepare("none", &|_| {});
        prepare("first", &|setup| _ = setup.port("a", "port"));
        prepare("second", &|setup| _ = setup.port("b", "port"));
        prepare("all", &|setup| _ = setup.ports().len());
        prepare("handler", &|setup| setup.on_port_change(|_, _| {}));
        resources.complete_records();
        let objects = resources.into_parts().0;
        let keeps: BTreeSet<String> = ["none", "first", "second", "all", "handler"].map(str::to_owned).into();
        let none = BTreeSet::new();
        let changed = |names: &[&str]| {
            let ports: Vec<PortInfo> = names.iter().map(|name| port(name)).collect();
            let renews = BTreeSet::new();
            let continuing = ContinuingParts {
                keeps: &keeps,
                replaces: &none,
                renews: &renews,
                held: None,
                ports: Some(&ports),
                workers: 1,
            };
            let mut resources = objects.successor(Path::new(""), continuing);
            let records = resources.records.clone();
            let suits: Vec<&str> = records
                .iter()
                .filter(|(_, record)| resources.can_continue(record, &renews))
                .map(|(name, _)| &**name)
                .collect();
            let is_valid = Setup::new(&mut resources, "new", 0, 1).has_unchanged_port_numbers();
            (suits.join(" "), is_valid)
        };
        assert_eq!(changed(&["a", "b", "c"]), ("first none second".to_owned(), true));
        assert_eq!(changed(&["a"]), ("first none".to_owned(), false));
        assert_eq!(changed(&["b", "a"]), ("none".to_owned(), false));
        assert_eq!(changed(&["a", "c", "b"]), ("first none".to_owned(), false));
    }

    #[test]
    fn next_hops_follow_the_numbers_of_their_ports() {
        let ports = ["a", "b"].map(port);
        let mut resources = Resources::new(ports.to_vec(), Path::new(""));
        let hop = |last, port| NextHop { address: IpAddr::from([192, 0, 2, last]), port };
        let mut setup = Setup::new(&mut resources, "route", 0, 1);
        assert_eq!([hop(1, 0), hop(2, 1)].map(|hop| setup.next_hops().number(hop)), [1, 2]);
        setup.complete();
        resources.complete_records();
        let objects = resources.into_parts().0;
        let (none, renews) = (BTreeSet::new(), BTreeSet::new());
        let ports = ["b", "c"].map(port);
        let continuing = ContinuingParts {
            keeps: &none,
            replaces: &none,
            renews: &renews,
            held: None,
            ports: Some(&ports),
            workers: 1,
        };
        let mut resources = objects.successor(Path::new(""), continuing);
        let mut setup = Setup::new(&mut resources, "route", 0, 1);
        // Port `b` has the number 0 now. The next hop on the removed port `a` is not a next hop on port `b`.
        assert_eq!([hop(2, 0), hop(1, 0)].map(|hop| setup.next_hops().number(hop)), [2, 3]);
    }

    #[test]
    fn memory_of_a_continuing_stage_follows_the_number_of_workers() {
        let declare = |resources: &mut Resources, worker: usize, workers: usize, joins: bool| {
            let setup = Setup::new(resources, "capture", worker, workers);
            let mut setup = if joins { setup.for_added_worker() } else { setup };
            setup.declare_worker_memory(10, "buffers", "reduce `buffers`").unwrap();
            setup.declare_worker_memory(2, "rings", "reduce `buffers`").unwrap();
            if worker == 0 {
                setup.declare_memory(100, "table", "reduce `table`").unwrap();
            }
            setup.complete();
        };
        let mut resources = Resources::new(Vec::new(), Path::new(""));
        (0..2).for_each(|worker| declare(&mut resources, worker, 2, false));
        assert_eq!(resources.memory.stages["capture"], 124);
        let (keeps, none, renews) = (BTreeSet::from(["capture".to_owned()]), BTreeSet::new(), BTreeSet::new());
        let mut earlier = 2;
        for workers in [3, 1, 2, 1, 4, 4, 2] {
            resources.complete_records();
            let objects = resources.into_parts().0;
            let continuing =
                ContinuingParts { keeps: &keeps, replaces: &none, renews: &renews, held: None, ports: None, workers };
            resources = objects.successor(Path::new(""), continuing);
            assert_eq!(resources.memory.allocated, 100 + 12 * workers.min(earlier) as u64);
            (earlier..workers).for_each(|worker| declare(&mut resources, worker, workers, true));
            assert_eq!(resources.memory.stages["capture"], 100 + 12 * workers as u64, "{workers} workers");
            earlier = workers;
        }
    }
}
