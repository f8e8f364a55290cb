//! Loopback links, which connect ports of one process like a cable. This module carries raw packets. Connections and
//! datagrams use the [`Fabric`], which both ends of a cable share.
//!
//! Each direction has one inbox per receiving queue pair, and a fixed set of frame buffers. The sender fills a free
//! buffer and puts the buffer into an inbox. The receiver returns the buffer to the free list. If no buffer is free or
//! the inbox is full, the frame is lost. Sender and receiver may run on different threads. Sending a frame takes a lock
//! only after the list of inboxes has changed, and allocates only when a buffer must grow for a longer frame.

pub(super) mod config;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use crossbeam_queue::ArrayQueue;

use crate::counters::Counting;
use crate::fabric::Fabric;
use crate::link::{Link, Sent, Wire};
use crate::rss::Rss;
use dataplane_core::clock::HostClock;
use dataplane_core::error::Result;
use dataplane_core::units::Nanos;
use dataplane_core::verbs::{QpSpec, WcStatus};

/// Maximum number of frames in transit in one direction.
const FRAMES: usize = 4096;
/// Initial capacity of a buffer: a standard Ethernet frame.
const FRAME_BYTES: usize = 1536;

/// One end of a cable between two ports of the process. Clones refer to the same end.
#[derive(Clone, Debug)]
pub struct LoopbackLink {
    send: Arc<Bus>,
    receive: Arc<Bus>,
    fabric: Arc<Fabric>,
}

impl LoopbackLink {
    /// Creates a cable. Frames that are sent into one end arrive at the other end.
    pub fn pair() -> (Self, Self) {
        let (forth, back) = (Arc::new(Bus::new()), Arc::new(Bus::new()));
        let fabric = Arc::new(Fabric::default());
        let near = Self { send: forth.clone(), receive: back.clone(), fabric: fabric.clone() };
        (near, Self { send: back, receive: forth, fabric })
    }

    /// Creates a link on which a port receives the frames that it sends.
    pub fn reflect() -> Self {
        let bus = Arc::new(Bus::new());
        Self { send: bus.clone(), receive: bus, fabric: Arc::default() }
    }
}

impl<End: From<Port>> Link<End> for LoopbackLink {
    fn end(self: Arc<Self>, spec: &QpSpec, rss: &Arc<Rss>, _: &HostClock) -> End {
        Port::new(&self, spec.queue, rss.clone()).into()
    }

    fn fabric(&self) -> Option<&Arc<Fabric>> {
        Some(&self.fabric)
    }

    fn distribute(&self, queues: u16) -> Result<()> {
        self.receive.change(|list| {
            list.queues = Some(queues);
            Arc::make_mut(&mut list.inboxes).iter_mut().for_each(|entry| entry.queues = queues);
        });
        Ok(())
    }

    fn drive(&self) {
        self.fabric.drive();
    }
}

/// One direction of a cable.
#[derive(Debug)]
struct Bus {
    receivers: RwLock<Receivers>,
    /// Incremented after every change of `receivers`.
    generation: AtomicU64,
    free_buffers: ArrayQueue<Vec<u8>>,
}

/// The queue pairs that receive from one direction of a cable.
#[derive(Debug, Default)]
struct Receivers {
    /// The senders have this list too. A change therefore replaces the list.
    inboxes: Arc<[Receiver]>,
    /// The number of queues that share the frames. `None` before the first call of [`Link::distribute`].
    queues: Option<u16>,
}

/// A queue pair that receives.
#[derive(Clone, Debug)]
struct Receiver {
    inbox: Arc<FrameInbox>,
    /// The number of queues that share the frames.
    queues: u16,
}

/// The received frames of one queue pair.
#[derive(Debug)]
struct FrameInbox {
    /// The index of the queue.
    queue: u16,
    /// Selects the queue of a frame.
    rss: Arc<Rss>,
    frames: ArrayQueue<Vec<u8>>,
    /// The number of frames that were lost because no buffer was free or `frames` was full, and that are not yet
    /// reported.
    missed: AtomicU64,
}

impl Bus {
    fn new() -> Self {
        let free_buffers = ArrayQueue::new(FRAMES);
        for _ in 0..FRAMES {
            // The queue has capacity for all of these buffers.
            let _ = free_buffers.push(Vec::with_capacity(FRAME_BYTES));
        }
        Self { receivers: RwLock::default(), generation: AtomicU64::new(1), free_buffers }
    }

    fn change(&self, with: impl FnOnce(&mut Receivers)) {
        let mut receivers = self.receivers.write().unwrap_or_else(PoisonError::into_inner);
        with(&mut receivers);
        self.generation.fetch_add(1, Ordering::Release);
    }
}

/// The end of the link for one queue pair.
#[derive(Debug)]
pub(crate) struct Port {
    link: LoopbackLink,
    queue: (u16, u16),
    rss: Arc<Rss>,
    inbox: Option<Arc<FrameInbox>>,
    /// The queue pairs of the receiving end. The list is current while `generation` equals the generation of the
    /// [`Bus`].
    peers: Arc<[Receiver]>,
    generation: u64,
}

impl Port {
    fn new(link: &LoopbackLink, queue: (u16, u16), rss: Arc<Rss>) -> Self {
        Self { link: link.clone(), queue, rss, inbox: None, peers: [].into(), generation: 0 }
    }
}

impl Wire for Port {
    fn open(&mut self) -> Result<(), i32> {
        let inbox = Arc::new(FrameInbox {
            queue: self.queue.0,
            rss: self.rss.clone(),
            frames: ArrayQueue::new(FRAMES),
            missed: AtomicU64::new(0),
        });
        self.link.receive.change(|list| {
            let queues = list.queues.unwrap_or(self.queue.1);
            let new = Receiver { inbox: inbox.clone(), queues };
            list.inboxes = list.inboxes.iter().cloned().chain([new]).collect();
        });
        self.inbox = Some(inbox);
        Ok(())
    }

    fn close(&mut self) -> u64 {
        let mut lost = self.missed();
        let Some(inbox) = self.inbox.take() else { return lost };
        self.link.receive.change(|list| {
            let stays = |other: &&Receiver| !Arc::ptr_eq(&other.inbox, &inbox);
            list.inboxes = list.inboxes.iter().filter(stays).cloned().collect();
        });
        while let Some(buffer) = inbox.frames.pop() {
            lost += 1;
            let _ = self.link.receive.free_buffers.push(buffer);
        }
        lost
    }

    #[inline]
    fn backlog(&mut self) -> u64 {
        self.inbox.as_ref().map_or(0, |inbox| inbox.frames.len() as u64)
    }

    fn waits(&self) -> bool {
        false
    }

    fn missed(&mut self) -> u64 {
        self.inbox.as_ref().map_or(0, |inbox| match inbox.missed.load(Ordering::Relaxed) {
            0 => 0,
            _ => inbox.missed.swap(0, Ordering::Relaxed),
        })
    }

    #[inline]
    fn take(&mut self, _: &Counting, deliver: impl FnOnce(&[u8], Option<Nanos>)) -> bool {
        let Some(buffer) = self.inbox.as_ref().and_then(|inbox| inbox.frames.pop()) else { return false };
        deliver(&buffer, None);
        // The push cannot fail, because the sender took the buffer from `free_buffers`.
        let _ = self.link.receive.free_buffers.push(buffer);
        true
    }

    #[inline]
    fn send(&mut self, frame: &[u8], _: &Counting) -> Result<Sent, WcStatus> {
        let bus = &*self.link.send;
        let now = bus.generation.load(Ordering::Acquire);
        if now != self.generation {
            self.peers = bus.receivers.read().unwrap_or_else(PoisonError::into_inner).inboxes.clone();
            self.generation = now;
        }
        let selected = |peer: &&Receiver| peer.inbox.queue == peer.inbox.rss.queue(frame, peer.queues);
        for Receiver { inbox, .. } in self.peers.iter().filter(selected) {
            let Some(mut buffer) = bus.free_buffers.pop() else {
                inbox.missed.fetch_add(1, Ordering::Relaxed);
                continue;
            };
            buffer.clear();
            buffer.extend_from_slice(frame);
            if let Err(buffer) = inbox.frames.push(buffer) {
                inbox.missed.fetch_add(1, Ordering::Relaxed);
                let _ = bus.free_buffers.push(buffer);
            }
        }
        Ok(Sent::Gone)
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.close();
    }
}
