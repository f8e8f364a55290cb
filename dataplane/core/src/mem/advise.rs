//! Hints to the kernel and the processor about memory that is not packet memory.

use super::PageKind;

/// Requests transparent huge pages for a large table in which every lookup touches another page. The request affects
/// only pages that are touched after this call. If the kernel has no huge pages, the table uses normal pages.
pub fn advise_huge_pages<T>(table: &[T]) {
    let (page, bytes) = (PageKind::Normal.size(), size_of_val(table));
    // Miri does not support madvise(2).
    if bytes < PageKind::Transparent.size() || cfg!(miri) {
        return;
    }
    let start = table.as_ptr().cast::<u8>();
    let front = start.align_offset(page);
    // SAFETY: the pages are inside the slice, which lives during the call. This advice does not change the content of
    // the pages. If the kernel refuses, nothing changes.
    let _ = unsafe {
        libc::madvise(start.add(front).cast_mut().cast(), (bytes - front) & !(page - 1), libc::MADV_HUGEPAGE)
    };
}

/// Prefetches the cache line at `place`, without waiting. Any address is allowed, even an unreadable address, so
/// callers need not check an index first.
#[inline(always)]
pub fn prefetch<T>(place: *const T) {
    prefetch_hint::<false, T>(place);
}

/// Prefetches the cache line at `place` into the second-level cache, for data that is probably in no cache. More
/// prefetches can be in flight at once into the second-level cache than into the first-level cache, which has only a
/// few line fill buffers.
#[inline(always)]
pub fn prefetch_l2<T>(place: *const T) {
    prefetch_hint::<true, T>(place);
}

#[inline(always)]
fn prefetch_hint<const L2: bool, T>(place: *const T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};
        // SAFETY: a prefetch has no effect that a program can observe, for any address. Every x86-64 processor supports
        // the instruction.
        unsafe {
            if L2 { _mm_prefetch::<_MM_HINT_T1>(place.cast()) } else { _mm_prefetch::<_MM_HINT_T0>(place.cast()) }
        };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}
