//! The hand-over of a running program to another program.
//!
//! The client of an upgrade sends [`Call::Upgrade`](crate::Call::Upgrade), and starts the new program with this
//! connection as standard input. The new program sends [`Call::TakeOver`](crate::Call::TakeOver) together with a descriptor
//! of its process (pidfd_open(2)), in one message. After the answer, the new program sends the byte [`READY`], and the
//! running program sends the descriptors of the packet memory ([`send_descriptors`]). The new program prepares its run with
//! the returned config, and then sends [`Call::HandOver`](crate::Call::HandOver). After the answer to `hand_over`, the
//! messages on the connection are not JSON:
//!
//! 1. The new program sends [`READY`]. The running program sends the descriptors, and then the states of the stages, one
//!    after the other.
//! 2. The new program sends [`RUNNING`] when its workers run. The running program answers with [`DONE`] and ends, or
//!    with [`WITHDRAWN`] if too much time has passed. The running program then continues, and the new program ends.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The version of the messages and of the descriptors of a hand-over. Programs with different versions cannot hand over
/// to each other.
pub const HAND_OVER_VERSION: u32 = 3;

/// The message of the new program when it waits for the descriptors.
pub const READY: u8 = b'+';
/// The message of the new program when its workers run.
pub const RUNNING: u8 = b'R';
/// The answer of the running program if it ends.
pub const DONE: u8 = b'D';
/// The answer of the running program if it continues.
pub const WITHDRAWN: u8 = b'W';

/// The result of [`Call::Upgrade`](crate::Call::Upgrade).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UpgradeStart {
    /// The process id of the running program.
    pub pid: u32,
    /// The version of the running program.
    pub version: String,
    /// The arguments with which the running program was started, without the name of the program.
    pub arguments: Vec<String>,
    /// The working directory of the running program.
    pub directory: String,
    /// The environment variables that the new program needs: names and values.
    pub environment: Vec<(String, String)>,
}

/// The parameters of [`Call::TakeOver`](crate::Call::TakeOver). A program ignores unknown fields, because a new program with
/// another version of the hand-over may send other fields. The version is then the reason for the refusal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TakeOver {
    /// The version of the hand-over: [`HAND_OVER_VERSION`].
    pub hand_over_version: u32,
}

/// The result of [`Call::TakeOver`](crate::Call::TakeOver).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TakenConfig {
    /// The text of the config that the running program uses.
    pub text: String,
    /// The overrides of the config, as `KEY=VALUE`.
    pub settings: Vec<String>,
    /// The time since the start of the run, in seconds.
    pub running_s: f64,
    /// The packet memory of each worker, in the order in which the program sends the descriptors. Empty if the new program
    /// allocates its own packet memory.
    pub memories: Vec<MemoryRow>,
}

/// The packet memory of a worker in [`TakenConfig`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MemoryRow {
    /// The kind of the pages, such as `2M`.
    pub pages: String,
    /// The distance from the start of one packet buffer to the start of the next, in bytes.
    pub stride: u32,
    /// The offset of a received packet from the start of its buffer, in bytes.
    pub headroom: u32,
    /// The number of packet buffers.
    pub count: u32,
}

/// The result of [`Call::HandOver`](crate::Call::HandOver).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HandedOver {
    /// The names of the descriptors, in the order in which the program sends them. The descriptors of the queues follow.
    pub descriptors: Vec<String>,
    /// The queues.
    pub queues: Vec<QueueRow>,
    /// The states of the stages.
    pub states: Vec<StateRow>,
}

/// A queue of a port in [`HandedOver`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct QueueRow {
    /// The name of the port.
    pub port: String,
    /// The index of the queue.
    pub queue: u16,
    /// The number of descriptors of the queue.
    pub descriptors: usize,
    /// The packet buffers into which the kernel writes received packets, if the new program takes over the packet memory.
    pub posted: Vec<u32>,
    /// The position of the queue in its ring. The meaning of the numbers depends on the kind of the link.
    pub position: Vec<u64>,
}

/// The state of a stage in [`HandedOver`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StateRow {
    /// The number of the worker.
    pub worker: usize,
    /// The name of the stage.
    pub stage: String,
    /// The number of bytes of the state.
    pub bytes: usize,
}

/// The maximum number of descriptors in one message. The kernel allows 253 (unix(7)).
const DESCRIPTORS: usize = 64;

/// Sends descriptors.
///
/// # Errors
/// Returns the errors of sendmsg(2).
pub fn send_descriptors(stream: &UnixStream, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    descriptors.chunks(DESCRIPTORS).try_for_each(|part| send_with_descriptors(stream, &[0], part))
}

/// Sends bytes together with descriptors, at most 64.
///
/// # Errors
/// Returns the errors of sendmsg(2), or an error if there are too many descriptors.
pub fn send_with_descriptors(mut stream: &UnixStream, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let part = [IoSlice::new(bytes)];
    let sent = retry_on_intr(|| sendmsg(stream, &part, &mut control, SendFlags::NOSIGNAL))?;
    // The first part carries all descriptors.
    stream.write_all(&bytes[sent..])
}

/// Returns the error for descriptors that the kernel has closed, because this process has reached its limit of open
/// files.
fn too_many_files() -> io::Error {
    Errno::MFILE.into()
}

/// Receives this number of descriptors.
///
/// # Errors
/// Returns the errors of recvmsg(2), `EMFILE` if this process has reached its limit of open files, or an error if the
/// other program sends fewer descriptors or ends.
pub fn receive_descriptors(stream: &UnixStream, count: usize) -> io::Result<Vec<OwnedFd>> {
    let mut descriptors = Vec::new();
    while descriptors.len() < count {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0];
        let mut part = [IoSliceMut::new(&mut byte)];
        let received = retry_on_intr(|| recvmsg(stream, &mut part, &mut control, RecvFlags::CMSG_CLOEXEC))?;
        let before = descriptors.len();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights);
            }
        }
        if received.flags.contains(ReturnFlags::CTRUNC) {
            return Err(too_many_files());
        }
        if received.bytes == 0 || descriptors.len() == before {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(descriptors)
}

/// Receives bytes like recv(2), and a descriptor if the sender has sent a descriptor with these bytes. Closes further
/// descriptors. Returns `EMFILE` instead of the descriptor if this process has reached its limit of open files.
///
/// # Errors
/// Returns the errors of recvmsg(2).
pub fn receive_with_descriptor(
    stream: &UnixStream,
    into: &mut [u8],
) -> io::Result<(usize, Option<io::Result<OwnedFd>>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(stream, &mut [IoSliceMut::new(into)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut descriptor = None;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            rights.for_each(|right| descriptor = Some(Ok(right)));
        }
    }
    let is_cut = received.flags.contains(ReturnFlags::CTRUNC);
    Ok((received.bytes, descriptor.or_else(|| is_cut.then(|| Err(too_many_files())))))
}

/// Sends a message of one byte.
///
/// # Errors
/// Returns the errors of send(2).
pub fn send_byte(mut stream: &UnixStream, byte: u8) -> io::Result<()> {
    stream.write_all(&[byte])
}

/// Receives a message of one byte.
///
/// # Errors
/// Returns the errors of recv(2), or an error if the other program has ended.
pub fn receive_byte(mut stream: &UnixStream) -> io::Result<u8> {
    let mut byte = [0];
    stream.read_exact(&mut byte)?;
    Ok(byte[0])
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn descriptors_arrive_in_their_order() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (mut first, second) = UnixStream::pair().unwrap();
        let all: Vec<BorrowedFd<'_>> = std::iter::repeat_n(second.as_fd(), 2 * DESCRIPTORS).collect();
        send_descriptors(&ours, &[all.as_slice(), &[first.as_fd()]].concat()).unwrap();
        send_byte(&ours, DONE).unwrap();
        let mut received = receive_descriptors(&theirs, 2 * DESCRIPTORS + 1).unwrap();
        assert_eq!(receive_byte(&theirs).unwrap(), DONE);
        let last = received.pop().unwrap();
        first.write_all(b"x").unwrap();
        assert_eq!(receive_byte(&UnixStream::from(received.remove(0))).unwrap(), b'x');
        send_byte(&second, b'y').unwrap();
        assert_eq!(receive_byte(&UnixStream::from(last)).unwrap(), b'y');
    }

    #[test]
    fn missing_descriptors_are_an_error() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        send_byte(&ours, READY).unwrap();
        assert_eq!(receive_descriptors(&theirs, 1).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        drop(ours);
        assert_eq!(receive_descriptors(&theirs, 1).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn descriptor_arrives_with_the_bytes_of_its_message() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (first, second) = UnixStream::pair().unwrap();
        send_with_descriptors(&ours, b"line\n", &[first.as_fd(), second.as_fd()]).unwrap();
        send_with_descriptors(&ours, b"next", &[]).unwrap();
        let mut bytes = [0; 64];
        let (read, descriptor) = receive_with_descriptor(&theirs, &mut bytes).unwrap();
        assert_eq!(&bytes[..read], b"line\n");
        assert!(descriptor.unwrap().is_ok());
        let (read, descriptor) = receive_with_descriptor(&theirs, &mut bytes).unwrap();
        assert_eq!((&bytes[..read], descriptor.is_none()), (&b"next"[..], true));
    }
}
