//! AF_XDP: an interface of the kernel whose frames are in the worker's own memory (`Documentation/networking/af_xdp.rst`
//! of the kernel).
//!
//! A slot of the pool is a chunk of the socket's memory. A posted receive is an entry of the fill ring, a send one of the
//! TX ring; completions come from the RX and the completion rings. All sockets of a worker are on its one arena, so what
//! came in by one interface goes out by another without being copied here.
//!
//! An XDP program directs frames to the sockets ([`Filter`]). It is held at the interface by a `bpf_link`, whose
//! descriptor the process has: however the process ends, the program goes with it.

mod bpf;
mod btf;
mod program;
mod queue;
mod ring;
mod socket;
#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub(in crate::provider::soft) use bpf::holder;
use program::Stamp;
pub use program::{Filter, Selector};
pub(in crate::provider::soft) use queue::{Over, Queue, Received};

use crate::error::{Error, Result};
use crate::mem::Notice;
use crate::provider::soft::SoftCounters;
use crate::provider::soft::link::facts::{XdpProgram, receive_queues, tells_time, xdp_program};
use crate::provider::soft::link::interface::{Interface, Watcher};
use crate::provider::soft::link::stamps;
use crate::provider::soft::status::Status;

/// Bytes that the kernel keeps before every frame: `XDP_PACKET_HEADROOM`. Slots have at least as much headroom.
pub const HEADROOM: u16 = 256;

/// Who runs the XDP program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// The driver; where it cannot, the kernel.
    #[default]
    Auto,
    /// The driver.
    Native,
    /// The kernel, after the driver has made a socket buffer of the frame.
    Generic,
}

/// Who puts frames into the worker's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Copying {
    /// The hardware; where it cannot, the kernel.
    #[default]
    Auto,
    /// The hardware: zero-copy.
    Zero,
    /// The kernel.
    Copy,
}

/// Busy polling (`SO_PREFER_BUSY_POLL`): the driver works when it is asked to, on the worker's core, and interrupts stay
/// off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusyPoll {
    /// How long the kernel polls at a time, in microseconds.
    pub micros: u32,
    /// Frames that the driver handles at a time.
    pub budget: u32,
}

/// What an `xdp` link is made of.
#[derive(Clone, Debug)]
pub struct XdpSpec {
    /// The name of the interface.
    pub interface: String,
    /// Who runs the program.
    pub mode: Mode,
    /// Who puts frames into memory.
    pub copying: Copying,
    /// What is taken; the rest goes on to the kernel.
    pub filter: Filter,
    /// Whether frames to any address are received, and not only those to the interface's own.
    pub promiscuous: bool,
    /// Whether the NIC is to stamp what comes in, and not the kernel: for completions with wall-clock stamps.
    pub hardware_stamps: bool,
    /// Whether the driver is polled from the worker.
    pub busy_poll: Option<BusyPoll>,
    /// How many queue pairs there are to be: the first of them has the first queue of the interface, and so on.
    pub queues: u16,
}

impl XdpSpec {
    /// Everything that the interface's one queue receives.
    pub fn new(interface: &str) -> Self {
        Self {
            interface: interface.to_owned(),
            mode: Mode::Auto,
            copying: Copying::Auto,
            filter: Filter::default(),
            promiscuous: true,
            hardware_stamps: false,
            busy_poll: None,
            queues: 1,
        }
    }
}

/// The link: a program at an interface, and the sockets that it directs frames to.
#[derive(Debug)]
pub(in crate::provider::soft) struct Xdp {
    spec: XdpSpec,
    /// The longest frame.
    longest: usize,
    /// The program stamps frames.
    stamped: bool,
    /// How many nanoseconds the wall clock is ahead of the stamps of the program.
    ahead: AtomicI64,
    map: bpf::SocketMap,
    program: bpf::Program,
    /// The number of the interface that the program is at, or was when it was removed.
    index: AtomicU32,
    at: Mutex<At>,
    sockets: Mutex<Sockets>,
}

/// The program's place.
#[derive(Debug, Default)]
struct At {
    /// Held for their ends.
    _attached: Option<bpf::Attached>,
    _promiscuous: Option<OwnedFd>,
    native: bool,
    /// The NIC stamps frames.
    by_nic: bool,
}

/// The sockets that are open, and what the others counted.
#[derive(Debug, Default)]
struct Sockets {
    open: Vec<Open>,
    retired: SoftCounters,
    /// Whether any of them is without a copy.
    zero_copy: bool,
    trouble: Option<String>,
}

#[derive(Debug)]
struct Open {
    queue: u32,
    fd: RawFd,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Xdp {
    /// Attaches the program to the interface. Until there are sockets all frames go on to the kernel.
    pub(super) fn open(spec: &XdpSpec, longest: usize, stamped: bool) -> Result<Self> {
        let name = &spec.interface;
        let interface = Interface::need(name)?;
        check_queues(spec)?;
        let map = bpf::SocketMap::new(u32::from(spec.queues.max(1)));
        let map = map.map_err(|error| Error::Wire(explain(name, "the map of its sockets", &error)))?;
        let stamp = if stamped { Stamp::Kernel } else { Stamp::Nothing };
        let Some(code) = program::program(&spec.filter, program::Taken::Socket(map.fd()), stamp) else {
            return Err(Error::Wire(format!("interface `{name}`: the filter is too long: give it fewer selectors")));
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
            index: AtomicU32::new(0),
            at: Mutex::default(),
            sockets: Mutex::default(),
        };
        xdp.attach(interface.index)?;
        Ok(xdp)
    }

    /// Watches the interface: its carrier is the link's. One that is made anew gets the program again, and the sockets
    /// follow it.
    pub(in crate::provider::soft) fn watch(self: &Arc<Self>, status: Arc<Status>) -> Result<Watcher> {
        let (xdp, mut before) = (Arc::downgrade(self), None::<Interface>);
        Watcher::start(&self.spec.interface, move |found| {
            let Some(xdp) = xdp.upgrade() else { return };
            let is_known = |interface: &Interface| interface.index == xdp.index.load(Ordering::Relaxed);
            if let Some(interface) = found.filter(|interface| !is_known(interface))
                && let Err(error) = xdp.attach(interface.index)
            {
                let trouble = Some(error.to_string());
                let told = std::mem::replace(&mut lock(&xdp.sockets).trouble, trouble.clone());
                // It is tried again and again.
                if told != trouble {
                    tracing::warn!("{error}");
                }
            }
            xdp.compare_clocks();
            if let Some((now, before)) = found.zip(before) {
                now.tell_changes(&before, &xdp.spec.interface, &status);
            }
            before = found.or(before);
            // Without its program nothing comes.
            status.set_link(found.is_some_and(|interface| interface.has_carrier && is_known(&interface)));
        })
    }

    fn attach(&self, index: u32) -> Result<()> {
        let name = &self.spec.interface;
        let modes: &[bpf::Attach] = match self.spec.mode {
            Mode::Auto => &[bpf::Attach::Native, bpf::Attach::Generic],
            Mode::Native => &[bpf::Attach::Native],
            Mode::Generic => &[bpf::Attach::Generic],
        };
        let mut at = lock(&self.at);
        // What is left of an interface that is gone.
        *at = At::default();
        let promiscuous = self.spec.promiscuous.then(|| socket::promiscuous(index)).transpose();
        let promiscuous = promiscuous.map_err(|error| Error::Wire(explain(name, "promiscuous mode", &error)))?;
        let bound = self.bound(index);
        // The kernel itself runs none that is bound to a driver.
        let with_nic = bound.iter().filter(|_| modes.contains(&bpf::Attach::Native));
        let with_nic = with_nic.map(|program| (program, bpf::Attach::Native, true));
        let mut why: Option<io::Error> = None;
        for (program, mode, by_nic) in with_nic.chain(modes.iter().map(|mode| (&self.program, *mode, false))) {
            match program.attach(index, mode) {
                Ok(attached) => {
                    let native = mode == bpf::Attach::Native;
                    *at = At { _attached: Some(attached), _promiscuous: promiscuous, native, by_nic };
                    drop(at);
                    self.compare_clocks();
                    if let Some(error) = why.as_ref().filter(|_| bound.is_some() && !by_nic) {
                        stamps::warn_of_kernel(name, error);
                    }
                    if let Some(why) = why.filter(|_| !native) {
                        warn(name, &without_native(name, &why));
                    }
                    self.index.store(index, Ordering::Relaxed);
                    return Ok(());
                }
                // What no other mode would mend.
                Err(error)
                    if matches!(
                        error.raw_os_error(),
                        Some(libc::EBUSY | libc::EEXIST | libc::EPERM | libc::ENODEV)
                    ) =>
                {
                    return Err(Error::Wire(self.why_not_attached(index, &error)));
                }
                // The first reason is that of the better mode.
                Err(error) => {
                    why.get_or_insert(error);
                }
            }
        }
        let error = why.unwrap_or_else(|| io::Error::from_raw_os_error(libc::EIO));
        Err(Error::Wire(self.why_not_attached(index, &error)))
    }

    /// The program that has the NIC's stamps, where those are asked for and to be had; otherwise says why not.
    fn bound(&self, index: u32) -> Option<bpf::Program> {
        if !self.stamped || !self.spec.hardware_stamps {
            return None;
        }
        let name = &self.spec.interface;
        let load = || {
            let lacks = |what: &str| io::Error::new(io::ErrorKind::Unsupported, what.to_owned());
            stamps::ask_nic(name)?;
            if tells_time(index) == Some(false) {
                return Err(lacks("its driver does not tell XDP programs"));
            }
            let function = btf::function(program::NIC_STAMP);
            let stamp = Stamp::Nic(function.ok_or_else(|| lacks("a kernel before 6.3, or one without its types"))?);
            let code = program::program(&self.spec.filter, program::Taken::Socket(self.map.fd()), stamp);
            bpf::Program::load_bound(&code.ok_or_else(|| lacks("the filter is too long"))?, index)
        };
        load().inspect_err(|error| stamps::warn_of_kernel(name, error)).ok()
    }

    /// Whether its frames have the NIC's stamps.
    pub(super) fn by_nic(&self) -> bool {
        lock(&self.at).by_nic
    }

    /// Learns how stamps become those of the wall clock, which may have been set.
    fn compare_clocks(&self) {
        /// More than two readings differ by, where nobody has set a clock.
        const STEP: u64 = 20_000;
        if self.stamped {
            let now = if lock(&self.at).by_nic { 0 } else { stamps::wall_ahead() };
            if now == 0 || now.abs_diff(self.ahead.load(Ordering::Relaxed)) > STEP {
                self.ahead.store(now, Ordering::Relaxed);
            }
        }
    }

    /// How many nanoseconds the wall clock is ahead of the stamps before frames. `None`: there are none.
    #[inline]
    fn ahead(&self) -> Option<i64> {
        self.stamped.then(|| self.ahead.load(Ordering::Relaxed))
    }

    fn why_not_attached(&self, index: u32, error: &io::Error) -> String {
        let name = &self.spec.interface;
        match error.raw_os_error() {
            Some(libc::EBUSY | libc::EEXIST) => match xdp_program(index) {
                Some(XdpProgram { program, link: Some(link) }) => format!(
                    "interface `{name}`: another XDP program is attached to it (bpf_link {link}, program {program}): end \
                     the process that holds the link, or `bpftool link detach id {link}`"
                ),
                _ => format!(
                    "interface `{name}`: another XDP program is attached to it: take it off with `ip link set dev {name} \
                     xdp off`, or `xdpgeneric off` if that is its mode"
                ),
            },
            Some(libc::EOPNOTSUPP) if self.spec.mode == Mode::Native => format!(
                "interface `{name}`: its driver runs no XDP programs (mode = \"native\"): write mode = \"auto\" or \
                 \"generic\""
            ),
            _ => {
                let notice = without_native(name, error);
                match self.spec.mode {
                    Mode::Generic => explain(name, "attaching the XDP program", error),
                    _ => format!("interface `{name}`: {notice}"),
                }
            }
        }
    }

    /// The number of the interface that the program is at.
    #[inline]
    fn interface(&self) -> u32 {
        self.index.load(Ordering::Relaxed)
    }

    /// Lets frames of a queue go to its socket.
    fn direct(&self, queue: u32, socket: &socket::Socket) -> io::Result<()> {
        self.map.set(queue, Some(socket.as_fd()))
    }

    /// Takes note of a socket that is open.
    fn opened(&self, queue: u32, fd: RawFd, zero_copy: bool, why: Option<io::Error>) {
        let mut sockets = lock(&self.sockets);
        sockets.open.push(Open { queue, fd });
        sockets.zero_copy = zero_copy;
        sockets.trouble = None;
        drop(sockets);
        if let Some(why) = why {
            let name = &self.spec.interface;
            let message = format!("queue {queue} has no zero-copy mode ({why}), the kernel copies every frame");
            let remedy =
                "an interface whose driver has it, with native XDP; or copy = \"copy\", to accept it".to_owned();
            warn(name, &Notice { message, remedy });
        }
    }

    /// Takes note of a socket that closes.
    fn closes(&self, queue: u32, fd: RawFd) {
        let mut sockets = lock(&self.sockets);
        sockets.open.retain(|open| (open.queue, open.fd) != (queue, fd));
        if let Ok(counts) = socket::statistics(fd) {
            add(&mut sockets.retired, &counts);
        }
    }

    /// Takes note of why a queue has no socket.
    fn refused(&self, queue: u32, refused: &socket::Refused) {
        lock(&self.sockets).trouble = Some(self.why_refused(queue, refused));
    }

    fn why_refused(&self, queue: u32, refused: &socket::Refused) -> String {
        let (name, error) = (&self.spec.interface, &refused.error);
        match (refused.step, error.raw_os_error()) {
            ("socket", Some(libc::EAFNOSUPPORT)) => {
                format!("interface `{name}`: this kernel has no AF_XDP (CONFIG_XDP_SOCKETS): use link kind \"packet\"")
            }
            ("socket", Some(libc::EPERM)) => {
                format!("interface `{name}`: an AF_XDP socket: {error}: {}", needs("cap_net_raw"))
            }
            ("XDP_UMEM_REG", Some(libc::ENOBUFS)) => format!(
                "interface `{name}`: the limit on locked memory is too low for the packet memory: `ulimit -l unlimited`, or \
                 the capability CAP_IPC_LOCK"
            ),
            ("bind", Some(libc::EBUSY)) => format!(
                "interface `{name}`: queue {queue} has another AF_XDP socket: end the process that has it (`ss --xdp -p`)"
            ),
            ("bind", Some(libc::EINVAL)) => format!(
                "interface `{name}`: queue {queue} cannot be had: it may lack that queue: `ethtool -L {name} combined {}`, or \
                 run fewer workers",
                self.spec.queues
            ),
            ("bind", Some(libc::EOPNOTSUPP | libc::EPROTONOSUPPORT)) if self.spec.copying == Copying::Zero => format!(
                "interface `{name}`: queue {queue} has no zero-copy mode (copy = \"zero\"): write copy = \"auto\" or \"copy\""
            ),
            ("bind", Some(libc::ENETDOWN)) => {
                format!("interface `{name}`: it is down: `ip link set {name} up`")
            }
            (step, _) => explain(name, step, error),
        }
    }

    /// The last reason why a queue could not be had.
    pub(in crate::provider::soft) fn trouble(&self) -> Option<Error> {
        lock(&self.sockets).trouble.clone().map(Error::Wire)
    }

    /// The link in words.
    pub(in crate::provider::soft) fn describe(&self) -> String {
        let At { native, by_nic, .. } = *lock(&self.at);
        let runs = if native { "native" } else { "generic" };
        let copies = if lock(&self.sockets).zero_copy { "zero-copy" } else { "copy" };
        let stamps = match (self.stamped, by_nic) {
            (false, _) => "",
            (true, false) => ", stamps: the kernel's",
            (true, true) => ", stamps: the NIC's",
        };
        format!("{} ({runs}, {copies}{stamps})", self.spec.interface)
    }

    /// Adds what the kernel has counted of the sockets.
    pub(in crate::provider::soft) fn count(&self, into: &mut SoftCounters) {
        let sockets = lock(&self.sockets);
        into.add(&sockets.retired);
        for open in &sockets.open {
            // Open as long as it is in the list.
            if let Ok(counts) = socket::statistics(open.fd) {
                add(into, &counts);
            }
        }
    }
}

/// Adds what a socket counted.
fn add(into: &mut SoftCounters, counts: &libc::xdp_statistics) {
    into.add(&SoftCounters {
        kernel_rx_dropped: counts.rx_dropped,
        kernel_rx_ring_full: counts.rx_ring_full,
        kernel_rx_no_buffer: counts.rx_fill_ring_empty_descs,
        kernel_rx_invalid: counts.rx_invalid_descs,
        kernel_tx_invalid: counts.tx_invalid_descs,
        ..SoftCounters::default()
    });
}

/// Every queue pair must have a queue; queues without one go to the kernel.
fn check_queues(spec: &XdpSpec) -> Result<()> {
    let (name, wanted) = (&spec.interface, u32::from(spec.queues));
    // Not every driver says.
    let Some(queues) = receive_queues(name) else { return Ok(()) };
    if queues < wanted {
        return Err(Error::Wire(format!(
            "interface `{name}` has {queues} receive queues, and there are {wanted} workers: `ethtool -L {name} combined \
             {wanted}`, or run {queues} workers"
        )));
    }
    if queues > wanted {
        let message =
            format!("{queues} receive queues, {wanted} workers: what comes in on the others goes to the kernel");
        warn(name, &Notice { message, remedy: format!("ethtool -L {name} combined {wanted}") });
    }
    Ok(())
}

fn warn(interface: &str, notice: &Notice) {
    tracing::warn!("interface `{interface}`: {notice}");
}

/// What it costs that the driver does not run the program, and what would help.
fn without_native(name: &str, error: &io::Error) -> Notice {
    let (reason, remedy) = match error.raw_os_error() {
        Some(libc::EOPNOTSUPP) => ("its driver has none".to_owned(), "use an interface whose driver has it".to_owned()),
        // What veth(4) says where it has too few queues for its peer.
        Some(libc::ENOSPC) => (
            "it has fewer receive queues than its peer sends by".to_owned(),
            format!("ethtool -L {name} rx N, with the tx queues of its peer"),
        ),
        Some(libc::ERANGE | libc::E2BIG | libc::EINVAL) => (
            format!("{error}: its MTU, or its peer's, may be too large, or LRO is on"),
            format!("ip link set dev {name} mtu 1500, ethtool -K {name} lro off"),
        ),
        _ => (error.to_string(), "see the kernel's log (`dmesg`)".to_owned()),
    };
    let message = format!("no native XDP ({reason}), the kernel runs the program on socket buffers, which is slower");
    Notice { message, remedy }
}

fn needs(capabilities: &str) -> String {
    format!("run as root, or `setcap {capabilities}+ep` on the program")
}

fn explain(name: &str, step: &str, error: &io::Error) -> String {
    let remedy = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            format!(": it takes CAP_NET_ADMIN, CAP_BPF and CAP_NET_RAW: {}", needs("cap_net_admin,cap_bpf,cap_net_raw"))
        }
        Some(libc::ENOSYS) => ": this kernel has no BPF: use link kind \"packet\"".to_owned(),
        Some(libc::ENOMEM | libc::ENOBUFS) => {
            ": there is too little memory: make the depths of the port smaller".to_owned()
        }
        _ => String::new(),
    };
    format!("interface `{name}`: {step}: {error}{remedy}")
}
