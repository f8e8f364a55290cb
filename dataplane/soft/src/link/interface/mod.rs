//! Kernel interfaces: lookup by name, error messages with fixes, socket options, and a thread that watches an interface
//! for changes.
//!
//! Functions use the network namespace of the calling thread (`network_namespaces(7)`).

pub(super) mod ethtool;
pub(super) mod netlink;
mod option;
mod packet_socket;
mod request;
pub(super) mod stamps;

use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::{Arc, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};

pub use netlink::next_hop;
pub(crate) use option::{number_option, set_option};
pub use packet_socket::PromiscuousMode;
pub(crate) use packet_socket::{packet_socket, set_promiscuous};
pub(crate) use request::{LONGEST_NAME, Request, is_name};

use crate::status::Status;
use dataplane_core::error::{Error, Result, THREAD_REMEDY};
use dataplane_core::file::host_remedy;
use dataplane_core::sync::{AtomicBool, Mutex, Ordering};

/// Properties of an interface (`netdevice(7)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interface {
    /// Interface index. An interface that is removed and recreated under the same name usually gets a new index.
    pub(crate) index: u32,
    pub(crate) mac: [u8; 6],
    /// Maximum packet length without the Ethernet header, in bytes.
    pub(crate) mtu: u32,
    /// Whether the interface is up (`IFF_UP`).
    pub(crate) is_set_up: bool,
    /// Whether the interface is up and has a carrier.
    pub(crate) has_carrier: bool,
    /// Whether the interface carries Ethernet frames.
    pub(crate) is_ethernet: bool,
}

impl Interface {
    /// Updates `status` if the MAC address differs from `before`.
    pub(super) fn report_changes(&self, before: &Self, status: &Status) {
        if self.mac != before.mac {
            status.set_mac(self.mac);
        }
    }

    /// Looks up an interface by name. Returns `None` if the interface does not exist.
    ///
    /// # Errors
    /// Fails if a request to the kernel fails although the interface exists.
    pub(crate) fn find(name: &str) -> io::Result<Option<Self>> {
        let Some(mut request) = Request::new(name) else { return Ok(None) };
        let found: io::Result<Self> = (|| {
            request.ask(libc::SIOCGIFINDEX)?;
            // SAFETY: the request has just written the index.
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
            let is_set_up = flags & libc::IFF_UP != 0;
            // The kernel sets IFF_RUNNING up to a second after the interface can send and receive again (`linkwatch`).
            let has_carrier = || flags & libc::IFF_RUNNING != 0 || ethtool::link_detected(name) == Some(true);
            Ok(Self {
                index,
                mac,
                mtu,
                is_set_up,
                has_carrier: is_set_up && has_carrier(),
                is_ethernet: [libc::ARPHRD_ETHER, libc::ARPHRD_LOOPBACK].contains(&address.sa_family),
            })
        })();
        match found {
            // The interface does not exist, or was removed between two requests.
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
            other => other.map(Some),
        }
    }

    /// Looks up an Ethernet interface by name.
    ///
    /// # Errors
    /// Fails with a suggested fix if the interface does not exist or is not Ethernet.
    pub(crate) fn need(name: &str) -> Result<Self> {
        let found = Self::find(name).map_err(|error| {
            Error::Wire(format!("interface `{name}`: looking up the interface: {error}{}", host_help(&error)))
        })?;
        match found {
            Some(interface) if interface.is_ethernet => Ok(interface),
            Some(_) => Err(Error::Wire(format!(
                "interface `{name}` does not carry Ethernet frames; help: choose an Ethernet interface (`ip -details \
                 link show`)"
            ))),
            None => Err(Error::Wire(format!(
                "there is no interface `{name}` in this network namespace; help: `ip link` lists the interfaces"
            ))),
        }
    }
}

/// Returns the MAC address of an interface, or `None` if there is no Ethernet interface of that name.
pub fn mac_of(name: &str) -> Option<[u8; 6]> {
    Interface::find(name).ok().flatten().filter(|interface| interface.is_ethernet).map(|interface| interface.mac)
}

/// Returns the MTU of an interface in bytes, or `None` if there is no interface of that name.
pub fn mtu_of(name: &str) -> Option<u32> {
    Interface::find(name).ok().flatten().map(|interface| interface.mtu)
}

/// Returns the error for an operation that the kernel refused, with a suggested fix. `what` names the operation, and
/// `capability` is the capability that the operation requires.
pub(crate) fn refused(name: &str, what: &str, capability: &str, error: &io::Error) -> Error {
    let remedy = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => format!(
            "; help: run as root, or give the program {capability}: `setcap {}+ep PROGRAM`",
            capability.to_ascii_lowercase()
        ),
        Some(libc::ENOMEM | libc::ENOBUFS) => {
            ": not enough memory; help: free memory, or set a smaller `ring` if the link has this key".to_owned()
        }
        Some(libc::EBUSY) => {
            ": another program uses the interface; help: stop that program, or choose another interface".to_owned()
        }
        _ => host_help(error),
    };
    Error::Wire(format!("interface `{name}`: {what}: {error}{remedy}"))
}

/// Returns the help for an error whose cause is that the host has too few file descriptors or too little memory. Returns
/// an empty string for any other error.
pub(crate) fn host_help(error: &io::Error) -> String {
    host_remedy(error).map_or_else(String::new, |fix| format!("; help: {fix}"))
}

/// The new sockets of a queue, after its interface was recreated or during an upgrade of the program. A thread that is
/// not the worker stores the sockets, and the worker takes the sockets.
#[derive(Debug)]
pub(crate) struct Replacement<T> {
    stored: Mutex<Option<T>>,
    is_there: AtomicBool,
}

impl<T> Default for Replacement<T> {
    fn default() -> Self {
        Self { stored: Mutex::new(None), is_there: AtomicBool::new(false) }
    }
}

impl<T> Replacement<T> {
    /// Stores new sockets. Drops sockets that were stored before and not taken.
    pub(crate) fn put(&self, stored: T) {
        *self.stored.lock().unwrap_or_else(PoisonError::into_inner) = Some(stored);
        self.is_there.store(true, Ordering::Release);
    }

    /// Takes the new sockets. If no sockets are stored, returns `None` without taking the lock.
    #[inline]
    pub(crate) fn take(&self) -> Option<T> {
        if self.is_there.load(Ordering::Acquire) { self.take_stored() } else { None }
    }

    /// Returns whether the queue has taken the last stored sockets.
    pub(crate) fn is_taken(&self) -> bool {
        !self.is_there.load(Ordering::Acquire)
    }

    #[cold]
    fn take_stored(&self) -> Option<T> {
        self.is_there.store(false, Ordering::Relaxed);
        self.stored.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Maximum time between two checks of an interface if the kernel reports no change.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// A thread that checks an interface whenever the kernel reports a change of any interface, and at least every
/// [`POLL_INTERVAL`]. Dropping the watcher ends the thread.
pub(crate) struct Watcher {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for Watcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watcher").finish_non_exhaustive()
    }
}

impl Watcher {
    /// Starts the thread in the caller's network namespace. At each check, the thread calls `look` with the current
    /// properties of the interface, or with `None` if the interface does not exist. `look` returns whether the port can
    /// carry frames. For example, a TAP still carries frames after it was moved to another network namespace.
    ///
    /// If the interface was deleted or moved to another network namespace since the last check, the thread calls `look`
    /// with `None` first. So `look` notices a new interface even if the new interface has the index of the old
    /// interface.
    ///
    /// # Errors
    /// Fails if the kernel refuses to create the socket or the thread.
    pub(crate) fn start(name: &str, mut look: impl FnMut(Option<Interface>) -> bool + Send + 'static) -> Result<Self> {
        let failed = |what: &str, error: io::Error| {
            Error::Wire(format!("interface `{name}`: {what}: {error}{}", host_help(&error)))
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // Protocol 0 is NETLINK_ROUTE.
        let netlink = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None);
        let netlink = netlink.map_err(|error| failed("cannot open a netlink socket for link events", error.into()))?;
        let group = SocketAddrNetlink::new(0, libc::RTMGRP_LINK as u32);
        bind(&netlink, &group).map_err(|error| failed("cannot subscribe to link events", error.into()))?;
        let stop =
            eventfd(0, EventfdFlags::CLOEXEC).map_err(|error| failed("cannot create an eventfd", error.into()))?;
        let stop = Arc::new(stop);
        let (stop_event, interface) = (stop.clone(), name.to_owned());
        let run = move || {
            let interval = Timespec::try_from(POLL_INTERVAL).ok();
            let (mut exists, mut index, mut mtu) = (true, None, MtuChanges::default());
            let mut last_error = None;
            let mut check = |found: Option<Interface>| {
                let carries = look(found);
                let presence = presence_change(&interface, exists, found.is_some(), carries);
                let mtu = found.and_then(|found| mtu.check(&interface, found.mtu));
                for message in presence.into_iter().chain(mtu) {
                    tracing::warn!("{message}");
                }
                exists = found.is_some();
            };
            loop {
                match Interface::find(&interface) {
                    Ok(found) => {
                        check(found);
                        index = found.map(|interface| interface.index);
                        last_error = None;
                    }
                    // The thread repeats the check several times a second, so log each error once.
                    Err(error) => {
                        let error = unreadable(&interface, &error);
                        if last_error.as_ref() != Some(&error) {
                            tracing::warn!("{error}");
                            last_error = Some(error);
                        }
                    }
                }
                let mut fds = [PollFd::new(&netlink, PollFlags::IN), PollFd::new(&*stop_event, PollFlags::IN)];
                // An interrupted wait only causes an additional check.
                let _ = poll(&mut fds, interval.as_ref());
                if !fds[1].revents().is_empty() {
                    return;
                }
                // Of the messages, only deletions matter here. The next check reads the current state of the interface.
                let mut message = [MaybeUninit::uninit(); 1024];
                loop {
                    match recv(&netlink, &mut message, RecvFlags::empty()) {
                        Ok(((message, _), _)) if index.is_some_and(|index| is_deletion(message, index)) => {}
                        // The kernel has dropped messages, maybe the deletion of this interface.
                        Err(Errno::NOBUFS) if index.is_some() => {}
                        Ok(_) | Err(Errno::INTR | Errno::NOBUFS) => continue,
                        Err(_) => break,
                    }
                    check(None);
                    index = None;
                }
            }
        };
        let thread = thread::Builder::new().name("interface".to_owned()).spawn(run);
        Ok(Self {
            stop,
            thread: Some(thread.map_err(|error| {
                let what = "cannot start the thread for link events";
                Error::Wire(format!("interface `{name}`: {what}: {error}; help: {THREAD_REMEDY}"))
            })?),
        })
    }
}

/// Returns the log message for an interface whose state cannot be read, for example because the process has too many
/// open files.
fn unreadable(name: &str, error: &io::Error) -> String {
    let help = host_help(error);
    format!("interface `{name}`: cannot read the state of the interface: {error}{help}")
}

/// Returns whether a netlink message reports that the interface `index` was deleted, or that it has left the network
/// namespace (`rtnetlink(7)`).
fn is_deletion(message: &[u8], index: u32) -> bool {
    // The message type is at byte 4 (`struct nlmsghdr`). The address family is at byte 16, and the interface index at
    // byte 20 (`struct ifinfomsg`). When a port leaves a bridge, the kernel sends the same type with AF_BRIDGE.
    message.get(4..6) == Some(&libc::RTM_DELLINK.to_ne_bytes())
        && message.get(16) == Some(&(libc::AF_UNSPEC as u8))
        && message.get(20..24) == Some(&index.to_ne_bytes())
}

/// The MTU of an interface, and the number of its changes.
#[derive(Default)]
struct MtuChanges {
    mtu: Option<u32>,
    count: u64,
}

impl MtuChanges {
    /// Returns the log message for a change of the MTU. After three changes, returns a message only for the 4th, 8th,
    /// 16th change and so on, because a program may change the MTU many times per second.
    fn check(&mut self, name: &str, now: u32) -> Option<String> {
        let before = self.mtu.replace(now).filter(|before| *before != now)?;
        self.count += 1;
        let times = match self.count {
            1..=3 => String::new(),
            count if count.is_power_of_two() => format!(" ({count} changes)"),
            _ => return None,
        };
        Some(format!("interface `{name}`: the MTU changed from {before} to {now}{times}"))
    }
}

/// Returns the log message for an interface that was deleted or created again. Returns `None` if neither happened.
/// `carries` is `true` if the port can still carry frames.
fn presence_change(name: &str, existed: bool, exists: bool, carries: bool) -> Option<String> {
    match (existed, exists) {
        (true, false) if carries => Some(format!(
            "interface `{name}` has another name or is in another network namespace; the port still uses it"
        )),
        (true, false) => {
            Some(format!("interface `{name}` was deleted; the port resumes when an interface with this name appears"))
        }
        (false, true) => Some(format!("interface `{name}` exists again")),
        _ => None,
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        // The write cannot fail, because the eventfd's counter is still 0.
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // An error means that the thread has panicked, and the panic message has already been printed.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_interface_is_found() {
        let it = Interface::need("lo").unwrap();
        assert_eq!((it.mac, it.is_ethernet), ([0; 6], true));
        assert!(it.index > 0 && it.mtu >= 68, "{it:?}");
    }

    #[test]
    fn missing_interface_error_suggests_a_command() {
        assert_eq!(Interface::find("no-such").unwrap(), None);
        let error = Interface::need("no-such").unwrap_err().to_string();
        assert!(error.contains("`no-such`") && error.contains("`ip link`"), "{error}");
    }

    #[test]
    fn error_of_the_limit_on_open_files_names_the_limit() {
        let error =
            refused("eth0", "opening an AF_PACKET socket", "CAP_NET_RAW", &io::Error::from_raw_os_error(libc::EMFILE));
        assert!(error.to_string().contains("help: raise the limit on open files (`ulimit -n`"), "{error}");
    }

    #[test]
    fn permission_error_names_the_capability() {
        let error =
            refused("eth0", "opening an AF_PACKET socket", "CAP_NET_RAW", &io::Error::from_raw_os_error(libc::EPERM));
        let error = error.to_string();
        assert!(
            error.contains("give the program CAP_NET_RAW") && error.contains("`setcap cap_net_raw+ep PROGRAM`"),
            "{error}"
        );
    }

    #[test]
    fn error_for_exhausted_file_descriptors_names_the_limit() {
        let error = io::Error::from_raw_os_error(libc::EMFILE);
        let message = unreadable("va", &error);
        assert!(message.starts_with("interface `va`: cannot read the state of the interface: "), "{message}");
        assert!(message.contains("help: raise the limit on open files"), "{message}");
    }

    #[test]
    fn deletion_and_return_of_an_interface_are_reported() {
        let deleted = "interface `va` was deleted; the port resumes when an interface with this name appears";
        assert_eq!(presence_change("va", true, false, false).unwrap(), deleted);
        assert_eq!(presence_change("va", false, true, true).unwrap(), "interface `va` exists again");
        assert_eq!([true, false].map(|same| presence_change("va", same, same, same)), [None, None]);
        let moved = "interface `va` has another name or is in another network namespace; the port still uses it";
        assert_eq!(presence_change("va", true, false, true).unwrap(), moved);
    }

    #[test]
    fn many_changes_of_the_mtu_are_logged_in_few_lines() {
        let mut changes = MtuChanges::default();
        let lines: Vec<String> = (0..=100).filter_map(|nth| changes.check("va", 1400 + nth)).collect();
        assert_eq!(lines.len(), 3 + 5, "{lines:?}");
        assert_eq!(lines[0], "interface `va`: the MTU changed from 1400 to 1401");
        assert_eq!(lines[7], "interface `va`: the MTU changed from 1463 to 1464 (64 changes)");
        assert_eq!(changes.check("va", 1500), None, "the MTU is the same");
    }

    #[test]
    fn only_messages_about_the_deletion_of_the_interface_count() {
        let message = |kind: u16, family: u8, index: u32| {
            let mut bytes = [0; 32];
            bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
            bytes[16] = family;
            bytes[20..24].copy_from_slice(&index.to_ne_bytes());
            bytes
        };
        assert!(is_deletion(&message(libc::RTM_DELLINK, 0, 7), 7));
        let others = [
            message(libc::RTM_NEWLINK, 0, 7),
            message(libc::RTM_DELLINK, libc::AF_BRIDGE as u8, 7),
            message(libc::RTM_DELLINK, 0, 8),
        ];
        assert!(others.iter().all(|other| !is_deletion(other, 7)) && !is_deletion(&[0; 20], 7));
    }

    #[test]
    fn watcher_checks_once_and_stops_on_drop() {
        let (sender, receiver) = std::sync::mpsc::channel();
        let watcher = Watcher::start("lo", move |found| sender.send(found).is_ok()).unwrap();
        assert!(receiver.recv_timeout(Duration::from_secs(30)).unwrap().is_some());
        drop(watcher);
        // The loop ends because the thread has ended and its end of the channel is closed.
        while receiver.recv().is_ok() {}
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    use super::*;

    #[test]
    fn reader_gets_the_latest_value_once() {
        loom::model(|| {
            let replacement = Arc::new(Replacement::default());
            let writer = {
                let replacement = replacement.clone();
                loom::thread::spawn(move || {
                    replacement.put(1);
                    replacement.put(2);
                })
            };
            let mut taken: Vec<i32> = (0..2).filter_map(|_| replacement.take()).collect();
            writer.join().unwrap();
            taken.extend(replacement.take());
            assert!(matches!(taken[..], [2] | [1, 2]), "{taken:?}");
            assert_eq!(replacement.take(), None);
        });
    }
}
