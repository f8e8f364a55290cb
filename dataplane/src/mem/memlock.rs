//! How much memory a process may lock: registered memory counts, and that of queues too.

use std::fmt;
use std::fs;
use std::mem::MaybeUninit;

use crate::units::Bytes;

/// The limit on locked memory, and what counts against it: setrlimit(2), `RLIMIT_MEMLOCK`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memlock {
    /// Bytes; `u64::MAX`: no limit.
    pub limit: u64,
    /// Bytes that are locked already.
    pub locked: u64,
    /// Whether the process may lock any amount: `CAP_IPC_LOCK`.
    pub privileged: bool,
}

/// The bit of `CAP_IPC_LOCK` among capabilities.
const CAP_IPC_LOCK: u32 = 14;

impl Memlock {
    /// As it is now.
    #[allow(unsafe_code, reason = "getrlimit(2) has no safe form in the crates that are used")]
    pub fn of_this_process() -> Self {
        let mut limit = MaybeUninit::<libc::rlimit>::zeroed();
        // SAFETY: the structure is there to be written, and zeros are valid for it.
        let limit = unsafe {
            libc::getrlimit(libc::RLIMIT_MEMLOCK, limit.as_mut_ptr());
            limit.assume_init()
        };
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        Self {
            limit: if limit.rlim_cur == libc::RLIM_INFINITY { u64::MAX } else { limit.rlim_cur },
            // The kernel counts what devices pin apart from what is locked.
            locked: pinned(&status),
            privileged: capability(&status, CAP_IPC_LOCK),
        }
    }

    /// Whether so many bytes more are too many, and then what to do. Queues lock memory too: a tenth is added for them.
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

/// Whether the process has a capability now.
fn capability(status: &str, bit: u32) -> bool {
    let effective = field(status, "CapEff").and_then(|value| u64::from_str_radix(value, 16).ok());
    effective.is_some_and(|set| set >> bit & 1 == 1)
}

/// More memory is to be locked than may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// Bytes, with what is locked already.
    pub needed: u64,
    /// Bytes.
    pub limit: u64,
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kib = self.needed.div_ceil(1024);
        // With a limit of 0 the kernel says EPERM, otherwise ENOMEM.
        let refusal = if self.limit == 0 {
            "this process may lock no memory (RLIMIT_MEMLOCK is 0: registering answers EPERM)".to_owned()
        } else {
            format!("this process may lock {} bytes (RLIMIT_MEMLOCK: registering answers ENOMEM)", Bytes(self.limit))
        };
        write!(
            f,
            "{} bytes are needed, and {refusal}; to change it: `ulimit -l {kib}` in the shell that starts it, or \
             `LimitMEMLOCK={kib}K` in its systemd unit, or the line `* - memlock {kib}` in \
             /etc/security/limits.d/dataplane.conf and a new login, or the capability CAP_IPC_LOCK (`setcap \
             cap_ipc_lock+ep` on the program)",
            Bytes(kib * 1024)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPEN: Memlock = Memlock { limit: u64::MAX, locked: 0, privileged: false };

    #[test]
    fn what_fits_is_no_shortage() {
        assert_eq!(OPEN.shortage(1 << 50), None);
        assert_eq!(Memlock { limit: 1100, ..OPEN }.shortage(1000), None);
        assert_eq!(Memlock { limit: 0, privileged: true, ..OPEN }.shortage(1 << 50), None);
        assert!(OPEN.shortage(u64::MAX).is_none());
    }

    #[test]
    fn a_shortage_names_the_numbers_and_every_remedy() {
        let memlock = Memlock { limit: 8 << 20, locked: 1 << 20, privileged: false };
        let shortage = memlock.shortage(64 << 20).unwrap();
        assert_eq!(shortage.limit, 8 << 20);
        let text = shortage.to_string();
        // 1 MiB and 64 MiB and a tenth of it, in units of 1,024.
        let kib = ((1u64 << 20) + (64 << 20) + (64 << 20) / 10).div_ceil(1024);
        for part in [
            "may lock 8M bytes".to_owned(),
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
    fn a_limit_of_zero_is_told_as_what_the_kernel_answers() {
        let text = Memlock { limit: 0, ..OPEN }.shortage(4096).unwrap().to_string();
        assert!(text.contains("may lock no memory") && text.contains("EPERM"), "{text}");
    }

    #[test]
    fn status_is_read_as_the_kernel_writes_it() {
        let status = "Name:\tx\nVmPin:\t    2048 kB\nCapEff:\t0000000000004000\n";
        assert_eq!(pinned(status), 2 << 20);
        assert!(capability(status, CAP_IPC_LOCK) && !capability(status, 13));
        assert_eq!((pinned(""), capability("", 14)), (0, false));
    }
}
