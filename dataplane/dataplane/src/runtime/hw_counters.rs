//! The counters of RDMA devices that the kernel reports in sysfs, and that verbs do not report.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// The length of the longest counter, with some space to spare: a number with 20 digits and a newline.
const LENGTH: usize = 32;

/// The packets that a port of an RDMA device dropped because no receive was posted, counted since this value was
/// created. mlx5 drops such packets without a completion. The counter of the device includes the queue pairs of all
/// programs.
pub(super) struct OutOfBuffer {
    /// `hw_counters/out_of_buffer` of the port. The file stays open, so that a run can read the counter after it has
    /// given up its privileges.
    file: File,
    state: Mutex<CounterState>,
}

struct CounterState {
    /// The last value of the counter. The counter has 32 bits.
    last: u32,
    /// The packets that were lost up to the last value.
    lost: u64,
}

impl OutOfBuffer {
    /// Opens the counter of a port. Returns `None` if the driver of the device has no such counter. `sysfs` is the
    /// folder at which sysfs is mounted.
    pub(super) fn open(sysfs: &Path, device: &str, port: u8) -> Option<Self> {
        let path = format!("class/infiniband/{device}/ports/{port}/hw_counters/out_of_buffer");
        let file = File::open(sysfs.join(path)).ok()?;
        let last = read(&file)?;
        Some(Self { file, state: Mutex::new(CounterState { last, lost: 0 }) })
    }

    /// Returns the lost packets. If the counter cannot be read, such as after a removal of the device, returns the
    /// packets of the last call. The result is too small if the counter increased by 2^32 or more since the last call.
    pub(super) fn lost(&self) -> u64 {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(now) = read(&self.file) {
            state.lost += u64::from(now.wrapping_sub(state.last));
            state.last = now;
        }
        state.lost
    }
}

/// Reads a counter, modulo 2^32.
fn read(file: &File) -> Option<u32> {
    let mut text = [0; LENGTH];
    let length = file.read_at(&mut text, 0).ok()?;
    let number: u64 = std::str::from_utf8(text.get(..length)?).ok()?.trim().parse().ok()?;
    Some(number as u32)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn lost_packets_are_counted_across_a_wrap_of_the_counter() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("class/infiniband/mlx5_0/ports/1/hw_counters");
        fs::create_dir_all(&folder).unwrap();
        let file = folder.join("out_of_buffer");
        fs::write(&file, "4294967290\n").unwrap();
        let counter = OutOfBuffer::open(root.path(), "mlx5_0", 1).unwrap();
        assert_eq!(counter.lost(), 0);
        fs::write(&file, "10\n").unwrap();
        assert_eq!((counter.lost(), counter.lost()), (16, 16));
        fs::write(&file, "not a number\n").unwrap();
        assert_eq!(counter.lost(), 16);
        fs::write(&file, "11\n").unwrap();
        assert_eq!(counter.lost(), 17);
        assert!(OutOfBuffer::open(root.path(), "mlx5_0", 2).is_none());
    }
}
