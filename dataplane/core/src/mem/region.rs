//! Allocates packet memory with a requested page size on a requested NUMA node. All pages are populated during the
//! allocation, so missing memory is an error at the start, and no access during the run causes a page fault.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

use memmap2::{Advice, MmapMut, MmapOptions};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, memfd_create};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::node;
use crate::error::{Error, Result};
use crate::units::{Bytes, NumaNode};

/// The kind of pages that back a region, best kind first. If a kind is not available, the next kind is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum PageKind {
    /// Huge pages of 1 GiB, reserved by the administrator.
    #[serde(rename = "1G")]
    Huge1G,
    /// Huge pages of 2 MiB, reserved by the administrator.
    #[serde(rename = "2M")]
    Huge2M,
    /// Base pages that the kernel may merge into huge pages.
    #[serde(rename = "transparent")]
    Transparent,
    /// Base pages.
    #[serde(rename = "none")]
    Normal,
}

impl PageKind {
    /// Returns the size unit of a region, in bytes. The length of a region is rounded up to a multiple of this unit.
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

    /// Returns a shell command or an action that makes `bytes` bytes available in pages of this kind.
    fn remedy(self, bytes: usize, node: Option<NumaNode>) -> String {
        match self {
            Self::Huge1G | Self::Huge2M => {
                let now = fs::read_to_string(self.reserved(node)).ok().and_then(|text| text.trim().parse().ok());
                self.reserve_command(now.unwrap_or(0) + bytes.div_ceil(self.size()), node)
            }
            Self::Transparent => "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled".to_owned(),
            Self::Normal => "free some memory, or reduce `buffers`, `rx_depth` or `tx_depth`".to_owned(),
        }
    }

    /// Returns the sysfs file with the number of reserved huge pages (`hugetlbpage.rst` of the kernel).
    fn reserved(self, node: Option<NumaNode>) -> String {
        let kib = self.size() >> 10;
        match node {
            Some(node) => format!("/sys/devices/system/node/node{node}/hugepages/hugepages-{kib}kB/nr_hugepages"),
            None => format!("/sys/kernel/mm/hugepages/hugepages-{kib}kB/nr_hugepages"),
        }
    }

    /// Returns the shell command that reserves `pages` huge pages. For 1 GiB pages, the text also has the boot option,
    /// because the command often fails.
    pub fn reserve_command(self, pages: usize, node: Option<NumaNode>) -> String {
        let command = format!("echo {pages} | sudo tee {}", self.reserved(node));
        match self {
            // After the host has run for a while, 1 GiB of contiguous memory is rarely free.
            Self::Huge1G => {
                format!("{command}, or at boot, on the kernel command line: hugepagesz=1G hugepages={pages}")
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

/// A requested property of a region that is not available, and the command that fixes the problem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Notice {
    /// The property that is missing, and the fallback.
    pub message: String,
    /// A command or a setting that fixes the problem.
    pub remedy: String,
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; help: {}", self.message, self.remedy)
    }
}

/// The requested properties of a region.
#[derive(Clone, Copy, Debug)]
pub struct RegionSpec {
    /// Size in bytes. Rounded up to the page size.
    pub bytes: usize,
    /// The best kind of pages to try. If this kind is not available, the next kind is tried.
    pub pages: PageKind,
    /// Whether [`Region::allocate`] fails if this kind of pages or the node is not available.
    pub strict: bool,
    /// The NUMA node to allocate from. `None` means any node.
    pub node: Option<NumaNode>,
}

/// A mapped and populated memory range. The range is unmapped when the last owner drops it. Code that registers a
/// region with a device therefore keeps an `Arc` of the region.
#[derive(Debug)]
pub struct Region {
    /// The mapping, kept for its `Drop`. The bytes are accessed only through `base`.
    map: MmapMut,
    base: NonNull<u8>,
    pages: PageKind,
    /// The file of a shared region (memfd_create(2)). Declared after `map`, because a file that is not mapped can be mapped
    /// again.
    file: Option<SharedFile>,
}

/// The seals of the file of a shared region: no program can change the size of the file, or remove a seal. An access behind
/// the end of the file would end the program with SIGBUS.
const FIXED_SIZE: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// The files of the shared regions of this program, by device and inode.
static MAPPED: Mutex<BTreeSet<(u64, u64)>> = Mutex::new(BTreeSet::new());

/// A file that is mapped only once in this program, so that no other region of this program has the same memory.
#[derive(Debug)]
struct SharedFile {
    file: File,
    /// The device and the inode of the file.
    identity: (u64, u64),
}

impl SharedFile {
    fn new(file: File) -> io::Result<Self> {
        let about = file.metadata()?;
        let identity = (about.dev(), about.ino());
        match MAPPED.lock().unwrap_or_else(PoisonError::into_inner).insert(identity) {
            true => Ok(Self { file, identity }),
            false => Err(io::ErrorKind::AlreadyExists.into()),
        }
    }
}

impl Drop for SharedFile {
    fn drop(&mut self) {
        MAPPED.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.identity);
    }
}

// SAFETY: a region contains a mapping and plain values, and gives out no reference to its bytes. The pool that hands
// out the slots decides which code may access which bytes.
unsafe impl Send for Region {}
// SAFETY: as for `Send`.
unsafe impl Sync for Region {}

impl Region {
    /// Maps memory, binds it to a NUMA node and populates it. If the requested kind of pages is not available, the next
    /// kind is tried.
    ///
    /// Returns the region, and a notice for every kind of pages that was not available and for every failed binding.
    ///
    /// # Errors
    /// Fails if not even normal pages are available. With `strict`, fails if the requested pages or node are not
    /// available.
    pub fn allocate(spec: RegionSpec) -> Result<(Self, Vec<Notice>)> {
        Self::allocate_as(spec, false)
    }

    /// Allocates a region like [`Region::allocate`]. Another program can map the region too, for an upgrade.
    ///
    /// # Errors
    /// Returns the errors of [`Region::allocate`].
    pub fn allocate_shared(spec: RegionSpec) -> Result<(Self, Vec<Notice>)> {
        Self::allocate_as(spec, true)
    }

    fn allocate_as(spec: RegionSpec, shared: bool) -> Result<(Self, Vec<Notice>)> {
        let mut notices = Vec::new();
        let mut pages = spec.pages;
        loop {
            match Self::map(spec, pages, shared, &mut notices) {
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
                            "cannot allocate {} bytes in {pages} ({source}); help: {remedy}",
                            spec.bytes
                        )));
                    };
                    let message = format!(
                        "cannot allocate {} in {pages} ({source}), using {below} instead",
                        Bytes(spec.bytes.next_multiple_of(1024) as u64)
                    );
                    notices.push(Notice { message, remedy });
                    pages = below;
                }
            }
        }
    }

    /// Maps a shared region of another program. `pages` is the kind of pages of the region. The caller must use the region
    /// only as the other program allows.
    ///
    /// # Errors
    /// Fails if the size of the region can change, if the region has fewer than `bytes` bytes, if this program has mapped
    /// the region already, or if the kernel refuses the mapping.
    pub(crate) fn of_descriptor(descriptor: OwnedFd, bytes: usize, pages: PageKind) -> Result<Self> {
        let failed = |error: io::Error| Error::Memory(format!("cannot map the memory of the other program: {error}"));
        let shared = SharedFile::new(File::from(descriptor)).map_err(failed)?;
        if !fcntl_get_seals(&shared.file).map_err(|error| failed(error.into()))?.contains(FIXED_SIZE) {
            return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, "its size is not fixed (F_SEAL_SHRINK)")));
        }
        let len = shared.file.metadata().map_err(failed)?.len() as usize;
        if len < bytes {
            return Err(failed(io::ErrorKind::UnexpectedEof.into()));
        }
        // SAFETY: the mapping is accessed only through raw pointers, and no other mapping of this program has the same
        // memory. The seals fix the size of the file.
        let map = unsafe { MmapOptions::new().len(len).populate().map_mut(&shared.file) }.map_err(failed)?;
        Ok(Self::of_map(map, pages, Some(shared)))
    }

    /// Creates a region from its mapping. `file` is the file of a shared region.
    fn of_map(mut map: MmapMut, pages: PageKind, file: Option<SharedFile>) -> Self {
        let base = NonNull::new(map.as_mut_ptr()).expect("a mapping is never at address 0");
        Self { map, base, pages, file }
    }

    /// Maps the memory of a new file that another program can map too.
    fn map_shared(pages: PageKind, len: usize) -> io::Result<(MmapMut, SharedFile)> {
        let huge = match pages {
            PageKind::Huge1G => MemfdFlags::HUGETLB | MemfdFlags::HUGE_1GB,
            PageKind::Huge2M => MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB,
            PageKind::Transparent | PageKind::Normal => MemfdFlags::empty(),
        };
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | huge;
        let shared = SharedFile::new(File::from(memfd_create("dataplane", flags)?))?;
        shared.file.set_len(len as u64)?;
        fcntl_add_seals(&shared.file, FIXED_SIZE)?;
        // SAFETY: the mapping is accessed only through raw pointers, and the seals fix the size of the file.
        let map = unsafe { MmapOptions::new().len(len).map_mut(&shared.file)? };
        Ok((map, shared))
    }

    fn map(spec: RegionSpec, pages: PageKind, shared: bool, notices: &mut Vec<Notice>) -> io::Result<Self> {
        let len = spec.bytes.max(1).next_multiple_of(pages.size());
        let mut options = MmapOptions::new();
        match pages {
            PageKind::Huge1G => options.huge(Some(30)),
            PageKind::Huge2M => options.huge(Some(21)),
            PageKind::Transparent | PageKind::Normal => &mut options,
        };
        let (mut map, file) = match shared {
            true => Self::map_shared(pages, len).map(|(map, file)| (map, Some(file)))?,
            false => (options.len(len).map_anon()?, None),
        };
        // Miri supports neither madvise(2) nor mbind(2). Its anonymous mappings are always populated.
        if cfg!(miri) {
            return Ok(Self::of_map(map, pages, file));
        }
        if pages == PageKind::Transparent {
            map.advise(Advice::HugePage)?;
        }
        if let Some(node) = spec.node
            && let Err(source) = node::bind(&map, node)
        {
            notices.push(Notice {
                message: format!("cannot bind memory to node {node} ({source})"),
                remedy: "allow the node in the cpuset or container, or use cores of another node".to_owned(),
            });
        }
        // Populating the pages here returns an error if memory is missing. Otherwise, the first access could raise
        // SIGBUS, for example at a hugetlb cgroup limit.
        if let Err(source) = map.advise(Advice::PopulateWrite) {
            if source.raw_os_error() != Some(libc::EINVAL) {
                return Err(source);
            }
            // Kernels before 5.14 do not support MADV_POPULATE_WRITE.
            map.iter_mut().step_by(4096).for_each(|byte| *byte = 0);
        }
        Ok(Self::of_map(map, pages, file))
    }

    /// Returns the descriptor with which another program can map the region, or `None` if the region is not shared.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(|shared| shared.file.as_fd())
    }

    /// Returns a pointer to the first byte.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Returns the size in bytes.
    #[allow(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Returns the pages that back the region.
    pub fn pages(&self) -> PageKind {
        self.pages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normal_pages_are_allocated_without_notices() {
        let spec = RegionSpec { bytes: 10_000, pages: PageKind::Normal, strict: true, node: None };
        let (region, notices) = Region::allocate(spec).unwrap();
        assert_eq!((region.len(), region.pages()), (12_288, PageKind::Normal));
        assert!(notices.is_empty());
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri cannot create the file of a shared region")]
    fn another_program_maps_the_bytes_of_a_shared_region() {
        let spec = RegionSpec { bytes: 10_000, pages: PageKind::Normal, strict: true, node: None };
        let (region, _) = Region::allocate_shared(spec).unwrap();
        let descriptor = || region.descriptor().unwrap().try_clone_to_owned().unwrap();
        let (kept, pages) = (descriptor(), region.pages());
        // Two regions of one program must not have the same memory.
        let error = Region::of_descriptor(descriptor(), 10_000, pages).unwrap_err().to_string();
        assert!(error.contains("exists"), "{error}");
        // SAFETY: the mapping has more than 9,999 bytes, and no other code accesses the mapping.
        unsafe { region.base().add(9_999).write(7) };
        drop(region);
        assert!(Region::of_descriptor(kept.try_clone().unwrap(), 12_289, pages).is_err());
        // No program can change the size, because an access behind the end would end the program.
        let file = File::from(kept.try_clone().unwrap());
        for size in [0, 4096, 1 << 20] {
            assert_eq!(file.set_len(size).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        }
        let other = Region::of_descriptor(kept, 10_000, pages).unwrap();
        assert_eq!(other.len(), 12_288);
        // SAFETY: as above.
        assert_eq!(unsafe { other.base().add(9_999).read() }, 7);
        assert!(Region::allocate(spec).unwrap().0.descriptor().is_none());
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri cannot create the file of a shared region")]
    fn memory_whose_size_can_change_is_refused() {
        let memory = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        let file = File::from(memory);
        file.set_len(4096).unwrap();
        fcntl_add_seals(&file, SealFlags::GROW | SealFlags::SEAL).unwrap();
        let refused = |file: File| Region::of_descriptor(file.into(), 4096, PageKind::Normal).unwrap_err().to_string();
        let error = refused(file);
        assert!(error.contains("its size is not fixed"), "{error}");
        // Only files in memory have seals.
        refused(File::open("/dev/zero").unwrap());
    }

    /// No machine has this much memory, so every kind of pages fails, and the error names the last kind.
    #[test]
    #[cfg_attr(miri, ignore = "Miri cannot map this much memory")]
    fn impossible_size_returns_an_error() {
        let spec = RegionSpec { bytes: 1 << 50, pages: PageKind::Huge2M, strict: false, node: None };
        let error = Region::allocate(spec).unwrap_err().to_string();
        assert!(error.contains("normal pages"), "{error}");
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri cannot map this much memory")]
    fn strict_allocation_fails_without_a_fallback_and_names_the_command() {
        let spec = RegionSpec { bytes: 1 << 45, pages: PageKind::Huge2M, strict: true, node: None };
        let error = Region::allocate(spec).unwrap_err().to_string();
        assert!(error.contains("2 MiB pages") && error.contains("nr_hugepages"), "{error}");
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri cannot map this much memory")]
    fn failed_1g_allocation_suggests_the_reservation_command() {
        let spec = RegionSpec { bytes: 1 << 45, pages: PageKind::Huge1G, strict: false, node: None };
        let mut notices = Vec::new();
        assert!(Region::map(spec, PageKind::Huge1G, false, &mut notices).is_err());
        let remedy = PageKind::Huge1G.remedy(3 << 30, Some(NumaNode(1)));
        assert!(remedy.contains("node1/hugepages/hugepages-1048576kB/nr_hugepages"), "{remedy}");
    }
}
