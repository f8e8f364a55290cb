//! A TAP interface, with the host at the other end of the wire (`Documentation/networking/tuntap.rst` of the kernel).
//!
//! Every queue has its own file descriptor. Each frame and each poll of an empty queue costs one system call. Offloads
//! are disabled, so the kernel completes checksums and splits large frames before it delivers them.

pub(super) mod config;
mod doctor;

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::counters::Counting;
use crate::link::interface::{Handover, Interface, Request, Watcher, refused};
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
    /// Name of the interface.
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
}

impl TapSpec {
    /// Creates a spec with these settings: the device sets the interface up (`IFF_UP`), and a new interface disappears
    /// when the device is dropped.
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), mac: None, mtu: None, up: true, persistent: false }
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
    /// Index of the interface that the queues are attached to.
    index: u32,
    /// Attached queues that no queue pair uses.
    spare: Vec<Arc<OwnedFd>>,
    /// Queues that queue pairs use.
    queues: Vec<Weak<OwnedFd>>,
    /// The handovers through which queue pairs get new queues after the interface was removed and recreated.
    ends: Vec<Weak<Handover<Arc<OwnedFd>>>>,
}

impl Tap {
    /// Creates the interface or attaches to an existing interface, and configures the interface.
    ///
    /// # Errors
    /// Fails with a suggested fix if the kernel refuses an operation.
    pub(super) fn open(spec: &TapSpec, device_mtu: u32, stamped: bool) -> Result<Self> {
        let refusal = |what: &str, error: &io::Error| refused(&spec.name, what, "CAP_NET_ADMIN", error);
        let found = Interface::find(&spec.name).map_err(|error| refusal("looking up the interface", &error))?;
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
        let state = TapState { index, spare: vec![Arc::new(first)], queues: Vec::new(), ends: Vec::new() };
        Ok(Self { spec: spec.clone(), stamped, state: Mutex::new(state) })
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
                let queues: Vec<_> = state.queues.iter().filter_map(Weak::upgrade).collect();
                let is_attached = queues.iter().chain(&state.spare).any(|queue| tun_name(queue).is_ok());
                if !is_attached {
                    // A new interface may get the index of the deleted interface.
                    state.index = 0;
                }
                is_attached
            }
        }
    }

    /// Attaches all queues to the new interface.
    fn reattach(&self, state: &mut TapState, now: &Interface) -> io::Result<()> {
        state.ends.retain(|end| end.strong_count() > 0);
        let ends: Vec<_> = state.ends.iter().filter_map(Weak::upgrade).collect();
        let attached: io::Result<Vec<_>> = ends.iter().map(|_| attach(&self.spec.name).map(Arc::new)).collect();
        let attached = attached?;
        state.spare.clear();
        state.queues = attached.iter().map(Arc::downgrade).collect();
        ends.iter().zip(attached).for_each(|(end, queue)| end.put(queue));
        state.index = now.index;
        Ok(())
    }

    /// Returns the queue for the queue pair with this handover.
    fn join(&self, end: &Arc<Handover<Arc<OwnedFd>>>) -> Result<Arc<OwnedFd>, i32> {
        // Log without the lock, because the logger of the program may call this module.
        self.try_join(end).map_err(|error| {
            tracing::error!("{error}");
            libc::EBUSY
        })
    }

    fn try_join(&self, end: &Arc<Handover<Arc<OwnedFd>>>) -> Result<Arc<OwnedFd>, Error> {
        let mut state = self.state();
        let queue = match state.spare.pop() {
            Some(queue) => queue,
            None => Arc::new(attach(&self.spec.name).map_err(|error| match error.raw_os_error() {
                Some(libc::EBUSY) => Error::Wire(format!(
                    "interface `{0}` has one queue, but there are several workers; help: set workers = 1 in \
                     [runtime], or create the TAP with `ip tuntap add {0} mode tap multi_queue`",
                    self.spec.name
                )),
                _ => refused(&self.spec.name, "opening a queue of the TAP", "CAP_NET_ADMIN", &error),
            })?),
        };
        state.queues.retain(|queue| queue.strong_count() > 0);
        state.queues.push(Arc::downgrade(&queue));
        state.ends.retain(|other| other.strong_count() > 0);
        state.ends.push(Arc::downgrade(end));
        Ok(queue)
    }

    /// Takes a queue back from a queue pair. The queue stays attached for the next queue pair. Without an attached
    /// queue, the kernel would remove an interface that is not persistent.
    fn leave(&self, queue: Arc<OwnedFd>) {
        self.state().spare.push(queue);
    }
}

impl<End: From<TapPort>> Link<End> for Tap {
    fn end(self: Arc<Self>, _: &QpSpec, _: &Arc<Rss>, _: &HostClock) -> End {
        TapPort::new(self).into()
    }

    fn is_interface(&self) -> bool {
        true
    }

    /// Returns the interface and the source of timestamps, if completions have timestamps. A TAP interface has no
    /// clock, so the timestamp is the time of the poll.
    fn describe(&self) -> Option<String> {
        self.stamped.then(|| format!("{} (timestamps: poll)", self.spec.name))
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

/// Checks that the queue still has an interface. Returns an error if the interface was removed.
fn tun_name(queue: &OwnedFd) -> io::Result<()> {
    let mut request = Request::new("-").ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
    request.ask_by(queue, libc::TUNGETIFF as _)
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
    /// `Some` while the port is open.
    queue: Option<Arc<OwnedFd>>,
    handover: Arc<Handover<Arc<OwnedFd>>>,
    buffer: Box<[u8]>,
}

impl TapPort {
    fn new(tap: Arc<Tap>) -> Self {
        Self { tap, queue: None, handover: Arc::default(), buffer: vec![0; LONGEST].into() }
    }

    fn drain(&mut self) -> u64 {
        (0..MOST_LEFT).take_while(|_| self.read().is_some()).count() as u64
    }

    /// Reads a frame into the buffer. Returns its length.
    #[inline]
    fn read(&mut self) -> Option<usize> {
        let queue = self.queue.as_ref()?;
        // SAFETY: the buffer is writable for the given length.
        let n = unsafe { libc::read(queue.as_raw_fd(), self.buffer.as_mut_ptr().cast(), self.buffer.len()) };
        // Treat any error as "no frame". The watcher thread detects a removed interface.
        usize::try_from(n).ok().filter(|n| *n > 0)
    }

    /// Switches to the new queue if the interface was removed and created again.
    #[inline]
    fn take_new_queue(&mut self) {
        if let Some(queue) = self.handover.take() {
            self.queue = Some(queue);
        }
    }
}

impl Wire for TapPort {
    fn open(&mut self) -> Result<(), i32> {
        self.handover = Arc::default();
        self.queue = Some(self.tap.join(&self.handover)?);
        // Discard the frames that arrived before this queue pair started to receive.
        self.drain();
        Ok(())
    }

    fn close(&mut self) -> u64 {
        let left = self.drain();
        if let Some(queue) = self.queue.take() {
            self.tap.leave(queue);
        }
        left
    }

    fn is_interface(&self) -> bool {
        true
    }

    /// Returns `None` if the interface was removed, because the descriptor of its queue is then always readable.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.queue.as_ref().filter(|queue| tun_name(queue).is_ok()).map(|queue| queue.as_fd())
    }

    #[inline]
    fn take(&mut self, _: &Counting, deliver: impl FnOnce(&[u8], Option<Nanos>)) -> bool {
        self.take_new_queue();
        let Some(n) = self.read() else { return false };
        deliver(&self.buffer[..n], None);
        true
    }

    #[inline]
    fn send(&mut self, frame: &[u8], counts: &Counting) -> Result<Sent, WcStatus> {
        // `Wire::take` also takes a new queue, but a port that only sends never calls `Wire::take`.
        self.take_new_queue();
        let written = self.queue.as_ref().map_or(Err(libc::EBADFD), |queue| {
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
