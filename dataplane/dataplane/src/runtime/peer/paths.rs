//! The cached address handles of a port. A lane creates an address handle to resolve the path to its peer.

use std::sync::{Mutex, PoisonError};

use dataplane_core::error::VerbError;
use dataplane_core::verbs::{AhCache, Path, ProtectionDomain};

/// The maximum number of cached address handles. Usually all lanes of a port have the same peer and thus one path.
const MAX_PATHS: usize = 64;

/// A cache of address handles by path, shared by the lanes of a port. A path contains the peer's GID (its address). An
/// address handle is a path for which the device has found the peer's MAC address. When the lanes get new peer
/// endpoints, the cache is cleared, because the MAC address of a peer may have changed.
#[derive(Debug)]
pub(crate) struct PathCache<P: ProtectionDomain>(Mutex<(u32, AhCache<P>)>);

impl<P: ProtectionDomain> PathCache<P> {
    pub(crate) fn new(pd: &P) -> Self {
        Self(Mutex::new((0, AhCache::new(pd, MAX_PATHS))))
    }

    /// Returns the address handle for a path, and creates the handle if it is not cached. `round` is the number that
    /// `Rendezvous::answer` returned together with the peer's endpoint. The first call with a new number clears the
    /// cache. Creating a handle may take a second and blocks other callers, so do not call this function on a worker's
    /// thread.
    ///
    /// # Errors
    /// Returns the errors of [`ProtectionDomain::create_ah`].
    pub(crate) fn find(&self, round: u32, path: &Path) -> Result<P::Ah, VerbError> {
        let (cached_round, cache) = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::replace(cached_round, round) != round {
            cache.flush(path.port);
        }
        cache.resolve(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dataplane_core::units::Gid;
    use dataplane_core::verbs::Device;
    use dataplane_soft::{LinkSpec, LoopbackLink, SoftDevice, SoftSpec};

    #[test]
    fn each_path_is_resolved_once_per_round() {
        let device = SoftDevice::new(SoftSpec::new("s", LinkSpec::Loopback(LoopbackLink::reflect()))).unwrap();
        let paths = PathCache::new(&device.alloc_pd().unwrap());
        let known = || paths.0.lock().unwrap().1.len();
        let path = |last| Path { gid: Gid([0xfe, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]), ..Path::default() };
        for (round, last, expected) in [(1, 1, 1), (1, 1, 1), (1, 2, 2), (2, 1, 1), (2, 1, 1)] {
            paths.find(round, &path(last)).unwrap();
            assert_eq!(known(), expected, "round {round}, peer {last}");
        }
        assert!(paths.find(3, &Path { port: 7, ..path(1) }).is_err());
    }
}
