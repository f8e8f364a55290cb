//! A TAP interface, with the host at the other end of the wire (`Documentation/networking/tuntap.rst` of the kernel).
//!
//! Every queue has its own file descriptor. Each frame and each poll of an empty queue costs one system call. Offloads
//! are disabled, so the kernel completes checksums and splits large frames before it delivers them.

pub(super) mod config;
mod doctor;
mod hand_over;

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::epoll;

use crate::counters::Counting;
use crate::hand_over::HandOver;
use crate::link::interface::{Interface, Replacement, Request, Watcher, refused};
use crate::link::{Link, Sent, Wire};
use crate::rss::Rss;
use crate::status::Status;
use dataplane_core::clock::HostClock;
use dataplane_core::error::{Error, Result};
use dataplane_core::units::Nanos;
use dataplane_core::verbs::{QpSpec, WcStatus};

/// The device file that creates TAP interfaces.
const DEVICE: &str = "/dev/net/tun";
/// Maximum frame length of the kernel in bytes: a packet of 65,535 bytes, and an Ethernet header with two VLAN tags.
const LONGEST: usize = 65_535 + 22;
/// Maximum number of frames to discard when a queue is drained. The limit ends the loop if frames arrive as fast as the
/// loop discards them. The limit is larger than the kernel's queue.
const MOST_LEFT: u64 = 1 << 16;

/// A TAP interface. The device attaches to an existing interface, or creates a missing interface.
#[derive(Clone, Debug)]
pub struct TapSpec {
    /// The name of the interface.
    pub name: String,
    /// MAC address of the host's end. `None` keeps the current address.
    pub mac: Option<[u8; 6]>,
    /// MTU of the host's end, in bytes. With `None`, an existing interface keeps its MTU, and a new interface gets the
    /// MTU of the device.
    pub mtu: Option<u32>,
    /// Whether to set the interface up (`IFF_UP`).
    pub up: bool,
    /// Whether the interface stays when the device is dropped. An interface that was persistent before stays in any
    /// case.
    pub persistent: bool,
    /// Whether the queues receive nothing until they take over the queues of another program.
    pub takes_over: bool,
}

impl TapSpec {
    /// Creates a spec with these settings: the device sets the interface up (`IFF_UP`), and a new interface disappears
    /// when the device is dropped.
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), mac: None, mtu: None, up: true, persistent: false, takes_over: false }
    }
}

/// The link of a device, shared by all of its queues.
#[derive(Debug)]
pub(crate) struct Tap {
    spec: TapSpec,
    /// Whether completions have receive timestamps.
    stamped: bool,
    state: Mutex<TapState>,
}

#[derive(Debug)]
struct TapState {
    /// The index of the interface that the queues are attached to.
    index: u32,
    /// Attached queues that no queue pair uses.
    spare: Vec<Arc<OwnedFd>>,
    ends: Vec<TapEnd>,
    /// The number of queue pairs that receive frames. `None` before the first call of [`Link::distribute`]: all queue
    /// pairs.
    receiving: Option<u16>,
    /// Whether the queue pairs wait for the queues of another program.
    awaits: bool,
    /// The replacements of the queue pairs that stop reading, because another program takes over their queues.
    detached: Vec<Arc<QueueReplacement>>,
}

/// The replacement through which a queue pair gets a new list of queues.
type QueueReplacement = Replacement<Vec<Arc<OwnedFd>>>;

/// An open queue pair.
#[derive(Debug)]
struct TapEnd {
    /// The index of the queue pair.
    index: u16,
    replacement: Arc<QueueReplacement>,
    /// The queues that the queue pair reads. Empty if the queue pair receives no frames.
    queues: Vec<Arc<OwnedFd>>,
}

impl TapEnd {
    fn add(&mut self, queue: Arc<OwnedFd>) {
        self.queues.push(queue);
        self.replacement.put(self.queues.clone());
    }

    /// Gives away a queue if the queue pair has another queue too.
    fn give(&mut self) -> Option<Arc<OwnedFd>> {
        let queue = if self.queues.len() > 1 { self.queues.pop() } else { None }?;
        self.replacement.put(self.queues.clone());
        Some(queue)
    }
}

/// Returns whether the queue pair with this index receives frames. `receiving` is the number of queue pairs that
/// receive frames, or `None` for all queue pairs.
fn receives(receiving: Option<u16>, index: u16) -> bool {
    receiving.is_none_or(|queues| index < queues)
}

impl TapState {
    /// Returns the attached queues.
    fn attached(&self) -> impl Iterator<Item = &Arc<OwnedFd>> {
        self.ends.iter().flat_map(|end| &end.queues).chain(&self.spare)
    }
}

impl Tap {
    /// Creates the interface or attaches to an existing interface, and configures the interface.
    ///
    /// # Errors
    /// Fails with a suggested fix if the kernel refuses an operation.
    pub(super) fn open(spec: &TapSpec, device_mtu: u32, stamped: bool) -> Result<Self> {
        let refusal = |what: &str, error: &io::Error| refused(&spec.name, what, "CAP_NET_ADMIN", error);
        let found = Interface::find(&spec.name).map_err(|error| refusal("looking up the interface", &error))?;
        if spec.takes_over {
            let found = found.ok_or_else(|| {
                Error::Wire(format!(
                    "interface `{name}`: this network namespace has no such interface, because the TAP was deleted, \
                     renamed or moved to another namespace; help: rename the TAP (`ip link set NEW_NAME name {name}`), \
                     move the TAP back, or create the TAP again (`ip tuntap add {name} mode tap multi_queue`), then upgrade again",
                    name = spec.name
                ))
            })?;
            return Ok(Self::new(spec, stamped, found.index, None));
        }
        let was_there = found.is_some();
        let first = attach(&spec.name).map_err(|error| match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => {
                Error::Wire(format!("{DEVICE}: {error}; help: `modprobe tun`, or give the container this device"))
            }
            Some(libc::EINVAL) if was_there => Error::Wire(format!(
                "interface `{}` is not a TAP; help: choose the name of a TAP, or a new name to create a TAP",
                spec.name
            )),
            _ => refusal("opening the TAP", &error),
        })?;
        // A TAP has a carrier only while a program has a queue of the TAP.
        if found.is_some_and(|interface| interface.has_carrier) {
            tracing::warn!(
                "interface `{}`: another program uses the TAP too, so each program receives only a part of the flows",
                spec.name
            );
        }
        let mtu = spec.mtu.or_else(|| (!was_there).then_some(device_mtu));
        let index = configure(spec, mtu)
            .map_err(|error| refusal("setting the MAC address, the MTU or the state of the TAP", &error))?;
        if spec.persistent {
            let persist = tun(&first, libc::TUNSETPERSIST, 1);
            persist.map_err(|error| refusal("making the TAP persistent", &error))?;
        }
        Ok(Self::new(spec, stamped, index, Some(first)))
    }

    /// Creates the link for an interface with a first queue. Without a queue, the queue pairs wait for the queues of
    /// another program.
    fn new(spec: &TapSpec, stamped: bool, index: u32, first: Option<OwnedFd>) -> Self {
        let state = TapState {
            index,
            awaits: first.is_none(),
            spare: first.into_iter().map(Arc::new).collect(),
            ends: Vec::new(),
            receiving: None,
            detached: Vec::new(),
        };
        Self { spec: spec.clone(), stamped, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, TapState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Handles the current state of the interface. Returns whether the link is up.
    fn update(&self, found: Option<Interface>) -> bool {
        let mut state = self.state();
        match found {
            Some(now) if now.index == state.index => now.has_carrier,
            // The interface was removed, and a new interface has the same name.
            Some(now) => {
                let attached = self.reattach(&mut state, &now);
                // Log without the lock, because the logger of the program may call this module.
                drop(state);
                match attached {
                    Ok(()) => now.has_carrier,
                    Err(error) => {
                        let name = &self.spec.name;
                        tracing::warn!("interface `{name}`: cannot attach to the recreated TAP: {error}");
                        false
                    }
                }
            }
            // No interface has this name. If the queues are still attached, the interface was renamed or moved to
            // another network namespace, and still carries frames.
            None => {
                let is_attached = state.attached().any(|queue| tun_flags(queue).is_ok());
                if !is_attached {
                    // A new interface may get the index of the deleted interface.
                    state.index = 0;
                }
                is_attached
            }
        }
    }

    /// Attaches a queue of the new interface for each queue pair that receives frames.
    fn reattach(&self, state: &mut TapState, now: &Interface) -> io::Result<()> {
        let receiving = state.receiving;
        let needed = state.ends.iter().filter(|end| receives(receiving, end.index)).count();
        let attached: io::Result<Vec<_>> = (0..needed).map(|_| attach(&self.spec.name).map(Arc::new)).collect();
        let mut attached = attached?;
        state.spare.clear();
        for end in &mut state.ends {
            end.queues.clear();
            if receives(receiving, end.index) {
                attached.pop().into_iter().for_each(|queue| end.add(queue));
            }
        }
        state.index = now.index;
        Ok(())
    }

    /// Returns the queues for the queue pair with this index and this replacement. Returns no queue if the queue pair
    /// receives no frames yet.
    fn join(&self, index: u16, replacement: &Arc<QueueReplacement>) -> Result<Vec<Arc<OwnedFd>>, i32> {
        // Log without the lock, because the logger of the program may call this module.
        self.try_join(index, replacement).map_err(|error| {
            tracing::error!("{error}");
            libc::EBUSY
        })
    }

    fn try_join(&self, index: u16, replacement: &Arc<QueueReplacement>) -> Result<Vec<Arc<OwnedFd>>, Error> {
        let mut state = self.state();
        let mut queues = Vec::new();
        // A queue receives frames as soon as it is attached, so attach no queue for a queue pair that receives no
        // frames.
        if receives(state.receiving, index) && !state.awaits {
            queues.push(match state.spare.pop() {
                Some(queue) => queue,
                None => Arc::new(attach(&self.spec.name).map_err(|error| match error.raw_os_error() {
                    Some(libc::EBUSY) => self.single_queue(),
                    _ => refused(&self.spec.name, "opening a queue of the TAP", "CAP_NET_ADMIN", &error),
                })?),
            });
            // This queue pair also reads the spare queues that no later queue pair needs, because otherwise their
            // frames would be lost.
            let open = state.ends.iter().filter(|end| receives(state.receiving, end.index)).count();
            let needed = state.receiving.map_or(usize::MAX, |all| usize::from(all).saturating_sub(open + 1));
            let surplus = state.spare.len().saturating_sub(needed);
            queues.extend(state.spare.drain(..surplus));
        }
        state.ends.push(TapEnd { index, replacement: replacement.clone(), queues: queues.clone() });
        Ok(queues)
    }

    fn single_queue(&self) -> Error {
        Error::Wire(format!(
            "interface `{0}` has one queue, but there are several workers; help: set workers = 1 in [runtime], or create \
             the TAP with `ip tuntap add {0} mode tap multi_queue`",
            self.spec.name
        ))
    }

    /// Removes the queue pair with this replacement. Its queues stay attached for the next queue pair. Without an
    /// attached queue, the kernel would remove an interface that is not persistent. Returns whether the queue pair
    /// still had queues.
    fn leave(&self, replacement: &Arc<QueueReplacement>) -> bool {
        let mut state = self.state();
        let Some(at) = state.ends.iter().position(|end| Arc::ptr_eq(&end.replacement, replacement)) else {
            return false;
        };
        let end = state.ends.swap_remove(at);
        let has_queues = !end.queues.is_empty();
        state.spare.extend(end.queues);
        has_queues
    }

    /// Gives a queue to each queue pair whose index is below `receiving`. If a queue is detached, the kernel discards
    /// the frames of the queue. The queues of the other queue pairs therefore stay attached, and the queue pairs below
    /// `receiving` read these queues too.
    fn share_among(&self, receiving: u16) -> io::Result<()> {
        let mut state = self.state();
        state.receiving = Some(receiving);
        let is_receiving = |end: &TapEnd| receives(Some(receiving), end.index);
        if !state.ends.iter().any(is_receiving) {
            return Ok(());
        }
        let mut free = Vec::new();
        for end in state.ends.iter_mut().filter(|end| !is_receiving(end)) {
            if !end.queues.is_empty() {
                free.append(&mut end.queues);
                end.replacement.put(Vec::new());
            }
        }
        while let Some(at) = state.ends.iter().position(|end| is_receiving(end) && end.queues.is_empty()) {
            let queue = match free.pop().or_else(|| state.ends.iter_mut().find_map(TapEnd::give)) {
                Some(queue) => queue,
                None => Arc::new(attach(&self.spec.name)?),
            };
            state.ends[at].add(queue);
        }
        for queue in free {
            let readers = state.ends.iter_mut().filter(|end| is_receiving(end));
            readers.min_by_key(|end| end.queues.len()).into_iter().for_each(|end| end.add(queue.clone()));
        }
        Ok(())
    }
}

impl<End: From<TapPort>> Link<End> for Tap {
    fn end(self: Arc<Self>, spec: &QpSpec, _: &Arc<Rss>, _: &HostClock) -> End {
        TapPort::new(self, spec.queue.0).into()
    }

    fn check_queues(&self, queues: u16) -> Result<()> {
        let is_single = |queue: &Arc<OwnedFd>| Some(tun_flags(queue).ok()? & libc::IFF_MULTI_QUEUE == 0);
        let is_single = self.state().attached().find_map(is_single);
        if queues > 1 && is_single == Some(true) { Err(self.single_queue()) } else { Ok(()) }
    }

    fn distribute(&self, queues: u16) -> Result<()> {
        let shared = self.share_among(queues);
        shared.map_err(|error| refused(&self.spec.name, "changing the queues of the TAP", "CAP_NET_ADMIN", &error))
    }

    fn is_interface(&self) -> bool {
        true
    }

    /// Returns the interface and the source of timestamps, if completions have timestamps. A TAP interface has no
    /// clock, so the timestamp is the time of the poll.
    fn describe(&self) -> Option<String> {
        self.stamped.then(|| format!("{} (timestamps: poll)", self.spec.name))
    }

    fn hand_over(&self) -> Option<&dyn HandOver> {
        Some(self)
    }

    fn watch(self: Arc<Self>, status: &Arc<Status>) -> Result<Option<Watcher>> {
        let (name, status) = (self.spec.name.clone(), status.clone());
        let watcher = Watcher::start(&name, move |found| {
            let is_up = self.update(found);
            status.set_link(is_up);
            found.is_some() || is_up
        });
        watcher.map(Some)
    }
}

/// Attaches a queue to the interface `name`. If no interface has this name, the kernel creates the interface.
fn attach(name: &str) -> io::Result<OwnedFd> {
    let device = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(DEVICE)?;
    let queue = OwnedFd::from(device);
    let mut request = Request::new(name).ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
    let plain = libc::IFF_TAP | libc::IFF_NO_PI;
    request.ifreq.ifr_ifru.ifru_flags = (plain | libc::IFF_MULTI_QUEUE) as libc::c_short;
    match request.ask_by(&queue, libc::TUNSETIFF as _) {
        // The interface was created for a single queue.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            request.ifreq.ifr_ifru.ifru_flags = plain as libc::c_short;
            request.ask_by(&queue, libc::TUNSETIFF as _)?;
        }
        other => other?,
    }
    tun(&queue, libc::TUNSETOFFLOAD, 0)?;
    Ok(queue)
}

/// Executes an ioctl of the TAP driver that takes a number.
fn tun(queue: &OwnedFd, request: libc::Ioctl, value: libc::c_ulong) -> io::Result<()> {
    // SAFETY: the request passes no memory.
    let done = unsafe { libc::ioctl(queue.as_raw_fd(), request, value) };
    if done == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Returns the flags of the interface of a queue. Returns an error if the interface was removed.
fn tun_flags(queue: &OwnedFd) -> io::Result<libc::c_int> {
    let mut request = Request::new("-").ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
    request.ask_by(queue, libc::TUNGETIFF as _)?;
    // SAFETY: the request has just written the flags.
    Ok(libc::c_int::from(unsafe { request.ifreq.ifr_ifru.ifru_flags }))
}

/// Configures the host's end. Changes only settings that differ, so that an interface with the right settings needs no
/// privilege. Returns the interface index.
fn configure(spec: &TapSpec, mtu: Option<u32>) -> io::Result<u32> {
    let gone = || io::Error::from_raw_os_error(libc::ENODEV);
    let now = Interface::find(&spec.name)?.ok_or_else(gone)?;
    let mut request = Request::new(&spec.name).ok_or_else(gone)?;
    if let Some(mac) = spec.mac.filter(|mac| *mac != now.mac) {
        let mut sa_data = [0; 14];
        sa_data.iter_mut().zip(mac).for_each(|(to, byte)| *to = byte as libc::c_char);
        request.ifreq.ifr_ifru.ifru_hwaddr = libc::sockaddr { sa_family: libc::ARPHRD_ETHER, sa_data };
        request.ask(libc::SIOCSIFHWADDR)?;
    }
    if let Some(mtu) = mtu.filter(|mtu| *mtu != now.mtu) {
        request.ifreq.ifr_ifru.ifru_mtu = mtu as libc::c_int;
        request.ask(libc::SIOCSIFMTU)?;
    }
    if spec.up && !now.is_set_up {
        request.ask(libc::SIOCGIFFLAGS)?;
        // SAFETY: the request has just written the flags.
        let flags = unsafe { request.ifreq.ifr_ifru.ifru_flags };
        request.ifreq.ifr_ifru.ifru_flags = flags | libc::IFF_UP as libc::c_short;
        request.ask(libc::SIOCSIFFLAGS)?;
    }
    Ok(now.index)
}

/// A queue pair's end of the link.
#[derive(Debug)]
pub(crate) struct TapPort {
    tap: Arc<Tap>,
    /// The index of the queue pair.
    index: u16,
    /// The queues to read. Empty while the port is closed or receives no frames.
    queues: Vec<Arc<OwnedFd>>,
    /// The queue on which the port sends: the first queue of the last list that was not empty.
    sender: Option<Arc<OwnedFd>>,
    /// The index in `queues` of the next queue to read.
    next: usize,
    /// An epoll instance that is readable when a queue is readable. `None` if there is at most one queue.
    epoll: Option<OwnedFd>,
    replacement: Arc<QueueReplacement>,
    buffer: Box<[u8]>,
}

impl TapPort {
    fn new(tap: Arc<Tap>, index: u16) -> Self {
        let (queues, replacement, buffer) = (Vec::new(), Arc::default(), vec![0; LONGEST].into());
        Self { tap, index, queues, sender: None, next: 0, epoll: None, replacement, buffer }
    }

    fn drain(&mut self) -> u64 {
        (0..MOST_LEFT).take_while(|_| self.read().is_some()).count() as u64
    }

    /// Reads a frame into the buffer. Returns its length.
    #[inline]
    fn read(&mut self) -> Option<usize> {
        for _ in 0..self.queues.len() {
            let queue = self.queues.get(self.next)?;
            // SAFETY: the buffer is writable for the given length.
            let n = unsafe { libc::read(queue.as_raw_fd(), self.buffer.as_mut_ptr().cast(), self.buffer.len()) };
            self.next = if self.next + 1 < self.queues.len() { self.next + 1 } else { 0 };
            // Treat any error as "no frame". The watcher thread detects a removed interface.
            if let Some(n) = usize::try_from(n).ok().filter(|n| *n > 0) {
                return Some(n);
            }
        }
        None
    }

    /// Switches to the new queues, if there are any.
    #[inline]
    fn take_new_queues(&mut self) {
        if let Some(queues) = self.replacement.take() {
            self.set_queues(queues);
        }
    }

    #[cold]
    fn set_queues(&mut self, queues: Vec<Arc<OwnedFd>>) {
        (self.queues, self.next) = (queues, 0);
        self.sender = self.queues.first().cloned().or(self.sender.take());
        let watch = || {
            let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).ok()?;
            let data = epoll::EventData::new_u64(0);
            let add = |queue: &Arc<OwnedFd>| epoll::add(&epoll, queue, data, epoll::EventFlags::IN);
            self.queues.iter().try_for_each(add).ok()?;
            Some(epoll)
        };
        // If the epoll instance cannot be created, only frames of the first queue wake a worker that sleeps.
        self.epoll = if self.queues.len() > 1 { watch() } else { None };
    }
}

impl Drop for TapPort {
    fn drop(&mut self) {
        self.tap.leave(&self.replacement);
    }
}

impl Wire for TapPort {
    fn open(&mut self) -> Result<(), i32> {
        self.close();
        let queues = self.tap.join(self.index, &self.replacement)?;
        self.set_queues(queues);
        // Discard the frames that arrived before this queue pair started to receive.
        self.drain();
        Ok(())
    }

    fn close(&mut self) -> u64 {
        let has_queues = self.tap.leave(&self.replacement);
        self.take_new_queues();
        // If this queue pair has no queues any more, another queue pair reads these queues, and drains the frames.
        let left = if has_queues { self.drain() } else { 0 };
        self.set_queues(Vec::new());
        (self.sender, self.replacement) = (None, Arc::default());
        left
    }

    fn is_interface(&self) -> bool {
        true
    }

    /// Returns `None` if the interface was removed, because the descriptor of its queue is then always readable.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        let first = self.queues.first().filter(|queue| tun_flags(queue).is_ok())?;
        Some(self.epoll.as_ref().map_or(first.as_fd(), |epoll| epoll.as_fd()))
    }

    #[inline]
    fn take(&mut self, _: &Counting, deliver: impl FnOnce(&[u8], Option<Nanos>)) -> bool {
        self.take_new_queues();
        let Some(n) = self.read() else { return false };
        deliver(&self.buffer[..n], None);
        true
    }

    #[inline]
    fn send(&mut self, frame: &[u8], counts: &Counting) -> Result<Sent, WcStatus> {
        // `Wire::take` also takes a new queue, but a port that only sends never calls `Wire::take`.
        self.take_new_queues();
        let written = self.sender.as_ref().map_or(Err(libc::EBADFD), |queue| {
            // SAFETY: the frame is readable for the given length.
            let n = unsafe { libc::write(queue.as_raw_fd(), frame.as_ptr().cast(), frame.len()) };
            if n == -1 { Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)) } else { Ok(()) }
        });
        written.map(|()| Sent::Gone).map_err(|errno| {
            match errno {
                libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM => counts.tx_queue_full.add(1),
                // The interface is down (EIO) or removed (EBADFD).
                libc::EIO | libc::EBADFD | libc::ENODEV => counts.tx_link_down.add(1),
                _ => counts.tx_refused.add(1),
            }
            WcStatus::GeneralErr
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn take_over_of_a_missing_tap_names_the_causes() {
        let spec = TapSpec { takes_over: true, ..TapSpec::new("no-such") };
        let error = Tap::open(&spec, 1500, false).map(drop).unwrap_err().to_string();
        let cause = "the TAP was deleted, renamed or moved to another namespace; help:";
        assert!(error.contains("`no-such`") && error.contains(cause), "{error}");
    }
}
