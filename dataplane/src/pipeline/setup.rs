//! What a stage can learn, and share, while it is prepared.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ipnet::IpNet;

use crate::file::Identity;
use crate::pipeline::{Facts, Problem, Reload, Reloads, Stage};

/// A port as stages know it. Its number is its place in [`Setup::ports`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortInfo {
    /// Its name in the config.
    pub name: String,
    /// Its link address.
    pub mac: [u8; 6],
    /// The largest payload of a frame, in bytes.
    pub mtu: u16,
    /// The interface of the kernel that it is, if it is one.
    pub interface: Option<String>,
    /// The addresses of this host on it, each with the prefix of the link.
    pub addresses: Vec<IpNet>,
}

/// A next hop: the address to resolve, on a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NextHop {
    /// The address of the gateway.
    pub address: IpAddr,
    /// The port behind which it is.
    pub port: u8,
}

/// Numbers for next hops, so that a packet carries four bytes and not an address. Stages that choose one and stages that
/// resolve it share the numbers, over all workers.
#[derive(Debug, Default)]
pub struct NextHops {
    numbers: HashMap<NextHop, u32>,
    hops: Vec<NextHop>,
}

impl NextHops {
    /// The number of a next hop, from 1: 0 stands for the destination itself.
    pub fn number(&mut self, hop: NextHop) -> u32 {
        *self.numbers.entry(hop).or_insert_with(|| {
            self.hops.push(hop);
            self.hops.len() as u32
        })
    }

    /// All of them: that with number n is at n - 1.
    pub fn all(&self) -> &[NextHop] {
        &self.hops
    }
}

/// What a stage can learn, and share, while it is prepared. Stages are prepared in the order of the pipeline, for one
/// worker after the other.
pub struct Setup<'a> {
    ports: &'a [PortInfo],
    folder: &'a Path,
    next_hops: &'a mut NextHops,
    shared: &'a mut HashMap<(String, TypeId), Arc<dyn Any + Send + Sync>>,
    files: &'a mut Files,
    reloads: &'a mut Reloads,
    wanted: Facts,
    offline: bool,
    rejected: Vec<Problem>,
    stage: String,
    worker: usize,
    workers: usize,
}

impl<'a> Setup<'a> {
    /// For one stage on one of several workers.
    pub(crate) fn new(resources: &'a mut Resources, stage: &str, worker: usize, workers: usize) -> Self {
        Self {
            ports: &resources.ports,
            folder: &resources.folder,
            next_hops: &mut resources.next_hops,
            shared: &mut resources.shared,
            files: &mut resources.files,
            reloads: &mut resources.reloads,
            wanted: resources.wanted,
            offline: resources.offline,
            rejected: Vec::new(),
            stage: stage.to_owned(),
            worker,
            workers,
        }
    }

    /// Prepares a stage. Returns all problems with its parameters.
    pub(crate) fn prepare(mut self, stage: &mut dyn Stage) -> Vec<Problem> {
        let last = stage.prepare(&mut self).err();
        self.rejected.into_iter().chain(last).collect()
    }

    /// Notes a problem and lets the preparation go on, so that the next one comes to light in the same go. The stage will
    /// not run.
    pub fn reject(&mut self, problem: Problem) {
        self.rejected.push(problem);
    }

    /// Whether packets are only looked at, as by `dataplane explain`: then a stage writes no file and reaches nobody.
    pub fn is_offline(&self) -> bool {
        self.offline
    }

    /// Whether some stage of the pipeline needs to know this of packets ([`Stage::needs`]): what nobody needs does not have to
    /// be found out.
    pub fn wants(&self, facts: Facts) -> bool {
        self.wanted.intersects(facts)
    }

    /// The ports of the config.
    pub fn ports(&self) -> &[PortInfo] {
        self.ports
    }

    /// The number of the port of that name.
    ///
    /// # Errors
    /// There is none; the problem is at `key`.
    pub fn port(&self, name: &str, key: &str) -> Result<u8, Problem> {
        let place = self.ports.iter().position(|port| port.name == name);
        place.and_then(|place| u8::try_from(place).ok()).ok_or_else(|| {
            let names: Vec<&str> = self.ports.iter().map(|port| port.name.as_str()).collect();
            let nearest = names.iter().max_by_key(|known| (strsim::jaro_winkler(known, name) * 1000.0) as u32);
            let problem = Problem::at(key, format!("there is no port `{name}`"));
            match nearest {
                Some(nearest) => problem.help(format!("did you mean `{nearest}`? Ports: {}", names.join(", "))),
                None => problem.help("add a [[port]]"),
            }
        })
    }

    /// A path of the config: relative ones start from the config's folder.
    pub fn path(&self, path: &Path) -> PathBuf {
        self.folder.join(path)
    }

    /// Says that the stage writes a file, which nobody else may then write or read.
    ///
    /// # Errors
    /// Somebody does; the problem is at `key`.
    pub fn claim(&mut self, path: &Path, key: &str) -> Result<(), Problem> {
        let me = format!("the file that stage `{}` writes", self.stage);
        self.files.write(path, &me).map_err(|why| Problem::at(key, why).help(Files::HELP))
    }

    /// Says that the stage reads a file, which nobody may then write.
    ///
    /// # Errors
    /// Somebody does; the problem is at `key`.
    pub fn reads(&mut self, path: &Path, key: &str) -> Result<(), Problem> {
        let me = format!("the file that stage `{}` reads", self.stage);
        self.files.read(path, &me).map_err(|why| Problem::at(key, why).help(Files::HELP))
    }

    /// The numbers of next hops.
    pub fn next_hops(&mut self) -> &mut NextHops {
        self.next_hops
    }

    /// Something large and unchanging that the stages of this name share over all workers: made by the first.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn shared<T: Send + Sync + 'static>(
        &mut self,
        make: impl FnOnce(&mut Self) -> Result<T, Problem>,
    ) -> Result<Arc<T>, Problem> {
        let key = (self.stage.clone(), TypeId::of::<T>());
        if let Some(known) = self.shared.get(&key).cloned().and_then(|known| known.downcast::<T>().ok()) {
            return Ok(known);
        }
        let made = Arc::new(make(self)?);
        self.shared.insert(key, made.clone());
        Ok(made)
    }

    /// Something of which there is one in a run, for all stages that want it: made by the first.
    pub fn common<T: Send + Sync + 'static>(&mut self, make: impl FnOnce() -> Arc<T>) -> Arc<T> {
        let key = (String::new(), TypeId::of::<T>());
        if let Some(known) = self.shared.get(&key).cloned().and_then(|known| known.downcast::<T>().ok()) {
            return known;
        }
        let made = make();
        self.shared.insert(key, made.clone());
        made
    }

    /// Has something read anew whenever the run is told to: said once for all workers, by the first.
    pub fn reloads(&mut self, reload: impl Reload + 'static) {
        self.reloads.push((self.stage.clone(), Box::new(reload)));
    }

    /// The name of the stage in the config.
    pub fn stage(&self) -> &str {
        &self.stage
    }

    /// Which worker the stage is for, from 0, and how many there are.
    pub fn worker(&self) -> (usize, usize) {
        (self.worker, self.workers)
    }
}

/// What the stages of one run share while they are prepared.
pub(crate) struct Resources {
    pub(crate) ports: Vec<PortInfo>,
    pub(crate) folder: PathBuf,
    pub(crate) next_hops: NextHops,
    pub(crate) shared: HashMap<(String, TypeId), Arc<dyn Any + Send + Sync>>,
    pub(crate) files: Files,
    pub(crate) reloads: Reloads,
    /// What some stage needs to know of packets.
    pub(crate) wanted: Facts,
    pub(crate) offline: bool,
}

/// The files of a config: one that is written is nobody else's, by whatever name.
#[derive(Default)]
pub(crate) struct Files(HashMap<Identity, Use>);

/// What a file is, in words, and whether it is written.
struct Use {
    what: String,
    is_written: bool,
}

impl Files {
    /// What to do about a file of two.
    pub(crate) const HELP: &str = "name another file: a link to one is the same file";

    /// Notes a file that is read.
    ///
    /// # Errors
    /// What else the file is.
    pub(crate) fn read(&mut self, path: &Path, what: &str) -> Result<(), String> {
        self.note(path, what, false)
    }

    /// Notes a file that is written. That may be said several times.
    ///
    /// # Errors
    /// What else the file is.
    pub(crate) fn write(&mut self, path: &Path, what: &str) -> Result<(), String> {
        self.note(path, what, true)
    }

    fn note(&mut self, path: &Path, what: &str, is_written: bool) -> Result<(), String> {
        let Some(identity) = Identity::of(path) else { return Ok(()) };
        let known = self.0.entry(identity).or_insert_with(|| Use { what: what.to_owned(), is_written });
        match known.what != what && (known.is_written || is_written) {
            true => Err(format!("{} is {}", path.display(), known.what)),
            false => Ok(()),
        }
    }
}

impl Resources {
    /// What stages asked [`Setup::common`] for, if any did.
    pub(crate) fn common<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        self.shared.get(&(String::new(), TypeId::of::<T>())).cloned().and_then(|known| known.downcast().ok())
    }

    pub(crate) fn new(ports: Vec<PortInfo>, folder: &Path) -> Self {
        let (next_hops, shared) = (NextHops::default(), HashMap::new());
        let (files, reloads) = (Files::default(), Vec::new());
        Self {
            ports,
            folder: folder.to_owned(),
            next_hops,
            shared,
            files,
            reloads,
            wanted: Facts::all(),
            offline: false,
        }
    }
}
