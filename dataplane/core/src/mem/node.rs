//! NUMA placement of memory.

use std::io;
use std::marker::PhantomData;
use std::ptr;

use memmap2::MmapMut;

use crate::units::NumaNode;

/// A set of NUMA nodes in the kernel's format.
struct NodeMask([u64; Self::WORDS]);

impl NodeMask {
    const WORDS: usize = 16;
    /// The number of bits plus one, because the kernel subtracts one from the number that the caller passes.
    const BITS: usize = Self::WORDS * 64 + 1;

    fn of(node: NumaNode) -> io::Result<Self> {
        let mut mask = [0u64; Self::WORDS];
        let word = mask.get_mut(node.0 as usize / 64).ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
        *word = 1 << (node.0 % 64);
        Ok(Self(mask))
    }
}

fn check_status(status: libc::c_long) -> io::Result<()> {
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Binds the pages of a mapping to a node with `mbind(2)`, `MPOL_BIND`.
pub(super) fn bind(map: &MmapMut, node: NumaNode) -> io::Result<()> {
    let mask = NodeMask::of(node)?;
    // SAFETY: the range is a live mapping of this process. The mask outlives the call, which only reads it.
    check_status(unsafe {
        libc::syscall(libc::SYS_mbind, map.as_ptr(), map.len(), libc::MPOL_BIND, mask.0.as_ptr(), NodeMask::BITS, 0)
    })
}

/// A memory policy of the calling thread: `set_mempolicy(2)`, `MPOL_PREFERRED`. While this value lives, memory that the
/// thread touches first comes from one node if that node has free memory.
#[derive(Debug)]
#[must_use = "dropping the value removes the memory policy"]
pub struct PreferredNumaNode {
    /// Makes the type `!Send`: the policy belongs to the thread, so the same thread must remove it.
    _thread: PhantomData<*const ()>,
}

impl PreferredNumaNode {
    /// Sets a preferred node for the calling thread. Returns `None` and changes nothing if the thread already has a
    /// policy, for example from `numactl`, or if the process is not permitted to use the node.
    pub fn new(node: NumaNode) -> Option<Self> {
        let mut policy: libc::c_int = -1;
        // SAFETY: the call writes one number to a local variable. The kernel reads no node mask and no address, because
        // both arguments are null.
        let known = check_status(unsafe {
            libc::syscall(libc::SYS_get_mempolicy, &raw mut policy, ptr::null::<u64>(), 0, ptr::null::<u8>(), 0)
        });
        if known.is_err() || policy != libc::MPOL_DEFAULT {
            return None;
        }
        let mask = NodeMask::of(node).ok()?;
        // SAFETY: the mask outlives the call, which only reads it.
        let set =
            unsafe { libc::syscall(libc::SYS_set_mempolicy, libc::MPOL_PREFERRED, mask.0.as_ptr(), NodeMask::BITS) };
        check_status(set).ok().map(|()| Self { _thread: PhantomData })
    }
}

impl Drop for PreferredNumaNode {
    fn drop(&mut self) {
        // SAFETY: without a mask, the call reads no memory. `MPOL_DEFAULT` takes no nodes, so the call cannot fail.
        unsafe { libc::syscall(libc::SYS_set_mempolicy, libc::MPOL_DEFAULT, ptr::null::<u64>(), 0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "Miri does not support set_mempolicy")]
    fn second_memory_policy_is_refused_until_the_first_is_dropped() {
        // Use a node that this process may allocate from. If a sandbox forbids the system call, `new` also returns
        // `None`.
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let list = status.lines().find_map(|line| line.strip_prefix("Mems_allowed_list:")).unwrap_or("0").trim();
        let node = NumaNode(list.split(['-', ',']).next().unwrap().parse().unwrap());
        let Some(first) = PreferredNumaNode::new(node) else {
            return dataplane_testing::report_skip("this process is not permitted to set a memory policy");
        };
        assert!(PreferredNumaNode::new(node).is_none(), "a policy is already set");
        drop(first);
        assert!(PreferredNumaNode::new(node).is_some(), "the drop removed the policy");
        assert!(PreferredNumaNode::new(NumaNode(1023)).is_none(), "the node does not exist");
        assert!(PreferredNumaNode::new(NumaNode(u32::MAX)).is_none());
    }
}
