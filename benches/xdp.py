"""XDP programs of a few instructions, made and run by bpf(2): a source of frames, a sink that counts them, a redirect.

Nothing is compiled and no library is needed. The source is BPF_PROG_RUN with live frames (`Documentation/bpf/bpf_prog_run.rst`
of the kernel, 5.18 or newer): the kernel makes the frames itself and hands them to an interface, millions a second.
"""

import ctypes
import os
import platform
import struct
import threading
import time

# The number of bpf(2), which no C library wraps.
BPF = {"x86_64": 321, "aarch64": 280, "riscv64": 280}.get(platform.machine())
CLONE_NEWNET = 0x40000000

MAP_CREATE, MAP_LOOKUP, MAP_UPDATE, PROG_LOAD, PROG_RUN, LINK_CREATE = 0, 1, 2, 5, 10, 28
MAP_PERCPU_ARRAY, PROG_XDP, ATTACH_XDP = 6, 6, 37
LIVE_FRAMES = 1 << 1
# By the driver (`XDP_FLAGS_DRV_MODE`): in the interface's own NAPI.
NATIVE = 1 << 2
DROP, PASS = 1, 2

FRAME_BYTES = 64
# Ethernet and the IPv4 header up to its addresses.
HEADER_BYTES = 32
# Of the frames that were counted every 1024th is kept.
SAMPLE_MASK = 1023

libc = ctypes.CDLL(None, use_errno=True)


def bpf(command, layout, *values):
    """bpf(2) with the part of its attributes that the command uses; gives what it answers, and the attributes after it."""
    attributes = ctypes.create_string_buffer(struct.pack(layout, *values))
    done = libc.syscall(BPF, command, attributes, len(attributes) - 1)
    if done < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"bpf(2) command {command}: {os.strerror(error)}")
    return done, struct.unpack(layout, attributes.raw[:-1])


def address(buffer):
    return ctypes.addressof(buffer)


def enter(namespace):
    """Moves this thread to a network namespace."""
    with open(f"/run/netns/{namespace}", "rb") as file:
        if libc.setns(file.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"namespace {namespace}")


def instruction(code, to=0, source=0, offset=0, value=0):
    return struct.pack("<BBhi", code, source << 4 | to, offset, value)


# The few instructions that are used here (RFC 9669), by what they do to 64-bit registers.
def set_to(register, value):
    return instruction(0xB7, register, value=value)


def copy(to, source):
    return instruction(0xBF, to, source)


def add(register, value):
    return instruction(0x07, register, value=value)


def call(helper):
    return instruction(0x85, value=helper)


EXIT = instruction(0x95)


def load(code):
    """Loads a program; gives its descriptor."""
    text = ctypes.create_string_buffer(code, len(code))
    licence = ctypes.create_string_buffer(b"MIT OR Apache-2.0")
    layout = "<IIQQIIQII16sII"
    values = (PROG_XDP, len(code) // 8, address(text), address(licence), 0, 0, 0, 0, 0, b"benchmark", 0, ATTACH_XDP)
    return bpf(PROG_LOAD, layout, *values)[0]


def attach(program, index):
    """Attaches a program to an interface of this namespace, until the descriptor that this gives is closed."""
    return bpf(LINK_CREATE, "<IIII", program, index, ATTACH_XDP, NATIVE)[0]


def redirect(index, header=b""):
    """A program that sends every frame out by an interface, and begins it with these bytes, a multiple of 8."""
    write = b""
    if header:
        words = struct.unpack(f"<{len(header) // 8}Q", header)
        stores = [
            instruction(0x18, 4, value=struct.unpack("<i", struct.pack("<I", word & 0xFFFFFFFF))[0])
            + instruction(0, value=struct.unpack("<i", struct.pack("<I", word >> 32))[0])
            + instruction(0x7B, 2, 4, 8 * at)
            for at, word in enumerate(words)
        ]
        # r2: the frame, r3: its end.
        body = b"".join(stores)
        begin = instruction(0x61, 2, 1, 0) + instruction(0x61, 3, 1, 4) + copy(5, 2) + add(5, len(header))
        write = begin + instruction(0x2D, 5, 3, len(body) // 8) + body
    return load(write + set_to(1, index) + set_to(2, 0) + call(23) + EXIT)


class Sink:
    """Counts and drops the frames that have `mark`, four bytes, at `at`; keeps a sample. Lets all others go on."""

    def __init__(self, mark, at):
        self.value_bytes = 8 + FRAME_BYTES
        self.map = bpf(MAP_CREATE, "<IIIIIII16s", MAP_PERCPU_ARRAY, 4, self.value_bytes, 1, 0, 0, 0, b"sink")[0]
        count = [
            # r6: the frame, r7: its end. One that is shorter than it should be is not one of ours.
            instruction(0x61, 6, 1, 0),
            instruction(0x61, 7, 1, 4),
            copy(2, 6),
            add(2, FRAME_BYTES),
            "pass if r2 > r7",
            instruction(0x61, 3, 6, at),
            "pass if r3 is not the mark",
            # r0: the value of this core's map.
            instruction(0x62, 10, 0, -4, 0),
            instruction(0x18, 1, 1, 0, self.map),
            instruction(0x00),
            copy(2, 10),
            add(2, -4),
            call(1),
            "pass if r0 == 0",
            instruction(0x79, 3, 0, 0),
            add(3, 1),
            instruction(0x7B, 0, 3, 0),
            instruction(0x57, 3, value=SAMPLE_MASK),
            "drop if r3 != 0",
        ]
        for offset in range(0, FRAME_BYTES, 8):
            count += [instruction(0x79, 3, 6, offset), instruction(0x7B, 0, 3, 8 + offset)]
        drop = len(count)
        count += [set_to(0, DROP), EXIT, set_to(0, PASS), EXIT]
        word = struct.unpack("<i", mark)[0]
        jumps = {
            "pass if r2 > r7": lambda far: instruction(0x2D, 2, 7, far + 2),
            "pass if r3 is not the mark": lambda far: instruction(0x56, 3, 0, far + 2, word),
            "pass if r0 == 0": lambda far: instruction(0x15, 0, 0, far + 2),
            "drop if r3 != 0": lambda far: instruction(0x55, 3, 0, far),
        }
        code = [jumps[it](drop - at - 1) if isinstance(it, str) else it for at, it in enumerate(count)]
        self.program = load(b"".join(code))

    def _exchange(self, command):
        """Reads the values of all cores that there may be, or sets them to zero."""
        with open("/sys/devices/system/cpu/possible", encoding="ascii") as file:
            cores = int(file.read().strip().split("-")[-1]) + 1
        key, values = ctypes.c_uint32(0), ctypes.create_string_buffer(self.value_bytes * cores)
        bpf(command, "<IIQQQ", self.map, 0, address(key), address(values), 0)
        return [values.raw[core * self.value_bytes :][: self.value_bytes] for core in range(cores)]

    def _values(self):
        """Of every core: how many frames, and one of them."""
        raw = self._exchange(MAP_LOOKUP)
        return [(struct.unpack_from("<Q", it)[0], it[8:]) for it in raw]

    def count(self):
        return sum(count for count, _ in self._values())

    def samples(self):
        return {frame for count, frame in self._values() if any(frame)}

    def reset(self):
        self._exchange(MAP_UPDATE)


class Source(threading.Thread):
    """Sends copies of a frame out by an interface, as many as it can, on one core, until it is stopped."""

    # As many as one system call sends, in less than a second. The kernel takes milliseconds to begin and to end.
    AT_A_TIME = 1_000_000

    def __init__(self, namespace, index, frame, core):
        super().__init__(daemon=True)
        self.namespace, self.index, self.frame, self.core = namespace, index, frame, core
        self.sent, self.seconds, self.error = 0, 0.0, None
        self.stopping = threading.Event()

    def run(self):
        try:
            enter(self.namespace)
            # Of this thread alone.
            os.sched_setaffinity(threading.get_native_id(), {self.core})
            # The memory of a frame is used again as it came back, and the kernel's own forwarding writes into its headers.
            program = redirect(self.index, self.frame[:HEADER_BYTES])
            frame = ctypes.create_string_buffer(self.frame, len(self.frame))
            layout = "<IIIIQQIIIIQQIII"
            values = (program, 0, len(self.frame), 0, address(frame), 0, self.AT_A_TIME, 0, 0, 0, 0, 0, LIVE_FRAMES, 0, 64)
            start = time.monotonic()
            while not self.stopping.is_set():
                bpf(PROG_RUN, layout, *values)
                self.sent += self.AT_A_TIME
            self.seconds = time.monotonic() - start
            os.close(program)
        except OSError as error:
            self.error = error

    def stop(self):
        """Ends it; gives how many millions of frames it has sent a second."""
        self.stopping.set()
        self.join()
        if self.error is not None:
            raise self.error
        return round(self.sent / self.seconds / 1e6, 3)
