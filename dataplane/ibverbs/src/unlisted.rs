//! RDMA devices of the kernel that libibverbs does not list. libibverbs reports no error when it leaves out a
//! device: see `setup_sysfs_dev` and `ibverbs_get_device_list` in the file `init.c` of libibverbs.

use std::fmt;
use std::fs;
use std::path::Path;

/// The reason why libibverbs does not list an RDMA device of the kernel, and the fix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnlistedDevice {
    /// The name of the device.
    pub name: String,
    /// The reason.
    pub why: String,
    /// The fix.
    pub fix: String,
}

impl fmt::Display for UnlistedDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the kernel has this device, but {}; help: {}", self.why, self.fix)
    }
}

impl UnlistedDevice {
    /// Returns the devices of the kernel that are not in `listed`. `sysfs` is the folder of the kernel's sysfs, and
    /// `devfs` is the folder of the device files: `/sys` and `/dev` on a host.
    pub(super) fn all(sysfs: &Path, devfs: &Path, listed: &[String]) -> Vec<Self> {
        let mut names = names(&sysfs.join("class/infiniband"));
        names.retain(|name| !listed.contains(name));
        names.into_iter().map(|name| Self::of(sysfs, devfs, name)).collect()
    }

    fn of(sysfs: &Path, devfs: &Path, name: String) -> Self {
        let class = sysfs.join("class/infiniband_verbs");
        let is_of_device = |file: &String| {
            fs::read_to_string(class.join(file).join("ibdev")).is_ok_and(|device| device.trim() == name)
        };
        let (why, fix) = match names(&class).into_iter().find(is_of_device) {
            None => (
                "the kernel module `ib_uverbs`, which libibverbs needs, does not serve it".to_owned(),
                "`modprobe ib_uverbs`",
            ),
            Some(file) if !devfs.join("infiniband").join(&file).exists() => (
                format!("its file /dev/infiniband/{file} does not exist"),
                "in a container, pass the folder /dev/infiniband to the container; otherwise, check udev",
            ),
            Some(_) => (
                "libibverbs finds no driver library for it".to_owned(),
                "install the package `ibverbs-providers` (Debian), `libibverbs` (Fedora) or the rdma-core of the vendor, in \
                 a version that knows the NIC; with IBV_SHOW_WARNINGS=1, libibverbs prints a warning for the device",
            ),
        };
        Self { name, why, fix: fix.to_owned() }
    }
}

/// Returns the names in a folder in alphabetical order.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort_unstable();
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use dataplane_testing::Folder;

    #[test]
    fn device_that_libibverbs_does_not_list_has_the_reason() {
        let folder = Folder::new();
        let (sysfs, devfs) = (folder.file("sys"), folder.file("dev"));
        let unlisted = |listed: &[&str]| {
            let listed: Vec<String> = listed.iter().map(|&name| name.to_owned()).collect();
            UnlistedDevice::all(&sysfs, &devfs, &listed)
        };
        let only = || {
            let [device] = &unlisted(&["mlx5_1"])[..] else { panic!("{:?}", unlisted(&["mlx5_1"])) };
            assert_eq!(device.name, "mlx5_0");
            device.to_string()
        };
        assert_eq!(unlisted(&[]), []);
        folder.write("sys/class/infiniband/mlx5_0/node_type", "1: CA\n");
        folder.write("sys/class/infiniband/mlx5_1/node_type", "1: CA\n");
        assert_eq!(unlisted(&["mlx5_0", "mlx5_1"]), []);
        folder.write("sys/class/infiniband_verbs/uverbs7/ibdev", "mlx5_1\n");
        assert!(only().contains("modprobe ib_uverbs"), "{}", only());
        folder.write("sys/class/infiniband_verbs/uverbs6/ibdev", "mlx5_0\n");
        assert!(only().contains("/dev/infiniband/uverbs6"), "{}", only());
        folder.write("dev/infiniband/uverbs6", "");
        assert!(only().contains("ibverbs-providers"), "{}", only());
    }

    #[test]
    fn error_for_an_unlisted_device_names_its_reason() {
        let folder = Folder::new();
        let (sysfs, devfs) = (folder.file("sys"), folder.file("dev"));
        folder.write("sys/class/infiniband/mlx5_0/node_type", "1: CA\n");
        folder.write("sys/class/infiniband_verbs/uverbs0/ibdev", "mlx5_0\n");
        folder.write("dev/infiniband/uverbs0", "");
        let error = |wanted: &str, listed: &[String]| {
            crate::no_device(wanted, listed, &UnlistedDevice::all(&sysfs, &devfs, listed)).to_string()
        };
        let found = error("mlx5_0", &[]);
        assert!(found.contains("ibverbs-providers") && !found.contains("has no verbs devices"), "{found}");
        let found = error("mlx5_9", &[]);
        assert!(found.contains("devices: mlx5_0"), "{found}");
        let found = error("mlx5_9", &["mlx5_0".to_owned()]);
        assert!(found.contains("devices: mlx5_0") && !found.contains("ibverbs-providers"), "{found}");
    }
}
