//! Thread domains, and parent domains with them. A device has them only where a test says so: [`with_domains`].

use std::ffi::c_int;

use ibverbs_sys::*;

use super::{VerbsContext, fail, state};

/// Gives a device the domains for one thread.
pub(in crate::provider::verbs) fn with_domains(verbs: &mut VerbsContext) {
    verbs.alloc_td = Some(alloc_td);
    verbs.dealloc_td = Some(dealloc_td);
    verbs.alloc_parent_domain = Some(alloc_parent_domain);
}

unsafe extern "C" fn alloc_td(context: *mut ibv_context, _: *mut ibv_td_init_attr) -> *mut ibv_td {
    // SAFETY: a fake's context.
    unsafe { state(context) }.number("td");
    Box::into_raw(Box::new(ibv_td { context }))
}

unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    // SAFETY: a fake's domain, which nobody uses any more.
    unsafe {
        state((*td).context).live -= 1;
        drop(Box::from_raw(td));
    }
    0
}

unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    // SAFETY: a fake's context and the caller's attributes.
    unsafe {
        if (*attr).pd.is_null() || (*attr).td.is_null() {
            return fail(libc::EINVAL);
        }
        // It ends as any other domain does.
        Box::into_raw(Box::new(ibv_pd { context, handle: state(context).number("pd") }))
    }
}
