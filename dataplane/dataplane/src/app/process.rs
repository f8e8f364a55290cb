//! The other process of an upgrade: the new program or the old program.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{UnixCredentials, getsockopt};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal, test_kill_process};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

use dataplane_control::{ErrorCode, Refusal};

/// The other process of an upgrade.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) pid: u32,
    /// A descriptor of the process, or the reason why the kernel gives no descriptor.
    descriptor: Result<OwnedFd, Errno>,
}

/// Returns the process and the user at the other end of a connection (`SO_PEERCRED`).
///
/// # Errors
/// Fails if the process is in another pid namespace.
pub(super) fn peer(stream: &UnixStream) -> Result<UnixCredentials, String> {
    // rustix cannot represent the process id 0, which the kernel reports for a process in another pid namespace.
    match getsockopt(stream, PeerCredentials) {
        Ok(peer) if peer.pid() == 0 => {
            Err("the process at the other end of the connection is in another pid namespace".to_owned())
        }
        Ok(peer) => Ok(peer),
        Err(error) => Err(format!("the process at the other end of the connection is not known: {error}")),
    }
}

/// Returns a descriptor of this process (pidfd_open(2)).
pub(super) fn own_descriptor() -> io::Result<OwnedFd> {
    Ok(pidfd_open(getpid(), PidfdFlags::empty())?)
}

impl Process {
    /// Opens a descriptor of the process with this id. Until the value is dropped, the descriptor refers to the opened
    /// process, even if this process has ended and another process has the same id.
    pub(super) fn open(pid: u32) -> Self {
        let id = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Errno::INVAL);
        Self { pid, descriptor: id.and_then(|id| pidfd_open(id, PidfdFlags::empty())) }
    }

    /// Returns the process of a descriptor from a client. This program may have to kill the process. The process must
    /// therefore have the user of this program, which is also the user of the client. The client could also kill such a
    /// process.
    ///
    /// # Errors
    /// Fails if the descriptor does not refer to a process, if the process is this process or has ended, or if the process
    /// has another user or is in another pid namespace.
    pub(super) fn of_descriptor(descriptor: OwnedFd) -> Result<Self, Refusal> {
        let refuse = |what: &str, help: &str| {
            let message = format!("the new program cannot take over: {what}");
            Err(Refusal::new(ErrorCode::Failed, message, help))
        };
        let path = format!("/proc/self/fdinfo/{}", descriptor.as_raw_fd());
        let info = match fs::read_to_string(&path) {
            Ok(info) => info,
            Err(error) => return refuse(&format!("{path}: {error}"), "mount /proc in the namespaces of the program"),
        };
        let Some(pid) = info.lines().find_map(|line| line.strip_prefix("Pid:")?.trim().parse::<i32>().ok()) else {
            return refuse("its descriptor does not refer to a process", "use `dataplane upgrade --to PROGRAM`");
        };
        // The kernel reports 0 for a process that /proc does not show, and -1 for a process that has ended.
        let ended = "its process has ended";
        let ended_help = "try again; the program still forwards packets";
        let id = match Pid::from_raw(pid.max(0)) {
            Some(id) => id,
            None if pid < 0 => return refuse(ended, ended_help),
            None => {
                let help = "run `dataplane upgrade` in the container of the program, for example with `nsenter --all \
                            --target PROCESS`";
                return refuse("its process is in another pid namespace", help);
            }
        };
        // A descriptor of a thread has the id of the thread.
        if Path::new(&format!("/proc/self/task/{pid}")).exists() {
            return refuse(
                &format!("its descriptor refers to process {}, which is the running program", getpid()),
                "use `dataplane upgrade --to PROGRAM`",
            );
        }
        if fs::read_link("/proc/self").ok() != Some(getpid().to_string().into()) {
            let help = "mount /proc in the pid namespace of the program, for example with `unshare --mount-proc`";
            return refuse("/proc shows the processes of another pid namespace", help);
        }
        let may_kill = with_rights_of_user(|| test_kill_process(id));
        let process = Self { pid: pid.unsigned_abs(), descriptor: Ok(descriptor) };
        // While the process runs, no other process can have the id, so the check above has checked this process.
        if process.has_ended(Duration::ZERO) {
            return refuse(ended, ended_help);
        }
        match may_kill {
            Ok(()) => Ok(process),
            Err(error) => refuse(
                &format!("this program must be able to end process {pid}, but may not send signals to it: {error}"),
                "run the new program as the user of the running program",
            ),
        }
    }

    /// Waits for the end of the process. Returns `false` if the process still runs after `limit`, or if the kernel gives
    /// no descriptor of the process.
    pub(super) fn has_ended(&self, limit: Duration) -> bool {
        let descriptor = match &self.descriptor {
            Ok(descriptor) => descriptor,
            // The process had ended before the call of `open`.
            Err(error) => return *error == Errno::SRCH,
        };
        let begin = Instant::now();
        loop {
            let left = Timespec::try_from(limit.saturating_sub(begin.elapsed())).ok();
            match poll(&mut [PollFd::new(descriptor, PollFlags::IN)], left.as_ref()) {
                Err(Errno::INTR) => {}
                done => return done == Ok(1),
            }
        }
    }

    /// Kills the process.
    ///
    /// # Errors
    /// Fails if there is no descriptor of the process, or if the user of this program may not kill the process.
    pub(super) fn kill(&self) -> io::Result<()> {
        let descriptor = self.descriptor.as_ref().map_err(|error| *error)?;
        Ok(with_rights_of_user(|| pidfd_send_signal(descriptor, Signal::KILL))?)
    }
}

/// Calls a function without CAP_KILL, so that the kernel allows signals only to processes of the user of this program.
/// Otherwise, a client without CAP_KILL could use this program to kill the processes of other users.
fn with_rights_of_user<T>(call: impl FnOnce() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    let held = capabilities(None)?;
    if !held.effective.contains(CapabilitySet::KILL) {
        return call();
    }
    // Capabilities belong to the calling thread.
    set_capabilities(None, CapabilitySets { effective: held.effective - CapabilitySet::KILL, ..held })?;
    let result = call();
    set_capabilities(None, held)?;
    result
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, mpsc};
    use std::thread;

    use dataplane_testing::wait_until;
    use rustix::process::{geteuid, kill_process};
    use rustix::thread::gettid;

    use super::*;

    fn sleeper() -> Command {
        let mut command = Command::new("sleep");
        command.arg("600");
        command
    }

    /// Returns the process of a descriptor of a child.
    fn of_child(child: &Child) -> Result<Process, Refusal> {
        let id = Pid::from_child(child);
        Process::of_descriptor(pidfd_open(id, PidfdFlags::empty()).unwrap())
    }

    #[test]
    fn end_of_a_process_is_known_before_and_after_its_parent_waits() {
        let mut child = sleeper().spawn().unwrap();
        let process = Process::open(child.id());
        assert!(!process.has_ended(Duration::from_millis(1)));
        process.kill().unwrap();
        assert!(process.has_ended(Duration::from_secs(10)));
        child.wait().unwrap();
        assert!(process.has_ended(Duration::ZERO));
        let ended = Process::open(child.id());
        assert!(ended.has_ended(Duration::ZERO) && ended.kill().is_err());
    }

    #[test]
    fn process_without_a_descriptor_has_not_ended() {
        let process = Process::open(u32::MAX);
        assert!(!process.has_ended(Duration::ZERO) && process.kill().is_err());
    }

    #[test]
    fn descriptor_of_a_child_is_accepted_until_the_child_ends() {
        let mut child = sleeper().spawn().unwrap();
        let process = of_child(&child).unwrap();
        assert_eq!(process.pid, child.id());
        process.kill().unwrap();
        assert!(process.has_ended(Duration::from_secs(10)));
        let descriptor = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
        // Before and after the parent waits.
        assert!(of_child(&child).unwrap_err().message.contains("its process has ended"));
        child.wait().unwrap();
        assert!(Process::of_descriptor(descriptor).unwrap_err().message.contains("its process has ended"));
    }

    #[test]
    fn descriptor_of_this_program_or_of_no_process_is_refused() {
        let refused = |descriptor| Process::of_descriptor(descriptor).unwrap_err().message;
        let message = refused(own_descriptor().unwrap());
        assert!(
            message.ends_with(&format!("refers to process {}, which is the running program", getpid())),
            "{message}"
        );
        let message = refused(File::open("/dev/null").unwrap().into());
        assert!(message.contains("its descriptor does not refer to a process"), "{message}");
        // A folder of /proc accepts signals too.
        let message = refused(File::open(format!("/proc/{}", getpid())).unwrap().into());
        assert!(message.contains("its descriptor does not refer to a process"), "{message}");
    }

    #[test]
    fn process_of_another_user_is_refused() {
        if !geteuid().is_root() {
            return;
        }
        let mut child = sleeper().uid(65534).spawn().unwrap();
        let refused = of_child(&child).unwrap_err();
        assert!(refused.message.contains(&format!("end process {}", child.id())), "{refused}");
        // The test may have CAP_KILL, and still has it.
        assert!(Process::open(child.id()).kill().is_err());
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn signal_does_not_shorten_the_wait_for_the_end() {
        let signal = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(signal_hook::consts::SIGUSR2, signal.clone()).unwrap();
        let mut child = sleeper().spawn().unwrap();
        let (sender, receiver) = mpsc::channel();
        let process = Process::open(child.id());
        let waiting = thread::spawn(move || {
            sender.send(gettid()).unwrap();
            process.has_ended(Duration::from_secs(60))
        });
        let thread = receiver.recv().unwrap();
        let state = || fs::read_to_string(format!("/proc/self/task/{thread}/status")).unwrap();
        wait_until("the thread waits", || state().contains("State:\tS"));
        // The kernel prefers the thread with this id.
        kill_process(thread, Signal::USR2).unwrap();
        wait_until("the signal is handled", || signal.load(Ordering::Relaxed));
        child.kill().unwrap();
        assert!(waiting.join().unwrap());
        child.wait().unwrap();
    }
}
