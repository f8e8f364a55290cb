//! A kernel interface with AF_XDP (`Documentation/networking/af_xdp.rst` of the kernel). The kernel writes received
//! frames to the worker's packet memory, and reads sent frames from this memory.
//!
//! The worker's packet memory is the UMEM of its sockets. A slot (packet buffer) consists of one or more chunks of the
//! UMEM. A posted receive is an entry of the fill ring, and a send is an entry of the TX ring. Completions come from
//! the RX ring and the completion ring. All sockets of a worker use the same memory region. A packet that one interface
//! receives and another interface sends is therefore never copied by this program.
//!
//! An XDP program redirects frames to the sockets ([`Filter`]). A `bpf_link` attaches the program to the interface. The
//! process holds the descriptor of the `bpf_link`, so the kernel detaches the program when the process ends, even after
//! a crash.

mod bpf;
pub(super) mod btf;
pub(super) mod config;
pub(super) mod doctor;
mod facts;
mod hand_over;
mod handed;
mod open_link;
mod program;
mod queue;
mod ring;
mod socket;
mod spec;
mod statistics;
#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::{AsFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

pub use facts::{XdpFacts, XdpProgram, XdpSupport};
use facts::{driver_reports_nic_time, xdp_program};
use handed::{Detaching, HandedSocket};
use program::StampSource;
pub(crate) use queue::{CompletedSend, Queue, Received};
use socket::XdpSocket;
pub use spec::{BusyPoll, Copying, Filter, Mode, Selector, XdpSpec};
use statistics::{Reading, increase, read_counters};

use crate::SoftCounters;
use crate::link::interface::ethtool::receive_queues;
use crate::link::interface::{Interface, PromiscuousMode, host_help, stamps};
use dataplane_core::error::{Error, Result};
use dataplane_core::file::host_remedy;
use dataplane_core::mem::Notice;

/// Minimum number of entries of the map of sockets.
const LEAST_QUEUES: u32 = 64;

/// Bytes that the kernel reserves before every frame: `XDP_PACKET_HEADROOM`. Slots have at least this much headroom.
pub const HEADROOM: u16 = 256;

/// The link: an XDP program on an interface, and the sockets to which the program redirects frames.
#[derive(Debug)]
pub(crate) struct Xdp {
    spec: XdpSpec,
    /// Maximum frame length, in bytes.
    longest: usize,
    /// Whether the XDP program writes a timestamp (stamp) before each frame.
    stamped: bool,
    /// The wall-clock time minus the time of the clock from which the program takes its stamps, in nanoseconds.
    ahead: AtomicI64,
    map: bpf::SocketMap,
    program: bpf::Program,
    /// The current [`InterfaceEpoch`], as a number.
    epoch: AtomicU64,
    attachment: Mutex<Attachment>,
    sockets: Mutex<Sockets>,
    /// Whether new queue pairs wait for the sockets of another program.
    awaits: AtomicBool,
    /// The sockets of another program that no queue pair has taken yet.
    handed: Mutex<Vec<HandedSocket>>,
    /// `Some` while another program takes the queues over.
    detaching: Mutex<Option<Detaching>>,
}

/// The interface that the program is attached to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct InterfaceEpoch {
    /// The index of the interface. 0 while the program is not attached, because the interface does not exist.
    index: u32,
    /// The number of attachments and detachments. A new interface can have the index of a deleted interface, and this
    /// number distinguishes the two. The sockets of the deleted interface stay unusable.
    generation: u32,
}

impl InterfaceEpoch {
    fn from_number(number: u64) -> Self {
        Self { index: number as u32, generation: (number >> 32) as u32 }
    }

    fn number(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }
}

/// The attachment of the program to the interface.
#[derive(Debug, Default)]
struct Attachment {
    /// Dropping `attached` detaches the program. Dropping `_promiscuous` ends promiscuous mode.
    attached: Option<bpf::Attached>,
    _promiscuous: Option<PromiscuousMode>,
    /// Whether the program runs in the driver.
    native: bool,
    /// Whether the stamps come from the NIC's clock.
    by_nic: bool,
    /// Whether the attached program is the program of another program that this program has taken over.
    is_foreign: bool,
}

/// The open sockets, and the counters of closed sockets.
#[derive(Debug, Default)]
struct Sockets {
    open: Vec<OpenSocket>,
    /// The summed counters of closed sockets.
    retired: SoftCounters,
    /// Whether the most recently opened socket is zero-copy.
    zero_copy: bool,
    /// The reason why a queue has no socket, or why the program could not be attached again.
    trouble: Option<String>,
}

#[derive(Debug)]
struct OpenSocket {
    queue: u32,
    fd: RawFd,
    /// The last reading of the other program, if this program has taken over the socket. Otherwise 0.
    before: Reading,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Xdp {
    /// Loads the program and attaches it to the interface. The frames of a queue go to the kernel until the queue has a
    /// socket.
    pub(super) fn open(spec: &XdpSpec, longest: usize, stamped: bool) -> Result<Self> {
        let name = &spec.interface;
        let interface = Interface::need(name)?;
        check_queues(name, spec.queues.into())?;
        // A later change may add queues.
        let most = receive_queues(name).unwrap_or(0).max(u32::from(spec.queues)).max(LEAST_QUEUES);
        let map = bpf::SocketMap::new(most);
        let map = map.map_err(|error| Error::Wire(explain(name, "creating the map of AF_XDP sockets", &error)))?;
        let stamp = if stamped { StampSource::Kernel } else { StampSource::Nothing };
        let Some(code) = program::program(&spec.filter, program::Taken::Socket(map.fd()), stamp) else {
            return Err(Error::Wire(format!("interface `{name}`: the filter is too long; help: use fewer selectors")));
        };
        let program = bpf::Program::load(&code);
        let program = program.map_err(|error| Error::Wire(explain(name, "loading the XDP program", &error)))?;
        let xdp = Self {
            spec: spec.clone(),
            longest,
            stamped,
            ahead: AtomicI64::new(0),
            map,
            program,
            epoch: AtomicU64::new(0),
            attachment: Mutex::default(),
            sockets: Mutex::default(),
            awaits: spec.takes_over.into(),
            handed: Mutex::default(),
            detaching: Mutex::default(),
        };
        match spec.takes_over {
            // The program of the other program stays attached until the hand-over.
            true => xdp.set_index(interface.index),
            false => xdp.attach_program(interface.index)?,
        }
        Ok(xdp)
    }

    fn attach_program(&self, index: u32) -> Result<()> {
        let name = &self.spec.interface;
        let modes: &[bpf::Attach] = match self.spec.mode {
            Mode::Auto => &[bpf::Attach::Native, bpf::Attach::Generic],
            Mode::Native => &[bpf::Attach::Native],
            Mode::Generic => &[bpf::Attach::Generic],
        };
        // `bound` logs, so call it without the lock: the logger of the program may call this module.
        let bound = self.bound(index);
        let mut attachment = lock(&self.attachment);
        // Detach from an interface that is gone.
        *attachment = Attachment::default();
        let promiscuous = self.spec.promiscuous.then(|| PromiscuousMode::of(index)).transpose();
        let promiscuous = promiscuous.map_err(|error| Error::Wire(explain(name, "promiscuous mode", &error)))?;
        // Only native mode can run a program that is bound to an interface.
        let with_nic = bound.iter().filter(|_| modes.contains(&bpf::Attach::Native));
        let with_nic = with_nic.map(|program| (program, bpf::Attach::Native, true));
        let mut why: Option<io::Error> = None;
        for (program, mode, by_nic) in with_nic.chain(modes.iter().map(|mode| (&self.program, *mode, false))) {
            match program.attach(index, mode) {
                Ok(attached) => {
                    let native = mode == bpf::Attach::Native;
                    *attachment = Attachment {
                        attached: Some(attached),
                        _promiscuous: promiscuous,
                        native,
                        by_nic,
                        is_foreign: false,
                    };
                    drop(attachment);
                    self.update_clock_offset();
                    if let Some(error) = why.as_ref().filter(|_| bound.is_some() && !by_nic) {
                        stamps::warn_kernel_stamps(name, error);
                    }
                    if let Some(why) = why.filter(|_| !native) {
                        warn(name, &without_native(name, &why));
                    }
                    self.set_index(index);
                    return Ok(());
                }
                // No other mode would fix these errors.
                Err(error)
                    if matches!(
                        error.raw_os_error(),
                        Some(libc::EBUSY | libc::EEXIST | libc::EPERM | libc::ENODEV)
                    ) =>
                {
                    return Err(Error::Wire(self.why_not_attached(index, &error)));
                }
                // Keep the first error, which belongs to the preferred mode.
                Err(error) => {
                    why.get_or_insert(error);
                }
            }
        }
        let error = why.unwrap_or_else(|| io::Error::from_raw_os_error(libc::EIO));
        Err(Error::Wire(self.why_not_attached(index, &error)))
    }

    /// Loads the program that reads the NIC's timestamps. Returns `None` if NIC timestamps are not requested or not
    /// available. If they are not available, logs the reason.
    fn bound(&self, index: u32) -> Option<bpf::Program> {
        if !self.stamped || !self.spec.hardware_stamps {
            return None;
        }
        let name = &self.spec.interface;
        let load = || {
            let lacks = |what: &str| io::Error::new(io::ErrorKind::Unsupported, what.to_owned());
            stamps::enable_nic_stamps(name)?;
            if driver_reports_nic_time(index) == Some(false) {
                return Err(lacks("the driver does not provide receive timestamps to XDP programs"));
            }
            let function = btf::function(program::NIC_STAMP);
            let stamp = StampSource::Nic(function.ok_or_else(|| lacks("the kernel is older than 6.3 or has no BTF"))?);
            let code = program::program(&self.spec.filter, program::Taken::Socket(self.map.fd()), stamp);
            bpf::Program::load_bound(&code.ok_or_else(|| lacks("the filter is too long"))?, index)
        };
        load().inspect_err(|error| stamps::warn_kernel_stamps(name, error)).ok()
    }

    /// Updates `ahead`, because the wall clock may have been set.
    fn update_clock_offset(&self) {
        /// Minimum change of the offset that is applied, in nanoseconds. Smaller changes are measurement errors.
        const STEP: u64 = 20_000;
        if self.stamped {
            let now = if lock(&self.attachment).by_nic { 0 } else { stamps::wall_ahead() };
            if now == 0 || now.abs_diff(self.ahead.load(Ordering::Relaxed)) > STEP {
                self.ahead.store(now, Ordering::Relaxed);
            }
        }
    }

    /// Returns the wall-clock time minus the time of the clock from which the program takes its stamps, in nanoseconds.
    /// `None` if the program writes no stamps.
    #[inline]
    fn ahead(&self) -> Option<i64> {
        self.stamped.then(|| self.ahead.load(Ordering::Relaxed))
    }

    fn why_not_attached(&self, index: u32, error: &io::Error) -> String {
        let name = &self.spec.interface;
        match error.raw_os_error() {
            Some(libc::EBUSY | libc::EEXIST) => match xdp_program(index) {
                Some(XdpProgram { program, link: Some(link) }) => format!(
                    "interface `{name}`: another XDP program is attached (bpf_link {link}, program {program}); help: \
                     end the process that holds the link, or `bpftool link detach id {link}`"
                ),
                // Without CAP_SYS_ADMIN, the kernel does not list the links of other processes. `ip link` cannot detach
                // a program that such a link holds.
                _ => format!(
                    "interface `{name}`: another XDP program is attached; help: end the process that attached it \
                     (`bpftool net`, `bpftool link`), or detach it with `bpftool link detach id ID`. If no bpf_link \
                     holds the program, use `ip link set dev {name} xdp off`, or `xdpgeneric off` in generic mode"
                ),
            },
            Some(libc::EOPNOTSUPP) if self.spec.mode == Mode::Native => format!(
                "interface `{name}`: the driver does not run XDP programs (mode = \"native\"); help: set mode = \
                 \"auto\" or \"generic\""
            ),
            _ if self.spec.mode == Mode::Generic => explain(name, "attaching the XDP program", error),
            _ => {
                let (reason, remedy) = native_problem(name, error);
                format!("interface `{name}`: cannot attach the XDP program: {reason}; help: {remedy}")
            }
        }
    }

    /// Returns whether new queue pairs wait for the sockets of another program.
    fn awaits(&self) -> bool {
        self.awaits.load(Ordering::Acquire)
    }

    /// Detaches the program from an interface that was deleted or moved to another network namespace.
    fn detach_program(&self) {
        if self.epoch().index != 0 {
            self.set_index(0);
            *lock(&self.attachment) = Attachment::default();
        }
    }

    /// Returns the interface that the program is attached to.
    #[inline]
    fn epoch(&self) -> InterfaceEpoch {
        InterfaceEpoch::from_number(self.epoch.load(Ordering::Relaxed))
    }

    /// Records the index of the interface that the program is attached to (0: none), and counts this attachment or
    /// detachment. After the link is open, only the watcher thread calls this method.
    fn set_index(&self, index: u32) {
        let generation = self.epoch().generation.wrapping_add(1);
        self.epoch.store(InterfaceEpoch { index, generation }.number(), Ordering::Relaxed);
    }

    /// Makes the frames of all queues whose index is at least `queues` go to the kernel.
    fn release_from(&self, queues: u32) -> io::Result<()> {
        let open: Vec<u32> = lock(&self.sockets).open.iter().map(|open| open.queue).collect();
        open.into_iter().filter(|queue| *queue >= queues).try_for_each(|queue| self.map.remove(queue))
    }

    /// Redirects the frames of a queue to the queue's socket.
    fn redirect(&self, queue: u32, socket: &XdpSocket) -> io::Result<()> {
        self.map.set(queue, socket.as_fd())
    }

    /// Records an open socket. `before` is the last reading of another program, or 0.
    fn opened(&self, queue: u32, socket: &XdpSocket, before: Reading) {
        let mut sockets = lock(&self.sockets);
        sockets.open.push(OpenSocket { queue, fd: socket.raw(), before });
        sockets.zero_copy = socket.zero_copy;
        sockets.trouble = None;
    }

    /// Logs the reason for copy mode.
    fn warn_copies(&self, queue: u32, why: &io::Error) {
        let message = format!("queue {queue} has no zero-copy mode ({why}), so the kernel copies every frame");
        let remedy =
            "use native XDP on an interface whose driver has zero-copy mode, or set copy = \"copy\" to accept copies"
                .to_owned();
        warn(&self.spec.interface, &Notice { message, remedy });
    }

    /// Removes a socket from the list before it is closed, and keeps its counters. Returns the last reading of the
    /// kernel's counters.
    fn closes(&self, queue: u32, fd: RawFd) -> Reading {
        let mut sockets = lock(&self.sockets);
        let closed = sockets.open.extract_if(.., |open| (open.queue, open.fd) == (queue, fd)).next();
        let Some(OpenSocket { before, .. }) = closed else { return Reading::default() };
        let last = read_counters(fd, before);
        sockets.retired.add(&increase(last, before));
        last
    }

    /// Records why a queue has no socket.
    fn refused(&self, queue: u32, refused: &socket::Refused) {
        lock(&self.sockets).trouble = Some(self.why_refused(queue, refused));
    }

    /// Logs why a queue has no socket, or waits for its interface.
    fn waits(&self) {
        // Log without the lock, because the logger of the program may call this module.
        let trouble = lock(&self.sockets).trouble.clone();
        if let Some(trouble) = trouble {
            tracing::warn!("{trouble}");
        }
    }

    fn why_refused(&self, queue: u32, refused: &socket::Refused) -> String {
        let (name, error) = (&self.spec.interface, &refused.error);
        match (refused.step, error.raw_os_error()) {
            ("socket", Some(libc::EAFNOSUPPORT)) => {
                format!(
                    "interface `{name}`: this kernel has no AF_XDP (CONFIG_XDP_SOCKETS); help: set kind = \
                     \"packet\" in the link"
                )
            }
            ("socket", Some(libc::EPERM)) => {
                format!("interface `{name}`: opening an AF_XDP socket: {error}; help: {}", needs("cap_net_raw"))
            }
            ("XDP_UMEM_REG", Some(libc::ENOBUFS)) => format!(
                "interface `{name}`: the limit on locked memory is too low for the packet memory; help: `ulimit -l \
                 unlimited`, or the capability CAP_IPC_LOCK"
            ),
            ("bind", Some(libc::EBUSY)) => format!(
                "interface `{name}`: another AF_XDP socket uses queue {queue}; help: end the process of that socket \
                 (`ss --xdp -p`)"
            ),
            ("bind", Some(libc::EINVAL)) => format!(
                "interface `{name}`: cannot bind to queue {queue}, which may not exist; help: `ethtool -L {name} \
                 combined {}`, or run fewer workers",
                queue.saturating_add(1).max(self.spec.queues.into())
            ),
            ("bind", Some(libc::EOPNOTSUPP | libc::EPROTONOSUPPORT)) if self.spec.copying == Copying::Zero => format!(
                "interface `{name}`: queue {queue} has no zero-copy mode (copy = \"zero\"); help: set copy = \"auto\" \
                 or \"copy\""
            ),
            ("bind", Some(libc::ENETDOWN)) => {
                format!("interface `{name}` is down; help: `ip link set {name} up`")
            }
            (step, _) => explain(name, step, error),
        }
    }
}

impl OpenSocket {
    /// Returns the counters since this program opened or took over the socket.
    fn counters(&self) -> SoftCounters {
        // The descriptor is open as long as it is in the list.
        increase(read_counters(self.fd, self.before), self.before)
    }
}

/// Checks that the interface has `wanted` queues, one for every queue pair. Warns if the interface has more queues,
/// because the frames of the extra queues go to the kernel.
fn check_queues(name: &str, wanted: u32) -> Result<()> {
    // Not every driver reports its number of queues.
    let Some(queues) = receive_queues(name) else { return Ok(()) };
    if queues < wanted {
        let noun = if queues == 1 { "queue" } else { "queues" };
        return Err(Error::Wire(format!(
            "interface `{name}` has {queues} receive {noun}, but there are {wanted} workers; help: run `ethtool \
             -L {name} combined {wanted}`, or set workers = {queues} in [runtime]"
        )));
    }
    if queues > wanted {
        let message =
            format!("{queues} receive queues for {wanted} workers, so frames of the other queues go to the kernel");
        warn(name, &Notice { message, remedy: format!("ethtool -L {name} combined {wanted}") });
    }
    Ok(())
}

fn warn(interface: &str, notice: &Notice) {
    tracing::warn!("interface `{interface}`: {notice}");
}

/// Returns the reason why the kernel refused to attach the program in native mode, and the fix.
fn native_problem(name: &str, error: &io::Error) -> (String, String) {
    match error.raw_os_error() {
        Some(libc::EOPNOTSUPP) => {
            ("the driver has no native XDP".to_owned(), "use an interface whose driver has native XDP".to_owned())
        }
        // veth(4) returns this error if the interface has fewer receive queues than its peer has TX queues.
        Some(libc::ENOSPC) => (
            "the interface has fewer receive queues than its veth peer has TX queues".to_owned(),
            format!("ethtool -L {name} rx N, where N is the number of TX queues of the veth peer"),
        ),
        Some(libc::ERANGE | libc::E2BIG | libc::EINVAL) => (
            format!("{error}: the MTU of the interface or of its peer may be too large, or LRO is enabled"),
            format!("ip link set dev {name} mtu 1500, ethtool -K {name} lro off"),
        ),
        _ => (error.to_string(), host_remedy(error).unwrap_or("see the kernel's log (`dmesg`)").to_owned()),
    }
}

/// Returns the notice that the program runs in generic mode because the kernel refused native mode.
fn without_native(name: &str, error: &io::Error) -> Notice {
    let (reason, remedy) = native_problem(name, error);
    let message = format!("no native XDP ({reason}), so the XDP program runs in generic mode, which is slower");
    Notice { message, remedy }
}

fn needs(capabilities: &str) -> String {
    format!("run as root, or run `setcap {capabilities}+ep PROGRAM`")
}

fn explain(name: &str, step: &str, error: &io::Error) -> String {
    let remedy = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            format!(
                "; help: an xdp link needs CAP_NET_ADMIN, CAP_BPF, CAP_NET_RAW and, with `filter` or `except`, \
                 CAP_PERFMON: {}",
                needs("cap_net_admin,cap_bpf,cap_net_raw,cap_perfmon")
            )
        }
        Some(libc::ENOSYS) => ": this kernel has no BPF; help: set kind = \"packet\" in the link".to_owned(),
        Some(libc::ENOMEM | libc::ENOBUFS) => {
            ": not enough memory; help: set smaller `rx_depth` and `tx_depth` for the port".to_owned()
        }
        _ => host_help(error),
    };
    format!("interface `{name}`: {step}: {error}{remedy}")
}
