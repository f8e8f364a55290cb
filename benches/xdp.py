"""Small XDP programs, loaded with bpf(2) without a compiler or library: a source of frames, a sink that counts frames, a redirect.

The source uses BPF_PROG_RUN with live frames (`Documentation/bpf/bpf_prog_run.rst` of Linux 5.18 or newer). The kernel creates the
frames and passes millions per second to an interface.
"""

import ctypes
import os
import platform
import struct
import threading
import time

# The system call number of bpf(2), which has no wrapper in the C library.
BPF = {"x86_64": 321, "aarch64": 280, "riscv64": 280}.get(platform.machine())
CLONE_NEWNET = 0x40000000

MAP_CREATE, MAP_LOOKUP, MAP_UPDATE, PROG_LOAD, PROG_RUN, LINK_CREATE = 0, 1, 2, 5, 10, 28
MAP_PERCPU_ARRAY, PROG_XDP, ATTACH_XDP = 6, 6, 37
LIVE_FRAMES = 1 << 1
# Driver mode (`XDP_FLAGS_DRV_MODE`): the program runs in the NAPI context of the interface.
NATIVE = 1 << 2
DROP, PASS = 1, 2

FRAME_BYTES = 64
# Length of the Ethernet header and the IPv4 header up to its addresses.
HEADER_BYTES = 32
# Every 1024th counted frame is kept as a sample.
SAMPLE_MASK = 1023

libc = ctypes.CDLL(None, use_errno=True)


def bpf(command, layout, *values):
    """Calls bpf(2) with the attributes of the command. Returns the result and the attributes after the call."""
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


# Instructions on 64-bit registers (RFC 9669).
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
    """Loads a program and returns its descriptor."""
    text = ctypes.create_string_buffer(code, len(code))
    licence = ctypes.create_string_buffer(b"MIT OR Apache-2.0")
    layout = "<IIQQIIQII16sII"
    values = (PROG_XDP, len(code) // 8, address(text), address(licence), 0, 0, 0, 0, 0, b"benchmark", 0, ATTACH_XDP)
    return bpf(PROG_LOAD, layout, *values)[0]


def attach(program, index):
    """Attaches a program to an interface of this namespace. Closing the returned descriptor detaches the program."""
    return bpf(LINK_CREATE, "<IIII", program, index, ATTACH_XDP, NATIVE)[0]


def redirect(index, header=b""):
    """Loads a program that overwrites the start of every frame with `header` and sends the frame out of an interface. The length of
    `header` is a multiple of 8 bytes. Returns the descriptor of the program."""
    write = b""
    if header:
        words = struct.unpack(f"<{len(header) // 8}Q", header)
        stores = [
            instruction(0x18, 4, value=struct.unpack("<i", struct.pack("<I", word & 0xFFFFFFFF))[0])
            + instruction(0, value=struct.unpack("<i", struct.pack("<I", word >> 32))[0])
            + instruction(0x7B, 2, 4, 8 * at)
            for at, word in enumerate(words)
        ]
        # r2: start of the frame, r3: end of the frame.
        body = b"".join(stores)
        begin = instruction(0x61, 2, 1, 0) + instruction(0x61, 3, 1, 4) + copy(5, 2) + add(5, len(header))
        write = begin + instruction(0x2D, 5, 3, len(body) // 8) + body
    return load(write + set_to(1, index) + set_to(2, 0) + call(23) + EXIT)


class Sink:
    """Counts and drops the frames that contain the four bytes `mark` at offset `at`, and keeps samples. Passes all other frames."""

    def __init__(self, mark, at):
        self.value_bytes = 8 + FRAME_BYTES
        self.map = bpf(MAP_CREATE, "<IIIIIII16s", MAP_PERCPU_ARRAY, 4, self.value_bytes, 1, 0, 0, 0, b"sink")[0]
        count = [
            # r6: start of the frame, r7: end of the frame. Shorter frames do not belong to the benchmark.
            instruction(0x61, 6, 1, 0),
            instruction(0x61, 7, 1, 4),
            copy(2, 6),
            add(2, FRAME_BYTES),
            "pass if r2 > r7",
            instruction(0x61, 3, 6, at),
            "pass if r3 is not the mark",
            # r0: address of the map value of this core.
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
        """Reads the values of all possible cores, or sets them to zero."""
        with open("/sys/devices/system/cpu/possible", encoding="ascii") as file:
            cores = int(file.read().strip().split("-")[-1]) + 1
        key, values = ctypes.c_uint32(0), ctypes.create_string_buffer(self.value_bytes * cores)
        bpf(command, "<IIQQQ", self.map, 0, address(key), address(values), 0)
        return [values.raw[core * self.value_bytes :][: self.value_bytes] for core in range(cores)]

    def _values(self):
        """Returns the number of frames and the last sampled frame of each core."""
        raw = self._exchange(MAP_LOOKUP)
        return [(struct.unpack_from("<Q", it)[0], it[8:]) for it in raw]

    def count(self):
        return sum(count for count, _ in self._values())

    def samples(self):
        return {frame for count, frame in self._values() if any(frame)}

    def reset(self):
        self._exchange(MAP_UPDATE)


class Source(threading.Thread):
    """Sends copies of a frame out of an interface as fast as possible, on one core, until it is stopped."""

    # The number of frames per system call. Each call takes milliseconds to start and end, and should take less than a
    # second.
    FRAMES_PER_CALL = 1_000_000

    def __init__(self, namespace, index, frame, core):
        super().__init__(daemon=True)
        self.namespace, self.index, self.frame, self.core = namespace, index, frame, core
        self.sent, self.seconds, self.error = 0, 0.0, None
        self.stopping = threading.Event()

    def run(self):
        try:
            enter(self.namespace)
            # Pin only this thread.
            os.sched_setaffinity(threading.get_native_id(), {self.core})
            # The kernel reuses the frames without restoring their content. Kernel forwarding changes the headers, so write them again.
            program = redirect(self.index, self.frame[:HEADER_BYTES])
            frame = ctypes.create_string_buffer(self.frame, len(self.frame))
            layout = "<IIIIQQIIIIQQIII"
            values = (program, 0, len(self.frame), 0, address(frame), 0, self.FRAMES_PER_CALL, 0, 0, 0, 0, 0, LIVE_FRAMES, 0, 64)
            start = time.monotonic()
            while not self.stopping.is_set():
                bpf(PROG_RUN, layout, *values)
                self.sent += self.FRAMES_PER_CALL
            self.seconds = time.monotonic() - start
            os.close(program)
        except OSError as error:
            self.error = error

    def stop(self):
        """Stops the source. Returns the sent frames in millions per second."""
        self.stopping.set()
        self.join()
        if self.error is not None:
            raise self.error
        return round(self.sent / self.seconds / 1e6, 3)
