//! Pins threads to cores.

use std::fs;

use super::{parse_ranges, ranges, status_list};
use crate::error::{Error, Result};
use crate::units::CoreId;

/// Pins the calling thread to one core, on which alone it runs from then on.
///
/// # Errors
///
/// [`Error::Topology`] when the core doesn't exist, is offline, or is outside the cpuset of this process. The text
/// names the cores that exist and those that are allowed.
pub fn pin_current_thread(core: CoreId) -> Result<()> {
    let online = fs::read_to_string("/sys/devices/system/cpu/online").map(|text| parse_ranges(&text));
    // Where sysfs is not mounted the kernel is the judge; its mask has 1,024 places in the C library.
    let exists = online.as_ref().map_or(core.0 < 1024, |online| online.contains(&core.0) && core.0 < 1024);
    if exists && core_affinity::set_for_current(core_affinity::CoreId { id: core.0 as usize }) {
        return Ok(());
    }
    let online = online.map_or("unknown".to_owned(), ranges);
    Err(Error::Topology(format!(
        "a thread cannot be pinned to core {core}: online are {online}; this process may use {}",
        status_list("Cpus_allowed_list").map_or("unknown".to_owned(), ranges)
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_runs_where_it_was_pinned() {
        std::thread::spawn(|| {
            let core = core_affinity::get_core_ids().unwrap().pop().unwrap();
            pin_current_thread(CoreId(core.id as u32)).unwrap();
            assert_eq!(core_affinity::get_core_ids().unwrap(), [core]);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_core_that_is_not_there_is_named_with_those_that_are() {
        for core in [1023, 1024, u32::MAX] {
            let message = pin_current_thread(CoreId(core)).unwrap_err().to_string();
            assert!(message.contains(&format!("core {core}:")), "{message}");
            let allowed = core_affinity::get_core_ids().unwrap();
            assert!(
                allowed
                    .iter()
                    .all(|core| parse_ranges(message.rsplit("use ").next().unwrap()).contains(&(core.id as u32)))
            );
        }
    }
}
