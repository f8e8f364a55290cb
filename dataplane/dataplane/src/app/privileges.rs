//! The privileges of a run. Before a run opens its devices, the program gives up every privilege that the run does not
//! need. This limits an attacker who takes over the program:
//!
//! - capabilities(7): the program keeps the capabilities that its links, its stages and the files that it writes need;
//! - landlock(7): the program writes only to device files and to the files that the config names for writing, removes
//!   its control socket, and executes nothing;
//! - seccomp(2): system calls that start programs, or change the system or other processes, fail with `EPERM`.
//!
//! All threads of the run inherit these limits, because the threads start later.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetError,
};
use rustix::process::geteuid;
use rustix::thread::{CapabilitySet, CapabilitySets};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

use crate::config::{Control, Metrics, PortPlan, Runtime};
use crate::runtime::Assembly;

/// The newest version of Landlock whose rights this module uses. The crate `landlock` leaves out rights that the kernel
/// does not know.
const LANDLOCK: ABI = ABI::V5;

/// The privileges that a run keeps.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Privileges {
    /// The capabilities that the run needs. The program may lack some of these capabilities.
    pub(super) capabilities: CapabilitySet,
    /// The existing files and folders that the program may write.
    pub(super) writable: BTreeSet<PathBuf>,
    /// The folders of sockets. The program removes its sockets at the end of the run.
    sockets: BTreeSet<PathBuf>,
}

impl Privileges {
    /// Returns the privileges that the run of a config needs.
    pub(super) fn of(assembly: &Assembly) -> Self {
        let ports = &assembly.plan.ports;
        let of_stages = assembly.resources.services.capabilities.iter().copied();
        let mut capabilities = ports.iter().map(of_port).chain(of_stages).collect::<CapabilitySet>();
        // Kernels before 5.8 have no CAP_BPF and no CAP_PERFMON. The kernel accepts CAP_SYS_ADMIN instead.
        let replaceable = capabilities & (CapabilitySet::BPF | CapabilitySet::PERFMON);
        let held = rustix::thread::capabilities(None).map_or(CapabilitySet::all(), |held| held.permitted);
        if !held.contains(replaceable) {
            capabilities |= CapabilitySet::SYS_ADMIN;
        }
        let writable: BTreeSet<PathBuf> = assembly.resources.files.written().flat_map(writable).collect();
        let sockets = socket_folders(&assembly.plan.runtime);
        let user = geteuid().as_raw();
        let is_own = |path: &PathBuf| fs::metadata(path).is_ok_and(|about| about.uid() == user);
        if !writable.iter().chain(&sockets).all(is_own) {
            capabilities |= CapabilitySet::DAC_OVERRIDE;
        }
        if !writable.is_empty() {
            // A stage or link with the key `group` changes the group and the mode of the file that it writes.
            capabilities |= CapabilitySet::CHOWN | CapabilitySet::FOWNER;
        }
        // A reload reads the config and the files of stages again. The files may belong to another user.
        let config = assembly.source.path();
        let is_foreign = config.as_os_str() != "-" && !is_own(&config.to_owned());
        if is_foreign || assembly.reads_files() || !assembly.resources.services.tasks.is_empty() {
            capabilities |= CapabilitySet::DAC_READ_SEARCH;
        }
        Self { capabilities, writable, sockets }
    }

    /// Gives up all other privileges. Returns the reason for each limit that this kernel does not support.
    pub(super) fn give_up_the_rest(&self) -> Vec<String> {
        let mut failures = Vec::new();
        let mut done = |what: &str, result: Result<(), String>| {
            failures.extend(result.err().map(|why| format!("{what}: {why}")));
        };
        // Without this flag, the kernel allows Landlock and seccomp only for a program with CAP_SYS_ADMIN.
        done("no_new_privs", rustix::thread::set_no_new_privs(true).map_err(|error| error.to_string()));
        match has_landlock() {
            true => done("Landlock", self.limit_files().map_err(|error| error.to_string())),
            false => done("Landlock", Err("the kernel does not support it".to_owned())),
        }
        done("capabilities", self.limit_capabilities().map_err(|error| error.to_string()));
        done("seccomp", self.limit_calls());
        failures
    }

    /// Returns a description of the privileges. Each string is one line.
    pub(super) fn describe(&self) -> Vec<String> {
        let list = |items: Vec<String>| if items.is_empty() { "none".to_owned() } else { items.join(", ") };
        let held = rustix::thread::capabilities(None).map_or(CapabilitySet::empty(), |held| held.permitted);
        let writable = self.writable.iter().map(|path| path.display().to_string()).collect();
        let yes_no = |is_yes| if is_yes { "yes" } else { "no" };
        vec![
            format!("keeps the capabilities: {}", list(names(held & self.capabilities))),
            format!("gives up the capabilities: {}", list(names(held - self.capabilities))),
            format!("writes only: {}", list(writable)),
            format!("this kernel supports: Landlock {}, seccomp {}", yes_no(has_landlock()), yes_no(has_seccomp())),
        ]
    }

    fn limit_files(&self) -> Result<(), RulesetError> {
        let write = AccessFs::from_write(LANDLOCK);
        let mut rules = Ruleset::default().handle_access(write | AccessFs::Execute)?.create()?;
        let paths = self.writable.iter().map(|path| (path.as_path(), write));
        let sockets = self.sockets.iter().map(|path| (path.as_path(), AccessFs::RemoveFile.into()));
        // Links such as TAP open a device file that the config does not name, so all device files stay writable.
        let devices = [(Path::new("/dev"), AccessFs::WriteFile | AccessFs::Truncate | AccessFs::IoctlDev)];
        for (path, access) in paths.chain(sockets).chain(devices) {
            // A path that was removed meanwhile needs no rule.
            let Ok(opened) = PathFd::new(path) else { continue };
            rules = rules.add_rule(PathBeneath::new(opened, of_kind(path, access)))?;
        }
        rules.restrict_self().map(drop)
    }

    fn limit_capabilities(&self) -> rustix::io::Result<()> {
        let held = rustix::thread::capabilities(None)?;
        let kept = CapabilitySets {
            effective: held.effective & self.capabilities,
            permitted: held.permitted & self.capabilities,
            inheritable: CapabilitySet::empty(),
        };
        rustix::thread::set_capabilities(None, kept)
    }

    fn limit_calls(&self) -> Result<(), String> {
        let bpf = (!self.capabilities.contains(CapabilitySet::BPF)).then_some(libc::SYS_bpf);
        let rules: BTreeMap<i64, _> = REFUSED.iter().copied().chain(bpf).map(|call| (call, Vec::new())).collect();
        let refused = SeccompAction::Errno(libc::EPERM as u32);
        let arch = std::env::consts::ARCH.try_into().map_err(|error| format!("{error:?}"))?;
        let filter = SeccompFilter::new(rules, SeccompAction::Allow, refused, arch);
        let program = filter.and_then(BpfProgram::try_from).map_err(|error| error.to_string())?;
        seccompiler::apply_filter_all_threads(&program).map_err(|error| error.to_string())
    }
}

/// The system calls that no run needs.
const REFUSED: [libc::c_long; 45] = [
    // Start programs.
    libc::SYS_execve,
    libc::SYS_execveat,
    // Control other processes.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    // Change the user or the namespaces.
    libc::SYS_setuid,
    libc::SYS_setgid,
    libc::SYS_setreuid,
    libc::SYS_setregid,
    libc::SYS_setresuid,
    libc::SYS_setresgid,
    libc::SYS_setgroups,
    libc::SYS_setfsuid,
    libc::SYS_setfsgid,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_chroot,
    // Change mounts.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsmount,
    libc::SYS_mount_setattr,
    libc::SYS_open_by_handle_at,
    // Change the kernel or the host.
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    // Use parts of the kernel in which security bugs are frequent.
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_add_key,
    libc::SYS_keyctl,
];

/// Returns `true` if the kernel supports Landlock. Creating a ruleset has no effect on the process until the process
/// applies the ruleset.
fn has_landlock() -> bool {
    let rules = Ruleset::default().set_compatibility(CompatLevel::HardRequirement).handle_access(AccessFs::Execute);
    rules.is_ok_and(|rules| rules.create().is_ok())
}

fn has_seccomp() -> bool {
    fs::read_to_string("/proc/self/status").is_ok_and(|status| status.contains("\nSeccomp:"))
}

/// Returns the capabilities that a port uses.
fn of_port(port: &PortPlan) -> CapabilitySet {
    let mut capabilities = CapabilitySet::empty();
    if let Some(link) = &port.config.link {
        capabilities |= link.capabilities() | link.optional_capabilities();
    }
    if port.config.is_rdma() {
        // Raw packets, flow rules and privileged Q_Keys need CAP_NET_RAW.
        capabilities |= CapabilitySet::NET_RAW;
    }
    if port.config.locks_memory() {
        capabilities |= CapabilitySet::IPC_LOCK;
    }
    if port.config.connection.is_some() {
        // `listen` may name a port below 1024.
        capabilities |= CapabilitySet::NET_BIND_SERVICE;
    }
    capabilities
}

/// Returns a file that the config names for writing, if the file exists, and the nearest existing folder of the file.
/// The paths contain no symbolic links. The folder is writable, because a capture that rotates its files creates and
/// removes files there.
fn writable(output: &Path) -> Vec<PathBuf> {
    let file = fs::canonicalize(output).ok();
    let start = file.as_deref().unwrap_or(output);
    let folder = start.ancestors().skip(1).find_map(|folder| match folder.as_os_str().is_empty() {
        true => fs::canonicalize(".").ok(),
        false => fs::canonicalize(folder).ok(),
    });
    // The program creates no files next to a device or a pipe.
    let special = file.as_ref().is_some_and(|file| !file.is_file());
    file.into_iter().chain(folder.filter(|_| !special)).collect()
}

fn socket_folders(runtime: &Runtime) -> BTreeSet<PathBuf> {
    let parent = |path: &Path| path.parent().map(Path::to_owned);
    let mut folders = match &runtime.control {
        Control::None => Vec::new(),
        Control::Path(path) => parent(path).into_iter().collect(),
        Control::Auto => dataplane_control::socket::folders(),
    };
    if let Metrics::Unix(path) = &runtime.metrics {
        folders.extend(parent(path));
    }
    folders.iter().filter_map(|folder| fs::canonicalize(folder).ok()).collect()
}

/// Returns the part of `access` that applies to a path, because the kernel refuses a rule that gives a file the rights
/// of a folder.
fn of_kind(path: &Path, access: BitFlags<AccessFs>) -> BitFlags<AccessFs> {
    if path.is_dir() { access } else { access & AccessFs::from_file(LANDLOCK) }
}

/// Returns the names of capabilities, such as `cap_net_raw`.
pub(super) fn names(capabilities: CapabilitySet) -> Vec<String> {
    capabilities.iter_names().map(|(name, _)| format!("cap_{}", name.to_lowercase())).collect()
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::process::Command;

    use dataplane_testing::Folder;
    use rustix::io::Errno;
    use rustix::process::{PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

    use super::*;

    /// The environment variable with the folder of the test, for the process with limited privileges.
    const FOLDER: &str = "DATAPLANE_TEST_FOLDER";

    #[test]
    #[ignore = "runs in the process that `limits_hold_for_new_threads` starts"]
    fn limited_process() {
        let folder = PathBuf::from(std::env::var_os(FOLDER).unwrap());
        let output = folder.join("out/new/x.pcapng");
        let kept = CapabilitySet::NET_RAW;
        let privileges = Privileges {
            capabilities: kept,
            writable: writable(&output).into_iter().collect(),
            sockets: [folder.join("sockets")].into(),
        };
        let expected: &[&str] = if has_landlock() { &[] } else { &["Landlock: the kernel does not support it"] };
        assert_eq!(privileges.give_up_the_rest(), expected);
        let check = move || {
            let held = rustix::thread::capabilities(None).unwrap();
            assert_eq!((held.effective | held.permitted) - kept, CapabilitySet::empty());
            let refused = Command::new("/bin/true").status().unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
            // Without the filter, a process can duplicate its own file descriptors.
            let this = pidfd_open(rustix::process::getpid(), PidfdFlags::empty()).unwrap();
            assert_eq!(pidfd_getfd(&this, 0, PidfdGetfdFlags::empty()).unwrap_err(), Errno::PERM);
            fs::create_dir_all(output.parent().unwrap()).unwrap();
            fs::write(&output, "x").unwrap();
            fs::rename(&output, output.with_extension("1")).unwrap();
            fs::remove_file(output.with_extension("1")).unwrap();
            fs::write("/dev/null", "x").unwrap();
            assert_eq!(fs::read_to_string(folder.join("kept")).unwrap(), "kept");
            fs::remove_file(folder.join("sockets/x.sock")).unwrap();
            if has_landlock() {
                for path in ["kept", "new", "sockets/new"] {
                    let error = fs::write(folder.join(path), "x").unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{path}");
                }
                assert_eq!(fs::remove_file(folder.join("kept")).unwrap_err().kind(), ErrorKind::PermissionDenied);
            }
        };
        std::thread::spawn(check).join().unwrap();
    }

    #[test]
    fn limits_hold_for_new_threads() {
        let folder = Folder::new();
        folder.write("kept", "kept");
        folder.write("sockets/x.sock", "");
        fs::create_dir(folder.file("out")).unwrap();
        let mut test = Command::new(std::env::current_exe().unwrap());
        test.args(["--exact", "--ignored", "app::privileges::tests::limited_process"]).env(FOLDER, folder.path());
        let output = test.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
        assert_eq!(fs::read_to_string(folder.file("kept")).unwrap(), "kept");
    }
}
