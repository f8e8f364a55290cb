//! What drivers of certain versions do wrong, and what is done about it.

use std::ffi::c_void;
use std::fmt;
use std::path::Path;

use serde::Serialize;

use super::context::object_of;

/// A version of libibverbs, such as 44.0. There is no verb that tells: it is in the name of the library's file.
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
    /// Of the library that this process has. `None`: its file has another name than rdma-core gives it.
    pub(super) fn of_this_process() -> Option<Self> {
        let address = ibverbs_sys::ibv_open_device as *const c_void;
        Self::of_file(&object_of(address)?)
    }

    /// `libibverbs.so.1.14.44.0` is 44.0: interface, its age, version.
    fn of_file(path: &Path) -> Option<Self> {
        let numbers = path.file_name()?.to_str()?.strip_prefix("libibverbs.so.")?;
        let numbers: Vec<u32> = numbers.split('.').map(str::parse).collect::<Result<_, _>>().ok()?;
        match numbers[..] {
            [_, _, major, minor] => Some(Self { major, minor }),
            _ => None,
        }
    }
}

/// Something that must not be relied on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Quirk {
    /// After the last completion `ibv_end_poll` counts one that does not exist: several completions between start and
    /// end give some of them again, and lose others.
    BatchPoll,
    /// `ibv_wr_set_inline_data_list` and `ibv_wr_set_sge_list` get the length wrong if there is more than one element.
    BuilderLists,
    /// A receive that is posted to a queue pair in ERR is not flushed before the state is set again.
    SilentFlush,
    /// The flag of an invalidated key comes as that of good checksums: the kernel's value instead of verbs.h's.
    InvalidatedFlag,
    /// `ibv_start_poll` keeps its lock if the wall clock cannot be read at once, and so hangs the next.
    WallclockStamps,
}

/// No version is known that is right.
const NEVER: u32 = u32::MAX;

/// Driver, the first version of libibverbs that is right, what is wrong before, how that is known.
const TABLE: [(&str, u32, Quirk, &str); 5] = [
    ("rxe", 59, Quirk::BatchPoll, "rxe before libibverbs 59 polls wrongly in batches (rdma-core b78b414e0, 5e7aa4102)"),
    (
        "rxe",
        64,
        Quirk::BuilderLists,
        "rxe before libibverbs 64 builds lists of elements wrongly (rdma-core 406cd2ad0, 1e8ed0aff)",
    ),
    (
        "rxe",
        NEVER,
        Quirk::SilentFlush,
        "rxe flushes receives that are posted in the error state only when that state is set again",
    ),
    (
        "rxe",
        NEVER,
        Quirk::InvalidatedFlag,
        "rxe tells of an invalidated key by the flag of good checksums, which it never computes",
    ),
    (
        "mlx5",
        65,
        Quirk::WallclockStamps,
        "mlx5 before libibverbs 65 can hang when it reads the wall clock (rdma-core 0819419e7)",
    ),
];

/// The quirks of one device.
#[derive(Clone, Debug, Default)]
pub(super) struct Quirks(Vec<(Quirk, &'static str)>);

impl Quirks {
    /// Of a driver with a version of the library. A version that is not known may have any.
    pub(super) fn of(driver: &str, library: Option<Library>) -> Self {
        let applies = |fixed: u32| library.is_none_or(|library| library.major < fixed);
        let rows = TABLE.iter().filter(|(of, fixed, ..)| *of == driver && applies(*fixed));
        Self(rows.map(|&(_, _, quirk, why)| (quirk, why)).collect())
    }

    /// Why something must not be relied on; `None`: it may.
    pub(super) fn why(&self, quirk: Quirk) -> Option<&'static str> {
        self.0.iter().find(|(other, _)| *other == quirk).map(|(_, why)| *why)
    }

    /// All of them, in words.
    pub(super) fn all(&self) -> impl Iterator<Item = &'static str> {
        self.0.iter().map(|(_, why)| *why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_in_the_name_of_the_file() {
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
    fn a_quirk_ends_with_the_version_that_mended_it() {
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
        assert!(!has("mlx5", Some(44), Quirk::BatchPoll) && !has("efa", None, Quirk::BatchPoll));
    }
}
