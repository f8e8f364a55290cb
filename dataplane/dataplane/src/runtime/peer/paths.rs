//! The resolved paths to the peers of a port's lanes.

use std::sync::{Mutex, PoisonError};

use dataplane_core::error::VerbError;
use dataplane_core::verbs::{AhCache, Path, ProtectionDomain};

/// The maximum number of cached paths. Usually all lanes of a port have the same peer and thus one path.
const MAX_PATHS: usize = 64;

/// A cache of address handles, shared by the lanes of a port. When the lanes get new peer endpoints, the cache is
/// cleared, because the MAC address for a peer's GID may have changed.
#[derive(Debug)]
pub(crate) struct PathCache<P: ProtectionDomain>(Mutex<(u32, AhCache<P>)>);

impl<P: ProtectionDomain> PathCache<P> {
    pub(crate) fn new(pd: &P) -> Self {
        Self(Mutex::new((0, AhCache::new(pd, MAX_PATHS))))
    }

    /// Returns the address handle for a path. `round` is the number of times that the lanes have got peer endpoints
    /// (`Rendezvous::answer`). Resolving may take a second and blocks other callers, so this must not be called on a
    /// worker's thread.
    ///
    /// # Errors
    /// Returns the errors of [`ProtectionDomain::create_ah`].
    pub(crate) fn find(&self, round: u32, path: &Path) -> Result<P::Ah, VerbError> {
        let (of, cache) = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::replace(of, round) != round {
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
