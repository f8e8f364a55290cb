//! Address handles that are used again.

use std::collections::{HashMap, VecDeque};

use crate::error::VerbError;
use crate::provider::{Path, ProtectionDomain};

/// Address handles of a protection domain by the paths that they were made of. Making one may ask the network, and so
/// wait; one that is there costs a look-up. It holds so many; the one that was made first goes first.
///
/// An address of the own port that has changed makes its handles wrong: [`AhCache::flush`] goes with every
/// [`crate::provider::EventKind::GidChange`].
#[derive(Debug)]
pub struct AhCache<P: ProtectionDomain> {
    pd: P,
    most: usize,
    handles: HashMap<Path, P::Ah>,
    /// From the oldest to the newest.
    order: VecDeque<Path>,
}

impl<P: ProtectionDomain> AhCache<P> {
    /// An empty one for at most so many handles; at least one.
    pub fn new(pd: &P, most: usize) -> Self {
        Self { pd: pd.clone(), most: most.max(1), handles: HashMap::new(), order: VecDeque::new() }
    }

    /// The handle of a path, if it is there. It asks nobody.
    #[inline]
    pub fn get(&self, path: &Path) -> Option<&P::Ah> {
        self.handles.get(path)
    }

    /// The handle of a path, made if it is not there. Not for a worker's loop.
    ///
    /// # Errors
    /// As [`ProtectionDomain::create_ah`]; nothing is remembered then.
    pub fn resolve(&mut self, path: &Path) -> Result<P::Ah, VerbError> {
        if let Some(ah) = self.handles.get(path) {
            return Ok(ah.clone());
        }
        let ah = self.pd.create_ah(path)?;
        if self.handles.len() >= self.most
            && let Some(oldest) = self.order.pop_front()
        {
            self.handles.remove(&oldest);
        }
        self.handles.insert(*path, ah.clone());
        self.order.push_back(*path);
        Ok(ah)
    }

    /// Forgets the handles of a port. Who still has one may use it up.
    pub fn flush(&mut self, port: u8) {
        self.handles.retain(|path, _| path.port != port);
        self.order.retain(|path| path.port != port);
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.handles.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.handles.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::soft::{LinkSpec, LoopbackLink, SoftDevice, SoftSpec};
    use crate::provider::{AddressHandle, Device};
    use crate::units::Gid;

    fn device() -> SoftDevice {
        SoftDevice::new(SoftSpec::new("soft", LinkSpec::Loopback(LoopbackLink::reflect()))).unwrap()
    }

    fn path(last: u8) -> Path {
        let mut gid = [0; 16];
        (gid[0], gid[15]) = (0xfe, last);
        Path { gid: Gid(gid), ..Path::default() }
    }

    #[test]
    fn a_handle_is_made_once_and_the_oldest_goes_first() {
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
        // What differs in anything is another path.
        let other = Path { traffic_class: 1, ..path(4) };
        assert!(cache.get(&other).is_none());
        assert_eq!(cache.get(&path(4)).unwrap().path(), &path(4));
    }

    #[test]
    fn a_port_whose_addresses_change_is_forgotten() {
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
}
