//! The hand-over of the queues to another program. The sockets, their rings and their binding to the queues stay the same.
//! The other program takes over the packet memory too. Frames that arrive during the hand-over wait in the RX rings. If a
//! ring is full, the kernel drops the frame. The kernel's counters of a socket do not restart at a hand-over. The
//! hand-over therefore contains the last reading of this program, and the other program counts only the drops after
//! this reading.
//!
//! The other program has its own XDP program and its own map of sockets. The watcher thread replaces the XDP program after
//! the hand-over, because the replacement takes the kernel several milliseconds. Until then, the earlier XDP program
//! redirects frames to the same sockets. The kernel replaces an XDP program in one step, so no frame passes the interface
//! without an XDP program.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;

use super::handed::{DetachedSocket, Detaching, HandedSocket};
use super::socket::XdpSocket;
use super::statistics::Reading;
use super::{Attachment, InterfaceEpoch, Xdp, bpf, lock};
use crate::SoftCounters;
use crate::hand_over::{HandOver, HandedQueue, deleted, misfit, recreated, wrong_count};
use crate::link::interface::{PromiscuousMode, number_option};

impl Xdp {
    /// Keeps a socket for another program, with the values that `detach` adds. `epoch` is the interface of the socket.
    /// Returns the socket if no other program takes the queues over, or if the interface was deleted.
    pub(super) fn keep_socket(
        &self,
        socket: XdpSocket,
        epoch: InterfaceEpoch,
        detach: impl FnOnce(XdpSocket) -> DetachedSocket,
    ) -> Option<XdpSocket> {
        match &mut *lock(&self.detaching) {
            Some(detaching) if epoch != self.epoch() => {
                detaching.is_stale = true;
                Some(socket)
            }
            Some(detaching) => {
                detaching.sockets.push(detach(socket));
                None
            }
            None => Some(socket),
        }
    }

    /// Returns whether a hand-over of the queues is in progress.
    pub(super) fn is_detaching(&self) -> bool {
        lock(&self.detaching).is_some()
    }

    /// Makes the hand-over fail, because another program cannot use the socket of a queue: the interface of the socket was
    /// deleted.
    pub(super) fn set_stale(&self) {
        lock(&self.detaching).iter_mut().for_each(|detaching| detaching.is_stale = true);
    }

    /// Returns whether the link keeps the socket of a queue for another program.
    pub(super) fn keeps_socket(&self, queue: u32) -> bool {
        let detaching = lock(&self.detaching);
        detaching.iter().flat_map(|detaching| &detaching.sockets).any(|detached| detached.queue == queue)
    }

    /// Returns the socket of another program for a queue. Returns `None` before [`HandOver::attach`].
    pub(super) fn take_handed(&self, queue: u32) -> Option<HandedSocket> {
        lock(&self.handed).extract_if(.., |handed| handed.queue == queue).next()
    }

    /// Replaces the XDP program of another program, after this program has taken over the queues.
    pub(super) fn replace_foreign(&self) {
        let is_foreign = lock(&self.attachment).is_foreign;
        if !is_foreign {
            return;
        }
        if let Err(error) = self.replace_program(self.epoch().index) {
            tracing::warn!("interface `{}`: replacing the XDP program: {error}", self.spec.interface);
        }
    }

    /// Replaces the attached program by the program of this link.
    fn replace_program(&self, index: u32) -> io::Result<()> {
        // `bound` logs, so call it without the lock: the logger of the program may call this module.
        let bound = self.bound(index);
        let mut attachment = lock(&self.attachment);
        attachment.is_foreign = false;
        let Some(link) = &attachment.attached else { return Ok(()) };
        let by_nic = bound.is_some_and(|program| link.replace(&program).is_ok());
        let replaced = if by_nic { Ok(()) } else { link.replace(&self.program) };
        attachment.by_nic = by_nic;
        replaced
    }
}

impl HandOver for Xdp {
    fn shares_memory(&self) -> bool {
        true
    }

    fn detach(&self, queues: u16, _: bool) -> io::Result<()> {
        if self.epoch().index == 0 {
            return Err(deleted());
        }
        let sockets = lock(&self.sockets);
        // A queue without traffic may not have adopted its handed-over socket yet, and adopts the socket when the queue
        // stops. Count `open` before `handed`: a socket that moves between the two counts is then not counted twice.
        let expected = sockets.open.len() + lock(&self.handed).len();
        if expected < usize::from(queues) {
            let why = sockets.trouble.clone().unwrap_or_else(|| "a queue has no socket".to_owned());
            return Err(io::Error::new(io::ErrorKind::NotConnected, why));
        }
        drop(sockets);
        *lock(&self.detaching) = Some(Detaching { expected, sockets: Vec::new(), is_stale: false });
        Ok(())
    }

    fn detached(&self) -> io::Result<Option<Vec<HandedQueue>>> {
        let detaching = lock(&self.detaching);
        let Some(Detaching { expected, sockets, is_stale }) = &*detaching else { return Ok(None) };
        if *is_stale {
            // The socket of a queue that neither sends nor receives stays open after its interface was deleted.
            let why = "the interface was created again, and an idle queue only now opens a socket on the new interface";
            return Err(io::Error::new(io::ErrorKind::NotConnected, why));
        }
        if sockets.len() < *expected {
            return Ok(None);
        }
        let attachment = lock(&self.attachment);
        let link = attachment.attached.as_ref().ok_or_else(|| misfit("the XDP program is not attached"))?;
        let handed = |detached: &DetachedSocket| {
            let DetachedSocket { queue, socket, redirected, counted, posted } = detached;
            let descriptors = vec![socket.as_fd().try_clone_to_owned()?, link.as_fd().try_clone_to_owned()?];
            let (receives, sends) = (socket.rx.entries(), socket.tx.entries());
            let flags = [attachment.native, attachment.by_nic, socket.several, *redirected].map(u64::from);
            let place = [self.epoch().index, receives, sends].map(u64::from);
            let position = [&place[..], &flags, counted].concat();
            Ok(HandedQueue { queue: *queue as u16, descriptors, position, posted: posted.clone() })
        };
        sockets.iter().map(handed).collect::<io::Result<_>>().map(Some)
    }

    fn resume(&self, _: bool) -> io::Result<()> {
        // The queue pairs restart and open new sockets, so close the earlier sockets. The frames in their rings are lost.
        let Some(detaching) = lock(&self.detaching).take() else { return Ok(()) };
        let lost: Vec<SoftCounters> = detaching.sockets.into_iter().map(DetachedSocket::close).collect();
        lost.iter().for_each(|lost| lock(&self.sockets).retired.add(lost));
        // The other program may have attached its own program.
        self.replace_program(self.epoch().index)
    }

    fn attach(&self, queues: Vec<HandedQueue>) -> io::Result<()> {
        if queues.len() != usize::from(self.spec.queues) {
            return Err(wrong_count());
        }
        let (mut sockets, mut attached, mut mode) = (Vec::new(), None, (false, false));
        let index = self.epoch().index;
        for HandedQueue { queue, descriptors, position, posted } in queues {
            let &[interface, receives, sends, native, by_nic, several, redirected, ref counted @ ..] = &position[..]
            else {
                return Err(misfit("the position has too few numbers"));
            };
            let counted = Reading::try_from(counted).map_err(|_| misfit("the position does not have five counters"))?;
            if interface != u64::from(index) {
                return Err(recreated());
            }
            let number = |number: u64| u32::try_from(number).map_err(|_| misfit("a number is too large"));
            let descriptors = <[OwnedFd; 2]>::try_from(descriptors);
            let [descriptor, link] = descriptors.map_err(|_| misfit("a queue does not have two descriptors"))?;
            if number_option(&descriptor, libc::SOL_SOCKET, libc::SO_DOMAIN)? != libc::AF_XDP {
                return Err(misfit("a descriptor is no AF_XDP socket"));
            }
            attached.get_or_insert_with(|| bpf::Attached::adopt(link));
            mode = (native != 0, by_nic != 0);
            if redirected != 0 {
                self.map.set(queue.into(), descriptor.as_fd())?;
            }
            sockets.push(HandedSocket {
                queue: queue.into(),
                descriptor,
                entries: (number(receives)?, number(sends)?),
                several: several != 0,
                redirected: redirected != 0,
                counted,
                posted: posted.len(),
            });
        }
        let promiscuous = self.spec.promiscuous.then(|| PromiscuousMode::of(index)).transpose()?;
        let (native, by_nic) = mode;
        *lock(&self.attachment) = Attachment { attached, _promiscuous: promiscuous, native, by_nic, is_foreign: true };
        self.update_clock_offset();
        *lock(&self.handed) = sockets;
        self.awaits.store(false, Ordering::Release);
        Ok(())
    }
}
