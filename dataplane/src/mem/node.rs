//! The NUMA node that memory comes from.

use std::io;
use std::marker::PhantomData;
use std::ptr;

use memmap2::MmapMut;

use crate::units::NumaNode;

/// A set of nodes as the kernel takes it.
struct Mask([u64; Self::WORDS]);

impl Mask {
    const WORDS: usize = 16;
    /// The kernel wants one bit more than it looks at.
    const BITS: usize = Self::WORDS * 64 + 1;

    fn of(node: NumaNode) -> io::Result<Self> {
        let mut mask = [0u64; Self::WORDS];
        let word = mask.get_mut(node.0 as usize / 64).ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
        *word = 1 << (node.0 % 64);
        Ok(Self(mask))
    }
}

fn answer(status: libc::c_long) -> io::Result<()> {
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Binds the pages of a mapping to a node: `mbind(2)`, `MPOL_BIND`.
pub(super) fn bind(map: &MmapMut, node: NumaNode) -> io::Result<()> {
    let mask = Mask::of(node)?;
    // SAFETY: the range is a live mapping of ours and the mask outlives the call, which only reads it.
    answer(unsafe {
        libc::syscall(libc::SYS_mbind, map.as_ptr(), map.len(), libc::MPOL_BIND, mask.0.as_ptr(), Mask::BITS, 0)
    })
}

/// As long as it lives, what the calling thread touches first comes from one node, if there is some left:
/// `set_mempolicy(2)`, `MPOL_PREFERRED`.
#[derive(Debug)]
#[must_use = "it ends when it is dropped"]
pub struct Preference {
    /// The policy is the thread's, so it is taken back there.
    _thread: PhantomData<*const ()>,
}

impl Preference {
    /// Prefers a node. `None` where the thread has a policy already, such as that of `numactl`, or the node is not for
    /// this process: memory then comes from where it came from before.
    pub fn new(node: NumaNode) -> Option<Self> {
        let mut policy: libc::c_int = -1;
        // SAFETY: the call writes one number, to a place of ours; it looks at no mask and no address.
        let known = answer(unsafe {
            libc::syscall(libc::SYS_get_mempolicy, &raw mut policy, ptr::null::<u64>(), 0, ptr::null::<u8>(), 0)
        });
        if known.is_err() || policy != libc::MPOL_DEFAULT {
            return None;
        }
        let mask = Mask::of(node).ok()?;
        // SAFETY: the mask outlives the call, which only reads it.
        let set = unsafe { libc::syscall(libc::SYS_set_mempolicy, libc::MPOL_PREFERRED, mask.0.as_ptr(), Mask::BITS) };
        answer(set).ok().map(|()| Self { _thread: PhantomData })
    }
}

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: without a mask the call reads no memory. It cannot fail for this policy, which takes no nodes.
        unsafe { libc::syscall(libc::SYS_set_mempolicy, libc::MPOL_DEFAULT, ptr::null::<u64>(), 0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_preference_is_not_put_on_top_of_another() {
        // Where the test may take memory from; a sandbox may forbid the system call, which is no preference.
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let list = status.lines().find_map(|line| line.strip_prefix("Mems_allowed_list:")).unwrap_or("0").trim();
        let node = NumaNode(list.split(['-', ',']).next().unwrap().parse().unwrap());
        let Some(first) = Preference::new(node) else {
            return println!("skipped: this process may set no memory policy");
        };
        assert!(Preference::new(node).is_none(), "there is one");
        drop(first);
        assert!(Preference::new(node).is_some(), "it was taken back");
        assert!(Preference::new(NumaNode(1023)).is_none(), "there is no such node");
        assert!(Preference::new(NumaNode(u32::MAX)).is_none());
    }
}
