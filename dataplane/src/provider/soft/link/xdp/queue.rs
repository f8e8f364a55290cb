//! The end of the wire that a queue pair has: slots go to the kernel and come back.
//!
//! A slot is one chunk of the socket's memory, or several in a row. A posted receive lends the first chunk of a slot. A
//! frame that is longer than a chunk comes in several slots: their bytes are joined in the first, and the others are
//! lent again. A send lends as many chunks as its bytes are in.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::program::STAMP;
use super::socket::{PATIENCE, Refused, Socket, SocketSpec, await_release};
use super::{HEADROOM, Xdp};
use crate::mem::{Desc, GUARD, Region, SlotLayout, prefetch};
use crate::provider::soft::cq::Now;
use crate::provider::soft::link::interface::to_wait_for;
use crate::provider::{Completions, QpCaps, WcStatus};
use crate::units::Ticks;

/// The state of a slot that is not lent.
const OURS: u8 = 0;
/// Of one that is to be received into; of one that is being sent: how many of its pieces are.
const POSTED: u8 = 0x80;

/// How long a queue that another socket still has is not asked for again.
const PAUSE: Duration = Duration::from_millis(1);

/// The shortest frame: an Ethernet header.
const LEAST_FRAME: usize = 14;

/// How slots are chunks.
#[derive(Clone, Copy, Debug)]
struct Geometry {
    layout: SlotLayout,
    /// Bytes of a chunk, as a power of two.
    shift: u32,
    /// Chunks of a slot.
    chunks: u32,
}

impl Geometry {
    /// `None`: slots of this layout are no whole chunks, or have too little headroom.
    fn new(layout: SlotLayout) -> Option<Self> {
        let shift = if layout.stride == 2048 { 11 } else { 12 };
        let whole = layout.stride.is_multiple_of(1 << shift);
        let sound = whole && layout.headroom >= HEADROOM && u32::from(layout.headroom) < (1 << shift) - GUARD as u32;
        sound.then_some(Self { layout, shift, chunks: layout.stride >> shift })
    }

    /// Bytes of a chunk.
    fn chunk(&self) -> u32 {
        1 << self.shift
    }

    #[inline]
    fn address(&self, slot: u32) -> u64 {
        u64::from(slot) * u64::from(self.layout.stride)
    }

    /// The slot that an address is in.
    #[inline]
    fn slot(&self, address: u64) -> u32 {
        let chunk = (address >> self.shift) as u32;
        if self.chunks == 1 { chunk } else { chunk / self.chunks }
    }
}

/// A send that is not over.
#[derive(Clone, Copy, Debug, Default)]
struct Sent {
    wr_id: u64,
    slot: u32,
    len: u16,
    signaled: bool,
    /// How it ends, where the kernel never had it: there was no socket any more, or no frame is as long.
    refused: Option<WcStatus>,
}

/// A send that is over.
pub(in crate::provider::soft) struct Over {
    pub(in crate::provider::soft) wr_id: u64,
    pub(in crate::provider::soft) status: WcStatus,
    pub(in crate::provider::soft) signaled: bool,
    /// Sends that are over since the queue pair's start, this one included.
    pub(in crate::provider::soft) count: u64,
    pub(in crate::provider::soft) len: u16,
}

/// What came in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::provider::soft) struct Received {
    pub(in crate::provider::soft) frames: u64,
    pub(in crate::provider::soft) bytes: u64,
    /// Frames that were longer than their slot.
    pub(in crate::provider::soft) too_long: u64,
}

/// One queue of an interface, as a queue pair has it.
#[derive(Debug)]
pub(in crate::provider::soft) struct Queue {
    xdp: Arc<Xdp>,
    index: u32,
    caps: QpCaps,
    // Before the geometry and the states that it stands for.
    socket: Option<Socket>,
    region: Option<Arc<Region>>,
    geometry: Option<Geometry>,
    /// The number of the interface that the socket is at.
    interface: u32,
    recv_wr_id: u64,
    /// By slot.
    states: Box<[u8]>,
    posted: usize,
    /// Whether the socket is at its queue, and whether frames go to it.
    bound: bool,
    /// Whether there was a socket at the queue before, whose end the kernel may take some time for.
    again: bool,
    /// Since when the queue is waited for, and when it is asked for again.
    waits: Option<(Instant, Instant)>,
    /// Whether it was waited for in vain.
    in_vain: bool,
    listens: bool,
    /// The next slot to be looked at when receives are flushed.
    flushed: u32,
    /// A ring of the sends that are not over, oldest first.
    sent: Box<[Sent]>,
    head: usize,
    sending: usize,
    /// Sends that were posted, and those that are over, since the queue pair's start.
    over: u64,
    busy: bool,
}

impl Queue {
    pub(in crate::provider::soft) fn new(xdp: Arc<Xdp>, index: u32, caps: QpCaps) -> Self {
        let busy = xdp.spec.busy_poll.is_some();
        Self {
            xdp,
            index,
            caps,
            socket: None,
            region: None,
            geometry: None,
            interface: 0,
            recv_wr_id: 0,
            states: Box::default(),
            posted: 0,
            bound: false,
            again: false,
            waits: None,
            in_vain: false,
            listens: false,
            flushed: 0,
            sent: Box::default(),
            head: 0,
            sending: 0,
            over: 0,
            busy,
        }
    }

    /// Makes the socket on the memory of the slots. Once it was closed it takes a new one to go on.
    pub(in crate::provider::soft) fn bind(
        &mut self,
        region: &Arc<Region>,
        layout: SlotLayout,
        recv_wr_id: u64,
    ) -> Result<(), i32> {
        let geometry = Geometry::new(layout).ok_or(libc::EINVAL)?;
        let caps = self.caps;
        self.close();
        self.clear();
        let sends = caps.send_depth.max(1).saturating_mul(geometry.chunks).next_power_of_two();
        let spec = SocketSpec {
            bytes: layout.bytes(),
            chunk: geometry.chunk(),
            headroom: u32::from(layout.headroom - HEADROOM),
            receives: caps.recv_depth.max(1).next_power_of_two(),
            sends,
            busy_poll: self.xdp.spec.busy_poll,
        };
        self.socket = Some(Socket::new(region, &spec).map_err(|refused| self.refused(refused))?);
        self.region = Some(region.clone());
        self.geometry = Some(geometry);
        self.recv_wr_id = recv_wr_id;
        self.states = vec![OURS; layout.count as usize].into();
        self.sent = vec![Sent::default(); caps.send_depth.max(1).next_power_of_two() as usize].into();
        Ok(())
    }

    fn refused(&self, refused: Refused) -> i32 {
        let errno = refused.error.raw_os_error().unwrap_or(libc::EIO);
        self.xdp.refused(self.index, &refused);
        errno
    }

    /// Begins to receive and to send. Where there was a socket at the queue before, that may take until a later poll.
    pub(in crate::provider::soft) fn open(&mut self) -> Result<(), i32> {
        self.waits = None;
        let patience = if self.again { Duration::ZERO } else { PATIENCE };
        match self.take_place(patience) {
            Err(libc::EBUSY) if self.again && !self.in_vain => {
                let now = Instant::now();
                self.waits = Some((now, now + PAUSE));
                Ok(())
            }
            other => other,
        }
    }

    /// Asks for the queue again, if it is waited for and the time has come.
    #[cold]
    fn ask_again(&mut self) {
        let Some((since, next)) = self.waits else { return };
        let now = Instant::now();
        if now < next {
            return;
        }
        self.waits = Some((since, now + PAUSE));
        match self.take_place(Duration::ZERO) {
            Ok(()) => self.waits = None,
            Err(libc::EBUSY) if now < since + PATIENCE => {}
            // The queue pair fails, and if the queue is not to be had then either, it cannot begin anew.
            Err(_) => (self.waits, self.in_vain) = (None, true),
        }
    }

    fn take_place(&mut self, patience: Duration) -> Result<(), i32> {
        let (Some(socket), Some(geometry)) = (&mut self.socket, self.geometry) else { return Err(libc::EINVAL) };
        if self.bound {
            return Ok(());
        }
        self.interface = self.xdp.interface();
        let several = self.xdp.longest > (geometry.chunk() - u32::from(geometry.layout.headroom)) as usize;
        match socket.bind(self.interface, self.index, self.xdp.spec.copying, several, patience) {
            Ok(why) => self.xdp.opened(self.index, socket.raw(), socket.zero_copy, why),
            Err(refused) => return Err(self.refused(refused)),
        }
        (self.bound, self.again, self.in_vain) = (true, true, false);
        self.listen()
    }

    /// Lets frames come in, once there is something to receive into: the frames of a queue that is only sent by go on to
    /// the kernel.
    #[cold]
    fn listen(&mut self) -> Result<(), i32> {
        let Some(socket) = self.socket.as_ref().filter(|_| self.bound && self.posted > 0 && !self.listens) else {
            return Ok(());
        };
        self.xdp.direct(self.index, socket).map_err(|error| self.refused(Refused { step: "the socket map", error }))?;
        self.listens = true;
        Ok(())
    }

    /// Takes everything back from the kernel. Returns how many frames had come in that nobody fetched.
    pub(in crate::provider::soft) fn close(&mut self) -> u64 {
        self.harvest();
        self.waits = None;
        let Some(mut socket) = self.socket.take() else { return 0 };
        let lost = u64::from(socket.rx.ready(u32::MAX));
        if self.bound {
            self.xdp.closes(self.index, socket.raw());
        }
        let zero_copy = socket.zero_copy;
        // In copy mode the kernel touches no memory any more when this returns.
        drop(socket);
        if let Some(region) = self.region.as_ref().filter(|_| zero_copy) {
            await_release(region, self.interface, self.index);
        }
        (self.bound, self.listens) = (false, false);
        lost
    }

    /// Forgets all that was posted. The socket is closed.
    pub(in crate::provider::soft) fn clear(&mut self) {
        self.states.fill(OURS);
        (self.posted, self.flushed, self.head, self.sending, self.over) = (0, 0, 0, 0, 0);
    }

    /// What is readable when something is in the RX ring.
    pub(in crate::provider::soft) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().filter(|_| self.bound).map(|socket| to_wait_for(socket.as_fd()))
    }

    /// Receives that may still be posted.
    #[inline]
    pub(in crate::provider::soft) fn space(&self) -> usize {
        if self.socket.is_some() { self.caps.recv_depth as usize - self.posted } else { 0 }
    }

    /// Receives that are posted.
    #[inline]
    pub(in crate::provider::soft) fn posted(&self) -> usize {
        self.posted
    }

    /// Lends slots to be received into. There is space, and the layout has them.
    #[inline]
    pub(in crate::provider::soft) fn post(&mut self, slots: &[u32]) {
        let (Some(socket), Some(geometry)) = (&mut self.socket, self.geometry) else { return };
        for &slot in slots {
            self.states[slot as usize] = POSTED;
            socket.fill.put(geometry.address(slot));
        }
        socket.fill.submit();
        self.posted += slots.len();
        if self.bound && !self.listens {
            // What went wrong is kept; nothing is received, and the interface's frames go to the kernel.
            let _ = self.listen();
        }
    }

    /// Receives into `run`, until it has `limit` entries.
    #[inline]
    pub(in crate::provider::soft) fn receive(&mut self, run: &mut Completions, limit: usize, now: Now) -> Received {
        let mut received = Received::default();
        let (Some(socket), Some(geometry)) = (&mut self.socket, self.geometry) else { return received };
        let room = geometry.layout.room();
        let headroom = u64::from(geometry.layout.headroom);
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
            self.states[slot as usize] = OURS;
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
            self.receive_others(run, limit, now, &mut received);
        } else if self.waits.is_some() {
            self.ask_again();
        } else if ready == 0 && (self.busy || socket.fill.needs_wakeup()) {
            socket.wake_rx();
        }
        received
    }

    /// The same for frames of several buffers, and for what is not as it should be.
    #[cold]
    fn receive_others(&mut self, run: &mut Completions, limit: usize, now: Now, received: &mut Received) {
        let ahead = self.xdp.ahead().filter(|_| now.by_wall);
        while run.len < limit
            && let Some((slot, status, len, came)) = self.join(ahead)
        {
            let Some(slot) = slot else { continue };
            run.push(self.recv_wr_id.wrapping_add(u64::from(slot)), status, len, came.unwrap_or(now.ticks));
            match status {
                WcStatus::Success => {
                    received.frames += 1;
                    received.bytes += u64::from(len);
                }
                _ => received.too_long += 1,
            }
        }
    }

    /// Takes one frame off, and joins its buffers in the slot of the first. `None`: no whole frame is there. Without a
    /// slot it was none that had been lent.
    #[cold]
    fn join(&mut self, ahead: Option<i64>) -> Option<(Option<u32>, WcStatus, u32, Option<Ticks>)> {
        let (socket, geometry) = (self.socket.as_mut()?, self.geometry?);
        let region = self.region.as_ref()?;
        let ready = socket.rx.ready(u32::MAX);
        let continued = |it: libc::xdp_desc| it.options & libc::XDP_PKT_CONTD != 0;
        let last = (0..ready).find(|ahead| !continued(socket.rx.peek(*ahead)))?;
        let (headroom, room) = (usize::from(geometry.layout.headroom), geometry.layout.room() as usize);
        let (mut first, mut len, mut fits, mut came) = (None::<u32>, 0, true, None);
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
                came = take_stamp(region, it.addr, ahead);
            }
            let into = *first.get_or_insert(slot);
            fits &= len + piece <= room;
            let to = geometry.address(into) as usize + headroom + len;
            if fits && to != it.addr as usize {
                // SAFETY: both are inside the region, whose first bytes are the slots: the source as just seen, the
                // destination in the room of a slot. Both slots are lent to this queue, and the kernel has given back
                // what it wrote. They may overlap.
                unsafe {
                    let base = region.base().as_ptr();
                    std::ptr::copy(base.add(it.addr as usize), base.add(to), piece);
                }
            }
            len += piece;
            if slot == into {
                self.states[slot as usize] = OURS;
                self.posted -= 1;
            } else {
                socket.fill.put(geometry.address(slot));
            }
        }
        socket.fill.submit();
        socket.rx.release(last + 1);
        let status = if fits { WcStatus::Success } else { WcStatus::LocLenErr };
        Some((first, status, len as u32, came))
    }

    /// The next receive that is flushed: its `wr_id`. The socket is closed.
    #[cold]
    pub(in crate::provider::soft) fn flush_receive(&mut self) -> Option<u64> {
        self.close();
        while let Some(state) = self.states.get_mut(self.flushed as usize) {
            let slot = self.flushed;
            self.flushed += 1;
            if *state == POSTED {
                *state = OURS;
                self.posted -= 1;
                return Some(self.recv_wr_id.wrapping_add(u64::from(slot)));
            }
        }
        None
    }

    /// Whether its socket is at an interface that has been made anew, or was to be at a queue that is not to be had.
    #[inline]
    pub(in crate::provider::soft) fn is_stale(&self) -> bool {
        self.bound && self.interface != self.xdp.interface() || self.in_vain
    }

    /// Lends packets to be sent. They are inside their slots, and there is space for all. The last is signalled, or every
    /// one. Without a socket they are flushed.
    #[inline]
    pub(in crate::provider::soft) fn send(&mut self, run: &[Desc], first_wr_id: u64, signal_all: bool) {
        let Some(geometry) = self.geometry else { return };
        let chunk = geometry.chunk();
        let mask = self.sent.len() - 1;
        for (at, desc) in run.iter().enumerate() {
            let mut addr = geometry.address(desc.slot) + u64::from(desc.offset);
            let mut len = u32::from(desc.len);
            let mut pieces = 1;
            let is_sound = (LEAST_FRAME..=self.xdp.longest).contains(&usize::from(desc.len));
            let refused = match &self.socket {
                None => Some(WcStatus::WrFlushErr),
                Some(_) => (!is_sound).then_some(WcStatus::LocLenErr),
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
            let sent = Sent { wr_id, slot: desc.slot, len: desc.len, signaled, refused };
            self.sent[(self.head + self.sending) & mask] = sent;
            self.sending += 1;
        }
        if let Some(socket) = &mut self.socket {
            socket.tx.submit();
            if socket.tx.needs_wakeup() {
                socket.wake_tx();
            }
        }
    }

    /// Takes note of what the kernel has sent.
    #[inline]
    fn harvest(&mut self) {
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

    /// Whether anything is being sent.
    #[inline]
    pub(in crate::provider::soft) fn sends(&self) -> bool {
        self.sending > 0
    }

    /// Looks what has been sent, and lets the kernel go on with what has not.
    #[inline]
    pub(in crate::provider::soft) fn look(&mut self) {
        self.harvest();
        if self.waits.is_some() {
            self.ask_again();
        } else if let Some(socket) = &self.socket
            && !socket.tx.is_drained()
            && socket.tx.needs_wakeup()
        {
            socket.wake_tx();
        }
    }

    /// The oldest send, if it is over. Sends end in the order in which they were posted, whatever the kernel's is.
    #[inline]
    pub(in crate::provider::soft) fn pop_sent(&mut self) -> Option<Over> {
        let it = *self.sent.get(self.head).filter(|_| self.sending > 0)?;
        let status = match it.refused {
            Some(refused) => refused,
            None if self.states[it.slot as usize] == OURS => WcStatus::Success,
            None if self.socket.is_some() => return None,
            None => {
                self.states[it.slot as usize] = OURS;
                WcStatus::WrFlushErr
            }
        };
        self.head = (self.head + 1) & (self.sent.len() - 1);
        self.sending -= 1;
        self.over += 1;
        let signaled = it.signaled || status != WcStatus::Success;
        Some(Over { wr_id: it.wr_id, status, signaled, count: self.over, len: it.len })
    }
}

/// What the program wrote before the frame at this place of a slot that the kernel has given back, on the wall clock, which is so
/// far ahead. It is taken off, so that it is nothing to the next frame.
#[inline]
fn take_stamp(region: &Region, address: u64, ahead: i64) -> Option<Ticks> {
    // SAFETY: the address is of a frame in a slot, with more than so many bytes of that slot before it, inside the region.
    // Nobody else has the slot. The numbers may lie at any place.
    let [nanos, turned] = unsafe {
        let place = region.base().as_ptr().add((address - STAMP) as usize).cast::<[u64; 2]>();
        let stamp = place.read_unaligned();
        place.write_unaligned([0; 2]);
        stamp
    };
    (nanos == !turned && nanos > 0).then(|| Ticks(nanos.wrapping_add_signed(ahead)))
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.close();
    }
}
