//! A kernel interface with AF_PACKET. Works with any Ethernet interface, and needs CAP_NET_RAW.
//!
//! Every queue has its own sockets and its own ring, and the kernel distributes flows among the queues. Received frames
//! stay in the ring until a receive is posted. Polling an empty ring needs no system call. One system call sends up to
//! [`BURST`] frames.
//!
//! The kernel keeps the interface, so the network stack of the kernel also receives all frames.

pub(super) mod config;
mod doctor;
mod fanout;
mod hand_over;
mod offload;
mod outbox;
mod socket;
mod spec;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::counters::Counting;
use crate::hand_over::HandOver;
use crate::link::interface::stamps;
use crate::link::interface::{Interface, Replacement, Watcher, refused};
use crate::link::{Link, Sent, Wire};
use crate::rss::Rss;
use crate::status::Status;
use dataplane_core::clock::HostClock;
use dataplane_core::error::{Error, Result};
use dataplane_core::units::Nanos;
use dataplane_core::verbs::{QpSpec, WcStatus};
use fanout::Members;
use offload::Splitter;
use outbox::Outbox;
use socket::{PacketSocket, insert_tag};

pub(crate) use outbox::BURST;
pub use spec::PacketSpec;

/// Maximum length in bytes of a frame from the kernel: a packet of 65,535 bytes, and an Ethernet header with two VLAN
/// tags.
const LONGEST: usize = 65_535 + 22;

/// The link of a device, shared by all of its queues and the watcher thread.
#[derive(Debug)]
pub(crate) struct Packets {
    spec: PacketSpec,
    /// Maximum length of a received or sent frame, in bytes.
    longest: usize,
    /// Whether completions have receive timestamps.
    stamped: bool,
    /// Whether received frames have timestamps of the NIC.
    by_nic: AtomicBool,
    /// The last error of opening a socket on a recreated interface.
    last_error: Mutex<Option<String>>,
    /// Whether new queues wait for the queues of another program.
    awaits: AtomicBool,
    state: Mutex<PacketState>,
}

#[derive(Debug)]
struct PacketState {
    /// The interface that the sockets are bound to, by index. The properties are from the last check that found the
    /// interface.
    interface: Interface,
    /// Whether the interface was deleted since the sockets were bound. A new interface may get the same index.
    is_deleted: bool,
    /// Fanout group of the queues, through which the kernel distributes frames. Not valid while `members` is empty.
    group: Option<u16>,
    /// The sockets of the group.
    members: Members,
    /// The number of queues that receive frames. `None` before the first call of [`Link::distribute`]: all queues.
    queues: Option<u16>,
    shares: Vec<Weak<QueueShare>>,
    /// Whether another program takes the queues over, so that this program must open no new sockets.
    is_detached: bool,
}

/// State that a queue shares with the watcher thread.
#[derive(Debug)]
struct QueueShare {
    /// The index of the queue.
    queue: u16,
    /// New sockets, if the interface was removed and recreated.
    fresh: Replacement<PacketSocket>,
    /// The receiving socket. Any thread may read its drop counter.
    receiver: Mutex<Option<Arc<OwnedFd>>>,
    /// The number of frames that the kernel has dropped and that are not yet reported.
    missed: AtomicU64,
    /// Whether the queue puts its sockets into `detached` when it takes new sockets, because another program takes the
    /// sockets over.
    is_detaching: AtomicBool,
    detached: Mutex<Option<PacketSocket>>,
}

impl QueueShare {
    /// Takes the sockets that the queue has replaced. Returns the number of frames that are lost.
    #[cold]
    fn retire(&self, mut socket: PacketSocket) -> u64 {
        if self.is_detaching.load(Ordering::Acquire) {
            *lock(&self.detached) = Some(socket);
            // Clear the flag last, because a thread that sees neither the flag nor the sockets skips the queue.
            self.is_detaching.store(false, Ordering::Release);
            return 0;
        }
        socket.discard()
    }

    /// Adds to `missed` the number of frames that the kernel has dropped since the last call.
    fn read_drops(&self) {
        if let Some(receiver) = &*lock(&self.receiver) {
            self.missed.fetch_add(socket::drops(receiver), Ordering::Relaxed);
        }
    }

    /// Reads the drop counter of the previous socket for the last time, and makes `socket` the source of the counter.
    fn set_receiver(&self, socket: &PacketSocket) {
        self.read_drops();
        *lock(&self.receiver) = Some(socket.receiver.clone());
    }
}

/// Tries to enable NIC timestamps for received frames. Returns `false` on failure, and logs the reason.
fn enable_nic(interface: &str) -> bool {
    stamps::enable_nic_stamps(interface).inspect_err(|error| stamps::warn_kernel_stamps(interface, error)).is_ok()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Packets {
    /// Checks that the interface can be used with AF_PACKET.
    ///
    /// # Errors
    /// Fails with a suggested fix if the interface does not exist or the kernel refuses it.
    pub(super) fn open(spec: &PacketSpec, longest: usize, stamped: bool) -> Result<Self> {
        let interface = Interface::need(&spec.interface)?;
        let by_nic = spec.hardware_stamps && enable_nic(&spec.interface);
        // Open a socket now and drop it, so that a refusal is reported here and not when the first worker starts.
        let first = match spec.takes_over {
            true => socket::sender(spec, interface.index).map(drop),
            false => PacketSocket::open(spec, longest, interface.index, by_nic, None).map(drop),
        };
        first.map_err(|(what, error)| refused(&spec.interface, what, "CAP_NET_RAW", &error))?;
        let state = PacketState {
            interface,
            is_deleted: false,
            group: None,
            members: Members::default(),
            queues: None,
            shares: Vec::new(),
            is_detached: false,
        };
        Ok(Self {
            spec: spec.clone(),
            longest,
            stamped,
            by_nic: by_nic.into(),
            last_error: Mutex::default(),
            awaits: spec.takes_over.into(),
            state: Mutex::new(state),
        })
    }

    /// Returns whether received frames have timestamps of the NIC.
    fn by_nic(&self) -> bool {
        self.by_nic.load(Ordering::Relaxed)
    }

    fn update(&self, found: Option<Interface>, status: &Status) {
        let mut state = lock(&self.state);
        state.shares.iter().filter_map(Weak::upgrade).for_each(|share| share.read_drops());
        let Some(now) = found else {
            state.is_deleted = true;
            status.set_link(false);
            return;
        };
        // Sockets stay usable while the interface is down. After the interface was removed, the old sockets never
        // receive again, so open new sockets.
        let is_new = state.is_deleted || now.index != state.interface.index;
        if is_new && state.is_detached {
            return;
        }
        // It is possible that the new interface is not an Ethernet interface. The port cannot use such an interface.
        let mut no_stamps = None;
        if is_new {
            let reopened = match now.is_ethernet && now.is_set_up {
                true => self.reopen(&mut state, &now, &mut no_stamps).map_err(Some),
                false => Err(None),
            };
            if let Err(error) = reopened {
                // Log without the lock, because the logger of the program may call this module.
                drop(state);
                self.warn_about_stamps(no_stamps);
                if let Some(error) = error {
                    self.log_once(error);
                }
                status.set_link(false);
                return;
            }
        }
        state.is_deleted = false;
        let before = std::mem::replace(&mut state.interface, now);
        let mut distributed = Ok(());
        if !is_new && now.is_set_up && !before.is_set_up {
            state.members.sort();
            distributed = state.distribute();
        }
        drop(state);
        self.warn_about_stamps(no_stamps);
        self.warn_about(distributed);
        now.report_changes(&before, status);
        status.set_link(now.has_carrier);
    }

    /// Logs why NIC timestamps are not available.
    fn warn_about_stamps(&self, error: Option<io::Error>) {
        if let Some(error) = error {
            stamps::warn_kernel_stamps(&self.spec.interface, &error);
        }
    }

    /// Opens new sockets for all queues on a new interface. Sets `no_stamps` if NIC timestamps are not available.
    fn reopen(
        &self,
        state: &mut PacketState,
        now: &Interface,
        no_stamps: &mut Option<io::Error>,
    ) -> Result<(), (&'static str, io::Error)> {
        if self.spec.hardware_stamps {
            *no_stamps = stamps::enable_nic_stamps(&self.spec.interface).err();
            self.by_nic.store(no_stamps.is_none(), Ordering::Relaxed);
        }
        // The sockets of the deleted interface belong to the earlier group.
        state.group = None;
        state.members.clear();
        state.shares.retain(|share| share.strong_count() > 0);
        let mut sockets = Vec::new();
        for share in state.shares.iter().filter_map(Weak::upgrade) {
            let group = Some(&mut state.group);
            let opened = PacketSocket::open(&self.spec, self.longest, now.index, self.by_nic(), group);
            // An error closes the sockets that were opened before.
            let socket = opened.inspect_err(|_| state.members.clear())?;
            state.members.join(share.queue);
            sockets.push((share, socket));
        }
        *lock(&self.last_error) = None;
        for (share, socket) in sockets {
            share.set_receiver(&socket);
            share.fresh.put(socket);
        }
        state.distribute().map_err(|error| ("PACKET_FANOUT_DATA", error))
    }

    /// Logs an operation that the kernel refused.
    fn log_once(&self, (what, error): (&str, io::Error)) {
        let last_error = format!("{}: {what}: {error}", self.spec.interface);
        // Log an error only if it differs from the last error, because the watcher thread retries several times a
        // second.
        if lock(&self.last_error).replace(last_error.clone()).as_ref() != Some(&last_error) {
            tracing::warn!("{last_error}");
        }
    }

    /// Opens the sockets of a queue, and registers the queue with the watcher thread.
    fn join(&self, queue: u16) -> Result<(Arc<QueueShare>, PacketSocket), i32> {
        // Log without the lock, because the logger of the program may call this module.
        self.try_join(queue).map_err(|(what, error)| {
            tracing::error!("{}", refused(&self.spec.interface, what, "CAP_NET_RAW", &error));
            error.raw_os_error().unwrap_or(libc::EIO)
        })
    }

    fn try_join(&self, queue: u16) -> Result<(Arc<QueueShare>, PacketSocket), (&'static str, io::Error)> {
        let mut state = lock(&self.state);
        let PacketState { interface, group, members, .. } = &mut *state;
        let (socket, receiver) = if self.awaits.load(Ordering::Relaxed) {
            (PacketSocket::idle(None)?, None)
        } else {
            if members.is_empty() {
                // The kernel has freed the group. Its number may now be the number of a group of another program.
                *group = None;
            }
            let socket = PacketSocket::open(&self.spec, self.longest, interface.index, self.by_nic(), Some(group))?;
            members.join(queue);
            let receiver = socket.receiver.clone();
            (socket, Some(receiver))
        };
        let share = Arc::new(QueueShare {
            queue,
            fresh: Replacement::default(),
            receiver: Mutex::new(receiver),
            missed: AtomicU64::new(0),
            is_detaching: AtomicBool::new(false),
            detached: Mutex::default(),
        });
        state.shares.retain(|share| share.strong_count() > 0);
        state.shares.push(Arc::downgrade(&share));
        if let Err(error) = state.distribute() {
            state.members.leave(queue);
            return Err(("PACKET_FANOUT_DATA", error));
        }
        Ok((share, socket))
    }

    /// Closes the sockets of a queue.
    fn leave(&self, queue: OpenQueue) {
        let mut state = lock(&self.state);
        let OpenQueue { share, socket } = queue;
        // If the interface was created again, the member of the group is the new socket of the queue, even if the queue
        // has not switched to the new socket yet. So remove the queue from the group in any case.
        state.members.leave(share.queue);
        *lock(&share.receiver) = None;
        drop((share, socket));
        state.shares.retain(|share| share.strong_count() > 0);
        let distributed = if state.members.is_empty() { Ok(()) } else { state.distribute() };
        drop(state);
        self.warn_about(distributed);
    }

    /// Returns the error for a BPF program of the fanout group that the kernel refused.
    fn refused_program(&self, error: &io::Error) -> Error {
        refused(&self.spec.interface, "PACKET_FANOUT_DATA", "CAP_NET_RAW", error)
    }

    fn warn_about(&self, distributed: io::Result<()>) {
        if let Err(error) = distributed {
            tracing::warn!("{}", self.refused_program(&error));
        }
    }
}

impl PacketState {
    /// Makes the kernel distribute the frames among the queues that receive frames.
    fn distribute(&self) -> io::Result<()> {
        let receiver = self.shares.iter().filter_map(Weak::upgrade).find_map(|share| lock(&share.receiver).clone());
        receiver.map_or(Ok(()), |receiver| self.members.distribute(&receiver, self.queues))
    }
}

impl<End: From<Box<PacketPort>>> Link<End> for Packets {
    fn end(self: Arc<Self>, spec: &QpSpec, _: &Arc<Rss>, _: &HostClock) -> End {
        Box::new(PacketPort::new(self, spec.queue.0)).into()
    }

    fn is_interface(&self) -> bool {
        true
    }

    fn has_nic_stamps(&self) -> bool {
        self.by_nic()
    }

    fn distribute(&self, queues: u16) -> Result<()> {
        let mut state = lock(&self.state);
        state.queues = Some(queues);
        // A removed interface has no frames to distribute.
        if state.is_deleted { Ok(()) } else { state.distribute().map_err(|error| self.refused_program(&error)) }
    }

    /// Returns the interface and the source of timestamps, if timestamps are requested.
    fn describe(&self) -> Option<String> {
        let source = if self.by_nic() { "NIC" } else { "kernel" };
        (self.stamped || self.spec.hardware_stamps).then(|| format!("{} (timestamps: {source})", self.spec.interface))
    }

    fn hand_over(&self) -> Option<&dyn HandOver> {
        Some(self)
    }

    fn watch(self: Arc<Self>, status: &Arc<Status>) -> Result<Option<Watcher>> {
        let (name, status) = (self.spec.interface.clone(), status.clone());
        let watcher = Watcher::start(&name, move |found| {
            self.update(found, &status);
            found.is_some()
        });
        watcher.map(Some)
    }
}

/// A queue pair's end of the link.
#[derive(Debug)]
pub(crate) struct PacketPort {
    link: Arc<Packets>,
    /// The index of the queue.
    queue: u16,
    /// The sockets of the queue, for both directions. `None` while the port is closed.
    end: Option<OpenQueue>,
    splitter: Splitter,
    outbox: Outbox,
    /// The number of frames lost in this port and not yet reported.
    lost: u64,
    /// Receive time of the last frame from the ring.
    received_at: Option<Nanos>,
}

#[derive(Debug)]
struct OpenQueue {
    share: Arc<QueueShare>,
    socket: PacketSocket,
}

impl PacketPort {
    fn new(link: Arc<Packets>, queue: u16) -> Self {
        let splitter = Splitter::new(LONGEST, link.longest);
        let outbox = Outbox::new(link.longest);
        Self { link, queue, end: None, splitter, outbox, lost: 0, received_at: None }
    }

    /// Switches to the new sockets, if there are any: after the interface was recreated, or in a hand-over
    /// ([`QueueShare::retire`]).
    #[inline]
    fn take_new_sockets(&mut self) {
        let Some(end) = &mut self.end else { return };
        if let Some(fresh) = end.share.fresh.take() {
            let before = std::mem::replace(&mut end.socket, fresh);
            self.lost += end.share.retire(before);
        }
    }
}

impl Drop for PacketPort {
    fn drop(&mut self) {
        if let Some(end) = self.end.take() {
            self.link.leave(end);
        }
    }
}

impl Wire for PacketPort {
    fn open(&mut self) -> Result<(), i32> {
        let (share, socket) = self.link.join(self.queue)?;
        self.end = Some(OpenQueue { share, socket });
        Ok(())
    }

    fn close(&mut self) -> u64 {
        let left = self.splitter.left() as u64;
        self.splitter.clear();
        let Some(mut end) = self.end.take() else { return left + std::mem::take(&mut self.lost) };
        end.share.read_drops();
        let lost = std::mem::take(&mut self.lost) + end.share.missed.load(Ordering::Relaxed) + end.socket.discard();
        self.link.leave(end);
        left + lost
    }

    fn missed(&mut self) -> u64 {
        let lost = std::mem::take(&mut self.lost);
        let Some(end) = &self.end else { return lost };
        match end.share.missed.load(Ordering::Relaxed) {
            0 => lost,
            _ => lost + end.share.missed.swap(0, Ordering::Relaxed),
        }
    }

    fn is_interface(&self) -> bool {
        true
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.end.as_ref().map(|end| end.socket.receiver.as_fd())
    }

    #[inline]
    fn take(&mut self, counts: &Counting, deliver: impl FnOnce(&[u8], Option<Nanos>)) -> bool {
        loop {
            if let Some(part) = self.splitter.next() {
                deliver(part, self.received_at);
                return true;
            }
            // Deliver all segments of a frame first. After a hand-over, the worker may pause before the next call.
            self.take_new_sockets();
            let Some(end) = &mut self.end else { return false };
            let Some(mut frame) = end.socket.next_frame() else { return false };
            self.received_at = frame.received_at;
            if frame.is_whole() && !frame.pending.needs_segmentation() {
                let tag = if frame.vlan.is_some() { 4 } else { 0 };
                let pending = frame.pending.shifted(tag);
                let bytes = frame.bytes();
                if !pending.is_none() {
                    pending.complete(bytes);
                    counts.rx_completed.add(1);
                }
                deliver(bytes, self.received_at);
                end.socket.release();
                return true;
            }
            let whole = &mut self.splitter.frame;
            let mut pending = frame.pending;
            if frame.is_whole() {
                whole.clear();
                whole.extend_from_slice(frame.bytes());
            } else {
                let copied = if frame.is_copied { end.socket.take_copied(whole) } else { None };
                let Some(what) = copied else {
                    // The frame is longer than a ring entry. Either the frame is also longer than `LONGEST` (BIG TCP), or
                    // the socket's receive buffer had no space for the whole frame.
                    if frame.length > LONGEST {
                        counts.rx_gso_too_long.add(1);
                    } else {
                        self.lost += 1;
                    }
                    end.socket.release();
                    continue;
                };
                pending = what;
                if let Some(tag) = frame.vlan {
                    whole.splice(0..0, [0; 4]);
                    insert_tag(whole, tag);
                }
            }
            pending = pending.shifted(if frame.vlan.is_some() { 4 } else { 0 });
            end.socket.release();
            if pending.needs_segmentation() && self.splitter.begin(pending) {
                counts.rx_split.add(1);
                continue;
            }
            // The frame needs no splitting or cannot be split. If the frame is too long for its receive, the receive
            // completes with an error.
            pending.complete(&mut self.splitter.frame);
            deliver(&self.splitter.frame, self.received_at);
            return true;
        }
    }

    #[inline]
    fn is_full(&self) -> bool {
        self.outbox.is_full()
    }

    /// Adds a frame to the frames that the next [`Wire::flush`] sends.
    #[inline]
    fn send(&mut self, frame: &[u8], _: &Counting) -> Result<Sent, WcStatus> {
        self.outbox.push(frame);
        Ok(Sent::Waits)
    }

    fn flush(&mut self, counts: &Counting, each: impl FnMut(Result<usize, WcStatus>)) {
        // `Wire::take` also takes new sockets. But no worker calls `Wire::take` if the workers only send on this port.
        if self.splitter.left() == 0 {
            self.take_new_sockets();
        }
        let socket = self.end.as_ref().map(|end| &end.socket.sender);
        self.outbox.flush(socket, counts, each);
    }
}

#[cfg(test)]
mod tests {
    use dataplane_testing::namespace::{in_namespace, try_ip};
    use dataplane_testing::{report_skip, wait_until};

    use super::*;
    use crate::link::interface::set_option;
    use crate::tests::xdp::veth;

    /// The kernel frees a group when its last socket closes, and may give the number to another program.
    #[test]
    fn first_queue_does_not_join_a_group_of_an_earlier_queue() {
        in_namespace(|| {
            veth(1, 1500);
            let open = || Packets::open(&PacketSpec::new("va"), 1522, false).unwrap();
            let (of_other_program, link) = (open(), open());
            let group = |link: &Packets| lock(&link.state).group;
            let _other = of_other_program.join(0).unwrap();
            lock(&link.state).group = group(&of_other_program);
            let _first = link.join(0).unwrap();
            assert_ne!(group(&link), group(&of_other_program));
            // A later queue joins the group of the first queue.
            let of_first = group(&link);
            let _second = link.join(1).unwrap();
            assert_eq!(group(&link), of_first);
        });
    }

    /// Linux with BIG TCP sends packets longer than 64 KiB over a veth pair.
    #[test]
    fn packet_longer_than_64_kib_is_too_long_and_not_missed() {
        in_namespace(|| {
            veth(1, 1500);
            if !try_ip("link set va gso_max_size 185000") {
                return report_skip("this kernel has no BIG TCP");
            }
            let link = Arc::new(Packets::open(&PacketSpec::new("vb"), 1522, false).unwrap());
            let mut port = PacketPort::new(link, 0);
            port.open().unwrap();
            let sender = socket::sender(&PacketSpec::new("va"), Interface::need("va").unwrap().index).unwrap();
            set_option(&sender, libc::SOL_PACKET, libc::PACKET_VNET_HDR, &1).unwrap();
            // The offload header: the checksum field is at byte 16 of the TCP header, and the packet is TCP over IPv6 in
            // segments of 1,400 bytes.
            let headers = 14 + 40 + 20;
            let mut packet = [&[1, 4][..], &[headers, 1400, 14 + 40, 16].map(u16::to_ne_bytes).concat()].concat();
            packet.extend([&[2; 12][..], &[0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, 6, 64], &[0x20; 32]].concat());
            // A TCP header of 20 bytes.
            packet.extend([&[0; 12][..], &[5 << 4], &[0; 7]].concat());
            packet.resize(offload::HEADER + LONGEST + 1, 0);
            rustix::io::write(&sender, &packet).unwrap();
            let (counts, mut missed) = (Counting::default(), 0);
            wait_until("the packet is counted", || {
                assert!(!port.take(&counts, |frame, _| panic!("a frame of {} bytes arrives", frame.len())));
                missed += port.missed();
                missed + counts.read().rx_gso_too_long > 0
            });
            assert_eq!((counts.read().rx_gso_too_long, missed), (1, 0));
        });
    }
}
