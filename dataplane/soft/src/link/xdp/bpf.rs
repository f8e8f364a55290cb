//! The `bpf(2)` commands that an XDP link needs.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::program::Instruction;

// `enum bpf_cmd`.
const MAP_CREATE: u32 = 0;
const MAP_UPDATE_ELEM: u32 = 2;
const MAP_DELETE_ELEM: u32 = 3;
const PROG_LOAD: u32 = 5;
/// Maximum number of attempts to load a program. A signal can interrupt the kernel's verifier (`EAGAIN`).
const ATTEMPTS: usize = 5;
#[cfg(test)]
const PROG_TEST_RUN: u32 = 10;
const OBJ_GET_INFO_BY_FD: u32 = 15;
const LINK_CREATE: u32 = 28;
const LINK_UPDATE: u32 = 29;
const LINK_GET_FD_BY_ID: u32 = 30;
const LINK_GET_NEXT_ID: u32 = 31;

const PROG_TYPE_XDP: u32 = 6;
const MAP_TYPE_XSKMAP: u32 = 17;
const ATTACH_TYPE_XDP: u32 = 37;
const LINK_TYPE_XDP: u32 = 6;
/// `BPF_F_XDP_HAS_FRAGS`: the program accepts frames with several buffers.
const HAS_FRAGS: u32 = 1 << 5;
/// `BPF_F_XDP_DEV_BOUND_ONLY`: the program is bound to one interface, and may call functions of its driver.
const BOUND: u32 = 1 << 6;

/// Attach mode of a program: `XDP_FLAGS_*` of linux/if_link.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attach {
    /// In the driver.
    Native = 1 << 2,
    /// In the kernel, after the driver has created a socket buffer for the frame.
    Generic = 1 << 1,
}

/// Calls `bpf(2)`. `A` is the member of `union bpf_attr` that the command uses.
///
/// # Safety
/// `A` must have the kernel's layout of that member. Its pointers must be valid for the command's reads and writes.
unsafe fn bpf<A>(command: u32, attributes: &mut A) -> io::Result<i32> {
    // SAFETY: the caller guarantees a valid `A`. The kernel reads exactly the given number of bytes, and treats the
    // rest of the union as 0.
    let done = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attributes), size_of::<A>()) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(done as i32) }
}

/// Calls `bpf(2)` with a command that returns a file descriptor.
///
/// # Safety
/// The conditions of [`bpf`] apply.
unsafe fn open<A>(command: u32, attributes: &mut A) -> io::Result<OwnedFd> {
    // SAFETY: the caller guarantees a valid `A`. The command returns a new descriptor that nothing else owns.
    unsafe { bpf(command, attributes).map(|fd| OwnedFd::from_raw_fd(fd)) }
}

// The kernel's attribute structures have 64 bits for every pointer, and the structures here use Rust pointers.
const _: () = assert!(size_of::<*const u8>() == size_of::<u64>());

/// The name of maps and programs, which `bpftool` shows. At most 15 bytes.
const NAME: [u8; 16] = *b"dataplane\0\0\0\0\0\0\0";

/// A map from queue indices to sockets.
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
        // SAFETY: `Create` has the layout of the anonymous structure of BPF_MAP_CREATE, and no pointers.
        unsafe { open(MAP_CREATE, &mut create).map(Self) }
    }

    pub(super) fn fd(&self) -> i32 {
        self.0.as_raw_fd()
    }

    /// Redirects the frames of a queue to `socket`. When the socket closes, the kernel removes the socket from the map.
    pub(super) fn set(&self, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        #[repr(C)]
        struct Update {
            map_fd: u32,
            padding: u32,
            key: *const u32,
            value: *const i32,
            flags: u64,
        }
        let value = socket.as_raw_fd();
        let mut update = Update { map_fd: self.fd() as u32, padding: 0, key: &queue, value: &value, flags: 0 };
        // SAFETY: `Update` has the layout of the anonymous structure of BPF_MAP_UPDATE_ELEM. Key and value have the sizes
        // of this map.
        unsafe { bpf(MAP_UPDATE_ELEM, &mut update).map(drop) }
    }

    /// Removes the socket of a queue, so that the frames of the queue go to the kernel.
    pub(super) fn remove(&self, queue: u32) -> io::Result<()> {
        #[repr(C)]
        struct Delete {
            map_fd: u32,
            padding: u32,
            key: *const u32,
        }
        let mut delete = Delete { map_fd: self.fd() as u32, padding: 0, key: &queue };
        // SAFETY: `Delete` has the layout of the anonymous structure of BPF_MAP_DELETE_ELEM. The key has the size of this
        // map.
        match unsafe { bpf(MAP_DELETE_ELEM, &mut delete) } {
            // The map has no socket for the queue.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            other => other.map(drop),
        }
    }
}

/// A loaded XDP program.
#[derive(Debug)]
pub(super) struct Program(OwnedFd);

impl Program {
    /// Loads a program that can be attached to any interface.
    ///
    /// # Errors
    /// Fails as `bpf(2)` does.
    pub(super) fn load(code: &[Instruction]) -> io::Result<Self> {
        // The program calls no kernel function that is restricted to GPL programs, so any licence is accepted.
        Self::load_for(code, 0, 0, c"MIT OR Apache-2.0")
    }

    /// Loads a program that calls kernel functions and is bound to one interface.
    ///
    /// # Errors
    /// Fails as `bpf(2)` does.
    pub(super) fn load_bound(code: &[Instruction], interface: u32) -> io::Result<Self> {
        // Only GPL-compatible programs may call such kernel functions. The kernel accepts this licence as
        // GPL-compatible.
        Self::load_for(code, BOUND, interface, c"Dual MIT/GPL")
    }

    fn load_for(code: &[Instruction], flags: u32, interface: u32, license: &CStr) -> io::Result<Self> {
        // Kernels before 5.18 refuse the flag for frames with several buffers, so try again without the flag.
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
            // SAFETY: `Load` has the layout of the anonymous structure of BPF_PROG_LOAD. Code and licence outlive the
            // call.
            match unsafe { open(PROG_LOAD, &mut load) } {
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) && attempt < ATTEMPTS => attempt += 1,
                loaded => return loaded.map(Self),
            }
        }
    }

    /// Attaches the program to an interface. The program stays attached until the result is dropped or the process
    /// ends.
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
        // SAFETY: `Create` has the first fields of the structure of BPF_LINK_CREATE, and no pointers.
        unsafe { open(LINK_CREATE, &mut create).map(Attached) }
    }

    /// Runs the program on a frame. Returns the verdict of the program.
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
        // SAFETY: `Run` has the first fields of the structure of BPF_PROG_TEST_RUN. The frame outlives the call.
        unsafe { bpf(PROG_TEST_RUN, &mut run)? };
        Ok(run.verdict)
    }
}

/// The attachment of a program to an interface: a `bpf_link`. Closing its descriptor detaches the program.
#[derive(Debug)]
pub(super) struct Attached(OwnedFd);

impl Attached {
    /// Takes over the attachment of another program.
    pub(super) fn adopt(link: OwnedFd) -> Self {
        Self(link)
    }

    /// Replaces the attached program. No frame passes without a program.
    pub(super) fn replace(&self, program: &Program) -> io::Result<()> {
        #[repr(C)]
        struct Update {
            link: u32,
            program: u32,
            flags: u32,
            old_program: u32,
        }
        let (link, program) = (self.0.as_raw_fd() as u32, program.0.as_raw_fd() as u32);
        let mut update = Update { link, program, flags: 0, old_program: 0 };
        // SAFETY: `Update` has the layout of the anonymous structure of BPF_LINK_UPDATE, and no pointers.
        unsafe { bpf(LINK_UPDATE, &mut update).map(drop) }
    }
}

impl AsFd for Attached {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Returns the id of the `bpf_link` that attaches a program to an interface, if there is one.
pub(crate) fn holding_link(interface: u32, program: u32) -> Option<u32> {
    /// `struct bpf_link_info` for links to interfaces.
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
        // SAFETY: `Next` has the layout of BPF_*_GET_NEXT_ID and BPF_*_GET_FD_BY_ID, and no pointers.
        unsafe { bpf(LINK_GET_NEXT_ID, &mut next).ok()? };
        id = next.next;
        let mut by_id = Next { id, next: 0, flags: 0 };
        // SAFETY: as for the previous call.
        let Ok(link) = (unsafe { open(LINK_GET_FD_BY_ID, &mut by_id) }) else { continue };
        let mut info = Info::default();
        let mut about = About { fd: link.as_raw_fd() as u32, size: size_of::<Info>() as u32, info: &mut info };
        // SAFETY: `About` has the layout of BPF_OBJ_GET_INFO_BY_FD. The kernel writes at most `size` bytes, and all
        // fields are plain numbers.
        let result = unsafe { bpf(OBJ_GET_INFO_BY_FD, &mut about) };
        // Interface indices are not unique across network namespaces, but program ids are.
        if result.is_ok() && info.kind == LINK_TYPE_XDP && (info.interface, info.program) == (interface, program) {
            return Some(info.id);
        }
    }
}
