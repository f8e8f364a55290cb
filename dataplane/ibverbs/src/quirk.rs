//! Known defects of drivers, and the versions of libibverbs that have them.

use std::ffi::c_void;
use std::fmt;
use std::path::Path;

use serde::Serialize;

use super::os::object_of;

/// A version of libibverbs, such as 44.0. No verb returns the version, but the file name of the library contains it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) struct Library {
    major: u32,
    minor: u32,
}

impl fmt::Display for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl Library {
    /// Returns the version of the libibverbs that this process uses. Returns `None` if the file name of the library is
    /// not in the format of rdma-core.
    pub(super) fn of_this_process() -> Option<Self> {
        let address = ibverbs_sys::ibv_open_device as *const c_void;
        Self::of_file(&object_of(address)?)
    }

    /// Parses the file name of the library. The name `libibverbs.so.1.14.44.0` contains the interface version 1, the
    /// interface age 14 and the library version 44.0.
    fn of_file(path: &Path) -> Option<Self> {
        let numbers = path.file_name()?.to_str()?.strip_prefix("libibverbs.so.")?;
        let numbers: Vec<u32> = numbers.split('.').map(str::parse).collect::<Result<_, _>>().ok()?;
        match numbers[..] {
            [_, _, major, minor] => Some(Self { major, minor }),
            _ => None,
        }
    }
}

/// A driver defect, which this crate avoids or works around.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Quirk {
    /// After the last completion, `ibv_end_poll` counts a completion that does not exist. A poll with several
    /// completions then repeats some completions and loses others.
    BatchPoll,
    /// `ibv_wr_set_inline_data_list` and `ibv_wr_set_sge_list` compute a wrong length for more than one element.
    BuilderLists,
    /// A receive that is posted in the state ERR is not flushed until the state is set to ERR again.
    SilentFlush,
    /// The driver reports an invalidated key with the flag for valid checksums (`IP_CSUM_OK`). The cause is that the
    /// driver passes the flag value of the kernel instead of the value in verbs.h.
    InvalidatedFlag,
    /// `ibv_start_poll` does not release its lock if the wall clock cannot be read immediately. The next poll then
    /// never returns.
    WallclockStamps,
    /// The driver refuses sends without the flag `SIGNALED`.
    UnsignalledSends,
    /// The driver ignores the flag `IGNORE_OVERRUN` of a completion queue, without an error.
    IgnoredOverrunFlag,
}

/// Stands for the first version without the defect in a row of [`TABLE`] whose defect every known version has.
const NEVER: u32 = u32::MAX;

/// For each defect: the driver, the first version of libibverbs without the defect, the defect, and a description with
/// its source.
const TABLE: [(&str, u32, Quirk, &str); 7] = [
    (
        "rxe",
        59,
        Quirk::BatchPoll,
        "rxe before libibverbs 59 returns wrong completions in batch polls (rdma-core b78b414e0, 5e7aa4102)",
    ),
    (
        "rxe",
        64,
        Quirk::BuilderLists,
        "rxe before libibverbs 64 computes wrong lengths for lists of elements (rdma-core 406cd2ad0, 1e8ed0aff)",
    ),
    (
        "rxe",
        NEVER,
        Quirk::SilentFlush,
        "rxe does not flush receives posted in the error state until that state is set again",
    ),
    (
        "rxe",
        NEVER,
        Quirk::InvalidatedFlag,
        "rxe computes no checksums, and sets the flag for valid checksums to report an invalidated key",
    ),
    (
        "mlx5",
        65,
        Quirk::WallclockStamps,
        "mlx5 before libibverbs 65 can hang when reading the wall clock (rdma-core 0819419e7)",
    ),
    ("efa", NEVER, Quirk::UnsignalledSends, "efa refuses unsignalled sends (rdma-core 2b89684a1)"),
    (
        "ionic",
        NEVER,
        Quirk::IgnoredOverrunFlag,
        "ionic ignores the flag IGNORE_OVERRUN of completion queues (ionic_create_cq_ex)",
    ),
];

/// The quirks of one device.
#[derive(Clone, Debug, Default)]
pub(super) struct Quirks(Vec<(Quirk, &'static str)>);

impl Quirks {
    /// Returns the quirks of a driver with a version of libibverbs. If the version is unknown, returns all quirks of
    /// the driver.
    pub(super) fn of(driver: &str, library: Option<Library>) -> Self {
        let applies = |fixed: u32| library.is_none_or(|library| library.major < fixed);
        let rows = TABLE.iter().filter(|(of, fixed, ..)| *of == driver && applies(*fixed));
        Self(rows.map(|&(_, _, quirk, why)| (quirk, why)).collect())
    }

    /// Returns the description of a quirk if the device has it.
    pub(super) fn why(&self, quirk: Quirk) -> Option<&'static str> {
        self.0.iter().find(|(other, _)| *other == quirk).map(|(_, why)| *why)
    }

    /// Returns the descriptions of all quirks.
    pub(super) fn all(&self) -> impl Iterator<Item = &'static str> {
        self.0.iter().map(|(_, why)| *why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn library_version_is_parsed_from_the_file_name() {
        let of = |name: &str| Library::of_file(Path::new(name)).map(|library| library.to_string());
        assert_eq!(of("/usr/lib/x86_64-linux-gnu/libibverbs.so.1.14.44.0").as_deref(), Some("44.0"));
        assert_eq!(of("libibverbs.so.1.15.61.2").as_deref(), Some("61.2"));
        for other in ["libibverbs.so.1", "libibverbs.so.1.14.44", "libibverbs.so.1.a.44.0", "program", "/"] {
            assert_eq!(of(other), None, "{other}");
        }
        if let Some(library) = Library::of_this_process() {
            assert!(library.major >= 17, "{library}");
        }
    }

    #[test]
    fn quirk_applies_until_the_fixed_version() {
        let has = |driver, version: Option<u32>, quirk| {
            let library = version.map(|major| Library { major, minor: 0 });
            Quirks::of(driver, library).why(quirk).is_some()
        };
        for version in [Some(44), Some(55), Some(58), None] {
            assert!(has("rxe", version, Quirk::BatchPoll), "{version:?}");
        }
        assert!(!has("rxe", Some(59), Quirk::BatchPoll) && has("rxe", Some(59), Quirk::BuilderLists));
        assert!(!has("rxe", Some(64), Quirk::BuilderLists));
        assert!(has("mlx5", Some(64), Quirk::WallclockStamps) && !has("mlx5", Some(65), Quirk::WallclockStamps));
        assert!(has("ionic", Some(65), Quirk::IgnoredOverrunFlag) && !has("mlx5", None, Quirk::IgnoredOverrunFlag));
        assert!(has("efa", None, Quirk::UnsignalledSends) && !has("mlx5", None, Quirk::UnsignalledSends));
        assert!(!has("mlx5", Some(44), Quirk::BatchPoll) && !has("efa", None, Quirk::BatchPoll));
    }
}
