//! The ways to the peers of a port's lanes.

use std::sync::{Mutex, PoisonError};

use crate::error::VerbError;
use crate::provider::{AhCache, Path, ProtectionDomain};

/// Peers of one port that are remembered: as a rule there is one, at whose queue pairs all lanes are.
const MOST: usize = 64;

/// Ways that were found for one lane are there for the others, until the lanes are told their peers anew: then a peer may
/// be behind another link, though its address is the same.
#[derive(Debug)]
pub(crate) struct Ways<P: ProtectionDomain>(Mutex<(u32, AhCache<P>)>);

impl<P: ProtectionDomain> Ways<P> {
    pub(crate) fn new(pd: &P) -> Self {
        Self(Mutex::new((0, AhCache::new(pd, MOST))))
    }

    /// The way along a path, in this round. It may take a second, and others wait for it: not for a worker.
    ///
    /// # Errors
    /// See [`ProtectionDomain::create_ah`].
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
    use crate::provider::Device;
    use crate::provider::soft::{LinkSpec, LoopbackLink, SoftDevice, SoftSpec};
    use crate::units::Gid;

    #[test]
    fn a_round_finds_each_way_once() {
        let device = SoftDevice::new(SoftSpec::new("s", LinkSpec::Loopback(LoopbackLink::reflect()))).unwrap();
        let ways = Ways::new(&device.alloc_pd().unwrap());
        let known = || ways.0.lock().unwrap().1.len();
        let path = |last| Path { gid: Gid([0xfe, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]), ..Path::default() };
        for (round, last, expected) in [(1, 1, 1), (1, 1, 1), (1, 2, 2), (2, 1, 1), (2, 1, 1)] {
            ways.find(round, &path(last)).unwrap();
            assert_eq!(known(), expected, "round {round}, peer {last}");
        }
        assert!(ways.find(3, &Path { port: 7, ..path(1) }).is_err());
    }
}
