//! An interface of the kernel by AF_PACKET: any interface, on any host, with CAP_NET_RAW.
//!
//! Every queue has its own sockets and its own ring; the kernel spreads flows over them. What comes in stays in the ring
//! until a receive is posted for it, and looking at an empty ring is no system call. What is sent waits until the burst is
//! complete, or [`BURST`] frames are there, and then takes one system call.
//!
//! The interface stays the kernel's: its own stack sees all that comes in as well.

mod offload;
mod outbox;
mod socket;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::error::Result;
use crate::provider::WcStatus;
use crate::provider::soft::counters::Counting;
use crate::provider::soft::link::interface::{Handover, Interface, Watcher, refused, to_wait_for};
use crate::provider::soft::link::stamps;
use crate::provider::soft::status::Status;
use crate::units::Nanos;
use offload::Splitter;
use outbox::Outbox;
use socket::{Socket, insert_tag};

pub(in crate::provider::soft) use outbox::BURST;

/// The longest frame that the kernel hands up as one: 64 KiB of packet and its Ethernet header with two tags.
const LONGEST: usize = 65_535 + 22;

/// An interface that is used by AF_PACKET.
#[derive(Clone, Debug)]
pub struct PacketSpec {
    /// Its name.
    pub interface: String,
    /// Frames that a queue's ring holds: a power of two.
    pub ring: u32,
    /// Whether frames to any address are received, and not only those to the interface's own.
    pub promiscuous: bool,
    /// Whether what is sent goes to the driver directly: not through the queueing discipline of the interface
    /// (`tc(8)`), and past `tcpdump`.
    pub qdisc_bypass: bool,
    /// Whether frames that the host itself sends by the interface are received as well, and not only those that come in.
    pub outgoing: bool,
    /// Whether the NIC is to stamp what comes in, and not the kernel: for completions with wall-clock stamps.
    pub hardware_stamps: bool,
}

impl PacketSpec {
    /// Frames in a ring, where nothing else is said.
    pub const RING: u32 = 2048;
    /// The fewest and the most.
    pub const RINGS: [u32; 2] = [64, 65_536];

    /// An interface, used in the usual way.
    pub fn new(interface: &str) -> Self {
        Self {
            interface: interface.to_owned(),
            ring: Self::RING,
            promiscuous: true,
            qdisc_bypass: true,
            outgoing: false,
            hardware_stamps: false,
        }
    }
}

/// The link of a device: what all of its queues share, and the thread that watches.
#[derive(Debug)]
pub(in crate::provider::soft) struct Packets {
    spec: PacketSpec,
    /// The longest frame that is received or sent, in bytes.
    longest: usize,
    /// Completions are to say when frames came in.
    stamped: bool,
    /// The NIC stamps what comes in.
    by_nic: AtomicBool,
    /// Why the last socket on an interface that came back was refused.
    trouble: Mutex<Option<String>>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The interface, as it was last seen; its number is the one that the sockets are of.
    interface: Interface,
    /// The group that the queues have on it.
    group: Option<u16>,
    seats: Vec<Weak<Seat>>,
}

/// What a queue and the thread that watches share.
#[derive(Debug)]
struct Seat {
    /// Which of how many.
    queue: (u16, u16),
    /// Sockets on an interface that has come back.
    fresh: Handover<Socket>,
    /// The socket that receives: what it has lost is asked by any thread.
    receiver: Mutex<Option<Arc<OwnedFd>>>,
    /// Frames that the kernel has lost.
    missed: AtomicU64,
}

impl Seat {
    /// Asks the kernel what it has lost.
    fn ask(&self) {
        if let Some(receiver) = &*lock(&self.receiver) {
            self.missed.fetch_add(socket::drops(receiver), Ordering::Relaxed);
        }
    }

    /// Makes a socket the one that is asked. Its predecessor is asked for the last time.
    fn follow(&self, socket: &Socket) {
        self.ask();
        *lock(&self.receiver) = Some(socket.receiver.clone());
    }
}

/// Whether the NIC stamps what comes in; otherwise says why not.
fn by_nic(interface: &str) -> bool {
    stamps::ask_nic(interface).inspect_err(|error| stamps::warn_of_kernel(interface, error)).is_ok()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Packets {
    /// Sees whether the interface can be used so.
    ///
    /// # Errors
    /// It is not there, or the kernel refuses it; with what to do.
    pub(super) fn open(spec: &PacketSpec, longest: usize, stamped: bool) -> Result<Self> {
        let interface = Interface::need(&spec.interface)?;
        let by_nic = spec.hardware_stamps && by_nic(&spec.interface);
        // What is refused is refused now, with its reason, and not to the first worker.
        Socket::open(spec, longest, interface.index, by_nic, None)
            .map_err(|(what, error)| refused(&spec.interface, what, "CAP_NET_RAW", &error))?;
        let state = Mutex::new(State { interface, group: None, seats: Vec::new() });
        Ok(Self { spec: spec.clone(), longest, stamped, by_nic: by_nic.into(), trouble: Mutex::default(), state })
    }

    /// Whether its frames have the NIC's stamps.
    pub(super) fn by_nic(&self) -> bool {
        self.by_nic.load(Ordering::Relaxed)
    }

    /// Whose stamps those of its frames are, where somebody asked.
    pub(super) fn describe(&self) -> Option<String> {
        let by = if self.by_nic() { "the NIC's" } else { "the kernel's" };
        (self.stamped || self.spec.hardware_stamps).then(|| format!("{} (stamps: {by})", self.spec.interface))
    }

    /// Begins to watch the interface.
    pub(super) fn watch(self: &Arc<Self>, status: Arc<Status>) -> Result<Watcher> {
        let link = self.clone();
        Watcher::start(&self.spec.interface, move |found| link.look(found, &status))
    }

    fn look(&self, found: Option<Interface>, status: &Status) {
        let mut state = lock(&self.state);
        state.seats.iter().filter_map(Weak::upgrade).for_each(|seat| seat.ask());
        let Some(now) = found else {
            status.set_link(false);
            return;
        };
        // Sockets stay with an interface that goes down, and are deaf for ever when it is removed.
        if now.index != state.interface.index && (!now.is_set_up || self.come_back(&mut state, &now).is_err()) {
            status.set_link(false);
            return;
        }
        let before = std::mem::replace(&mut state.interface, now);
        drop(state);
        now.tell_changes(&before, &self.spec.interface, status);
        status.set_link(now.has_carrier);
    }

    /// Makes new sockets for all queues, on an interface that has another number.
    fn come_back(&self, state: &mut State, now: &Interface) -> Result<(), ()> {
        if self.spec.hardware_stamps {
            self.by_nic.store(by_nic(&self.spec.interface), Ordering::Relaxed);
        }
        state.group = None;
        state.seats.retain(|seat| seat.strong_count() > 0);
        let mut made = Vec::new();
        for seat in state.seats.iter().filter_map(Weak::upgrade) {
            let socket = self.socket(seat.queue, now.index, &mut state.group)?;
            made.push((seat, socket));
        }
        *lock(&self.trouble) = None;
        for (seat, socket) in made {
            seat.follow(&socket);
            seat.fresh.put(socket);
        }
        Ok(())
    }

    fn socket(&self, queue: (u16, u16), index: u32, group: &mut Option<u16>) -> Result<Socket, ()> {
        let group = (queue.1 > 1).then_some(group);
        Socket::open(&self.spec, self.longest, index, self.by_nic(), group).map_err(|(what, error)| {
            let trouble = format!("{}: {what}: {error}", self.spec.interface);
            // It is tried again and again.
            if lock(&self.trouble).replace(trouble.clone()).as_ref() != Some(&trouble) {
                tracing::warn!("{trouble}");
            }
        })
    }

    /// A queue gets its sockets.
    fn join(&self, queue: (u16, u16)) -> Result<(Arc<Seat>, Socket), i32> {
        let mut state = lock(&self.state);
        let State { interface, group, .. } = &mut *state;
        let group = (queue.1 > 1).then_some(group);
        let socket = Socket::open(&self.spec, self.longest, interface.index, self.by_nic(), group).map_err(
            |(what, error)| {
                tracing::error!("{}", refused(&self.spec.interface, what, "CAP_NET_RAW", &error));
                error.raw_os_error().unwrap_or(libc::EIO)
            },
        )?;
        let seat = Arc::new(Seat {
            queue,
            fresh: Handover::default(),
            receiver: Mutex::new(Some(socket.receiver.clone())),
            missed: AtomicU64::new(0),
        });
        state.seats.retain(|seat| seat.strong_count() > 0);
        state.seats.push(Arc::downgrade(&seat));
        Ok((seat, socket))
    }
}

/// The end that a queue pair has.
#[derive(Debug)]
pub(in crate::provider::soft) struct PacketPort {
    link: Arc<Packets>,
    queue: (u16, u16),
    /// While it receives.
    end: Option<End>,
    splitter: Splitter,
    outbox: Outbox,
    /// Frames that were lost here, and not told yet.
    lost: u64,
    /// When the last frame of the ring came in.
    came: Option<Nanos>,
}

#[derive(Debug)]
struct End {
    seat: Arc<Seat>,
    socket: Socket,
}

impl PacketPort {
    pub(super) fn new(link: Arc<Packets>, queue: (u16, u16)) -> Self {
        let splitter = Splitter::new(LONGEST, link.longest);
        let outbox = Outbox::new(link.longest);
        Self { link, queue, end: None, splitter, outbox, lost: 0, came: None }
    }

    /// Begins to receive.
    ///
    /// # Errors
    /// The kernel gives no sockets, and why: an `errno`.
    pub(super) fn open(&mut self) -> Result<(), i32> {
        let (seat, socket) = self.link.join(self.queue)?;
        self.end = Some(End { seat, socket });
        Ok(())
    }

    /// Stops to receive. Returns how many frames were under way, which are lost.
    pub(super) fn close(&mut self) -> u64 {
        let left = self.splitter.left() as u64;
        self.splitter.clear();
        let Some(mut end) = self.end.take() else { return left + std::mem::take(&mut self.lost) };
        end.seat.ask();
        left + std::mem::take(&mut self.lost) + end.seat.missed.load(Ordering::Relaxed) + end.socket.discard()
    }

    /// Frames lost since the last call.
    pub(super) fn missed(&mut self) -> u64 {
        let lost = std::mem::take(&mut self.lost);
        let Some(end) = &self.end else { return lost };
        match end.seat.missed.load(Ordering::Relaxed) {
            0 => lost,
            _ => lost + end.seat.missed.swap(0, Ordering::Relaxed),
        }
    }

    /// What is readable when a frame is in the ring.
    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.end.as_ref().map(|end| to_wait_for(end.socket.receiver.as_fd()))
    }

    /// Takes new sockets where the interface was removed and has come back; what is still in the old ring is lost.
    #[inline]
    fn renew(&mut self) {
        let Some(end) = &mut self.end else { return };
        if let Some(fresh) = end.seat.fresh.take() {
            self.lost += std::mem::replace(&mut end.socket, fresh).discard();
        }
    }

    /// Hands the next frame over, if one has come in.
    #[inline]
    pub(super) fn take(&mut self, counts: &Counting, deliver: impl FnOnce(&[u8], Option<Nanos>)) -> bool {
        self.renew();
        let Some(end) = &mut self.end else { return false };
        loop {
            if let Some(part) = self.splitter.next() {
                deliver(part, self.came);
                return true;
            }
            let Some(mut frame) = end.socket.front() else { return false };
            self.came = frame.came;
            if frame.is_whole() && !frame.unfinished.is_several() {
                let tag = if frame.vlan.is_some() { 4 } else { 0 };
                let unfinished = frame.unfinished.moved(tag);
                let bytes = frame.bytes();
                if !unfinished.is_none() {
                    unfinished.complete(bytes);
                    counts.rx_completed.add(1);
                }
                deliver(bytes, self.came);
                end.socket.give_back();
                return true;
            }
            let whole = &mut self.splitter.frame;
            let mut unfinished = frame.unfinished;
            if frame.is_whole() {
                whole.clear();
                whole.extend_from_slice(frame.bytes());
            } else {
                let copied = if frame.is_copied { end.socket.take_copied(whole) } else { None };
                let Some(what) = copied else {
                    // Longer than the ring takes, and there was no room for it elsewhere.
                    end.socket.give_back();
                    self.lost += 1;
                    continue;
                };
                unfinished = what;
                if let Some(tag) = frame.vlan {
                    whole.splice(0..0, [0; 4]);
                    insert_tag(whole, tag);
                }
            }
            unfinished = unfinished.moved(if frame.vlan.is_some() { 4 } else { 0 });
            end.socket.give_back();
            if unfinished.is_several() && self.splitter.begin(unfinished) {
                counts.rx_split.add(1);
                continue;
            }
            // One frame, or none that can be split: the posted receive decides whether it is too long.
            unfinished.complete(&mut self.splitter.frame);
            deliver(&self.splitter.frame, self.came);
            return true;
        }
    }

    /// Whether [`PacketPort::flush`] must come before the next [`PacketPort::send`].
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.outbox.is_full()
    }

    /// Puts a frame to those that are sent by the next [`PacketPort::flush`].
    #[inline]
    pub(super) fn send(&mut self, frame: &[u8]) {
        self.outbox.push(frame);
    }

    /// Sends; tells of each frame, in order, how long it was and whether the kernel took it.
    pub(super) fn flush(&mut self, counts: &Counting, each: impl FnMut(Result<usize, WcStatus>)) {
        // A port that only sends is never asked for what came in.
        self.renew();
        let socket = self.end.as_ref().map(|end| &end.socket.sender);
        self.outbox.flush(socket, counts, each);
    }
}
