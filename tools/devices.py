"""Devices under test for the tester, in network namespaces: the bridge, the router and the NAT of the kernel, DPDK's testpmd, and the
bridge, the router and the firewall of this project. BIRD gives one router its route.

The tester is in the namespace `a`, with the interfaces `to-left` and `to-right`. The device is in the namespace `m`, with the interfaces
`left` and `right`.
"""

import contextlib
import os
import pathlib
import subprocess

import live
from live import Failed, Network, Process

CORES = sorted(os.sched_getaffinity(0))
# The kernel suspends a thread with real-time priority that never sleeps.
IDLE = ["--set", 'runtime.hugepages="none"', "--set", 'runtime.idle="sleep"']

HEAD = """
[runtime]
workers = [{core}]
hugepages = "none"
idle = "sleep"
control = "none"

[[port]]
name = "left"
device = "host"
link = {{ kind = "{kind}", interface = "left" }}

[[port]]
name = "right"
device = "host"
link = {{ kind = "{kind}", interface = "right" }}

[pipeline]
input = ["left", "right"]
"""

BRIDGE = """
[[pipeline.stage]]
use = "bridge"

[[pipeline.stage]]
use = "tx"
"""

ROUTER = """
[[pipeline.stage]]
use = "parse"
outputs = { arp = "other", other = "other" }

[[pipeline.stage]]
use = "route"
ROUTES

[[pipeline.stage]]
use = "ttl"

[[pipeline.stage]]
use = "neighbor"
NEIGHBORS

[[pipeline.stage]]
use = "tx"

[[pipeline.stage]]
name = "other"
use = "drop"
"""
STATIC = {
    "ROUTES": 'table = [{ prefix = "198.18.0.0/24", port = "left" }, { prefix = "198.19.0.0/24", port = "right" }]',
    "NEIGHBORS": 'table = [{ address = "198.18.0.1", mac = "LEFT" }, { address = "198.19.0.1", mac = "RIGHT" }]',
}
KERNEL = {
    "ROUTES": 'source = "kernel"\noutputs = { local = "other", no_route = "other", unreachable = "other", prohibited = "other" }',
    "NEIGHBORS": 'source = "kernel"\noutputs = { unresolved = "other", unreachable = "other" }',
}
# The route to the network behind the host on the right.
BIRD = """
router id 198.19.0.254;
protocol device {}
protocol kernel { ipv4 { import none; export all; }; }
protocol static { ipv4; route 198.19.8.0/24 via 198.19.0.1; }
"""

FIREWALL = """
[[pipeline.stage]]
use = "parse"
outputs = { arp = "join", other = "drop" }

[[pipeline.stage]]
use = "acl"
default = "deny"
rules = [
    { action = "deny", dst = "192.0.2.0/24" },
    { action = "permit", protocol = "tcp", dst_port = 443 },
    { action = "permit", protocol = "udp", src = "198.18.0.0/15", dst_port = 9 },
]

[[pipeline.stage]]
name = "join"
use = "cross"
pairs = [["left", "right"]]

[[pipeline.stage]]
name = "out"
use = "tx"

[[pipeline.stage]]
name = "drop"
use = "drop"
"""


def polls(pid):
    """Returns whether the thread of testpmd that polls the ports has used processor time."""
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        name, _, fields = (task / "stat").read_text().partition("(")[2].rpartition(")")
        if "-worker" in name:
            return int(fields.split()[11]) > 0
    return False


class Lab(Network):
    """The tester in the namespace `a`, and the device under test in the namespace `m`."""

    def join(self, host, port):
        del host
        far = ["peer", "name", port, "netns", self.names["m"]]
        self.ip("a", "link", "add", "name", f"to-{port}", "type", "veth", *far)
        self.ip("m", "link", "set", "dev", port, "up")
        # The kernel of the tester sends no packets of its own.
        self.settings("a", "net.ipv6.conf.all.disable_ipv6=1", "net.ipv6.conf.default.disable_ipv6=1")
        if self.kind == "xdp":
            self.at("a", "ethtool", "--offload", f"to-{port}", "tx", "off", "txvlan", "off")
        self.ip("a", "link", "set", "dev", f"to-{port}", "up")

    def traffic(self):
        """Returns the options of the tester for its ports and its core."""
        return ["--ports", "to-left,to-right", "--link", self.kind, "--core", CORES[0], *IDLE]

    def bridge(self):
        """Lets the kernel of the device bridge both ports."""
        self.ip("m", "link", "add", "name", "bridge", "type", "bridge", "mcast_snooping", "0")
        for port in ("left", "right"):
            self.ip("m", "link", "set", "dev", port, "master", "bridge")
        self.ip("m", "link", "set", "dev", "bridge", "up")

    def addresses(self):
        """Gives the device an address on each side, and the MAC addresses of its neighbours."""
        for port, net in (("left", "198.18.0"), ("right", "198.19.0")):
            self.ip("m", "address", "add", f"{net}.254/24", "dev", port)
            self.ip("m", "neighbour", "add", f"{net}.1", "lladdr", self.mac("a", f"to-{port}"), "dev", port)

    def router(self):
        """Lets the kernel of the device route from 198.18.0.0/24 on the left to 198.19.0.0/24 on the right."""
        self.addresses()
        self.settings("m", "net.ipv4.ip_forward=1", "net.ipv4.conf.all.rp_filter=0", "net.ipv4.conf.left.rp_filter=0")

    def masquerade(self):
        """Lets the kernel of the device translate the source addresses of the packets that it routes to the right."""
        self.router()
        chain = "add chain ip nat out { type nat hook postrouting priority srcnat; }"
        self.at("m", "nft", f"add table ip nat; {chain}; add rule ip nat out oifname right counter masquerade")

    @contextlib.contextmanager
    def program(self, config, *words):
        """Runs this project's program with a config in the namespace of the device."""
        path = self.folder / "device.toml"
        path.write_text(config)
        words = self.words("m", "chrt", "--fifo", "10", live.PROGRAM, "-v", "run", path, *words)
        with Process(*words, stderr=subprocess.PIPE) as program:
            program.wait_for("running")
            yield program

    def own(self, pipeline, words=None):
        """Runs this project's program with a pipeline, in which each word is replaced by its value."""
        for word, value in (words or {}).items():
            pipeline = pipeline.replace(word, value)
        return self.program(HEAD.format(core=CORES[-1], kind=self.kind) + pipeline)

    @contextlib.contextmanager
    def bird(self):
        """Runs BIRD, which adds a route to the kernel of the device."""
        self.addresses()
        # The kernel does not forward, so each packet is forwarded once.
        self.settings("m", "net.ipv4.ip_forward=0")
        path = self.folder / "bird.conf"
        path.write_text(BIRD)
        with Process(*self.words("m", "bird", "-f", "-c", path, "-s", self.folder / "bird.ctl")):
            live.until("the route of BIRD", lambda: "198.19.8.0/24" in self.ip("m", "route").stdout)
            yield

    @contextlib.contextmanager
    def testpmd(self, driver):
        """Runs testpmd, which sends the frames of each port to the other port."""
        words = ["nice", "-n", "-20", "stdbuf", "-oL", "dpdk-testpmd", f"--lcores=0@{CORES[0]},1@{CORES[-1]}", "--no-pci", "--no-huge"]
        words += ["-m", "256", "--no-telemetry", f"--vdev={driver}0,iface=left", f"--vdev={driver}1,iface=right", "--"]
        # With a period, testpmd does not read its standard input.
        words += ["--forward-mode=io", "--port-topology=paired", "--total-num-mbufs=16384", "--stats-period=60"]
        with Process(*self.words("m", *words)) as program:
            program.wait_for("io packet forwarding")
            live.until("testpmd to poll its ports", lambda: polls(program.process.pid))
            yield


@contextlib.contextmanager
def device(lab, name):
    """Starts a device, and returns the keys that a stream to the right needs to pass the device."""
    routed = f'dst_mac = "{lab.mac("m", "left")}"'
    if name == "kernel bridge":
        lab.bridge()
        yield ""
    elif name == "kernel router":
        lab.router()
        yield routed
    elif name == "nftables masquerade":
        lab.masquerade()
        yield routed
    elif name == "Dataplane bridge":
        with lab.own(BRIDGE):
            yield ""
    elif name == "Dataplane router":
        with lab.own(ROUTER, {**STATIC, "LEFT": lab.mac("a", "to-left"), "RIGHT": lab.mac("a", "to-right")}):
            yield routed
    elif name == "Dataplane router with BIRD":
        with lab.bird(), lab.own(ROUTER, KERNEL):
            yield f'{routed}, dst_ip = "198.19.8.1"'
    elif name == "Dataplane firewall":
        with lab.own(FIREWALL):
            yield ""
    elif name.startswith("testpmd "):
        with lab.testpmd(name.split()[1]):
            yield ""
    else:
        raise Failed(f"unknown device {name}")


DEVICES = ["kernel bridge", "Dataplane bridge", "testpmd net_af_packet", "testpmd net_af_xdp"]
DEVICES += ["kernel router", "Dataplane router", "Dataplane router with BIRD", "nftables masquerade", "Dataplane firewall"]
