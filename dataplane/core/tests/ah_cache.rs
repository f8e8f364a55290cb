//! The cache of address handles, on the software device.

use dataplane_core::units::Gid;
use dataplane_core::verbs::{AddressHandle, Device};
use dataplane_core::verbs::{AhCache, Path};
use dataplane_soft::{LinkSpec, LoopbackLink, SoftDevice, SoftSpec};

fn device() -> SoftDevice {
    SoftDevice::new(SoftSpec::new("soft", LinkSpec::Loopback(LoopbackLink::reflect()))).unwrap()
}

fn path(last: u8) -> Path {
    let mut gid = [0; 16];
    (gid[0], gid[15]) = (0xfe, last);
    Path { gid: Gid(gid), ..Path::default() }
}

#[test]
fn handle_is_created_once_and_oldest_is_evicted_first() {
    let device = device();
    let pd = device.alloc_pd().unwrap();
    let mut cache = AhCache::new(&pd, 3);
    assert!(cache.is_empty() && cache.get(&path(1)).is_none());
    for last in [1, 2, 1, 3, 1] {
        assert_eq!(cache.resolve(&path(last)).unwrap().path(), &path(last));
    }
    assert_eq!(cache.len(), 3);
    cache.resolve(&path(4)).unwrap();
    assert!(cache.get(&path(1)).is_none() && cache.get(&path(2)).is_some());
    assert_eq!(cache.len(), 3);
    // A path that differs in any field is a different key.
    let other = Path { traffic_class: 1, ..path(4) };
    assert!(cache.get(&other).is_none());
    assert_eq!(cache.get(&path(4)).unwrap().path(), &path(4));
}

#[test]
fn flush_removes_the_handles_of_a_port() {
    let device = device();
    let pd = device.alloc_pd().unwrap();
    let mut cache = AhCache::new(&pd, 2);
    cache.resolve(&path(1)).unwrap();
    cache.flush(2);
    assert_eq!(cache.len(), 1);
    cache.flush(1);
    assert!(cache.is_empty());
    for last in 0..5 {
        cache.resolve(&path(last)).unwrap();
    }
    assert_eq!(cache.len(), 2);
    let wrong = Path { port: 9, ..path(1) };
    assert!(cache.resolve(&wrong).is_err() && cache.len() == 2 && cache.get(&wrong).is_none());
}
