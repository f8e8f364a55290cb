//! Ports joined in process.
//!
//! Each direction is a set of inboxes, one for each queue pair that receives, and a stock of frame buffers that go round:
//! from the stock to an inbox and back. Frames that find no buffer, or the inbox full, are lost as they are on a wire
//! whose far end is too slow. Sender and receiver may be on different threads; nothing is locked or allocated for a frame
//! (a buffer grows when it first carries a longer one).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use crossbeam_queue::ArrayQueue;

use crate::provider::QpType;
use crate::provider::soft::link::{Datagram, Frame, Identity};
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
}

impl LoopbackLink {
    /// A cable: what is sent into one end comes out of the other.
    pub fn pair() -> (Self, Self) {
        let (forth, back) = (Arc::new(Bus::new()), Arc::new(Bus::new()));
        (Self { send: forth.clone(), receive: back.clone() }, Self { send: back, receive: forth })
    }

    /// A port that receives what it sends.
    pub fn reflect() -> Self {
        let bus = Arc::new(Bus::new());
        Self { send: bus.clone(), receive: bus }
    }
}

#[derive(Debug, Default)]
struct Buffer {
    bytes: Vec<u8>,
    datagram: Option<Datagram>,
}

/// One direction.
#[derive(Debug)]
struct Bus {
    inboxes: RwLock<Arc<[Arc<Inbox>]>>,
    /// Changes with every change of the inboxes, after it.
    generation: AtomicU64,
    stock: ArrayQueue<Box<Buffer>>,
}

/// What has come in for a queue pair.
#[derive(Debug)]
struct Inbox {
    identity: Identity,
    frames: ArrayQueue<Box<Buffer>>,
    missed: AtomicU64,
}

impl Bus {
    fn new() -> Self {
        let stock = ArrayQueue::new(FRAMES);
        for _ in 0..FRAMES {
            // The queue has room for all: it was made for this many.
            let _ = stock.push(Box::new(Buffer { bytes: Vec::with_capacity(FRAME_BYTES), datagram: None }));
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

impl Inbox {
    /// Whether a frame is for it. `queue` works out which of so many queues a frame goes to.
    fn wants(&self, frame: &Frame<'_>, queue: impl FnOnce(u16) -> u16) -> bool {
        match frame.datagram {
            Some(datagram) => {
                let it = &self.identity;
                it.kind == QpType::Ud && it.number == datagram.to && it.gid == datagram.to_gid
            }
            None => self.identity.kind == QpType::RawPacket && self.identity.queue.0 == queue(self.identity.queue.1),
        }
    }
}

/// The end that a queue pair has.
#[derive(Debug)]
pub(in crate::provider::soft) struct Port {
    link: LoopbackLink,
    identity: Identity,
    rss: Arc<Rss>,
    inbox: Option<Arc<Inbox>>,
    /// The far side's inboxes, as of `generation`.
    peers: Arc<[Arc<Inbox>]>,
    generation: u64,
}

impl Port {
    pub(super) fn new(link: &LoopbackLink, identity: Identity, rss: Arc<Rss>) -> Self {
        Self { link: link.clone(), identity, rss, inbox: None, peers: [].into(), generation: 0 }
    }

    pub(super) fn open(&mut self) {
        let inbox =
            Arc::new(Inbox { identity: self.identity, frames: ArrayQueue::new(FRAMES), missed: AtomicU64::new(0) });
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
    pub(super) fn take(&mut self, deliver: impl FnOnce(Frame<'_>)) -> bool {
        let Some(buffer) = self.inbox.as_ref().and_then(|inbox| inbox.frames.pop()) else { return false };
        deliver(Frame { bytes: &buffer.bytes, datagram: buffer.datagram });
        // The stock has room: the buffer came from it.
        let _ = self.link.receive.stock.push(buffer);
        true
    }

    #[inline]
    pub(super) fn send(&mut self, frame: Frame<'_>) {
        let bus = &*self.link.send;
        let now = bus.generation.load(Ordering::Acquire);
        if now != self.generation {
            self.peers = bus.inboxes.read().unwrap_or_else(PoisonError::into_inner).clone();
            self.generation = now;
        }
        for inbox in self.peers.iter().filter(|inbox| inbox.wants(&frame, |of| self.rss.queue(frame.bytes, of))) {
            let Some(mut buffer) = bus.stock.pop() else {
                inbox.missed.fetch_add(1, Ordering::Relaxed);
                continue;
            };
            buffer.bytes.clear();
            buffer.bytes.extend_from_slice(frame.bytes);
            buffer.datagram = frame.datagram;
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
