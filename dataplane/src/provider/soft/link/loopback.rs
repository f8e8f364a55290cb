//! Ports joined in process. Raw packets go by what is here; connections and datagrams by the [`Fabric`] that all ends of
//! a cable share.
//!
//! Each direction is a set of inboxes, one for each queue pair that receives, and a stock of frame buffers that go round:
//! from the stock to an inbox and back. Frames that find no buffer, or the inbox full, are lost as they are on a wire
//! whose far end is too slow. Sender and receiver may be on different threads; nothing is locked or allocated for a frame
//! (a buffer grows when it first carries a longer one).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use crossbeam_queue::ArrayQueue;

use crate::provider::soft::fabric::Fabric;
use crate::provider::soft::rss::Rss;

/// Frames that one direction holds.
const FRAMES: usize = 4096;
/// What a buffer has from the start: a frame of the usual size.
const FRAME_BYTES: usize = 1536;

/// One end of a cable in process. Clones are the same end.
#[derive(Clone, Debug)]
pub struct LoopbackLink {
    send: Arc<Bus>,
    receive: Arc<Bus>,
    fabric: Arc<Fabric>,
}

impl LoopbackLink {
    /// A cable: what is sent into one end comes out of the other.
    pub fn pair() -> (Self, Self) {
        let (forth, back) = (Arc::new(Bus::new()), Arc::new(Bus::new()));
        let fabric = Arc::new(Fabric::default());
        let near = Self { send: forth.clone(), receive: back.clone(), fabric: fabric.clone() };
        (near, Self { send: back, receive: forth, fabric })
    }

    /// A port that receives what it sends.
    pub fn reflect() -> Self {
        let bus = Arc::new(Bus::new());
        Self { send: bus.clone(), receive: bus, fabric: Arc::default() }
    }

    pub(super) fn fabric(&self) -> &Arc<Fabric> {
        &self.fabric
    }
}

/// One direction.
#[derive(Debug)]
struct Bus {
    inboxes: RwLock<Arc<[Arc<Inbox>]>>,
    /// Changes with every change of the inboxes, after it.
    generation: AtomicU64,
    stock: ArrayQueue<Vec<u8>>,
}

/// What has come in for a queue pair.
#[derive(Debug)]
struct Inbox {
    /// Which queue of how many.
    queue: (u16, u16),
    frames: ArrayQueue<Vec<u8>>,
    missed: AtomicU64,
}

impl Bus {
    fn new() -> Self {
        let stock = ArrayQueue::new(FRAMES);
        for _ in 0..FRAMES {
            // The queue has room for all: it was made for this many.
            let _ = stock.push(Vec::with_capacity(FRAME_BYTES));
        }
        Self { inboxes: RwLock::new([].into()), generation: AtomicU64::new(1), stock }
    }

    fn change(&self, with: impl FnOnce(&mut Vec<Arc<Inbox>>)) {
        let mut inboxes = self.inboxes.write().unwrap_or_else(PoisonError::into_inner);
        let mut list = inboxes.to_vec();
        with(&mut list);
        *inboxes = list.into();
        self.generation.fetch_add(1, Ordering::Release);
    }
}

/// The end that a queue pair has.
#[derive(Debug)]
pub(in crate::provider::soft) struct Port {
    link: LoopbackLink,
    queue: (u16, u16),
    rss: Arc<Rss>,
    inbox: Option<Arc<Inbox>>,
    /// The far side's inboxes, as of `generation`.
    peers: Arc<[Arc<Inbox>]>,
    generation: u64,
}

impl Port {
    pub(super) fn new(link: &LoopbackLink, queue: (u16, u16), rss: Arc<Rss>) -> Self {
        Self { link: link.clone(), queue, rss, inbox: None, peers: [].into(), generation: 0 }
    }

    pub(super) fn open(&mut self) {
        let inbox = Arc::new(Inbox { queue: self.queue, frames: ArrayQueue::new(FRAMES), missed: AtomicU64::new(0) });
        self.link.receive.change(|list| list.push(inbox.clone()));
        self.inbox = Some(inbox);
    }

    /// Stops to receive. Returns how many frames were under way, which are lost.
    pub(super) fn close(&mut self) -> u64 {
        let mut lost = self.missed();
        let Some(inbox) = self.inbox.take() else { return lost };
        self.link.receive.change(|list| list.retain(|other| !Arc::ptr_eq(other, &inbox)));
        while let Some(buffer) = inbox.frames.pop() {
            lost += 1;
            let _ = self.link.receive.stock.push(buffer);
        }
        lost
    }

    pub(super) fn backlog(&self) -> u64 {
        self.inbox.as_ref().map_or(0, |inbox| inbox.frames.len() as u64)
    }

    pub(super) fn missed(&self) -> u64 {
        self.inbox.as_ref().map_or(0, |inbox| match inbox.missed.load(Ordering::Relaxed) {
            0 => 0,
            _ => inbox.missed.swap(0, Ordering::Relaxed),
        })
    }

    #[inline]
    pub(super) fn take(&mut self, deliver: impl FnOnce(&[u8])) -> bool {
        let Some(buffer) = self.inbox.as_ref().and_then(|inbox| inbox.frames.pop()) else { return false };
        deliver(&buffer);
        // The stock has room: the buffer came from it.
        let _ = self.link.receive.stock.push(buffer);
        true
    }

    #[inline]
    pub(super) fn send(&mut self, frame: &[u8]) {
        let bus = &*self.link.send;
        let now = bus.generation.load(Ordering::Acquire);
        if now != self.generation {
            self.peers = bus.inboxes.read().unwrap_or_else(PoisonError::into_inner).clone();
            self.generation = now;
        }
        for inbox in self.peers.iter().filter(|inbox| inbox.queue.0 == self.rss.queue(frame, inbox.queue.1)) {
            let Some(mut buffer) = bus.stock.pop() else {
                inbox.missed.fetch_add(1, Ordering::Relaxed);
                continue;
            };
            buffer.clear();
            buffer.extend_from_slice(frame);
            if let Err(buffer) = inbox.frames.push(buffer) {
                inbox.missed.fetch_add(1, Ordering::Relaxed);
                let _ = bus.stock.push(buffer);
            }
        }
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.close();
    }
}
