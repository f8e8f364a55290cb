//! The one error of everything that is set up. The data path has none: a bad packet is a drop with a reason, a bad
//! completion a counter, a bad verb a fault that the worker handles.

use std::path::PathBuf;

/// The result of everything that is set up.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong before, or outside, the worker loop.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A verb failed on a device.
    #[error("{device}: {source}{}", source.remedy().map(|remedy| format!(": {remedy}")).unwrap_or_default())]
    Verb {
        /// The device, as the config names it.
        device: String,
        /// The verb and the reason.
        source: VerbError,
    },
    /// A file could not be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The config has mistakes: the text shows every one with its place.
    #[error("{0}")]
    Config(String),
    /// Memory for packets could not be had.
    #[error("memory: {0}")]
    Memory(String),
    /// A core, a node or a thread is not to be had.
    #[error("{0}")]
    Topology(String),
    /// The input of a run is damaged, or its output could not be written.
    #[error("{0}")]
    Wire(String),
    /// A connection cannot be made as it was asked for, or its peer is not to be had.
    #[error("{0}")]
    Peer(String),
    /// The kernel's routes cannot be followed.
    #[error("kernel: {0}")]
    Kernel(String),
    /// A worker stopped before its time.
    #[error("worker {worker}: {message}")]
    Worker {
        /// Which.
        worker: usize,
        /// Why.
        message: String,
    },
}

/// A verb that failed: which, and the `errno` that it left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerbError {
    /// The verb by its C name, such as `ibv_create_qp`.
    pub verb: &'static str,
    /// The positive `errno` value; 0 where the verb gave none.
    pub errno: i32,
}

impl VerbError {
    /// A verb and its `errno`.
    pub const fn new(verb: &'static str, errno: i32) -> Self {
        Self { verb, errno }
    }

    /// What is the usual reason of this error of this verb, and what to do; `None`: nothing that is always so.
    pub fn remedy(self) -> Option<&'static str> {
        match (self.verb, self.errno) {
            // ENOENT: rdma-core looks for a file that may not be opened in a second place, and says that it is not there.
            ("ibv_open_device", libc::EACCES | libc::EPERM | libc::ENOENT) => {
                Some("give this user read and write access to /dev/infiniband/uverbs*")
            }
            ("ibv_create_qp" | "ibv_create_qp_ex" | "ibv_create_flow", libc::EPERM) => Some(
                "raw packets need CAP_NET_RAW, and that in the host's own user namespace: `setcap \
                 cap_net_raw,cap_ipc_lock+ep` on the program; or use the software device (device = \"soft\"), which needs \
                 none",
            ),
            ("ibv_reg_mr" | "ibv_create_cq" | "ibv_create_cq_ex" | "ibv_create_qp", libc::ENOMEM)
            | ("ibv_reg_mr", libc::EPERM) => Some(
                "the limit on locked memory may be too low: `ulimit -l unlimited` in the shell that starts the program, or \
                 `LimitMEMLOCK=infinity` in its systemd unit, or the line `* - memlock unlimited` in \
                 /etc/security/limits.d/dataplane.conf, or the capability CAP_IPC_LOCK",
            ),
            _ => None,
        }
    }

    /// The same, as an [`Error`] that names the device.
    pub fn on(self, device: &str) -> Error {
        Error::Verb { device: device.to_owned(), source: self }
    }
}

impl std::fmt::Display for VerbError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} failed: {}", self.verb, std::io::Error::from_raw_os_error(self.errno))
    }
}

impl std::error::Error for VerbError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_may_not_be_opened_comes_with_its_remedy() {
        for errno in [libc::EACCES, libc::EPERM, libc::ENOENT] {
            let error = VerbError::new("ibv_open_device", errno).on("rxe0").to_string();
            assert!(error.contains("/dev/infiniband/uverbs"), "{error}");
        }
        assert_eq!(VerbError::new("ibv_open_device", libc::EIO).remedy(), None);
    }
}
