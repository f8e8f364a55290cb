"""Rows 5 and 6 of docs/peers.md: routing and a firewall, compared with DPDK's example programs.

Debian provides the examples only as source."""

import atexit
import functools
import json
import os
import signal
import socket
import tempfile
import time
from pathlib import Path

from measure import fail
from peer.frames import captures, compare, read
from peer.ours import Pipeline
from peer.process import Program
from peer.rounds import Case, Peer

MEMORY_MIB = 600
START_TIMEOUT_S = 60
WARM_UP_S = 0.2
NETWORKS = 16
# The number of networks that l3fwd-graph has routes for.
GRAPH_NETWORKS = 8
RUNTIME = Path("/var/run/dpdk")
ADDRESSES = 12


class Example:
    """An example program. The program forwards packets as soon as it has started. SIGSTOP stops the program between measurements, so
    that it does not use the core. The rate is computed from the port counters of the telemetry socket."""

    counter = 0

    def __init__(self, program, lcores, device, words, files=None):
        Example.counter += 1
        self.prefix = f"peers{os.getpid()}-{Example.counter}"
        self.program_path, self.words, self.files = program, words, files or {}
        self.eal = [f"--lcores={lcores}", "--no-pci", "--in-memory", "-m", MEMORY_MIB, f"--file-prefix={self.prefix}"]
        self.eal.append(f"--vdev={device}")

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory()
        atexit.register(self.clean)
        for name, text in self.files.items():
            (Path(self.folder.name) / name).write_text(text)
        words = [str(word).replace("@", f"{self.folder.name}/") for word in self.words]
        self.program = Program([self.program_path, *self.eal, "--", *words], discard=True)
        self.socket = self.connect()
        self.wait("opackets", 1)
        self.signal(signal.SIGSTOP)
        return self

    def __exit__(self, *_):
        self.socket.close()
        self.program.kill()
        self.folder.cleanup()
        self.clean()
        atexit.unregister(self.clean)

    def clean(self):
        """Removes the files that DPDK leaves behind."""
        folder = RUNTIME / self.prefix
        if folder.exists():
            for left in folder.iterdir():
                left.unlink()
            folder.rmdir()

    def signal(self, number):
        os.kill(self.program.process.pid, number)

    def connect(self):
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                connection.settimeout(START_TIMEOUT_S)
                connection.connect(str(RUNTIME / self.prefix / "dpdk_telemetry.v2"))
                connection.recv(1024)
                return connection
            except OSError:
                connection.close()
                if self.program.process.poll() is not None or time.monotonic() > deadline:
                    self.program.failed("the program did not start")
                time.sleep(0.05)

    def stats(self):
        self.socket.send(b"/ethdev/stats,0")
        # The reply is null until the port exists.
        return json.loads(self.socket.recv(16384))["/ethdev/stats"] or {"opackets": 0, "ipackets": 0}

    def wait(self, name, count):
        deadline = time.monotonic() + START_TIMEOUT_S
        while self.stats()[name] < count:
            if time.monotonic() > deadline:
                self.program.failed(f"the counter {name} did not reach {count} within {START_TIMEOUT_S} s")
            time.sleep(0.05)

    def measure(self, seconds):
        """Returns the sent packets in millions per second. Fails if over 1 % of the received packets are not sent."""
        self.signal(signal.SIGCONT)
        time.sleep(WARM_UP_S)
        before, start = self.stats(), time.monotonic()
        time.sleep(seconds)
        after, end = self.stats(), time.monotonic()
        self.signal(signal.SIGSTOP)
        sent, received = (after[name] - before[name] for name in ("opackets", "ipackets"))
        if sent < 0.99 * received:
            fail(f"{self.program_path.name}: sent only {sent} of {received} packets")
        return round(sent / (end - start) / 1e6, 3)

    def finish(self, packets):
        """Forwards until the number of packets is sent, then ends the program with SIGINT, so that its capture is complete."""
        self.signal(signal.SIGCONT)
        self.wait("opackets", packets)
        self.program.interrupt()


class Examples:
    """The cases with example programs. `build` is the directory of a build of DPDK's source package."""

    def __init__(self, program, build, main_core, core):
        self.program, self.folder, self.main_core, self.core = program, build / "examples", main_core, core

    def l3fwd(self, device):
        files = {
            "v4": "".join(f"R198.18.{number}.0/24 0\n" for number in range(NETWORKS)),
            "v6": "R2001:db8::/32 0\n",
        }
        words = ["-p", "0x1", "--config=(0,0,1)", "--parse-ptype", "--rule_ipv4=@v4", "--rule_ipv6=@v6", "--lookup=lpm"]
        return Example(self.folder / "dpdk-l3fwd", f"1@{self.core}", device, words, files)

    def graph(self, device):
        lcores = f"0@{self.main_core},1@{self.core}"
        return Example(self.folder / "dpdk-l3fwd-graph", lcores, device, ["-p", "0x1", "--config=(0,0,1)"])

    def firewall(self, device):
        # 270 is the offset of the IP header in a buffer: 128 bytes of mbuf header, 128 bytes of headroom, and 14 bytes of
        # Ethernet header.
        lines = [
            "mempool MEMPOOL0 buffer 2304 pool 32K cache 256 cpu 0",
            "link LINK0 dev net_pcap0 rxq 1 128 MEMPOOL0 txq 1 512 promiscuous on",
            "table action profile AP0 ipv4 offset 270 fwd",
            "pipeline PIPELINE0 period 10 offset_port_id 0 cpu 0",
            "pipeline PIPELINE0 port in bsz 32 link LINK0 rxq 0",
            "pipeline PIPELINE0 port out bsz 32 link LINK0 txq 0",
            "pipeline PIPELINE0 table match acl ipv4 offset 270 size 4K action AP0",
            "pipeline PIPELINE0 port in 0 table 0",
            "pipeline PIPELINE0 table 0 rule add match default action fwd drop",
        ]
        for number in range(NETWORKS):
            match = f"acl priority {number} ipv4 0.0.0.0 0 198.18.{number}.0 24 0 65535 9 9 17"
            lines.append(f"pipeline PIPELINE0 table 0 rule add match {match} action fwd port 0")
        # Enable the pipeline last: packets that arrive before the rules are dropped.
        lines.append("thread 1 pipeline PIPELINE0 enable")
        lcores = f"0@{self.main_core},1@{self.core}"
        words = ["-s", "@firewall.cli"]
        return Example(self.folder / "dpdk-ip_pipeline", lcores, device, words, {"firewall.cli": "\n".join(lines) + "\n"})

    def check(self, config, make, networks, queues, sets):
        """Plays a capture through both sides into another capture, and compares the frames without their Ethernet addresses. The
        Ethernet addresses differ because each side has its own next hops."""
        frames = captures() / f"udp-1024-{networks}.pcap" if networks != NETWORKS else captures() / "udp-1024.pcap"
        count = len(read(frames))
        with tempfile.TemporaryDirectory() as folder:
            out, outs = f"{folder}/ours.pcap", [f"{folder}/{queue}.pcap" for queue in range(queues)]
            link = f'port.0.link={{ kind = "pcap", input = "{frames}", output = "{out}" }}'
            Pipeline(self.program, config, [self.core], 32, [link, *sets]).run("--packets", str(count))
            device = "net_pcap0" + f",rx_pcap={frames}" * queues + "".join(f",tx_pcap={one}" for one in outs)
            with make(device) as peer:
                peer.finish(count)
            theirs = [frame[ADDRESSES:] for one in outs for frame in read(one)]
            compare(f"{config}, the peer", theirs, [frame[ADDRESSES:] for frame in read(out)])
        return (
            f"Before the measurement, both sides forwarded {count:,} frames of {count:,} flows from one capture to another. "
            "Except for the Ethernet addresses, the outputs were identical byte by byte."
        )

    def case(self, row, work, config, peer, goal=None, networks=NETWORKS, queues=1, sets=(), note=""):
        name, make = peer
        capture = captures() / (f"udp-1024-{networks}.pcap" if networks != NETWORKS else "udp-1024.pcap")
        link = f'port.0.link={{ kind = "pcap", input = "{capture}", loop = true }}'
        device = "net_pcap0" + f",rx_pcap={capture}" * queues + ",infinite_rx=1"
        return Case(
            row,
            f"{work}, 1,024 flows, burst 32",
            functools.partial(Pipeline, self.program, config, [self.core], 32, [link, *sets]),
            [Peer(f"{name}, native", functools.partial(make, device), goal)],
            [self.core],
            check=functools.partial(self.check, config, make, networks, queues, sets),
            note=note,
        )

    def cases(self, rows):
        if 5 in rows:
            work, route = "IPv4 routing", "benches/pipelines/route.toml"
            l3fwd, graph = ("l3fwd LPM", self.l3fwd), ("l3fwd-graph", self.graph)
            # l3fwd verifies the header checksum only in hardware, which software ports lack. l3fwd-graph does not verify
            # the checksum at all.
            unverified = ["pipeline.stage.0.verify_checksum=false"]
            note = "Neither peer verifies the IPv4 header checksum. Dataplane verifies the checksum only in the row `checksum verified`."
            yield self.case(5, f"{work}, checksum not verified", route, l3fwd, 1.2, sets=unverified, note=note)
            yield self.case(5, f"{work}, checksum verified", route, l3fwd)
            note = "The example l3fwd-graph has built-in routes to 8 networks. In its row, both sides receive frames to these networks."
            yield self.case(5, f"{work}, checksum not verified, {GRAPH_NETWORKS} networks", route, graph, 1.6, GRAPH_NETWORKS, 2, unverified, note)
        if 6 in rows:
            firewall = ("ip_pipeline", self.firewall)
            yield self.case(6, "firewall of 16 rules", "benches/pipelines/firewall.toml", firewall, 1.5)
