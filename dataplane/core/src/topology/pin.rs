//! Pinning of threads to cores.

use std::fs;

use super::{parse_ranges, ranges, status_list};
use crate::error::{Error, Result};
use crate::units::CoreId;

/// Pins the calling thread to one core. The thread then runs only on that core.
///
/// # Errors
///
/// [`Error::Topology`] if the core does not exist, is offline, or is outside the cpuset of this process. The message
/// lists the online cores and the allowed cores.
pub fn pin_current_thread(core: CoreId) -> Result<()> {
    let online = fs::read_to_string("/sys/devices/system/cpu/online").map(|text| parse_ranges(&text));
    // If sysfs cannot be read, only the kernel checks whether the core exists. The affinity mask of the C library has
    // 1,024 bits, so higher core numbers are refused here.
    let exists = online.as_ref().map_or(core.0 < 1024, |online| online.contains(&core.0) && core.0 < 1024);
    if exists && core_affinity::set_for_current(core_affinity::CoreId { id: core.0 as usize }) {
        return Ok(());
    }
    let online = online.map_or("unknown".to_owned(), ranges);
    Err(Error::Topology(format!(
        "cannot pin a thread to core {core}: the online cores are {online}; this process may use {}",
        status_list("Cpus_allowed_list").map_or("unknown".to_owned(), ranges)
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pinned_thread_runs_only_on_its_core() {
        std::thread::spawn(|| {
            let core = core_affinity::get_core_ids().unwrap().pop().unwrap();
            pin_current_thread(CoreId(core.id as u32)).unwrap();
            assert_eq!(core_affinity::get_core_ids().unwrap(), [core]);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn missing_core_is_reported_with_the_allowed_cores() {
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
