"""Compares output frames with expected frames, one by one."""

import struct
import tempfile
from pathlib import Path

from measure import REPO, fail
from peer.ours import Pipeline

HEADER, RECORD = struct.Struct("<IHHiIII"), struct.Struct("<IIII")
# The offsets of the IPv4 and UDP checksums in the frames of benches/make-captures.
IP_SUM, UDP_SUM = 14 + 10, 14 + 20 + 6


def read(path):
    data = Path(path).read_bytes()
    if len(data) < HEADER.size or HEADER.unpack_from(data)[0] not in (0xA1B2C3D4, 0xA1B23C4D):
        fail(f"{path} is not a pcap file in this machine's byte order")
    frames, at = [], HEADER.size
    while at < len(data):
        length = RECORD.unpack_from(data, at)[2]
        at += RECORD.size
        frames.append(data[at : at + length])
        at += length
    return frames


def write(path, frames):
    with open(path, "wb") as file:
        file.write(HEADER.pack(0xA1B2C3D4, 2, 4, 0, 0, 65535, 1))
        for number, frame in enumerate(frames):
            file.write(RECORD.pack(0, number, len(frame), len(frame)) + frame)


def swapped(frame):
    return frame[6:12] + frame[:6] + frame[12:]


def with_wrong_sums(frame):
    """Returns the frame with wrong IPv4 and UDP checksums."""
    changed = bytearray(frame)
    for at in (IP_SUM, UDP_SUM):
        changed[at : at + 2] = bytes([frame[at] ^ 0x55, frame[at + 1] ^ 0x55])
    return bytes(changed)


def with_ip_sum(frame):
    """Returns the frame with a correct IPv4 checksum."""
    words = struct.unpack_from("!10H", frame, 14)
    total = sum(words) - words[5]
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return frame[:IP_SUM] + struct.pack("!H", 0xFFFF - total) + frame[IP_SUM + 2 :]


def unchanged(frame):
    return frame


# For each forwarding mode: the function from a frame of the capture to the input frame, and the function from the same frame of the
# capture to the expected output frame.
MODES = {"io": (unchanged, unchanged), "macswap": (unchanged, swapped), "csum": (with_wrong_sums, unchanged)}


def compare(name, frames, expected):
    if len(frames) != len(expected):
        fail(f"{name}: the output has {len(frames)} frames instead of {len(expected)}")
    for number, (frame, expected_frame) in enumerate(zip(frames, expected)):
        if frame != expected_frame:
            fail(f"{name}: frame {number} is\n{frame.hex()}\ninstead of\n{expected_frame.hex()}")


def check_forwarding(mode, capture, config, program, core, peers):
    """Plays a capture through Dataplane and through each peer into another capture, and compares all frames.

    `peers` maps names to functions that create a peer from a device. Returns the number of frames."""
    to_input, to_expected = MODES[mode]
    frames = read(capture)
    expected = [to_expected(frame) for frame in frames]
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder) / "in.pcap", Path(folder) / "out.pcap"
        write(source, [to_input(frame) for frame in frames])
        link = f'port.0.link={{ kind = "pcap", input = "{source}", output = "{out}" }}'
        Pipeline(program, config, [core], 32, [link]).run("--packets", str(len(frames)))
        compare(f"{config}, Dataplane", read(out), expected)
        for name, make in peers.items():
            out.unlink()
            with make(f"net_pcap0,rx_pcap={source},tx_pcap={out}") as peer:
                peer.send(len(frames))
            compare(f"{mode}, {name}", read(out), expected)
    return len(frames)


def captures():
    return REPO / "out/bench"
