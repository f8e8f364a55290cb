//! The other process of an upgrade: the new program or the old program.

use std::fs;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// The other process of an upgrade.
pub(super) struct Process {
    pub(super) pid: u32,
    /// A descriptor of the process, or the reason why the kernel gives no descriptor.
    descriptor: Result<OwnedFd, Errno>,
}

/// Returns the name of the PID namespace of the calling process (pid_namespaces(7)). `None` if the kernel does not name
/// the namespace.
pub(super) fn pid_namespace() -> Option<String> {
    fs::read_link("/proc/self/ns/pid").ok()?.into_os_string().into_string().ok()
}

impl Process {
    /// Opens a descriptor of the process with this id. Until the value is dropped, the descriptor refers to the opened
    /// process, even if this process has ended and another process has the same id.
    pub(super) fn open(pid: u32) -> Self {
        let id = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Errno::INVAL);
        Self { pid, descriptor: id.and_then(|id| pidfd_open(id, PidfdFlags::empty())) }
    }

    /// Waits for the end of the process. Returns `false` if the process still runs after `limit`, or if the kernel gives
    /// no descriptor of the process.
    pub(super) fn has_ended(&self, limit: Duration) -> bool {
        match &self.descriptor {
            Ok(descriptor) => {
                let limit = Timespec::try_from(limit).ok();
                poll(&mut [PollFd::new(descriptor, PollFlags::IN)], limit.as_ref()) == Ok(1)
            }
            // The process had ended before the call of `open`.
            Err(error) => *error == Errno::SRCH,
        }
    }

    /// Kills the process. Returns `false` if there is no descriptor of the process.
    pub(super) fn kill(&self) -> bool {
        let Ok(descriptor) = &self.descriptor else { return false };
        let _ = pidfd_send_signal(descriptor, Signal::KILL);
        true
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn end_of_a_process_is_known_before_and_after_its_parent_waits() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let process = Process::open(child.id());
        assert!(!process.has_ended(Duration::from_millis(1)));
        assert!(process.kill());
        assert!(process.has_ended(Duration::from_secs(10)));
        child.wait().unwrap();
        assert!(process.has_ended(Duration::ZERO));
        let ended = Process::open(child.id());
        assert!(ended.has_ended(Duration::ZERO) && !ended.kill());
    }

    #[test]
    fn process_without_a_descriptor_has_not_ended() {
        let process = Process::open(u32::MAX);
        assert!(!process.has_ended(Duration::ZERO) && !process.kill());
    }
}
