//! A TAP interface: the host is at the other end of the wire (`Documentation/networking/tuntap.rst` of the kernel).
//!
//! Every queue has a descriptor of its own. Every frame is a system call, and so is looking at an empty queue. The kernel
//! is told to leave nothing undone: checksums are complete, and no frame is several.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::error::{Error, Result};
use crate::provider::WcStatus;
use crate::provider::soft::counters::Counting;
use crate::provider::soft::link::interface::{Handover, Interface, Request, Watcher, refused};
use crate::provider::soft::status::Status;

/// The device that makes them.
const DEVICE: &str = "/dev/net/tun";
/// The longest frame that the kernel has: 64 KiB of packet and its Ethernet header with two tags.
const LONGEST: usize = 65_535 + 22;
/// Frames that are thrown away at the end of a queue: more than the kernel's queue holds are still coming.
const MOST_LEFT: u64 = 1 << 16;

/// A TAP interface. One that is there is attached to; otherwise it is made.
#[derive(Clone, Debug)]
pub struct TapSpec {
    /// Its name.
    pub name: String,
    /// The MAC address of the host's end. `None`: as it is.
    pub mac: Option<[u8; 6]>,
    /// The MTU of the host's end, in bytes. `None`: as it is; of one that is made, that of the device.
    pub mtu: Option<u32>,
    /// Whether it is set up (`IFF_UP`).
    pub up: bool,
    /// Whether it stays when the device is gone.
    pub persistent: bool,
}

impl TapSpec {
    /// One that is set up, and gone with the device.
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), mac: None, mtu: None, up: true, persistent: false }
    }
}

/// The link of a device: what all of its queues share.
#[derive(Debug)]
pub(in crate::provider::soft) struct Tap {
    spec: TapSpec,
    /// Completions are to say when frames came in.
    stamped: bool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The number of the interface that the queues are of.
    index: u32,
    /// Queues that are attached and nobody's.
    spare: Vec<Arc<OwnedFd>>,
    /// Queues that queue pairs have.
    queues: Vec<Weak<OwnedFd>>,
    /// Where the queue pairs hear of new ones.
    ends: Vec<Weak<Handover<Arc<OwnedFd>>>>,
}

impl Tap {
    /// Makes the interface, or attaches to it, and makes it as it is to be.
    ///
    /// # Errors
    /// The kernel refuses; with what to do.
    pub(super) fn open(spec: &TapSpec, device_mtu: u32, stamped: bool) -> Result<Self> {
        let said = |what: &str, error: &io::Error| refused(&spec.name, what, "CAP_NET_ADMIN", error);
        let was_there = Interface::find(&spec.name).map_err(|error| said("a TAP", &error))?.is_some();
        let first = attach(&spec.name).map_err(|error| match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => {
                Error::Wire(format!("{DEVICE}: {error}: `modprobe tun`, or give the container this device"))
            }
            Some(libc::EINVAL) if was_there => Error::Wire(format!(
                "interface `{}` is no TAP: name another, or none that is there, so that it is made",
                spec.name
            )),
            _ => said("a TAP", &error),
        })?;
        let mtu = spec.mtu.or_else(|| (!was_there).then_some(device_mtu));
        let index = arrange(spec, mtu).map_err(|error| said("its MAC address, MTU or state", &error))?;
        if spec.persistent {
            let persist = tun(&first, libc::TUNSETPERSIST, 1);
            persist.map_err(|error| said("to be persistent", &error))?;
        }
        let state = State { index, spare: vec![Arc::new(first)], queues: Vec::new(), ends: Vec::new() };
        Ok(Self { spec: spec.clone(), stamped, state: Mutex::new(state) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whose stamps those of its frames are, where they have any: a TAP has no clock.
    pub(super) fn describe(&self) -> Option<String> {
        self.stamped.then(|| format!("{} (stamps: the poll's)", self.spec.name))
    }

    /// Begins to watch the interface.
    pub(super) fn watch(self: &Arc<Self>, status: Arc<Status>) -> Result<Watcher> {
        let tap = self.clone();
        Watcher::start(&self.spec.name, move |found| {
            status.set_link(tap.look(found));
        })
    }

    /// Whether frames get somewhere.
    fn look(&self, found: Option<Interface>) -> bool {
        let mut state = self.state();
        match found {
            Some(now) if now.index == state.index => now.has_carrier,
            // It was removed, and there is another of its name.
            Some(now) => self.come_back(&mut state, &now).is_ok() && now.has_carrier,
            // Where its queues still have it, it was moved to another network namespace or renamed: it works as before.
            None => {
                let queues: Vec<_> = state.queues.iter().filter_map(Weak::upgrade).collect();
                queues.iter().chain(&state.spare).any(|queue| tun_name(queue).is_ok())
            }
        }
    }

    /// Attaches all queues anew.
    fn come_back(&self, state: &mut State, now: &Interface) -> io::Result<()> {
        state.ends.retain(|end| end.strong_count() > 0);
        let ends: Vec<_> = state.ends.iter().filter_map(Weak::upgrade).collect();
        let made: io::Result<Vec<_>> = ends.iter().map(|_| attach(&self.spec.name).map(Arc::new)).collect();
        let made = made.inspect_err(|error| tracing::warn!("{}: a TAP: {error}", self.spec.name))?;
        state.spare.clear();
        state.queues = made.iter().map(Arc::downgrade).collect();
        ends.iter().zip(made).for_each(|(end, queue)| end.put(queue));
        state.index = now.index;
        Ok(())
    }

    /// A queue pair gets its queue.
    fn join(&self, end: &Arc<Handover<Arc<OwnedFd>>>) -> Result<Arc<OwnedFd>, i32> {
        let mut state = self.state();
        let queue = match state.spare.pop() {
            Some(queue) => queue,
            None => Arc::new(attach(&self.spec.name).map_err(|error| {
                let error = match error.raw_os_error() {
                    Some(libc::EBUSY) => Error::Wire(format!(
                        "interface `{0}` has one queue, and there are more workers: set workers = 1 in [runtime], or \
                         make it with `ip tuntap add {0} mode tap multi_queue`",
                        self.spec.name
                    )),
                    _ => refused(&self.spec.name, "a queue of the TAP", "CAP_NET_ADMIN", &error),
                };
                tracing::error!("{error}");
                libc::EBUSY
            })?),
        };
        state.queues.retain(|queue| queue.strong_count() > 0);
        state.queues.push(Arc::downgrade(&queue));
        state.ends.retain(|other| other.strong_count() > 0);
        state.ends.push(Arc::downgrade(end));
        Ok(queue)
    }

    /// A queue pair gives its queue back. It stays attached, for the next: where it is the last of an interface that does
    /// not stay by itself, that would go with it.
    fn leave(&self, queue: Arc<OwnedFd>) {
        self.state().spare.push(queue);
    }
}

/// Attaches a queue, to an interface that is there or is made.
fn attach(name: &str) -> io::Result<OwnedFd> {
    let device = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(DEVICE)?;
    let queue = OwnedFd::from(device);
    let mut request = Request::new(name).ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
    let plain = libc::IFF_TAP | libc::IFF_NO_PI;
    request.ifreq.ifr_ifru.ifru_flags = (plain | libc::IFF_MULTI_QUEUE) as libc::c_short;
    match request.ask_by(&queue, libc::TUNSETIFF as _) {
        // One that was made for a single queue.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            request.ifreq.ifr_ifru.ifru_flags = plain as libc::c_short;
            request.ask_by(&queue, libc::TUNSETIFF as _)?;
        }
        other => other?,
    }
    tun(&queue, libc::TUNSETOFFLOAD, 0)?;
    Ok(queue)
}

/// A request of tun(4) that takes a number.
fn tun(queue: &OwnedFd, request: libc::Ioctl, value: libc::c_ulong) -> io::Result<()> {
    // SAFETY: no memory is named.
    let done = unsafe { libc::ioctl(queue.as_raw_fd(), request, value) };
    if done == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Whether a queue still has its interface.
fn tun_name(queue: &OwnedFd) -> io::Result<()> {
    let mut request = Request::new("-").ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
    request.ask_by(queue, libc::TUNGETIFF as _)
}

/// Makes the host's end as it is to be, as far as it is not: that may need no privilege. Returns its number.
fn arrange(spec: &TapSpec, mtu: Option<u32>) -> io::Result<u32> {
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

/// The end that a queue pair has.
#[derive(Debug)]
pub(in crate::provider::soft) struct TapPort {
    tap: Arc<Tap>,
    /// While it receives.
    queue: Option<Arc<OwnedFd>>,
    handover: Arc<Handover<Arc<OwnedFd>>>,
    buffer: Box<[u8]>,
}

impl TapPort {
    pub(super) fn new(tap: Arc<Tap>) -> Self {
        Self { tap, queue: None, handover: Arc::default(), buffer: vec![0; LONGEST].into() }
    }

    /// Begins to receive.
    ///
    /// # Errors
    /// The kernel gives no queue, and why: an `errno`.
    pub(super) fn open(&mut self) -> Result<(), i32> {
        self.handover = Arc::default();
        self.queue = Some(self.tap.join(&self.handover)?);
        // What came while nobody was to receive is lost, and was not for this queue pair.
        self.drain();
        Ok(())
    }

    /// Stops to receive. Returns how many frames were under way, which are lost.
    pub(super) fn close(&mut self) -> u64 {
        let left = self.drain();
        if let Some(queue) = self.queue.take() {
            self.tap.leave(queue);
        }
        left
    }

    fn drain(&mut self) -> u64 {
        (0..MOST_LEFT).take_while(|_| self.read().is_some()).count() as u64
    }

    /// Reads a frame into the buffer; returns its length.
    #[inline]
    fn read(&mut self) -> Option<usize> {
        let queue = self.queue.as_ref()?;
        // SAFETY: the buffer is writable for as long as is said.
        let n = unsafe { libc::read(queue.as_raw_fd(), self.buffer.as_mut_ptr().cast(), self.buffer.len()) };
        // Whatever the error: nothing has come. Whether the interface is still there is the watcher's affair.
        usize::try_from(n).ok().filter(|n| *n > 0)
    }

    /// What is readable when a frame has come in. A queue whose interface was removed is so for ever.
    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.queue.as_ref().filter(|queue| tun_name(queue).is_ok()).map(|queue| queue.as_fd())
    }

    /// Takes a new queue where the interface was removed and has come back.
    #[inline]
    fn renew(&mut self) {
        if let Some(queue) = self.handover.take() {
            self.queue = Some(queue);
        }
    }

    /// Hands the next frame over, if one has come in.
    #[inline]
    pub(super) fn take(&mut self, deliver: impl FnOnce(&[u8])) -> bool {
        self.renew();
        let Some(n) = self.read() else { return false };
        deliver(&self.buffer[..n]);
        true
    }

    /// Sends a frame.
    #[inline]
    pub(super) fn send(&mut self, frame: &[u8], counts: &Counting) -> Result<(), WcStatus> {
        // A port that only sends is never asked for what came in.
        self.renew();
        let written = self.queue.as_ref().map_or(Err(libc::EBADFD), |queue| {
            // SAFETY: the frame is readable for as long as is said.
            let n = unsafe { libc::write(queue.as_raw_fd(), frame.as_ptr().cast(), frame.len()) };
            if n == -1 { Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)) } else { Ok(()) }
        });
        written.map_err(|errno| {
            match errno {
                libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM => counts.tx_queue_full.add(1),
                // It is down (EIO), or removed (EBADFD).
                libc::EIO | libc::EBADFD | libc::ENODEV => counts.tx_link_down.add(1),
                _ => counts.tx_refused.add(1),
            }
            WcStatus::GeneralErr
        })
    }
}
