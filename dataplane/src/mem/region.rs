//! Memory for packets: the page ladder, the NUMA node, and an early, clear failure.

use std::fmt;
use std::fs;
use std::ptr::NonNull;

use memmap2::{Advice, MmapMut, MmapOptions};
use serde::{Deserialize, Serialize};

use super::node;
use crate::error::{Error, Result};
use crate::units::{Bytes, NumaNode};

/// What pages back a region, best first. Each is a rung of the ladder that an allocation steps down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum PageKind {
    /// Huge pages of 1 GiB, reserved by the administrator.
    #[serde(rename = "1G")]
    Huge1G,
    /// Huge pages of 2 MiB, reserved by the administrator.
    #[serde(rename = "2M")]
    Huge2M,
    /// Pages of the base size that the kernel may join to huge ones.
    #[serde(rename = "transparent")]
    Transparent,
    /// Pages of the base size.
    #[serde(rename = "none")]
    Normal,
}

impl PageKind {
    /// The size that a region's length is rounded up to.
    pub const fn size(self) -> usize {
        match self {
            Self::Huge1G => 1 << 30,
            Self::Huge2M | Self::Transparent => 2 << 20,
            Self::Normal => 4 << 10,
        }
    }

    const fn below(self) -> Option<Self> {
        match self {
            Self::Huge1G => Some(Self::Huge2M),
            Self::Huge2M => Some(Self::Transparent),
            Self::Transparent => Some(Self::Normal),
            Self::Normal => None,
        }
    }

    /// The shell command that would let `bytes` be had in these pages.
    fn remedy(self, bytes: usize, node: Option<NumaNode>) -> String {
        match self {
            Self::Huge1G | Self::Huge2M => {
                let now = fs::read_to_string(self.reserved(node)).ok().and_then(|text| text.trim().parse().ok());
                self.reserve(now.unwrap_or(0) + bytes.div_ceil(self.size()), node)
            }
            Self::Transparent => "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled".to_owned(),
            Self::Normal => "free some memory, or ask for fewer buffers".to_owned(),
        }
    }

    /// Where the kernel is told how many of these huge pages are reserved (`hugetlbpage.rst` of the kernel).
    fn reserved(self, node: Option<NumaNode>) -> String {
        let kib = self.size() >> 10;
        match node {
            Some(node) => format!("/sys/devices/system/node/node{node}/hugepages/hugepages-{kib}kB/nr_hugepages"),
            None => format!("/sys/kernel/mm/hugepages/hugepages-{kib}kB/nr_hugepages"),
        }
    }

    /// The shell command that has so many of these huge pages reserved, and what does when it doesn't.
    pub(crate) fn reserve(self, pages: usize, node: Option<NumaNode>) -> String {
        let command = format!("echo {pages} | sudo tee {}", self.reserved(node));
        match self {
            // So much memory is seldom in one piece once the host has run for a while.
            Self::Huge1G => {
                format!("{command}, or at boot, on the kernel's command line: hugepagesz=1G hugepages={pages}")
            }
            _ => command,
        }
    }
}

impl fmt::Display for PageKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Huge1G => "1 GiB pages",
            Self::Huge2M => "2 MiB pages",
            Self::Transparent => "transparent huge pages",
            Self::Normal => "normal pages",
        })
    }
}

/// Something that was asked for and not had, and the command that would change it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Notice {
    /// What was not had, and what is used instead.
    pub message: String,
    /// A command, or a setting, that would mend it.
    pub remedy: String,
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; to change it: {}", self.message, self.remedy)
    }
}

/// What a region should be.
#[derive(Clone, Copy, Debug)]
pub struct RegionSpec {
    /// How many bytes; rounded up to the page size.
    pub bytes: usize,
    /// The best pages to try. Lower rungs of the ladder follow.
    pub pages: PageKind,
    /// Whether a step down is an error.
    pub strict: bool,
    /// The node to take the memory from.
    pub node: Option<NumaNode>,
}

/// A mapped, populated stretch of memory. It is unmapped when the last owner drops it, so whoever registers it with a
/// device keeps an `Arc` of it.
#[derive(Debug)]
pub struct Region {
    /// Kept for its `Drop`; its bytes are reached through `base` alone.
    map: MmapMut,
    base: NonNull<u8>,
    pages: PageKind,
}

// SAFETY: the region is memory and two numbers. Who may touch which bytes is decided by the pool that hands out slots,
// never by the region, which gives out no reference to its bytes.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Maps, binds and populates memory, stepping down the page ladder where it must.
    ///
    /// Returns the region and a notice for every step down and every refused binding.
    ///
    /// # Errors
    /// Not even normal pages could be had; or, with `strict`, the wanted pages or node could not.
    pub fn allocate(spec: RegionSpec) -> Result<(Self, Vec<Notice>)> {
        let mut notices = Vec::new();
        let mut pages = spec.pages;
        loop {
            match Self::map(spec, pages, &mut notices) {
                Ok(region) => {
                    return match notices.first() {
                        Some(first) if spec.strict => Err(Error::Memory(format!("{first} (strict = true)"))),
                        _ => Ok((region, notices)),
                    };
                }
                Err(source) => {
                    let remedy = pages.remedy(spec.bytes, spec.node);
                    let Some(below) = pages.below().filter(|_| !spec.strict) else {
                        return Err(Error::Memory(format!(
                            "{} bytes in {pages} are not to be had ({source}); to change it: {remedy}",
                            spec.bytes
                        )));
                    };
                    let message = format!(
                        "{} in {pages} are not to be had ({source}), trying {below}",
                        Bytes(spec.bytes.next_multiple_of(1024) as u64)
                    );
                    notices.push(Notice { message, remedy });
                    pages = below;
                }
            }
        }
    }

    fn map(spec: RegionSpec, pages: PageKind, notices: &mut Vec<Notice>) -> std::io::Result<Self> {
        let len = spec.bytes.max(1).next_multiple_of(pages.size());
        let mut options = MmapOptions::new();
        match pages {
            PageKind::Huge1G => options.huge(Some(30)),
            PageKind::Huge2M => options.huge(Some(21)),
            PageKind::Transparent | PageKind::Normal => &mut options,
        };
        let mut map = options.len(len).map_anon()?;
        if pages == PageKind::Transparent {
            map.advise(Advice::HugePage)?;
        }
        if let Some(node) = spec.node
            && let Err(source) = node::bind(&map, node)
        {
            notices.push(Notice {
                message: format!("memory could not be bound to node {node} ({source})"),
                remedy: "run where the process may use that node (cpuset, container), or leave the node out".to_owned(),
            });
        }
        // An error here, where a first touch would be a SIGBUS (a hugetlb limit of the cgroup, for one).
        if let Err(source) = map.advise(Advice::PopulateWrite) {
            if source.raw_os_error() != Some(libc::EINVAL) {
                return Err(source);
            }
            // Kernels before 5.14 do not know the advice.
            map.iter_mut().step_by(4096).for_each(|byte| *byte = 0);
        }
        let base = NonNull::new(map.as_mut_ptr()).expect("a mapping is never at address 0");
        Ok(Self { map, base, pages })
    }

    /// The first byte.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// How many bytes there are.
    #[allow(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// What pages were had.
    pub fn pages(&self) -> PageKind {
        self.pages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normal_pages_need_no_ladder() {
        let spec = RegionSpec { bytes: 10_000, pages: PageKind::Normal, strict: true, node: None };
        let (region, notices) = Region::allocate(spec).unwrap();
        assert_eq!((region.len(), region.pages()), (12_288, PageKind::Normal));
        assert!(notices.is_empty());
    }

    /// More than any machine has: every rung fails, and the error names the last.
    #[test]
    fn an_impossible_size_is_an_error_and_no_abort() {
        let spec = RegionSpec { bytes: 1 << 50, pages: PageKind::Huge2M, strict: false, node: None };
        let error = Region::allocate(spec).unwrap_err().to_string();
        assert!(error.contains("normal pages"), "{error}");
    }

    #[test]
    fn strict_refuses_the_first_step_and_names_the_command() {
        let spec = RegionSpec { bytes: 1 << 45, pages: PageKind::Huge2M, strict: true, node: None };
        let error = Region::allocate(spec).unwrap_err().to_string();
        assert!(error.contains("2 MiB pages") && error.contains("nr_hugepages"), "{error}");
    }

    #[test]
    fn each_step_down_is_a_notice() {
        let spec = RegionSpec { bytes: 1 << 45, pages: PageKind::Huge1G, strict: false, node: None };
        let mut notices = Vec::new();
        assert!(Region::map(spec, PageKind::Huge1G, &mut notices).is_err());
        let remedy = PageKind::Huge1G.remedy(3 << 30, Some(NumaNode(1)));
        assert!(remedy.contains("node1/hugepages/hugepages-1048576kB/nr_hugepages"), "{remedy}");
    }
}
