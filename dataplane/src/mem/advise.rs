//! Advice to the kernel and to the processor on memory that is not packet memory.

use super::PageKind;

/// Asks for transparent huge pages behind large tables, where every look-up is in another page. Where the kernel does not
/// give any, all works as before. It counts for what is touched afterwards.
pub(crate) fn advise_huge_pages<T>(table: &[T]) {
    let (page, bytes) = (PageKind::Normal.size(), size_of_val(table));
    if bytes < PageKind::Transparent.size() {
        return;
    }
    let start = table.as_ptr().cast::<u8>();
    let front = start.align_offset(page);
    // SAFETY: the pages lie in the slice, which lives during the call; this advice changes no byte of them, and a
    // refusal changes nothing at all.
    let _ = unsafe {
        libc::madvise(start.add(front).cast_mut().cast(), (bytes - front) & !(page - 1), libc::MADV_HUGEPAGE)
    };
}

/// Has the processor fetch the cache line of a place, without waiting for it. A hint alone: the place need not be one that may
/// be read, so no index has to be checked for it.
#[inline(always)]
pub(crate) fn prefetch<T>(place: *const T) {
    hint::<false, T>(place);
}

/// The same as far as the second cache: for what is likely in none. More such can be under way at once, as there are few places for
/// those that the first cache waits for.
#[inline(always)]
pub(crate) fn prefetch_afar<T>(place: *const T) {
    hint::<true, T>(place);
}

#[inline(always)]
fn hint<const AFAR: bool, T>(place: *const T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};
        // SAFETY: it changes nothing that a program can see, wherever it points. Every x86-64 has it.
        unsafe {
            if AFAR { _mm_prefetch::<_MM_HINT_T1>(place.cast()) } else { _mm_prefetch::<_MM_HINT_T0>(place.cast()) }
        };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}
