//! Interfaces of the kernel: what is known of one by its name, what to do where it cannot be used, and a thread that
//! hears when it changes.
//!
//! The network namespace is that of the thread that asks (`network_namespaces(7)`).

use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::sockopt::socket_error;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};

use crate::error::{Error, Result};
use crate::provider::soft::status::Status;

/// The most bytes of a name: `IFNAMSIZ` less the zero at its end.
const LONGEST_NAME: usize = libc::IFNAMSIZ - 1;

/// What is known of an interface (`netdevice(7)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::provider::soft) struct Interface {
    /// Its number. One that is made anew under the same name has another.
    pub(in crate::provider::soft) index: u32,
    pub(in crate::provider::soft) mac: [u8; 6],
    /// The most bytes of a packet, without the Ethernet header.
    pub(in crate::provider::soft) mtu: u32,
    /// Whether it has been set up (`IFF_UP`).
    pub(in crate::provider::soft) is_set_up: bool,
    /// Whether there is a carrier as well (`IFF_RUNNING`): frames get somewhere.
    pub(in crate::provider::soft) has_carrier: bool,
    /// Whether its frames are Ethernet's.
    pub(in crate::provider::soft) is_ethernet: bool,
}

impl Interface {
    /// Tells what has changed of it since it was so.
    pub(super) fn tell_changes(&self, before: &Self, name: &str, status: &Status) {
        if self.mac != before.mac {
            status.set_mac(self.mac);
        }
        if self.mtu != before.mtu {
            tracing::warn!("{name}: its MTU was {} and is {}", before.mtu, self.mtu);
        }
    }

    /// Looks one up. `None`: there is none of that name.
    ///
    /// # Errors
    /// The kernel does not say.
    pub(in crate::provider::soft) fn find(name: &str) -> io::Result<Option<Self>> {
        let Some(mut request) = Request::new(name) else { return Ok(None) };
        let found: io::Result<Self> = (|| {
            request.ask(libc::SIOCGIFINDEX)?;
            // SAFETY: the request has just written the number.
            let index = unsafe { request.ifreq.ifr_ifru.ifru_ifindex } as u32;
            request.ask(libc::SIOCGIFFLAGS)?;
            // SAFETY: the request has just written the flags.
            let flags = i32::from(unsafe { request.ifreq.ifr_ifru.ifru_flags });
            request.ask(libc::SIOCGIFMTU)?;
            // SAFETY: the request has just written the MTU.
            let mtu = unsafe { request.ifreq.ifr_ifru.ifru_mtu } as u32;
            request.ask(libc::SIOCGIFHWADDR)?;
            // SAFETY: the request has just written the address.
            let address = unsafe { request.ifreq.ifr_ifru.ifru_hwaddr };
            let mac = std::array::from_fn(|i| address.sa_data[i] as u8);
            Ok(Self {
                index,
                mac,
                mtu,
                is_set_up: flags & libc::IFF_UP != 0,
                has_carrier: flags & libc::IFF_UP != 0 && flags & libc::IFF_RUNNING != 0,
                is_ethernet: [libc::ARPHRD_ETHER, libc::ARPHRD_LOOPBACK].contains(&address.sa_family),
            })
        })();
        match found {
            // Also where it goes away between two questions.
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
            other => other.map(Some),
        }
    }

    /// Looks one up that must be there, with Ethernet's frames.
    ///
    /// # Errors
    /// It is not, with what to do.
    pub(in crate::provider::soft) fn need(name: &str) -> Result<Self> {
        let found = Self::find(name).map_err(|error| Error::Wire(format!("interface `{name}`: {error}")))?;
        match found {
            Some(interface) if interface.is_ethernet => Ok(interface),
            Some(_) => Err(Error::Wire(format!(
                "interface `{name}` does not carry Ethernet frames: name one that does (`ip -details link show`)"
            ))),
            None => Err(Error::Wire(format!(
                "there is no interface `{name}` in this network namespace: `ip link` lists those that there are"
            ))),
        }
    }

    /// Whether a name can be that of an interface (`dev_valid_name` in the kernel).
    pub(in crate::provider::soft) fn is_name(name: &str) -> bool {
        let odd = |byte: u8| byte == b'/' || byte == b':' || byte == 0 || byte.is_ascii_whitespace();
        (1..=LONGEST_NAME).contains(&name.len()) && name != "." && name != ".." && !name.bytes().any(odd)
    }
}

/// The MAC address of an interface, if there is one of that name.
pub(crate) fn mac_of(name: &str) -> Option<[u8; 6]> {
    Interface::find(name).ok().flatten().filter(|interface| interface.is_ethernet).map(|interface| interface.mac)
}

/// A question to the kernel about an interface, or a change of it.
pub(in crate::provider::soft) struct Request {
    pub(in crate::provider::soft) ifreq: libc::ifreq,
}

impl Request {
    /// `None`: no interface can have that name.
    pub(in crate::provider::soft) fn new(name: &str) -> Option<Self> {
        if !Interface::is_name(name) {
            return None;
        }
        // SAFETY: zero is a value of every field.
        let mut ifreq: libc::ifreq = unsafe { std::mem::zeroed() };
        // One byte less than there is room for: the last stays zero.
        ifreq.ifr_name.iter_mut().zip(name.bytes()).for_each(|(to, byte)| *to = byte as libc::c_char);
        Some(Self { ifreq })
    }

    /// Asks, or changes, by a socket of its own.
    pub(in crate::provider::soft) fn ask(&mut self, request: libc::c_ulong) -> io::Result<()> {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)?;
        self.ask_by(&socket, request)
    }

    /// Asks, or changes, by a descriptor that knows this request.
    pub(in crate::provider::soft) fn ask_by(&mut self, by: impl AsFd, request: libc::c_ulong) -> io::Result<()> {
        // SAFETY: the requests of interfaces, and of tun(4), read and write one `ifreq`, which is ours alone.
        let done = unsafe { libc::ioctl(by.as_fd().as_raw_fd(), request as _, &raw mut self.ifreq) };
        if done == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// Something that an interface cannot be used without, and was refused.
pub(in crate::provider::soft) fn refused(name: &str, what: &str, capability: &str, error: &io::Error) -> Error {
    let remedy = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => format!(
            ": it takes {capability}: run as root, or `setcap {}+ep` on the program",
            capability.to_ascii_lowercase()
        ),
        Some(libc::ENOMEM | libc::ENOBUFS) => {
            ": there is not enough memory for its rings: make `ring` of the link smaller".to_owned()
        }
        Some(libc::EBUSY) => ": another program has it: end that, or name another interface".to_owned(),
        _ => String::new(),
    };
    Error::Wire(format!("interface `{name}`: {what}: {error}{remedy}"))
}

/// A socket of an interface, to wait for what comes in. What happened to the interface makes a socket readable once, until
/// it is asked for; the thread that watches the interface says it.
pub(in crate::provider::soft) fn to_wait_for(socket: BorrowedFd<'_>) -> BorrowedFd<'_> {
    let _ = socket_error(socket);
    socket
}

/// What an interface that has come back is used by: made by the thread that watches, taken by the one that works.
#[derive(Debug)]
pub(in crate::provider::soft) struct Handover<T> {
    fresh: Mutex<Option<T>>,
    is_there: AtomicBool,
}

impl<T> Default for Handover<T> {
    fn default() -> Self {
        Self { fresh: Mutex::new(None), is_there: AtomicBool::new(false) }
    }
}

impl<T> Handover<T> {
    /// Puts it there; what was there before ends.
    pub(in crate::provider::soft) fn put(&self, fresh: T) {
        *self.fresh.lock().unwrap_or_else(PoisonError::into_inner) = Some(fresh);
        self.is_there.store(true, Ordering::Release);
    }

    /// Takes it, if it is there. Without a lock where it is not.
    #[inline]
    pub(in crate::provider::soft) fn take(&self) -> Option<T> {
        if self.is_there.load(Ordering::Acquire) { self.take_it() } else { None }
    }

    #[cold]
    fn take_it(&self) -> Option<T> {
        self.is_there.store(false, Ordering::Relaxed);
        self.fresh.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// How long an interface is not looked at when nothing is heard of it.
const GLANCE: Duration = Duration::from_millis(100);

/// A thread that looks at an interface whenever the kernel says that one has changed, and some times in a second anyway.
/// Dropping it ends the thread.
pub(in crate::provider::soft) struct Watcher {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for Watcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watcher").finish_non_exhaustive()
    }
}

impl Watcher {
    /// Starts it. `look` is called with what is known of the interface now: `None`, there is none of that name. The thread
    /// is in the network namespace of the caller.
    ///
    /// # Errors
    /// The kernel gives no socket, or no thread.
    pub(in crate::provider::soft) fn start(
        name: &str,
        mut look: impl FnMut(Option<Interface>) + Send + 'static,
    ) -> Result<Self> {
        let failed = |what: &str, error: io::Error| Error::Wire(format!("interface `{name}`: {what}: {error}"));
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // Without a protocol it is NETLINK_ROUTE.
        let told = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None);
        let told = told.map_err(|error| failed("no socket to hear of its changes", error.into()))?;
        let group = SocketAddrNetlink::new(0, libc::RTMGRP_LINK as u32);
        bind(&told, &group).map_err(|error| failed("its changes cannot be heard of", error.into()))?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC).map_err(|error| failed("no event", error.into()))?;
        let stop = Arc::new(stop);
        let (theirs, interface) = (stop.clone(), name.to_owned());
        let life = move || {
            let glance = Timespec::try_from(GLANCE).ok();
            loop {
                if let Ok(found) = Interface::find(&interface) {
                    look(found);
                }
                let mut fds = [PollFd::new(&told, PollFlags::IN), PollFd::new(&*theirs, PollFlags::IN)];
                // An interrupted wait is a look more.
                let _ = poll(&mut fds, glance.as_ref());
                if !fds[1].revents().is_empty() {
                    return;
                }
                // What they say is looked up afresh, so that none has to be understood, and none can be missed.
                let mut message = [MaybeUninit::uninit(); 1024];
                while recv(&told, &mut message, RecvFlags::empty()).is_ok() {}
            }
        };
        let thread = thread::Builder::new().name("interface".to_owned()).spawn(life);
        Ok(Self { stop, thread: Some(thread.map_err(|error| failed("no thread to watch it", error))?) })
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        // Adding to the counter cannot fail: nothing was added before.
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // It panics only by a bug, which its message has told.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_is_found() {
        let it = Interface::need("lo").unwrap();
        assert_eq!((it.mac, it.is_ethernet), ([0; 6], true));
        assert!(it.index > 0 && it.mtu >= 68, "{it:?}");
    }

    #[test]
    fn an_interface_that_is_not_there_says_what_to_do() {
        assert_eq!(Interface::find("no-such").unwrap(), None);
        let error = Interface::need("no-such").unwrap_err().to_string();
        assert!(error.contains("`no-such`") && error.contains("`ip link`"), "{error}");
    }

    #[test]
    fn names_that_no_interface_can_have_are_none() {
        for name in ["", ".", "..", "sixteen-bytes-16", "a/b", "a b", "a:b", "a\0"] {
            assert!(!Interface::is_name(name), "{name:?}");
            assert_eq!(Interface::find(name).unwrap(), None);
        }
        assert!(Interface::is_name("fifteen-bytes15") && Interface::is_name("eth0.10"));
    }

    #[test]
    fn a_refusal_names_the_capability() {
        let error = refused("eth0", "an AF_PACKET socket", "CAP_NET_RAW", &io::Error::from_raw_os_error(libc::EPERM));
        let error = error.to_string();
        assert!(error.contains("takes CAP_NET_RAW") && error.contains("`setcap cap_net_raw+ep`"), "{error}");
    }

    #[test]
    fn a_watcher_looks_and_ends() {
        let (tell, told) = std::sync::mpsc::channel();
        let watcher = Watcher::start("lo", move |found| tell.send(found).unwrap_or(())).unwrap();
        assert!(told.recv_timeout(Duration::from_secs(30)).unwrap().is_some());
        drop(watcher);
        // The thread is gone, and its end of the channel with it.
        while told.recv().is_ok() {}
    }
}
