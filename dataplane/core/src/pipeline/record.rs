//! Records of the inputs of the preparation of each stage, such as files and shared objects. When a running pipeline
//! changes, the program compares the records with the new pipeline. If an input of a stage has changed, the program
//! prepares the stage again.

use std::any::TypeId;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::pipeline::Facts;
use crate::pipeline::hops::NextHop;

/// The inputs of the preparation of a stage, and the files that the stage writes.
#[derive(Clone, Debug, Default)]
pub struct StageRecord {
    /// The facts in each call of [`Setup::any_stage_needs`](super::Setup::any_stage_needs), and the result of the call.
    pub(super) wanted: Vec<(Facts, bool)>,
    /// The numbers that the stage requested for ports, by the name of the port.
    pub(super) port_numbers: BTreeMap<String, u8>,
    /// Whether the stage read the list of ports, or registered a function for port changes.
    pub(super) uses_all_ports: bool,
    /// Whether the stage used the numbers of next hops.
    pub(super) uses_next_hops: bool,
    /// The numbers that the stage requested for its next hops.
    pub(super) requested_hops: BTreeSet<u32>,
    /// All next hops after the preparation of all stages.
    pub(super) next_hops: Option<Arc<[NextHop]>>,
    /// The types of the objects from [`Setup::shared_by_stages`](super::Setup::shared_by_stages) that the stage uses.
    /// Several stages share each of these objects.
    pub stage_shared_types: BTreeSet<TypeId>,
    /// The number of workers, if the stage has read this number to divide a value among the workers
    /// ([`Setup::worker_and_count`]).
    ///
    /// [`Setup::worker_and_count`]: super::Setup::worker_and_count
    pub workers: Option<usize>,
    /// The memory that the stage declared for each worker, in bytes, and the number of workers
    /// ([`Setup::declare_worker_memory`](super::Setup::declare_worker_memory)).
    pub(super) worker_memory: (u64, usize),
    /// The files that the stage reads. The value has the properties of the file before the stage read the file, or is
    /// `None` if the file did not exist.
    pub read: BTreeMap<PathBuf, Option<Fingerprint>>,
    /// The files that the stage writes.
    pub written: BTreeSet<PathBuf>,
}

impl StageRecord {
    /// Returns a file that has changed since the stage read it.
    pub fn changed_file(&self) -> Option<&Path> {
        let changed = |(path, before): &(&PathBuf, &Option<Fingerprint>)| Fingerprint::of(path) != **before;
        self.read.iter().find(changed).map(|(path, _)| path.as_path())
    }
}

/// The properties of a file that change when its content changes: device, inode, size, and the times of the last status
/// change and of the last modification, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint([i128; 5]);

impl Fingerprint {
    /// Returns the properties of the file at a path, or `None` if there is no such file.
    pub fn of(path: &Path) -> Option<Self> {
        let about = fs::metadata(path).ok()?;
        let time = |seconds: i64, nanos: i64| i128::from(seconds) * 1_000_000_000 + i128::from(nanos);
        let (changed, modified) = (time(about.ctime(), about.ctime_nsec()), time(about.mtime(), about.mtime_nsec()));
        Some(Self([about.dev().into(), about.ino().into(), about.size().into(), changed, modified]))
    }
}
