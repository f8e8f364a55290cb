//! A cache of address handles.

use std::collections::{HashMap, VecDeque};

use crate::error::VerbError;
use crate::verbs::{Path, ProtectionDomain};

/// The address handles of a protection domain, keyed by path. The creation of a handle may query the network and block.
/// A cached handle needs only one lookup. The number of handles is limited, and the handle that was created first is
/// evicted first.
///
/// A change of a local port's addresses makes the handles of that port stale. Call [`AhCache::flush`] after every
/// [`crate::verbs::EventKind::GidChange`].
#[derive(Debug)]
pub struct AhCache<P: ProtectionDomain> {
    pd: P,
    capacity: usize,
    handles: HashMap<Path, P::Ah>,
    /// The cached paths in the order of creation, oldest first.
    order: VecDeque<Path>,
}

impl<P: ProtectionDomain> AhCache<P> {
    /// Creates an empty cache with a limit of `capacity` handles, at least 1.
    pub fn new(pd: &P, capacity: usize) -> Self {
        Self { pd: pd.clone(), capacity: capacity.max(1), handles: HashMap::new(), order: VecDeque::new() }
    }

    /// Returns the cached handle of a path, or `None`. Sends no query.
    #[inline]
    pub fn get(&self, path: &Path) -> Option<&P::Ah> {
        self.handles.get(path)
    }

    /// Returns the handle of a path. Creates and caches the handle if necessary. Must not run in the worker loop.
    ///
    /// # Errors
    /// See [`ProtectionDomain::create_ah`]. A failure is not cached.
    pub fn resolve(&mut self, path: &Path) -> Result<P::Ah, VerbError> {
        if let Some(ah) = self.handles.get(path) {
            return Ok(ah.clone());
        }
        let ah = self.pd.create_ah(path)?;
        if self.handles.len() >= self.capacity
            && let Some(oldest) = self.order.pop_front()
        {
            self.handles.remove(&oldest);
        }
        self.handles.insert(*path, ah.clone());
        self.order.push_back(*path);
        Ok(ah)
    }

    /// Removes the handles of a port. Handles that callers still hold stay usable.
    pub fn flush(&mut self, port: u8) {
        self.handles.retain(|path, _| path.port != port);
        self.order.retain(|path| path.port != port);
    }

    /// Returns the number of cached handles.
    pub fn len(&self) -> usize {
        self.handles.len()
    }

    /// Returns whether the cache is empty.
    pub fn is_empty(&self) -> bool {
        self.handles.is_empty()
    }
}
