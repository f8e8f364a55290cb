//! A queue pair's end of an xdp link. Hands slots to the kernel, and takes the slots back.
//!
//! A slot (packet buffer) is one chunk of the socket's memory, or several consecutive chunks. A posted receive hands
//! the first chunk of a slot to the kernel. A frame that is longer than a chunk arrives in several slots. The queue
//! then joins the frame's bytes in the first slot, and posts the other slots again. A send hands over all chunks that
//! contain bytes of the packet.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::handed::DetachedSocket;
use super::program::STAMP;
use super::socket::{BIND_TIMEOUT, REBIND_TIMEOUT, Refused, SocketSpec, XdpSocket, await_release};
use super::statistics::Reading;
use super::{HEADROOM, InterfaceEpoch, Xdp};
use crate::completion::Now;
use dataplane_core::mem::{Desc, GUARD, Region, SlotLayout, prefetch};
use dataplane_core::units::Ticks;
use dataplane_core::verbs::{Completions, QpCaps, WcStatus};

/// State of a slot that the kernel does not own.
const OWNED: u8 = 0;
/// State of a slot that is posted for a receive. A state between [`OWNED`] and this value means that the slot is being
/// sent: the state is the number of the slot's chunks that the kernel still owns.
const POSTED: u8 = 0x80;

/// Interval between two attempts to bind to a queue while another socket is bound to the queue.
const RETRY_INTERVAL: Duration = Duration::from_millis(1);
/// The time after which the interval between two attempts becomes longer. Also the maximum time for which the drop of a
/// queue waits until the kernel has released the slots.
const SHORT_WAIT: Duration = Duration::from_millis(100);
/// Interval between two attempts while a wait is long: while the interface does not exist or is down, or while the kernel
/// has not released the queue. Each attempt takes the kernel's RTNL lock, so this interval is longer.
const ABSENT_INTERVAL: Duration = Duration::from_millis(10);

/// Minimum frame length: an Ethernet header.
const LEAST_FRAME: usize = 14;

/// Layout of slots and chunks.
#[derive(Clone, Copy, Debug)]
struct Geometry {
    layout: SlotLayout,
    /// Binary logarithm of the size of a chunk in bytes.
    shift: u32,
    /// Number of chunks per slot.
    chunks: u32,
}

impl Geometry {
    /// Returns `None` if a slot of this layout is not a whole number of chunks, or has too little headroom.
    fn new(layout: SlotLayout) -> Option<Self> {
        let shift = if layout.stride() == 2048 { 11 } else { 12 };
        let whole = layout.stride().is_multiple_of(1 << shift);
        let sound =
            whole && layout.headroom() >= HEADROOM && u32::from(layout.headroom()) < (1 << shift) - GUARD as u32;
        sound.then_some(Self { layout, shift, chunks: layout.stride() >> shift })
    }

    /// Returns the size of a chunk, in bytes.
    fn chunk(&self) -> u32 {
        1 << self.shift
    }

    #[inline]
    fn address(&self, slot: u32) -> u64 {
        u64::from(slot) * u64::from(self.layout.stride())
    }

    /// Returns the slot that contains an address.
    #[inline]
    fn slot(&self, address: u64) -> u32 {
        let chunk = (address >> self.shift) as u32;
        if self.chunks == 1 { chunk } else { chunk / self.chunks }
    }
}

/// The wait for the socket of another program.
#[derive(Debug)]
struct Awaited {
    geometry: Geometry,
    adopted: Option<AdoptedSocket>,
}

/// The socket of another program.
#[derive(Debug)]
struct AdoptedSocket {
    socket: XdpSocket,
    /// Whether the other program has tried to let the XDP program redirect the queue's frames to the socket.
    redirected: bool,
    /// The last reading of the kernel's counters by the other program.
    counted: Reading,
    /// The number of receives that the other program has posted, and that this queue pair has not posted yet.
    missing: usize,
}

/// A send that has not completed.
#[derive(Clone, Copy, Debug, Default)]
struct PendingSend {
    wr_id: u64,
    slot: u32,
    len: u16,
    signaled: bool,
    /// The status of a send that was not handed to the kernel, because there was no socket or no interface, or the
    /// length was invalid.
    refused: Option<WcStatus>,
}

/// A completed send.
pub(crate) struct CompletedSend {
    pub(crate) wr_id: u64,
    pub(crate) status: WcStatus,
    /// Whether the send generates a completion, because the send was posted as signaled or failed.
    pub(crate) has_completion: bool,
    /// Number of completed sends since the start of the queue pair, including this send.
    pub(crate) count: u64,
    pub(crate) len: u16,
}

/// Counts of received frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) frames: u64,
    pub(crate) bytes: u64,
    /// Number of frames that were longer than their slot.
    pub(crate) too_long: u64,
}

/// One queue of an interface, as used by a queue pair.
#[derive(Debug)]
pub(crate) struct Queue {
    xdp: Arc<Xdp>,
    index: u32,
    caps: QpCaps,
    // Declared before `region`, because the socket must be dropped before the memory that it uses.
    socket: Option<XdpSocket>,
    /// The wait for the socket of another program. Meanwhile, `socket` and `geometry` are `None`.
    awaited: Option<Box<Awaited>>,
    region: Option<Arc<Region>>,
    geometry: Option<Geometry>,
    /// The interface that the socket is bound to.
    epoch: InterfaceEpoch,
    /// The `wr_id` of a receive into slot 0.
    recv_wr_id: u64,
    /// States of the slots, indexed by slot.
    states: Box<[u8]>,
    /// Number of posted receives.
    posted: usize,
    /// Whether the socket is bound to its queue.
    bound: bool,
    /// Whether an earlier socket of this queue pair was bound to the queue. The kernel may take some time to release
    /// the queue.
    rebinding: bool,
    /// The start of the wait for the queue, and the time of the next attempt to bind. `None` while this queue pair does
    /// not wait.
    bind_wait: Option<(Instant, Instant)>,
    /// Whether the wait for the queue has timed out.
    bind_timed_out: bool,
    /// Whether the queue pair must restart, because the wait for the queue has timed out, or because the socket of another
    /// program cannot be used.
    has_failed: bool,
    /// Whether the queue waits for its interface, which was deleted or is down. Sends fail in the meantime.
    is_absent: bool,
    /// Whether this queue pair has tried to let the XDP program redirect the queue's frames to the socket. If the kernel
    /// refused, the frames go to the kernel.
    redirected: bool,
    /// The next slot to check when receives are flushed.
    flushed: u32,
    /// A ring of the sends that have not completed, oldest first.
    sent: Box<[PendingSend]>,
    /// The index in `sent` of the oldest send.
    head: usize,
    /// Number of sends that have not completed.
    sending: usize,
    /// Number of sends that have completed since the start of the queue pair.
    completed: u64,
    /// Whether the worker polls the driver (busy polling).
    busy: bool,
    /// Whether the kernel or the hardware may still write to the slots of a closed socket.
    unreleased: bool,
    /// Whether the link has kept the closed socket for another program.
    is_kept: bool,
    /// The time of the next check whether the slots are released.
    next_probe: Option<Instant>,
}

impl Queue {
    pub(crate) fn new(xdp: Arc<Xdp>, index: u32, caps: QpCaps) -> Self {
        let busy = xdp.spec.busy_poll.is_some();
        Self {
            xdp,
            index,
            caps,
            socket: None,
            awaited: None,
            region: None,
            geometry: None,
            epoch: InterfaceEpoch { index: 0, generation: 0 },
            recv_wr_id: 0,
            states: Box::default(),
            posted: 0,
            bound: false,
            rebinding: false,
            bind_wait: None,
            bind_timed_out: false,
            has_failed: false,
            is_absent: false,
            redirected: false,
            flushed: 0,
            sent: Box::default(),
            head: 0,
            sending: 0,
            completed: 0,
            busy,
            unreleased: false,
            is_kept: false,
            next_probe: None,
        }
    }

    /// Creates the socket on the memory of the slots. After [`Queue::close`], the slots must be bound again.
    pub(crate) fn bind(&mut self, region: &Arc<Region>, layout: SlotLayout, recv_wr_id: u64) -> Result<(), i32> {
        let geometry = Geometry::new(layout).ok_or(libc::EINVAL)?;
        let caps = self.caps;
        let _ = self.close();
        if !self.is_released() {
            return Err(libc::EBUSY);
        }
        self.clear();
        let sends = caps.send_depth.max(1).saturating_mul(geometry.chunks).next_power_of_two();
        let spec = SocketSpec {
            bytes: layout.bytes(),
            chunk: geometry.chunk(),
            headroom: u32::from(layout.headroom() - HEADROOM),
            receives: caps.recv_depth.max(1).next_power_of_two(),
            sends,
            busy_poll: self.xdp.spec.busy_poll,
        };
        if self.xdp.awaits() {
            (self.awaited, self.geometry) = (Some(Box::new(Awaited { geometry, adopted: None })), None);
        } else {
            self.socket = Some(XdpSocket::new(region, &spec).map_err(|refused| self.refused(refused))?);
            self.geometry = Some(geometry);
        }
        self.region = Some(region.clone());
        self.recv_wr_id = recv_wr_id;
        self.states = vec![OWNED; layout.count() as usize].into();
        self.sent = vec![PendingSend::default(); caps.send_depth.max(1).next_power_of_two() as usize].into();
        Ok(())
    }

    fn refused(&self, refused: Refused) -> i32 {
        let errno = refused.error.raw_os_error().unwrap_or(libc::EIO);
        self.xdp.refused(self.index, &refused);
        errno
    }

    /// Binds the socket. In zero-copy mode, the NIC takes the buffers of all frames of the queue from the fill ring, also
    /// of frames for the kernel. Receives must therefore be posted before this call. If an earlier socket of this queue
    /// pair was bound, the new socket may have to wait until the kernel releases the queue, or until the interface exists
    /// and is up. This function then succeeds, and a later poll binds the socket.
    pub(crate) fn open(&mut self) -> Result<(), i32> {
        self.bind_wait = None;
        if self.awaited.is_some() {
            return Ok(());
        }
        let timeout = if self.rebinding { Duration::ZERO } else { BIND_TIMEOUT };
        match self.bind_socket(timeout) {
            Err(errno) if self.rebinding && (self.waits_for_interface(errno) || self.waits_for_release(errno)) => {
                let now = Instant::now();
                self.bind_wait = Some((now, now + RETRY_INTERVAL));
                Ok(())
            }
            other => other,
        }
    }

    fn waits_for_release(&self, errno: i32) -> bool {
        errno == libc::EBUSY && !self.bind_timed_out
    }

    /// Returns whether the error of a bind means that the interface is not ready, because it does not exist, is down,
    /// or does not have this queue yet. Logs the reason once.
    fn waits_for_interface(&mut self, errno: i32) -> bool {
        let waits = matches!(errno, libc::ENODEV | libc::ENXIO | libc::ENETDOWN | libc::EINVAL);
        // The watcher thread reports an interface that does not exist.
        if waits && !self.is_absent && errno != libc::ENODEV {
            self.xdp.waits();
        }
        self.is_absent = waits;
        waits
    }

    /// Tries again to bind the socket, if the socket is not bound and the time of the next attempt has come.
    #[cold]
    fn retry_bind(&mut self) {
        let Some((since, next)) = self.bind_wait else { return };
        let now = Instant::now();
        if now < next {
            return;
        }
        let interval = if now < since + SHORT_WAIT { RETRY_INTERVAL } else { ABSENT_INTERVAL };
        self.bind_wait = Some((since, now + interval));
        match self.bind_socket(Duration::ZERO) {
            Ok(()) => self.bind_wait = None,
            Err(errno) if self.waits_for_interface(errno) => self.bind_wait = Some((now, now + ABSENT_INTERVAL)),
            Err(libc::EBUSY) if now < since + REBIND_TIMEOUT => {}
            // Stop waiting. The queue pair then fails (see `is_stale`), and the next `open` does not wait.
            Err(_) => (self.bind_wait, self.bind_timed_out, self.has_failed) = (None, true, true),
        }
    }

    fn bind_socket(&mut self, timeout: Duration) -> Result<(), i32> {
        let (Some(socket), Some(geometry)) = (&mut self.socket, self.geometry) else { return Err(libc::EINVAL) };
        if self.bound {
            return Ok(());
        }
        self.epoch = self.xdp.epoch();
        if self.epoch.index == 0 {
            return Err(libc::ENODEV);
        }
        let several = self.xdp.longest > (geometry.chunk() - u32::from(geometry.layout.headroom())) as usize;
        match socket.bind(self.epoch.index, self.index, self.xdp.spec.copying, several, timeout) {
            Ok(why) => {
                if several && !socket.several && self.index == 0 {
                    let (interface, chunk) = (&self.xdp.spec.interface, geometry.chunk());
                    tracing::warn!(
                        "{interface}: the kernel (6.6 or newer is needed) or the driver supports no frames that use \
                         several buffers of {chunk} bytes; longer frames are neither received nor sent"
                    );
                }
                self.xdp.opened(self.index, socket, Reading::default());
                why.iter().for_each(|why| self.xdp.warn_copies(self.index, why));
            }
            Err(refused) => return Err(self.refused(refused)),
        }
        (self.bound, self.rebinding, self.bind_timed_out, self.is_absent) = (true, true, false, false);
        Ok(())
    }

    /// Redirects frames to the socket once the socket is bound and receives are posted. Runs at the first receive, so
    /// the frames go to the kernel until the worker receives. If a queue pair only sends, the frames always go to the
    /// kernel. If the kernel refuses the redirection, logs the reason, and the frames go to the kernel.
    #[cold]
    fn redirect(&mut self) {
        let Some(socket) = self.socket.as_ref().filter(|_| self.bound && self.posted > 0) else { return };
        if let Err(error) = self.xdp.redirect(self.index, socket) {
            self.refused(Refused { step: "the socket map", error });
            self.xdp.waits();
        }
        self.redirected = true;
    }

    /// Closes the socket, or leaves the socket to another program. The kernel then owns no slots as soon as
    /// [`Queue::is_released`] returns `true`. Returns the number of frames that had arrived and were not received. The link
    /// counts the frames of a socket that was left to another program.
    #[must_use]
    pub(crate) fn close(&mut self) -> u64 {
        // A queue without posted receives adopts the socket at its first send. If the queue has sent nothing, adopt the
        // socket now, so that the next program gets the socket.
        if self.awaited.is_some() && self.xdp.is_detaching() {
            self.adoption();
            if self.socket.is_none() {
                self.xdp.set_stale();
            }
        }
        self.collect_completions();
        self.bind_wait = None;
        let mut socket = self.socket.take();
        if let Some(Awaited { geometry, adopted }) = self.awaited.take().map(|awaited| *awaited) {
            (self.geometry, socket) = (Some(geometry), adopted.map(|adopted| adopted.socket));
        }
        let Some(mut socket) = socket else { return 0 };
        let lost = u64::from(socket.rx.ready(u32::MAX));
        if self.bound {
            let counted = self.xdp.closes(self.index, socket.raw());
            let detach = |mut socket: XdpSocket| {
                let posted = self.posted_slots(&mut socket);
                DetachedSocket { queue: self.index, socket, redirected: self.redirected, counted, posted }
            };
            match self.xdp.keep_socket(socket, self.epoch, detach) {
                Some(returned) => socket = returned,
                None => {
                    (self.bound, self.redirected, self.is_absent) = (false, false, false);
                    (self.unreleased, self.is_kept) = (true, true);
                    return 0;
                }
            }
        }
        let zero_copy = socket.zero_copy;
        // The other program may still have a descriptor of an adopted socket, so the kernel may still write.
        self.unreleased = socket.is_adopted;
        // In zero-copy mode, the hardware may still write to the memory after the socket is closed, so wait.
        drop(socket);
        if let Some(region) = self.region.as_ref().filter(|_| zero_copy) {
            self.unreleased = !await_release(region, self.epoch.index, self.index, BIND_TIMEOUT);
        }
        (self.bound, self.redirected, self.is_absent) = (false, false, false);
        lost
    }

    /// Returns whether neither the kernel nor the hardware writes to the slots of the closed socket any more. The kernel
    /// writes to the slots until all descriptors of the socket are closed, and another program may have a descriptor.
    pub(crate) fn is_released(&mut self) -> bool {
        let Some(region) = self.region.as_ref().filter(|_| self.unreleased) else { return true };
        let now = Instant::now();
        if self.next_probe.is_some_and(|next| now < next) || self.is_kept && self.xdp.keeps_socket(self.index) {
            return false;
        }
        // Each check takes the kernel's RTNL lock.
        self.next_probe = Some(now + ABSENT_INTERVAL);
        self.is_kept = false;
        self.unreleased = !await_release(region, self.epoch.index, self.index, Duration::ZERO);
        !self.unreleased
    }

    /// Discards all posted requests. The socket must be closed, and the slots must be released.
    pub(crate) fn clear(&mut self) {
        self.states.fill(OWNED);
        self.has_failed = false;
        (self.posted, self.flushed, self.head, self.sending, self.completed) = (0, 0, 0, 0, 0);
    }

    /// Returns the descriptor that becomes readable when a frame is in the RX ring.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().filter(|_| self.bound).map(|socket| socket.as_fd())
    }

    /// Returns how many more receives can be posted.
    #[inline]
    pub(crate) fn space(&mut self) -> usize {
        if self.socket.is_some() { self.caps.recv_depth as usize - self.posted } else { self.adoption() }
    }

    /// Returns the number of posted receives.
    #[inline]
    pub(crate) fn posted(&self) -> usize {
        self.posted
    }

    /// Hands slots to the kernel for receives. There must be space, and the slots must be in the layout.
    #[inline]
    pub(crate) fn post(&mut self, slots: &[u32]) {
        let (Some(socket), Some(geometry)) = (&mut self.socket, self.geometry) else {
            return self.post_adopted(slots);
        };
        for &slot in slots {
            self.states[slot as usize] = POSTED;
            socket.fill.put(geometry.address(slot));
        }
        socket.fill.submit();
        self.posted += slots.len();
    }

    /// Takes the socket of another program, if the queue waits for this socket. Returns the number of receives that the
    /// other program has posted, and that this program has not posted yet. If all these receives are posted, the queue
    /// starts to use the socket, and the function returns the number of further receives that can be posted.
    #[cold]
    fn adoption(&mut self) -> usize {
        let (Some(awaited), Some(region)) = (&mut self.awaited, &self.region) else { return 0 };
        if awaited.adopted.is_none() {
            let Some(handed) = self.xdp.take_handed(self.index) else { return 0 };
            let (redirected, counted, missing) = (handed.redirected, handed.counted, handed.posted);
            // Read the epoch first. The kernel maps no rings of a socket whose interface was deleted.
            self.epoch = self.xdp.epoch();
            match handed.open(region) {
                Ok(socket) => {
                    awaited.adopted = Some(AdoptedSocket { socket, redirected, counted, missing });
                }
                Err(refused) => {
                    // Without a socket, the queue flushes all sends. A queue that only receives finds the failure in its
                    // next poll. The kernel has not released the queue yet, so the next `open` must not wait.
                    (self.geometry, self.awaited) = (Some(awaited.geometry), None);
                    (self.has_failed, self.rebinding) = (true, true);
                    self.xdp.refused(self.index, &refused);
                    self.xdp.waits();
                    return 0;
                }
            }
        }
        match &awaited.adopted {
            Some(adopted) if adopted.missing > 0 => return adopted.missing,
            _ => {}
        }
        let awaited = self.awaited.take().map(|awaited| *awaited);
        let Some(Awaited { geometry, adopted: Some(adopted) }) = awaited else { return 0 };
        let AdoptedSocket { socket, redirected, counted, .. } = adopted;
        self.xdp.opened(self.index, &socket, counted);
        (self.bound, self.rebinding, self.redirected) = (true, true, redirected);
        (self.socket, self.geometry) = (Some(socket), Some(geometry));
        (self.caps.recv_depth as usize).saturating_sub(self.posted)
    }

    /// Records receives that another program has posted. The kernel has the slots already. The last of these receives
    /// completes the adoption, because the worker may call nothing else on an idle queue.
    #[cold]
    fn post_adopted(&mut self, slots: &[u32]) {
        let adopted = self.awaited.as_mut().and_then(|awaited| awaited.adopted.as_mut());
        let Some(adopted) = adopted.filter(|adopted| adopted.missing >= slots.len()) else { return };
        adopted.missing -= slots.len();
        slots.iter().for_each(|slot| self.states[*slot as usize] = POSTED);
        self.posted += slots.len();
        self.adoption();
    }

    /// Sends after the queue has taken the socket of another program.
    #[cold]
    fn send_adopted(&mut self, run: &[Desc], first_wr_id: u64, signal_all: bool) -> usize {
        self.adoption();
        if self.geometry.is_some() { self.send(run, first_wr_id, signal_all) } else { 0 }
    }

    /// Returns the slots of posted receives, in the order in which the kernel returns the slots.
    fn posted_slots(&self, socket: &mut XdpSocket) -> Vec<u32> {
        let Some(geometry) = self.geometry else { return Vec::new() };
        let arrived: Vec<u64> = (0..socket.rx.ready(u32::MAX)).map(|at| socket.rx.peek(at).addr).collect();
        let mut is_posted: Vec<bool> = self.states.iter().map(|state| *state == POSTED).collect();
        let mut take = |address: u64| {
            let slot = geometry.slot(address);
            is_posted.get_mut(slot as usize).is_some_and(std::mem::take).then_some(slot)
        };
        let first: Vec<u32> = arrived.into_iter().filter_map(&mut take).collect();
        let last: Vec<u32> = socket.fill.unconsumed().into_iter().filter_map(&mut take).collect();
        // The driver has the other slots.
        let held = (0..).zip(is_posted).filter(|(_, is_posted)| *is_posted).map(|(slot, _)| slot).collect();
        [first, held, last].concat()
    }

    /// Receives into the completion list `run`, until the list has `limit` entries.
    #[inline]
    pub(crate) fn receive(&mut self, run: &mut Completions, limit: usize, now: Now) -> Received {
        let mut received = Received::default();
        let (Some(socket), Some(geometry)) = (&mut self.socket, self.geometry) else {
            self.adoption();
            return received;
        };
        let room = geometry.layout.room();
        let headroom = u64::from(geometry.layout.headroom());
        let ahead = self.xdp.ahead().filter(|_| now.by_wall);
        let ready = socket.rx.ready((limit - run.len) as u32).min((limit - run.len) as u32);
        let mut taken = 0;
        while taken < ready {
            let it = socket.rx.peek(taken);
            let slot = geometry.slot(it.addr);
            let usual = it.options == 0
                && it.addr == geometry.address(slot) + headroom
                && it.len <= room
                && self.states.get(slot as usize) == Some(&POSTED);
            if !usual {
                break;
            }
            self.states[slot as usize] = OWNED;
            let mut ticks = now.ticks;
            if let Some(region) = &self.region {
                if let Some(ahead) = ahead {
                    ticks = take_stamp(region, it.addr, ahead).unwrap_or(ticks);
                }
                prefetch(region.base().as_ptr().wrapping_add(it.addr as usize));
            }
            run.push(self.recv_wr_id.wrapping_add(u64::from(slot)), WcStatus::Success, it.len, ticks);
            received.bytes += u64::from(it.len);
            taken += 1;
        }
        self.posted -= taken as usize;
        received.frames += u64::from(taken);
        if taken > 0 {
            socket.rx.release(taken);
        }
        if taken < ready {
            self.receive_irregular(run, limit, now, &mut received);
        } else if self.bind_wait.is_some() {
            self.retry_bind();
        } else if ready == 0 && !self.redirected {
            self.redirect();
        } else if ready == 0 && (self.busy || socket.fill.needs_wakeup()) {
            socket.wake_rx();
        }
        received
    }

    /// Receives frames with several buffers, and handles invalid descriptors.
    #[cold]
    fn receive_irregular(&mut self, run: &mut Completions, limit: usize, now: Now, received: &mut Received) {
        let ahead = self.xdp.ahead().filter(|_| now.by_wall);
        while run.len < limit
            && let Some((slot, status, len, received_at)) = self.join_buffers(ahead)
        {
            let Some(slot) = slot else { continue };
            run.push(self.recv_wr_id.wrapping_add(u64::from(slot)), status, len, received_at.unwrap_or(now.ticks));
            match status {
                WcStatus::Success => {
                    received.frames += 1;
                    received.bytes += u64::from(len);
                }
                _ => received.too_long += 1,
            }
        }
    }

    /// Takes one frame from the RX ring and joins its buffers in the slot of the first buffer. Returns `None` if the
    /// ring has no whole frame. The returned slot is `None` if the kernel returned only slots that were not posted.
    #[cold]
    fn join_buffers(&mut self, ahead: Option<i64>) -> Option<(Option<u32>, WcStatus, u32, Option<Ticks>)> {
        let (socket, geometry) = (self.socket.as_mut()?, self.geometry?);
        let region = self.region.as_ref()?;
        let ready = socket.rx.ready(u32::MAX);
        let continued = |it: libc::xdp_desc| it.options & libc::XDP_PKT_CONTD != 0;
        let last = (0..ready).find(|ahead| !continued(socket.rx.peek(*ahead)))?;
        let (headroom, room) = (usize::from(geometry.layout.headroom()), geometry.layout.room() as usize);
        let (mut first, mut len, mut fits, mut received_at) = (None::<u32>, 0, true, None);
        for place in 0..=last {
            let it = socket.rx.peek(place);
            let slot = geometry.slot(it.addr);
            let piece = it.len as usize;
            let inside =
                it.addr.checked_add(u64::from(it.len)).is_some_and(|end| end <= geometry.layout.bytes() as u64);
            if !inside || self.states.get(slot as usize) != Some(&POSTED) {
                continue;
            }
            if let Some(ahead) = ahead.filter(|_| first.is_none() && it.addr >= geometry.address(slot) + STAMP) {
                received_at = take_stamp(region, it.addr, ahead);
            }
            let into = *first.get_or_insert(slot);
            fits &= len + piece <= room;
            let to = geometry.address(into) as usize + headroom + len;
            if fits && to != it.addr as usize {
                // SAFETY: both ranges are inside the region: `inside` covers the source, and the destination is in the
                // packet space of a slot. This queue owns both slots, because they were posted here and the kernel has
                // returned them. The ranges may overlap.
                unsafe {
                    let base = region.base().as_ptr();
                    std::ptr::copy(base.add(it.addr as usize), base.add(to), piece);
                }
            }
            len += piece;
            if slot == into {
                self.states[slot as usize] = OWNED;
                self.posted -= 1;
            } else {
                socket.fill.put(geometry.address(slot));
            }
        }
        socket.fill.submit();
        socket.rx.release(last + 1);
        let status = if fits { WcStatus::Success } else { WcStatus::LocLenErr };
        Some((first, status, len as u32, received_at))
    }

    /// Flushes the next posted receive of a closed queue, and returns the receive's `wr_id`.
    #[cold]
    pub(crate) fn flush_receive(&mut self) -> Option<u64> {
        if !self.is_released() {
            return None;
        }
        while let Some(state) = self.states.get_mut(self.flushed as usize) {
            let slot = self.flushed;
            self.flushed += 1;
            if *state == POSTED {
                *state = OWNED;
                self.posted -= 1;
                return Some(self.recv_wr_id.wrapping_add(u64::from(slot)));
            }
        }
        None
    }

    /// Returns whether the socket cannot be used: its interface was deleted, the wait for the queue has timed out, or this
    /// program cannot use the socket of another program.
    #[inline]
    pub(crate) fn is_stale(&self) -> bool {
        self.bound && self.epoch != self.xdp.epoch() || self.has_failed
    }

    /// Hands packets to the kernel to be sent. The packets must be inside their slots, and the queue must have space
    /// for all of them. With `signal_all`, every send is signaled, otherwise only the last send. Without a socket, all
    /// sends are flushed. While the queue waits for its interface, all sends fail. Returns the number of sends that
    /// fail for this reason.
    #[inline]
    pub(crate) fn send(&mut self, run: &[Desc], first_wr_id: u64, signal_all: bool) -> usize {
        let Some(geometry) = self.geometry else { return self.send_adopted(run, first_wr_id, signal_all) };
        let chunk = geometry.chunk();
        let mask = self.sent.len() - 1;
        for (at, desc) in run.iter().enumerate() {
            let mut addr = geometry.address(desc.slot) + u64::from(desc.offset);
            let mut len = u32::from(desc.len);
            let mut pieces = 1;
            let is_sound = (LEAST_FRAME..=self.xdp.longest).contains(&usize::from(desc.len));
            let crosses = (addr as u32 & (chunk - 1)) + len > chunk;
            let refused = match &self.socket {
                None => Some(WcStatus::WrFlushErr),
                Some(_) if self.is_absent => Some(WcStatus::GeneralErr),
                // Without support for several buffers, the kernel completes only the last piece of such a packet.
                Some(socket) => (!is_sound || crosses && !socket.several).then_some(WcStatus::LocLenErr),
            };
            if let Some(socket) = self.socket.as_mut().filter(|_| refused.is_none()) {
                loop {
                    let piece = len.min(chunk - (addr as u32 & (chunk - 1)));
                    let options = if piece < len { libc::XDP_PKT_CONTD } else { 0 };
                    socket.tx.put(libc::xdp_desc { addr, len: piece, options });
                    if piece == len {
                        break;
                    }
                    (addr, len, pieces) = (addr + u64::from(piece), len - piece, pieces + 1);
                }
                self.states[desc.slot as usize] = pieces;
            }
            let signaled = signal_all || at + 1 == run.len();
            let wr_id = first_wr_id.wrapping_add(at as u64);
            let sent = PendingSend { wr_id, slot: desc.slot, len: desc.len, signaled, refused };
            self.sent[(self.head + self.sending) & mask] = sent;
            self.sending += 1;
        }
        if let Some(socket) = &mut self.socket {
            socket.tx.submit();
            if socket.tx.needs_wakeup() {
                socket.wake_tx();
            }
        }
        if self.is_absent { run.len() } else { 0 }
    }

    /// Reads the completion ring and updates the slot states.
    #[inline]
    fn collect_completions(&mut self) {
        let (Some(socket), Some(geometry)) = (&mut self.socket, self.geometry) else { return };
        let ready = socket.completion.ready(u32::MAX);
        for ahead in 0..ready {
            let slot = geometry.slot(socket.completion.peek(ahead));
            if let Some(state @ 1..POSTED) = self.states.get_mut(slot as usize) {
                *state -= 1;
            }
        }
        if ready > 0 {
            socket.completion.release(ready);
        }
    }

    /// Returns whether any send has not completed.
    #[inline]
    pub(crate) fn sends(&self) -> bool {
        self.sending > 0
    }

    /// Collects completed sends, and makes the kernel send if frames are left in the TX ring.
    #[inline]
    pub(crate) fn look(&mut self) {
        self.collect_completions();
        if self.bind_wait.is_some() {
            self.retry_bind();
        } else if let Some(socket) = &self.socket
            && !socket.tx.is_drained()
            && socket.tx.needs_wakeup()
        {
            socket.wake_tx();
        }
    }

    /// Removes and returns the oldest send, if it has completed. Sends complete in the order in which they were posted,
    /// even if the kernel completes them in another order.
    #[inline]
    pub(crate) fn pop_sent(&mut self) -> Option<CompletedSend> {
        let it = *self.sent.get(self.head).filter(|_| self.sending > 0)?;
        let status = match it.refused {
            Some(refused) => refused,
            None if self.states[it.slot as usize] == OWNED => WcStatus::Success,
            None if self.socket.is_some() || self.unreleased => return None,
            None => {
                self.states[it.slot as usize] = OWNED;
                WcStatus::WrFlushErr
            }
        };
        self.head = (self.head + 1) & (self.sent.len() - 1);
        self.sending -= 1;
        self.completed += 1;
        let has_completion = it.signaled || status != WcStatus::Success;
        Some(CompletedSend { wr_id: it.wr_id, status, has_completion, count: self.completed, len: it.len })
    }
}

/// Reads the stamp that the XDP program wrote before a frame. Returns the wall-clock time: the stamp plus `ahead`
/// nanoseconds. Clears the stamp, so that the stamp is not mistaken for the stamp of the next frame in the slot.
/// Returns `None` if there is no valid stamp.
#[inline]
fn take_stamp(region: &Region, address: u64, ahead: i64) -> Option<Ticks> {
    // SAFETY: a frame starts at the address, in a slot that the kernel has returned. The slot has more than `STAMP`
    // bytes before the frame, inside the region. Nothing else owns the slot. The reads and writes are unaligned.
    let [nanos, complement] = unsafe {
        let place = region.base().as_ptr().add((address - STAMP) as usize).cast::<[u64; 2]>();
        let stamp = place.read_unaligned();
        place.write_unaligned([0; 2]);
        stamp
    };
    (nanos == !complement && nanos > 0).then(|| Ticks(nanos.wrapping_add_signed(ahead)))
}

impl Drop for Queue {
    fn drop(&mut self) {
        let _ = self.close();
        let is_kept = self.is_kept && self.xdp.keeps_socket(self.index);
        // Check again for up to [`SHORT_WAIT`], because the kernel may have released the slots since the last check, or
        // may release the slots soon.
        if let Some(region) = self.region.take_if(|_| self.unreleased)
            && (is_kept || !await_release(&region, self.epoch.index, self.index, SHORT_WAIT))
        {
            // The memory stays mapped, because the kernel or the hardware may still write to it.
            std::mem::forget(region);
        }
    }
}
