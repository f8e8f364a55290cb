//! `bpf(2)`, as far as XDP needs it.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::program::Instruction;

// `enum bpf_cmd`.
const MAP_CREATE: u32 = 0;
const MAP_UPDATE_ELEM: u32 = 2;
const MAP_DELETE_ELEM: u32 = 3;
const PROG_LOAD: u32 = 5;
/// How often a program is offered to a kernel that breaks its check off, as it does when a signal comes meanwhile.
const ATTEMPTS: usize = 5;
#[cfg(test)]
const PROG_TEST_RUN: u32 = 10;
const OBJ_GET_INFO_BY_FD: u32 = 15;
const LINK_CREATE: u32 = 28;
const LINK_GET_FD_BY_ID: u32 = 30;
const LINK_GET_NEXT_ID: u32 = 31;

const PROG_TYPE_XDP: u32 = 6;
const MAP_TYPE_XSKMAP: u32 = 17;
const ATTACH_TYPE_XDP: u32 = 37;
const LINK_TYPE_XDP: u32 = 6;
/// `BPF_F_XDP_HAS_FRAGS`: the program can be given frames of several buffers.
const HAS_FRAGS: u32 = 1 << 5;
/// `BPF_F_XDP_DEV_BOUND_ONLY`: the program is for one interface, and may call what its driver has.
const BOUND: u32 = 1 << 6;

/// How a program is attached: `XDP_FLAGS_*` of linux/if_link.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attach {
    /// By the driver.
    Native = 1 << 2,
    /// By the kernel, when the driver has made a socket buffer of the frame.
    Generic = 1 << 1,
}

/// Calls `bpf(2)` with the part of `union bpf_attr` that the command uses.
///
/// # Safety
/// `A` is that part, laid out as the kernel has it; its pointers are valid for what the command reads and writes there.
unsafe fn bpf<A>(command: u32, attributes: &mut A) -> io::Result<i32> {
    // SAFETY: as the caller says. The kernel reads as many bytes as it is told, and takes the rest of the union for 0.
    let done = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attributes), size_of::<A>()) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(done as i32) }
}

/// The same for a command that makes a file descriptor.
///
/// # Safety
/// As [`bpf`].
unsafe fn open<A>(command: u32, attributes: &mut A) -> io::Result<OwnedFd> {
    // SAFETY: as the caller says; what such a command answers is a descriptor that is nobody's yet.
    unsafe { bpf(command, attributes).map(|fd| OwnedFd::from_raw_fd(fd)) }
}

// The kernel's attributes have 64 bits for every pointer.
const _: () = assert!(size_of::<*const u8>() == size_of::<u64>());

/// A name of at most 15 bytes, as `bpftool` shows it.
const NAME: [u8; 16] = *b"dataplane\0\0\0\0\0\0\0";

/// A map from a queue's number to its socket.
#[derive(Debug)]
pub(super) struct SocketMap(OwnedFd);

impl SocketMap {
    pub(super) fn new(queues: u32) -> io::Result<Self> {
        #[repr(C)]
        struct Create {
            kind: u32,
            key_size: u32,
            value_size: u32,
            max_entries: u32,
            flags: u32,
            inner_map_fd: u32,
            numa_node: u32,
            name: [u8; 16],
        }
        let mut create = Create {
            kind: MAP_TYPE_XSKMAP,
            key_size: 4,
            value_size: 4,
            max_entries: queues,
            flags: 0,
            inner_map_fd: 0,
            numa_node: 0,
            name: NAME,
        };
        // SAFETY: laid out as the anonymous structure of BPF_MAP_CREATE, without pointers.
        unsafe { open(MAP_CREATE, &mut create).map(Self) }
    }

    pub(super) fn fd(&self) -> i32 {
        self.0.as_raw_fd()
    }

    /// Lets frames of a queue go to a socket, or on to the kernel again. A socket that is closed leaves by itself.
    pub(super) fn set(&self, queue: u32, socket: Option<BorrowedFd<'_>>) -> io::Result<()> {
        #[repr(C)]
        struct Update {
            map_fd: u32,
            padding: u32,
            key: *const u32,
            value: *const i32,
            flags: u64,
        }
        let value = socket.map_or(-1, |socket| socket.as_raw_fd());
        let command = if socket.is_some() { MAP_UPDATE_ELEM } else { MAP_DELETE_ELEM };
        let mut update = Update { map_fd: self.fd() as u32, padding: 0, key: &queue, value: &value, flags: 0 };
        // SAFETY: laid out as the anonymous structure of BPF_MAP_*_ELEM; key and value have the sizes of this map.
        unsafe { bpf(command, &mut update).map(drop) }
    }
}

/// A loaded program.
#[derive(Debug)]
pub(super) struct Program(OwnedFd);

impl Program {
    /// Loads a program.
    ///
    /// # Errors
    /// As `bpf(2)`.
    pub(super) fn load(code: &[Instruction]) -> io::Result<Self> {
        // It calls nothing that is for GPL programs alone.
        Self::load_for(code, 0, 0, c"MIT OR Apache-2.0")
    }

    /// Loads a program that calls functions of the kernel, for one interface alone.
    ///
    /// # Errors
    /// As `bpf(2)`.
    pub(super) fn load_bound(code: &[Instruction], interface: u32) -> io::Result<Self> {
        // Such functions are for programs that may be passed on under the GPL, as the MIT licence allows.
        Self::load_for(code, BOUND, interface, c"Dual MIT/GPL")
    }

    fn load_for(code: &[Instruction], flags: u32, interface: u32, license: &CStr) -> io::Result<Self> {
        // Kernels before 5.18 know no frames of several buffers.
        Self::load_as(code, flags | HAS_FRAGS, interface, license).or_else(|error| match error.raw_os_error() {
            Some(libc::EINVAL) => Self::load_as(code, flags, interface, license),
            _ => Err(error),
        })
    }

    fn load_as(code: &[Instruction], flags: u32, interface: u32, license: &CStr) -> io::Result<Self> {
        #[repr(C)]
        struct Load {
            kind: u32,
            count: u32,
            code: *const Instruction,
            license: *const libc::c_char,
            log_level: u32,
            log_size: u32,
            log: *mut u8,
            kernel_version: u32,
            flags: u32,
            name: [u8; 16],
            interface: u32,
            attach_type: u32,
        }
        let mut load = Load {
            kind: PROG_TYPE_XDP,
            count: code.len() as u32,
            code: code.as_ptr(),
            license: license.as_ptr(),
            log_level: 0,
            log_size: 0,
            log: std::ptr::null_mut(),
            kernel_version: 0,
            flags,
            name: NAME,
            interface,
            attach_type: ATTACH_TYPE_XDP,
        };
        let mut attempt = 1;
        loop {
            // SAFETY: laid out as the anonymous structure of BPF_PROG_LOAD; code and licence outlive the call.
            match unsafe { open(PROG_LOAD, &mut load) } {
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) && attempt < ATTEMPTS => attempt += 1,
                loaded => return loaded.map(Self),
            }
        }
    }

    /// Attaches it to an interface, until the result is dropped or the process ends, however it does.
    pub(super) fn attach(&self, interface: u32, how: Attach) -> io::Result<Attached> {
        #[repr(C)]
        struct Create {
            program: u32,
            interface: u32,
            kind: u32,
            flags: u32,
        }
        let program = self.0.as_raw_fd() as u32;
        let mut create = Create { program, interface, kind: ATTACH_TYPE_XDP, flags: how as u32 };
        // SAFETY: the first fields of the structure of BPF_LINK_CREATE, without pointers.
        unsafe { open(LINK_CREATE, &mut create).map(Attached) }
    }

    /// Runs it on a frame; gives its verdict.
    #[cfg(test)]
    pub(super) fn test(&self, frame: &[u8]) -> io::Result<u32> {
        #[repr(C)]
        #[derive(Default)]
        struct Run {
            program: u32,
            verdict: u32,
            size_in: u32,
            size_out: u32,
            data_in: u64,
            data_out: u64,
            repeat: u32,
            duration: u32,
            context_size: [u32; 2],
            context: [u64; 2],
        }
        let program = self.0.as_raw_fd() as u32;
        let data_in = frame.as_ptr().expose_provenance() as u64;
        let mut run = Run { program, size_in: frame.len() as u32, data_in, repeat: 1, ..Run::default() };
        // SAFETY: the first fields of the structure of BPF_PROG_TEST_RUN; the frame outlives the call.
        unsafe { bpf(PROG_TEST_RUN, &mut run)? };
        Ok(run.verdict)
    }
}

/// A program's place at an interface: a `bpf_link`, which ends with its descriptor.
#[derive(Debug)]
pub(super) struct Attached(#[allow(dead_code, reason = "held for its end")] OwnedFd);

/// The number of the link that holds a program at an interface, where one does.
pub(in crate::provider::soft) fn holder(interface: u32, program: u32) -> Option<u32> {
    /// `struct bpf_link_info`, as of links to interfaces.
    #[repr(C)]
    #[derive(Clone, Copy, Default)]
    struct Info {
        kind: u32,
        id: u32,
        program: u32,
        unused: u32,
        interface: u32,
        room: [u32; 15],
    }
    #[repr(C)]
    struct Next {
        id: u32,
        next: u32,
        flags: u32,
    }
    #[repr(C)]
    struct About {
        fd: u32,
        size: u32,
        info: *mut Info,
    }
    let mut id = 0;
    loop {
        let mut next = Next { id, next: 0, flags: 0 };
        // SAFETY: the structure of BPF_*_GET_NEXT_ID and BPF_*_GET_FD_BY_ID, without pointers.
        unsafe { bpf(LINK_GET_NEXT_ID, &mut next).ok()? };
        id = next.next;
        let mut by_id = Next { id, next: 0, flags: 0 };
        // SAFETY: as above.
        let Ok(link) = (unsafe { open(LINK_GET_FD_BY_ID, &mut by_id) }) else { continue };
        let mut info = Info::default();
        let mut about = About { fd: link.as_raw_fd() as u32, size: size_of::<Info>() as u32, info: &mut info };
        // SAFETY: the structure of BPF_OBJ_GET_INFO_BY_FD; the kernel writes at most `size` bytes, all of which are plain
        // numbers.
        let told = unsafe { bpf(OBJ_GET_INFO_BY_FD, &mut about) };
        // Interfaces of other network namespaces have the same numbers; programs do not.
        if told.is_ok() && info.kind == LINK_TYPE_XDP && (info.interface, info.program) == (interface, program) {
            return Some(info.id);
        }
    }
}
