//! The hand-over of the queues to another program. The receiving socket, its ring and its membership in the fanout group
//! stay the same, so frames that arrive during the hand-over wait in the ring.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use super::fanout::Members;
use super::socket::{self, PacketSocket, RingPosition};
use super::{Packets, QueueShare, lock};
use crate::hand_over::{HandOver, HandedQueue, deleted, misfit, only, recreated, wrong_count};

/// The maximum time that [`HandOver::resume`] waits for a worker that is taking new sockets.
const TAKE_TIMEOUT: Duration = Duration::from_secs(1);
/// The interval between two checks for this worker.
const POLL_INTERVAL: Duration = Duration::from_micros(100);

fn refused((what, error): (&'static str, io::Error)) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

/// The numbers in [`HandedQueue::position`].
struct QueuePosition {
    /// The index of the interface.
    index: u64,
    /// The fanout group.
    group: u64,
    /// The place of the socket in the group, and the serial number of the join of this socket.
    member: (u64, u64),
    ring: RingPosition,
}

impl QueuePosition {
    fn numbers(&self) -> Vec<u64> {
        let RingPosition { stride, frames, head } = self.ring;
        vec![self.index, self.group, self.member.0, self.member.1, stride as u64, frames as u64, head as u64]
    }

    fn from_numbers(numbers: &[u64]) -> io::Result<Self> {
        let &[index, group, place, join, stride, frames, head] = numbers else {
            return Err(misfit("the position does not have seven numbers"));
        };
        let number = |number: u64| usize::try_from(number).map_err(|_| misfit("a number is too large"));
        let ring = RingPosition { stride: number(stride)?, frames: number(frames)?, head: number(head)? };
        Ok(Self { index, group, member: (place, join), ring })
    }
}

impl Packets {
    fn shares(&self) -> Vec<Arc<QueueShare>> {
        lock(&self.state).shares.iter().filter_map(Weak::upgrade).collect()
    }

    fn detached_queue(&self, share: &QueueShare) -> io::Result<Option<HandedQueue>> {
        let detached = lock(&share.detached);
        let Some(socket) = &*detached else { return Ok(None) };
        let descriptor = socket.receiver.try_clone()?;
        // From now on, the other program reads the drop counter of the socket, and changes the fanout group.
        share.read_drops();
        *lock(&share.receiver) = None;
        let state = lock(&self.state);
        let member = state.members.position(share.queue).ok_or_else(|| misfit("a socket is in no fanout group"))?;
        let (index, group) = (state.interface.index.into(), state.group.unwrap_or_default().into());
        let position = QueuePosition { index, group, member, ring: socket.position() }.numbers();
        Ok(Some(HandedQueue { queue: share.queue, descriptors: vec![descriptor], position, posted: Vec::new() }))
    }

    /// Opens the sockets of a queue that continues a queue of another program.
    fn adopt(&self, descriptor: OwnedFd, position: &QueuePosition) -> io::Result<PacketSocket> {
        let interface = lock(&self.state).interface.index;
        if position.index != u64::from(interface) {
            return Err(recreated());
        }
        PacketSocket::adopt(&self.spec, descriptor, interface, self.by_nic(), position.ring).map_err(refused)
    }
}

impl HandOver for Packets {
    fn detach(&self, _: u16, is_input: bool) -> io::Result<()> {
        let index = {
            let mut state = lock(&self.state);
            if state.is_deleted {
                return Err(deleted());
            }
            state.is_detached = true;
            state.interface.index
        };
        // A port that only sends has no frames to hand over.
        let shares = if is_input { self.shares() } else { Vec::new() };
        let idle = |_: &Arc<QueueShare>| PacketSocket::idle(Some(socket::sender(&self.spec, index)?));
        let sockets: Vec<PacketSocket> = shares.iter().map(idle).collect::<Result<_, _>>().map_err(refused)?;
        for (share, socket) in shares.iter().zip(sockets) {
            share.is_detaching.store(true, Ordering::Release);
            share.fresh.put(socket);
        }
        Ok(())
    }

    fn detached(&self) -> io::Result<Option<Vec<HandedQueue>>> {
        let shares = self
            .shares()
            .into_iter()
            .filter(|share| share.is_detaching.load(Ordering::Acquire) || lock(&share.detached).is_some());
        shares.map(|share| self.detached_queue(&share)).collect()
    }

    fn resume(&self, is_touched: bool) -> io::Result<()> {
        for share in self.shares() {
            let deadline = Instant::now() + TAKE_TIMEOUT;
            while share.is_detaching.load(Ordering::Acquire) && Instant::now() < deadline {
                // Take the idle sockets back, unless the queue has taken them.
                if share.fresh.take().is_some() {
                    share.is_detaching.store(false, Ordering::Release);
                    break;
                }
                thread::sleep(POLL_INTERVAL);
            }
            let Some(mut before) = lock(&share.detached).take() else { continue };
            if is_touched {
                // The other program may have changed the ring, so the frames in the ring are lost.
                let lost = socket::drops(&before.receiver) + before.discard_after_another_program();
                share.missed.fetch_add(lost, Ordering::Relaxed);
            } else {
                share.set_receiver(&before);
                share.fresh.put(before);
            }
        }
        let mut state = lock(&self.state);
        state.is_detached = false;
        if is_touched {
            // The other program may still have the sockets of the fanout group, so the queues get a new group.
            let interface = state.interface;
            self.reopen(&mut state, &interface, &mut None).map_err(refused)?;
        }
        Ok(())
    }

    fn attach(&self, queues: Vec<HandedQueue>) -> io::Result<()> {
        if !self.awaits.load(Ordering::Relaxed) {
            return if queues.is_empty() { Ok(()) } else { Err(misfit("the port only sends")) };
        }
        let shares = self.shares();
        if queues.len() != shares.len() {
            return Err(wrong_count());
        }
        let (mut adopted, mut members, mut group) = (Vec::new(), Vec::new(), None);
        for HandedQueue { queue, descriptors, position, .. } in queues {
            let position = QueuePosition::from_numbers(&position)?;
            let share = shares.iter().find(|share| share.queue == queue);
            let share = share.ok_or_else(|| misfit("a queue does not exist"))?;
            members.push((queue, position.member.0, position.member.1));
            group = u16::try_from(position.group).ok();
            adopted.push((share, self.adopt(only(descriptors)?, &position)?));
        }
        let mut state = lock(&self.state);
        state.members = Members::adopt(members).ok_or_else(|| misfit("a socket of the fanout group is missing"))?;
        state.group = group;
        drop(state);
        for (share, socket) in adopted {
            share.set_receiver(&socket);
            share.fresh.put(socket);
        }
        self.awaits.store(false, Ordering::Relaxed);
        Ok(())
    }
}
