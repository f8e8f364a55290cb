"""Devices under test for the tester, in network namespaces: the bridge, the router and the NAT of the kernel, and the bridge, the router
and the firewall of this project.

The tester is in the namespace `a`, with the interfaces `to-left` and `to-right`. The device is in the namespace `m`, with the interfaces
`left` and `right`.
"""

import contextlib
import os
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
table = [{ prefix = "198.18.0.0/24", port = "left" }, { prefix = "198.19.0.0/24", port = "right" }]

[[pipeline.stage]]
use = "ttl"

[[pipeline.stage]]
use = "neighbor"
table = [{ address = "198.18.0.1", mac = "LEFT" }, { address = "198.19.0.1", mac = "RIGHT" }]

[[pipeline.stage]]
use = "tx"

[[pipeline.stage]]
name = "other"
use = "drop"
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

    def router(self):
        """Lets the kernel of the device route from 198.18.0.0/24 on the left to 198.19.0.0/24 on the right."""
        for port, net in (("left", "198.18.0"), ("right", "198.19.0")):
            self.ip("m", "address", "add", f"{net}.254/24", "dev", port)
            self.ip("m", "neighbour", "add", f"{net}.1", "lladdr", self.mac("a", f"to-{port}"), "dev", port)
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

    def own(self, pipeline):
        """Runs this project's program with a pipeline."""
        return self.program(HEAD.format(core=CORES[-1], kind=self.kind) + pipeline)


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
        macs = {"LEFT": lab.mac("a", "to-left"), "RIGHT": lab.mac("a", "to-right")}
        pipeline = ROUTER
        for word, mac in macs.items():
            pipeline = pipeline.replace(word, mac)
        with lab.own(pipeline):
            yield routed
    elif name == "Dataplane firewall":
        with lab.own(FIREWALL):
            yield ""
    else:
        raise Failed(f"unknown device {name}")


DEVICES = ["kernel bridge", "Dataplane bridge", "kernel router", "Dataplane router", "nftables masquerade", "Dataplane firewall"]
