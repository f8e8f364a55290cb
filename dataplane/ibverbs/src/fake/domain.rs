//! Thread domains and parent domains. A fake device supports them only after [`with_domains`].

use std::ffi::c_int;

use ibverbs_sys::*;

use super::{VerbsContext, fail, state};

/// Makes a device support thread domains and parent domains.
pub(crate) fn with_domains(verbs: &mut VerbsContext) {
    verbs.alloc_td = Some(alloc_td);
    verbs.dealloc_td = Some(dealloc_td);
    verbs.alloc_parent_domain = Some(alloc_parent_domain);
}

unsafe extern "C" fn alloc_td(context: *mut ibv_context, _: *mut ibv_td_init_attr) -> *mut ibv_td {
    // SAFETY: the context belongs to a fake.
    unsafe { state(context) }.number("td");
    Box::into_raw(Box::new(ibv_td { context }))
}

unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    // SAFETY: the domain belongs to a fake, and nothing uses it any more.
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
    // SAFETY: the context belongs to a fake, and the caller provides the attributes.
    unsafe {
        if (*attr).pd.is_null() {
            return fail(libc::EINVAL);
        }
        // `ibv_dealloc_pd` frees a parent domain like any other protection domain.
        Box::into_raw(Box::new(ibv_pd { context, handle: state(context).number("pd") }))
    }
}
