//! The checks before another program takes over a run.

use super::state::{Busy, RunState, lock};
use crate::runtime::assemble::black_box_file;
use dataplane_control::{ErrorCode, Refusal};
use dataplane_core::upgrade::region_descriptor;
use dataplane_soft::upgrade::HandOver;

/// The help for a run that another program cannot take over.
pub(crate) const RESTART_HELP: &str = "stop the program, and start the new program with the same config";

/// Keeps the config of a run unchanged until the value is dropped.
pub(crate) struct UpgradeHold {
    busy: Busy,
}

impl UpgradeHold {
    /// `client` describes the client of the upgrade.
    pub(super) fn new(busy: Busy, client: String) -> Self {
        busy.state.control.set_upgrading(true);
        lock(&busy.state.changes).upgrader = Some(client);
        Self { busy }
    }
}

impl Drop for UpgradeHold {
    fn drop(&mut self) {
        self.busy.state.control.set_upgrading(false);
        lock(&self.busy.state.changes).upgrader = None;
    }
}

impl RunState {
    /// Returns whether a port shares the packet memory with the kernel.
    pub(crate) fn shares_memory(&self) -> bool {
        lock(&self.ports).iter().any(|port| port.device.hand_over().is_some_and(HandOver::shares_memory))
    }

    /// Returns the refusal of an upgrade if another program cannot take this run over.
    pub(crate) fn check_upgrade(&self) -> Result<(), Refusal> {
        let (current, ports) = self.current_ports();
        // A change may have added a port that shares the memory after the workers allocated the memory.
        let has_shared_memory = lock(&self.memories).iter().all(|memory| region_descriptor(memory).is_some());
        let mut problems = Vec::new();
        for (plan, port) in current.plan.ports.iter().zip(&ports) {
            let device = port.device.hand_over();
            if device.is_none_or(|device| device.shares_memory() && !has_shared_memory) {
                let kind = plan.config.link.as_ref().map_or("", |link| link.kind());
                let kind = format!("{} {kind}", plan.config.device);
                problems.push(format!("port `{}` ({}) cannot be handed over", port.name, kind.trim_end()));
            }
        }
        if self.shares_memory() && !kernel_maps_bound_sockets() {
            problems.push("the kernel is older than 6.4, so it cannot pass `xdp` sockets on".to_owned());
        }
        // The names of the files of a black box contain the process id.
        let black_box = black_box_file(&current.source, &current.plan);
        let written = self.written.iter().filter(|file| Some(*file) != black_box.as_ref());
        problems.extend(written.map(|file| format!("the run writes the file {}", file.display())));
        if self.control.has_packet_limit() {
            problems.push("the run has a limit of packets (--packets)".to_owned());
        }
        if problems.is_empty() {
            return Ok(());
        }
        let message = format!("an upgrade of this run needs a restart: {}", problems.join(", "));
        Err(Refusal::new(ErrorCode::NeedsRestart, message, RESTART_HELP))
    }
}

/// Returns whether the kernel maps the rings of an AF_XDP socket that is bound (`xsk_mmap()`, since Linux 6.4).
fn kernel_maps_bound_sockets() -> bool {
    let release = rustix::system::uname();
    is_at_least_6_4(&release.release().to_string_lossy())
}

/// Compares the release of a kernel, such as `6.1.0-37-amd64`. Accepts a release that is not a version.
fn is_at_least_6_4(release: &str) -> bool {
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    numbers.next().is_none_or(|major| (major, numbers.next().unwrap_or(0)) >= (6, 4))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_of_kernels_are_compared_by_their_numbers() {
        for release in ["6.4.0", "6.18.5", "6.4-rc1", "7.0", "10.0.1", "unknown"] {
            assert!(is_at_least_6_4(release), "{release}");
        }
        for release in ["6.1.0-37-amd64", "5.15.0", "6.3.13", "6"] {
            assert!(!is_at_least_6_4(release), "{release}");
        }
    }
}
