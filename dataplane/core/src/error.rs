//! The error type of all set-up code. The data path does not return this error type for packets. A bad packet is
//! dropped with a reason, and a failed completion is counted. A failed verb stops the worker if the lane cannot
//! recover.

use std::borrow::Cow;
use std::path::PathBuf;

/// The result of set-up code.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of code that runs before or outside the worker loop.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A verb failed on a device.
    #[error("{device}: {source}{}", source.remedy().map(|remedy| format!("; help: {remedy}")).unwrap_or_default())]
    Verb {
        /// The device, as the config names it.
        device: String,
        /// The verb and its `errno`.
        source: VerbError,
    },
    /// A file could not be read or written.
    #[error("{}: {source}{}", path.display(), source.raw_os_error().and_then(host_remedy).map(|remedy| format!("; help: {remedy}")).unwrap_or_default())]
    File {
        /// The path of the file.
        path: PathBuf,
        /// The I/O error.
        source: std::io::Error,
    },
    /// The config has mistakes. The text lists every mistake with its line and column.
    #[error("{0}")]
    Config(String),
    /// Packet memory could not be allocated.
    #[error("memory: {0}")]
    Memory(String),
    /// A core, a NUMA node or a thread is not available.
    #[error("{0}")]
    Topology(String),
    /// The input of a link is damaged, or the output of a link could not be written.
    #[error("{0}")]
    Wire(String),
    /// A connection cannot be established with the requested parameters, or the peer does not answer.
    #[error("{0}")]
    Peer(String),
    /// The kernel's routes cannot be mirrored.
    #[error("kernel: {0}")]
    Kernel(String),
    /// A worker stopped before the end of the run.
    #[error("worker {worker}: {message}")]
    Worker {
        /// The index of the worker.
        worker: usize,
        /// The reason.
        message: String,
    },
}

/// Returns the remedy for an `errno` that means too few file descriptors or too little memory.
pub(crate) fn host_remedy(errno: i32) -> Option<&'static str> {
    match errno {
        libc::EMFILE => Some("raise the limit on open files (`ulimit -n`, `LimitNOFILE=` of systemd)"),
        libc::ENFILE => Some("raise the limit on open files of this host (`sysctl fs.file-max`)"),
        libc::ENOMEM => Some("raise the memory limit of the process or its control group, or free memory on this host"),
        _ => None,
    }
}

/// The remedy if a thread cannot be started.
pub const THREAD_REMEDY: &str = "raise the limit on threads (`ulimit -u`, `TasksMax=` of systemd)";

/// A failed verb and its `errno`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerbError {
    /// The C name of the verb, such as `ibv_create_qp`.
    pub verb: &'static str,
    /// The positive `errno` value, or 0 if the verb set none.
    pub errno: i32,
}

impl VerbError {
    /// Creates an error from a verb and its `errno`.
    pub const fn new(verb: &'static str, errno: i32) -> Self {
        Self { verb, errno }
    }

    /// Returns the usual fix for this `errno` of this verb. Returns `None` if there is no single usual cause.
    pub fn remedy(self) -> Option<&'static str> {
        match (self.verb, self.errno) {
            // If the program has no access to the device file, rdma-core looks for the file in a second directory. The
            // result can then be ENOENT.
            ("ibv_open_device", libc::EACCES | libc::EPERM | libc::ENOENT) => {
                Some("give this user read and write access to /dev/infiniband/uverbs*")
            }
            ("ibv_create_qp" | "ibv_create_qp_ex" | "ibv_create_flow", libc::EPERM) => Some(
                "run `setcap cap_net_raw,cap_ipc_lock+ep PROGRAM` (raw packets need CAP_NET_RAW in the initial user \
                 namespace), or set device = \"soft\", which needs no capability",
            ),
            ("ibv_reg_mr" | "ibv_create_cq" | "ibv_create_cq_ex" | "ibv_create_qp", libc::ENOMEM)
            | ("ibv_reg_mr", libc::EPERM) => Some(
                "raise the limit on locked memory: run `ulimit -l unlimited` in the shell that starts the program, or \
                 set `LimitMEMLOCK=infinity` in the systemd unit, or add `* - memlock unlimited` to \
                 /etc/security/limits.d/dataplane.conf, or run `setcap cap_ipc_lock+ep PROGRAM`",
            ),
            // The kernel resolves the GID of the peer like an IP address. For an address handle, `EINVAL` means that the
            // local GID is no longer in the GID table.
            ("ibv_create_ah", libc::ETIMEDOUT | libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EINVAL)
            | ("ibv_modify_qp (INIT to RTR)", libc::ETIMEDOUT | libc::ENETUNREACH | libc::EHOSTUNREACH) => Some(
                "select a GID that is an address of the interface, on both sides (`gid` or `--gid`; `dataplane \
                 devices` lists the GIDs), and check the network with `ping`",
            ),
            (_, errno @ (libc::EMFILE | libc::ENFILE)) => host_remedy(errno),
            _ => None,
        }
    }

    /// Converts this error to an [`Error`] that names the device.
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

/// The maximum length of a name in a message, in characters.
pub const MAX_NAME_CHARS: usize = 64;

/// Shortens a name to [`MAX_NAME_CHARS`] for a message. A config may contain names of any length.
pub fn shorten(name: &str) -> Cow<'_, str> {
    match name.char_indices().nth(MAX_NAME_CHARS) {
        Some((end, _)) => format!("{}…", &name[..end]).into(),
        None => name.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_about_too_many_open_files_names_the_limit() {
        for (errno, limit) in [(libc::EMFILE, "`ulimit -n`"), (libc::ENFILE, "`sysctl fs.file-max`")] {
            let verb = VerbError::new("ibv_create_comp_channel", errno).on("soft").to_string();
            let file = Error::File { path: "a.pcap".into(), source: std::io::Error::from_raw_os_error(errno) };
            for error in [verb, file.to_string()] {
                assert!(error.contains("; help: raise the limit on open files") && error.contains(limit), "{error}");
            }
        }
        let missing = std::io::Error::from(std::io::ErrorKind::NotFound);
        let error = Error::File { path: "a.pcap".into(), source: missing }.to_string();
        assert_eq!(error, "a.pcap: entity not found");
    }

    #[test]
    fn error_of_an_unreachable_peer_names_the_gid() {
        for errno in [libc::ETIMEDOUT, libc::ENETUNREACH, libc::EHOSTUNREACH] {
            for verb in ["ibv_create_ah", "ibv_modify_qp (INIT to RTR)"] {
                let error = VerbError::new(verb, errno).on("mlx5_0").to_string();
                assert!(error.contains("; help: select a GID that is an address of the interface"), "{error}");
            }
        }
        assert_eq!(VerbError::new("ibv_create_ah", libc::ENOMEM).remedy(), None);
    }

    #[test]
    fn open_device_permission_error_names_the_fix() {
        for errno in [libc::EACCES, libc::EPERM, libc::ENOENT] {
            let error = VerbError::new("ibv_open_device", errno).on("rxe0").to_string();
            assert!(error.contains("/dev/infiniband/uverbs"), "{error}");
        }
        assert_eq!(VerbError::new("ibv_open_device", libc::EIO).remedy(), None);
    }
}
