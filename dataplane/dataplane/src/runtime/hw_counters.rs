//! The counters of RDMA devices that the kernel reports in sysfs, and that verbs do not report.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::config::{PortPlan, Qp};

/// The length of the longest counter, with some space to spare: a number with 20 digits and a newline.
const LENGTH: usize = 32;

/// The largest plausible number of lost packets between two reads. A larger difference, modulo 2^32, counts as a
/// decrease.
const MAX_INCREASE: u32 = 1 << 31;

/// Returns the file with the number of packets that a port has lost because no receive was posted. Returns `None` if the
/// driver does not report the losses of this program's queue pairs. `sysfs` is the folder at which sysfs is mounted.
pub(crate) fn out_of_buffer_file(sysfs: &Path, device: &str, port: u8) -> Option<PathBuf> {
    let device = sysfs.join("class/infiniband").join(device);
    let folder = device.join(format!("ports/{port}"));
    let port = folder.join("hw_counters");
    if port.join("vport_out_of_buffer").exists() {
        // mlx5 in switchdev mode, with counters for each virtual port. The driver then assigns the queue pairs to a
        // set of counters that no file shows, and `out_of_buffer` of the device stays 0.
        return None;
    }
    // In switchdev mode without counters for each virtual port, mlx5 has the folder `hw_counters` only for the device,
    // not for its ports. `rx_out_of_buffer` is the counter of bnxt_re.
    let files = [port.join("out_of_buffer"), device.join("hw_counters/out_of_buffer"), port.join("rx_out_of_buffer")];
    // In a network namespace that is not the namespace of the device, the kernel shows a copy of the device without the
    // folder `counters`. Linux 5.14 to 6.14 can show `hw_counters` of the device in this copy, and a read of such a file
    // crashes the kernel (`hw_stat_device_show`).
    let is_copy = !folder.join("counters").exists();
    files.into_iter().find(|file| file.exists() && !(is_copy && file.starts_with(device.join("hw_counters"))))
}

/// Returns whether a port can lose packets because no receive is posted. A reliable connection loses no packets.
pub(crate) fn can_lose(port: &PortPlan) -> bool {
    port.input && port.config.qp != Qp::Rc
}

/// Returns why the losses of a port cannot be counted, and the fix, if the device belongs to another network namespace.
/// `sysfs` is the folder at which sysfs is mounted.
///
/// In the namespaces of other programs, the kernel shows a copy of the device without counters (`add_one_compat_dev`
/// and `setup_port` in Linux).
pub(crate) fn in_another_namespace(sysfs: &Path, device: &str, port: u8) -> Option<String> {
    /// The drivers that have counters in their own namespace. The driver of a subfunction is `mlx5_core.sf`.
    const DRIVERS: [&str; 3] = ["mlx5_core", "mlx5_core.sf", "bnxt_en"];
    let folder = sysfs.join("class/infiniband").join(device);
    let port = folder.join(format!("ports/{port}"));
    let driver = fs::read_link(folder.join("device/driver")).ok()?;
    let has_counters = DRIVERS.iter().any(|name| driver.file_name().is_some_and(|driver| driver == *name));
    let is_copy = port.exists() && !port.join("counters").exists() && !port.join("hw_counters").exists();
    (has_counters && is_copy).then(|| {
        format!(
            "`{device}` belongs to another network namespace, and only that namespace has the counters of the device, so \
             packets that find no receive buffer are not counted and `lost` of the port is always 0; help: run the \
             program in the network namespace of the host, or run `rdma system set netns exclusive` at the boot of the \
             host, before other network namespaces exist, and move the device to the namespace of the program (`rdma dev \
             set {device} netns NAME`)"
        )
    })
}

/// The packets that a port of an RDMA device dropped because no receive was posted, counted since this value was
/// created. mlx5 drops such packets without a completion. The counter of the device includes the queue pairs of all
/// programs.
pub(super) struct OutOfBuffer {
    /// The file of [`out_of_buffer_file`]. The file stays open, so that a run can read the counter after it has given up
    /// its privileges.
    file: File,
    state: Mutex<CounterState>,
}

struct CounterState {
    /// The highest value of the counter so far, modulo 2^32. The counter has 32 bits.
    last: u32,
    /// The packets that were lost up to the last value.
    lost: u64,
}

impl OutOfBuffer {
    /// Opens the counter of a port. Returns `None` if [`out_of_buffer_file`] returns `None`.
    pub(super) fn open(sysfs: &Path, device: &str, port: u8) -> Option<Self> {
        let file = File::open(out_of_buffer_file(sysfs, device, port)?).ok()?;
        let last = read(&file)?;
        Some(Self { file, state: Mutex::new(CounterState { last, lost: 0 }) })
    }

    /// Returns the lost packets. If the counter cannot be read, such as after a removal of the device, returns the
    /// packets of the last call. The result is too small if the counter increased by 2^31 or more since the last call.
    pub(super) fn lost(&self) -> u64 {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(now) = read(&self.file) {
            let increase = now.wrapping_sub(state.last);
            // While `rdma statistic qp set` with `auto` is active, the kernel adds several counters, and a read can miss
            // a counter or count a counter twice. A lower value therefore adds nothing, and later packets count again
            // when the counter exceeds its highest value.
            if increase < MAX_INCREASE {
                state.lost += u64::from(increase);
                state.last = now;
            }
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

    /// The file system of a fake host.
    struct Sysfs(tempfile::TempDir);

    impl Sysfs {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        /// Writes a file of the device `mlx5_0`.
        fn write(&self, file: &str, text: &str) {
            let file = self.0.path().join("class/infiniband/mlx5_0").join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, format!("{text}\n")).unwrap();
        }

        /// Opens the counter of a port of the device `mlx5_0`.
        fn open(&self, port: u8) -> Option<OutOfBuffer> {
            OutOfBuffer::open(self.0.path(), "mlx5_0", port)
        }
    }

    const OF_PORT: &str = "ports/1/hw_counters/out_of_buffer";
    const OF_DEVICE: &str = "hw_counters/out_of_buffer";
    /// A counter that only the device itself has, and not its copy in another network namespace.
    const STANDARD: &str = "ports/1/counters/symbol_error";

    #[test]
    fn lost_packets_are_counted_across_a_wrap_of_the_counter() {
        let sysfs = Sysfs::new();
        sysfs.write(OF_PORT, "4294967290");
        let counter = sysfs.open(1).unwrap();
        assert_eq!(counter.lost(), 0);
        sysfs.write(OF_PORT, "10");
        assert_eq!((counter.lost(), counter.lost()), (16, 16));
        sysfs.write(OF_PORT, "not a number");
        assert_eq!(counter.lost(), 16);
        sysfs.write(OF_PORT, "11");
        assert_eq!(counter.lost(), 17);
        assert!(sysfs.open(2).is_none());
    }

    #[test]
    fn decrease_of_the_counter_is_no_loss() {
        let sysfs = Sysfs::new();
        sysfs.write(OF_PORT, "10");
        let counter = sysfs.open(1).unwrap();
        for (value, lost) in [("14", 4), ("7", 4), ("14", 4), ("15", 5)] {
            sysfs.write(OF_PORT, value);
            assert_eq!(counter.lost(), lost, "the counter is {value}");
        }
    }

    #[test]
    fn counter_of_bnxt_re_is_used() {
        let sysfs = Sysfs::new();
        sysfs.write("ports/1/hw_counters/rx_out_of_buffer", "7");
        let counter = sysfs.open(1).unwrap();
        sysfs.write("ports/1/hw_counters/rx_out_of_buffer", "9");
        assert_eq!(counter.lost(), 2);
        assert!(sysfs.open(2).is_none());
    }

    #[test]
    fn counter_of_the_device_is_used_in_switchdev_mode() {
        let sysfs = Sysfs::new();
        sysfs.write(OF_DEVICE, "7");
        sysfs.write(STANDARD, "0");
        let counter = sysfs.open(1).unwrap();
        sysfs.write(OF_DEVICE, "10");
        assert_eq!(counter.lost(), 3);
        // With counters for each virtual port, the counter of the device does not include the queue pairs.
        sysfs.write("ports/1/hw_counters/vport_out_of_buffer", "0");
        assert!(sysfs.open(1).is_none());
    }
    /// A read of this file can crash the kernel.
    #[test]
    fn counter_of_the_device_is_not_read_in_another_network_namespace() {
        let sysfs = Sysfs::new();
        sysfs.write(OF_DEVICE, "7");
        sysfs.write("ports/1/state", "4: ACTIVE");
        assert!(sysfs.open(1).is_none());
        sysfs.write(STANDARD, "0");
        assert!(sysfs.open(1).is_some());
    }
    #[test]
    fn copy_of_a_device_in_another_network_namespace_is_recognised() {
        for (driver, counters, is_copy) in [
            ("mlx5_core", None, true),
            ("mlx5_core.sf", None, true),
            ("bnxt_en", None, true),
            ("mlx5_core", Some(STANDARD), false),
            ("bnxt_en", Some("ports/1/hw_counters/rx_pkts"), false),
            // The driver has no known counter in any namespace.
            ("siw", None, false),
        ] {
            let sysfs = Sysfs::new();
            sysfs.write("ports/1/state", "4: ACTIVE");
            sysfs.write("device/vendor", "0x15b3");
            let link = sysfs.0.path().join("class/infiniband/mlx5_0/device/driver");
            std::os::unix::fs::symlink(format!("../../../bus/pci/drivers/{driver}"), link).unwrap();
            counters.iter().for_each(|file| sysfs.write(file, "0"));
            let why = in_another_namespace(sysfs.0.path(), "mlx5_0", 1);
            assert_eq!(why.is_some(), is_copy, "{driver} {counters:?}");
            assert!(why.is_none_or(|why| why.contains("help: run the program in the network namespace of the host")));
            assert_eq!(in_another_namespace(sysfs.0.path(), "mlx5_0", 2), None, "the port does not exist");
        }
    }
}
