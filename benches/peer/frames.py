"""What comes out, compared with what must come out, frame by frame."""

import struct
import tempfile
from pathlib import Path

from measure import REPO, fail
from peer.ours import Pipeline

HEADER, RECORD = struct.Struct("<IHHiIII"), struct.Struct("<IIII")
# Where the checksums of IPv4 and of UDP lie in the frames of benches/make-captures.
IP_SUM, UDP_SUM = 14 + 10, 14 + 20 + 6


def read(path):
    data = Path(path).read_bytes()
    if len(data) < HEADER.size or HEADER.unpack_from(data)[0] not in (0xA1B2C3D4, 0xA1B23C4D):
        fail(f"{path} is no capture of this machine's byte order")
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


def spoilt(frame):
    """The same with other checksums."""
    changed = bytearray(frame)
    for at in (IP_SUM, UDP_SUM):
        changed[at : at + 2] = bytes([frame[at] ^ 0x55, frame[at + 1] ^ 0x55])
    return bytes(changed)


def with_ip_sum(frame):
    """The same with the checksum of IPv4 that it must have."""
    words = struct.unpack_from("!10H", frame, 14)
    total = sum(words) - words[5]
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return frame[:IP_SUM] + struct.pack("!H", 0xFFFF - total) + frame[IP_SUM + 2 :]


# By the work: what is done to a frame before it goes in, and what it must be when it comes out.
SAME = (lambda frame: frame, lambda frame: frame)
WORKS = {"io": SAME, "macswap": (SAME[0], swapped), "csum": (spoilt, SAME[1])}


def compare(who, got, wanted):
    if len(got) != len(wanted):
        fail(f"{who}: {len(got)} frames came out, {len(wanted)} were to")
    for number, (one, other) in enumerate(zip(got, wanted)):
        if one != other:
            fail(f"{who}: frame {number} is\n{one.hex()}\ninstead of\n{other.hex()}")


def check_forwarding(work, capture, config, program, core, peers):
    """Sends a capture through ours and through each peer, with a capture at the other end; all frames are compared.

    `peers` by name: what makes one, from a device and the frames' count. Gives how many frames."""
    before, after = WORKS[work]
    frames = read(capture)
    wanted = [after(frame) for frame in frames]
    with tempfile.TemporaryDirectory() as folder:
        fed, out = Path(folder) / "in.pcap", Path(folder) / "out.pcap"
        write(fed, [before(frame) for frame in frames])
        link = f'port.0.link={{ kind = "pcap", input = "{fed}", output = "{out}" }}'
        Pipeline(program, config, [core], 32, [link]).run("--packets", str(len(frames)))
        compare(f"{config}, ours", read(out), wanted)
        for name, make in peers.items():
            out.unlink()
            with make(f"net_pcap0,rx_pcap={fed},tx_pcap={out}") as peer:
                peer.send(len(frames))
            compare(f"{work}, {name}", read(out), wanted)
    return len(frames)


def captures():
    return REPO / "out/bench"
