//! The limit on locked memory. Registered memory and the memory of queues count towards the limit.

use std::fmt;
use std::fs;
use std::mem::MaybeUninit;

use crate::units::Bytes;

/// The limit on locked memory and its current use: setrlimit(2), `RLIMIT_MEMLOCK`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memlock {
    /// The limit, in bytes. `u64::MAX` means no limit.
    pub limit: u64,
    /// Bytes that are already locked.
    pub locked: u64,
    /// Whether the process has the capability `CAP_IPC_LOCK`, which removes the limit.
    pub privileged: bool,
}

/// Bit number of `CAP_IPC_LOCK`.
const CAP_IPC_LOCK: u32 = 14;

impl Memlock {
    /// Reads the current values of this process.
    #[allow(unsafe_code, reason = "no crate in use has a safe wrapper for getrlimit(2)")]
    pub fn of_this_process() -> Self {
        let mut limit = MaybeUninit::<libc::rlimit>::zeroed();
        // SAFETY: the pointer is to a local structure of the right type. All zeros are a valid value of the structure.
        let limit = unsafe {
            libc::getrlimit(libc::RLIMIT_MEMLOCK, limit.as_mut_ptr());
            limit.assume_init()
        };
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        Self {
            limit: if limit.rlim_cur == libc::RLIM_INFINITY { u64::MAX } else { limit.rlim_cur },
            // For memory that device drivers pin, the kernel has the separate counter `VmPin`. `VmLck` does not include
            // this memory.
            locked: pinned(&status),
            privileged: capability(&status, CAP_IPC_LOCK),
        }
    }

    /// Returns the shortage if the limit does not allow `bytes` more locked bytes. Returns `None` if the limit allows
    /// them. The calculation adds a tenth of `bytes` for the memory of queues.
    pub fn shortage(&self, bytes: u64) -> Option<Shortage> {
        let needed = self.locked.saturating_add(bytes.saturating_add(bytes / 10));
        (!self.privileged && needed > self.limit).then_some(Shortage { needed, limit: self.limit })
    }
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

fn pinned(status: &str) -> u64 {
    let kib = field(status, "VmPin").and_then(|value| value.strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0).saturating_mul(1024)
}

/// Returns whether the process has this capability in its effective set.
fn capability(status: &str, bit: u32) -> bool {
    let effective = field(status, "CapEff").and_then(|value| u64::from_str_radix(value, 16).ok());
    effective.is_some_and(|set| set >> bit & 1 == 1)
}

/// An error: the process needs to lock more memory than the limit allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// Required bytes, including the bytes that are already locked.
    pub needed: u64,
    /// The limit, in bytes.
    pub limit: u64,
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kib = self.needed.div_ceil(1024);
        // With a limit of 0, the kernel returns EPERM. With any other limit, the kernel returns ENOMEM.
        let refusal = if self.limit == 0 {
            "this process may lock no memory (RLIMIT_MEMLOCK is 0, registration fails with EPERM)".to_owned()
        } else {
            format!("this process may lock {} (RLIMIT_MEMLOCK, registration fails with ENOMEM)", Bytes(self.limit))
        };
        write!(
            f,
            "{} are needed, and {refusal}; help: `ulimit -l {kib}` in the shell that starts the program, or \
             `LimitMEMLOCK={kib}K` in its systemd unit, or the line `* - memlock {kib}` in \
             /etc/security/limits.d/dataplane.conf and a new login, or the capability CAP_IPC_LOCK (`setcap \
             cap_ipc_lock+ep` PROGRAM)",
            Bytes(kib * 1024)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPEN: Memlock = Memlock { limit: u64::MAX, locked: 0, privileged: false };

    #[test]
    fn memory_within_the_limit_is_not_reported_as_a_shortage() {
        assert_eq!(OPEN.shortage(1 << 50), None);
        assert_eq!(Memlock { limit: 1100, ..OPEN }.shortage(1000), None);
        assert_eq!(Memlock { limit: 0, privileged: true, ..OPEN }.shortage(1 << 50), None);
        assert!(OPEN.shortage(u64::MAX).is_none());
    }

    #[test]
    fn shortage_message_has_the_sizes_and_every_fix() {
        let memlock = Memlock { limit: 8 << 20, locked: 1 << 20, privileged: false };
        let shortage = memlock.shortage(64 << 20).unwrap();
        assert_eq!(shortage.limit, 8 << 20);
        let text = shortage.to_string();
        // The sum of 1 MiB (locked), 64 MiB (requested) and a tenth of 64 MiB (queues), in KiB.
        let kib = ((1u64 << 20) + (64 << 20) + (64 << 20) / 10).div_ceil(1024);
        for part in [
            "may lock 8MiB".to_owned(),
            format!("`ulimit -l {kib}`"),
            format!("`LimitMEMLOCK={kib}K`"),
            format!("`* - memlock {kib}`"),
            "/etc/security/limits.d/".to_owned(),
            "CAP_IPC_LOCK".to_owned(),
            "ENOMEM".to_owned(),
        ] {
            assert!(text.contains(&part), "{part}: {text}");
        }
    }

    #[test]
    fn limit_of_zero_is_reported_with_the_kernel_error() {
        let text = Memlock { limit: 0, ..OPEN }.shortage(4096).unwrap().to_string();
        assert!(text.contains("may lock no memory") && text.contains("EPERM"), "{text}");
    }

    #[test]
    fn proc_status_fields_are_parsed() {
        let status = "Name:\tx\nVmPin:\t    2048 kB\nCapEff:\t0000000000004000\n";
        assert_eq!(pinned(status), 2 << 20);
        assert!(capability(status, CAP_IPC_LOCK) && !capability(status, 13));
        assert_eq!((pinned(""), capability("", 14)), (0, false));
    }
}
