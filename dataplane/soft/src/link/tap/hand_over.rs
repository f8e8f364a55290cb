//! The hand-over of the queues to another program. Both programs have the same queues, but only one of the programs reads
//! frames. The interface exists as long as a program has a queue.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use super::{Tap, receives};
use crate::hand_over::{HandOver, HandedQueue, deleted, misfit, only, recreated, wrong_count};

impl HandOver for Tap {
    fn detach(&self, _: u16, is_input: bool) -> io::Result<()> {
        let mut state = self.state();
        if state.index == 0 {
            return Err(deleted());
        }
        state.detached = state.ends.iter().filter(|_| is_input).map(|end| end.replacement.clone()).collect();
        // A queue pair without queues still sends. A port that only sends does not read its queues.
        state.detached.iter().for_each(|replacement| replacement.put(Vec::new()));
        Ok(())
    }

    fn detached(&self) -> io::Result<Option<Vec<HandedQueue>>> {
        let state = self.state();
        if !state.detached.iter().all(|replacement| replacement.is_taken()) {
            return Ok(None);
        }
        let position = vec![u64::from(state.index)];
        let queues = state.ends.iter().flat_map(|end| end.queues.iter().map(|queue| (end.index, queue)));
        let handed = |(queue, descriptor): (u16, &Arc<OwnedFd>)| {
            let descriptor = descriptor.as_fd().try_clone_to_owned()?;
            let (position, posted) = (position.clone(), Vec::new());
            Ok(HandedQueue { queue, descriptors: vec![descriptor], position, posted })
        };
        queues.map(handed).collect::<io::Result<_>>().map(Some)
    }

    fn resume(&self, _: bool) -> io::Result<()> {
        let mut state = self.state();
        state.detached.clear();
        state.ends.iter().for_each(|end| end.replacement.put(end.queues.clone()));
        Ok(())
    }

    fn attach(&self, queues: Vec<HandedQueue>) -> io::Result<()> {
        let mut state = self.state();
        if queues.iter().any(|queue| queue.position != [u64::from(state.index)]) {
            return Err(recreated());
        }
        let receiving = state.receiving;
        let is_served = |index| queues.iter().any(|queue| queue.queue == index);
        if state.ends.iter().any(|end| receives(receiving, end.index) != is_served(end.index)) {
            return Err(wrong_count());
        }
        for HandedQueue { queue, descriptors, .. } in queues {
            let end = state.ends.iter_mut().find(|end| end.index == queue);
            end.ok_or_else(|| misfit("a queue does not exist"))?.add(Arc::new(only(descriptors)?));
        }
        state.awaits = false;
        Ok(())
    }
}
