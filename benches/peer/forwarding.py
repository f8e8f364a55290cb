"""Rows 1 to 4 and 12 of docs/peers.md: forwarding, compared with testpmd."""

import functools

from peer.frames import captures, check_forwarding
from peer.ours import Pipeline
from peer.rounds import Case, Peer
from peer.testpmd import Testpmd

PIPELINES = {
    "io": "configs/forward.toml",
    "macswap": "benches/pipelines/mac-swap.toml",
    "copy": "benches/pipelines/copy.toml",
    "capture": "benches/pipelines/capture.toml",
    "csum": "benches/pipelines/checksum.toml",
    "route": "benches/pipelines/route.toml",
}
WITHOUT_STAMPS = "runtime.timestamps=none"
# Neither side changes the addresses for `csum`.
CSUM = ["csum mac-swap off 0"]


class Forwarding:
    """`builds`: a dictionary from the name of each DPDK build to the path of its testpmd. Goals have the order of `builds`."""

    def __init__(self, program, builds, main_core, core):
        self.program, self.builds, self.main_core, self.core = program, builds, main_core, core
        self.checked = {}

    def ours(self, config, burst, *sets, cores=None):
        return functools.partial(Pipeline, self.program, config, cores or [self.core], burst, sets)

    def testpmd(self, path, mode, burst, device, cores=None, more=()):
        setup = CSUM if mode == "csum" else []
        return Testpmd(path, device, mode, self.main_core, cores or [self.core], burst, setup, more)

    def peers(self, mode, burst, device, goals, **more):
        for (name, path), goal in zip(self.builds.items(), goals):
            yield Peer(f"testpmd {mode}, {name}", functools.partial(self.testpmd, path, mode, burst, device, **more), goal)

    def check(self, mode, config):
        """Compares the output of all sides, once for each forwarding mode."""
        if (mode, config) not in self.checked:
            peers = {name: functools.partial(self.testpmd, path, mode, 32) for name, path in self.builds.items()}
            capture = captures() / "udp-1024.pcap"
            count = check_forwarding(mode, capture, config, self.program, self.core, peers)
            self.checked[mode, config] = (
                f"`{mode}`: before the measurement, both sides forwarded {count:,} frames of {count:,} flows from one capture to "
                "another. The outputs were identical byte by byte."
            )
        return self.checked[mode, config]

    def case(self, row, work, mode, config, burst, device, goals, sets=(), note=""):
        return Case(
            row,
            f"{work}, burst {burst}",
            self.ours(config, burst, *sets),
            list(self.peers(mode, burst, device, goals)),
            [self.core],
            check=functools.partial(self.check, mode, config),
            note=note,
        )

    def cases(self):
        null = "net_null0,size=64,copy={}".format
        # The order of the goals: Debian's build, native build.
        for burst in (32, 64):
            yield self.case(1, "forward", "io", PIPELINES["io"], burst, null(0), (2.5, 1.8))
        # Without timestamps and latency, which the peer does not measure.
        for burst in (32, 64):
            work = "forward, without timestamps"
            yield self.case(1, work, "io", PIPELINES["io"], burst, null(0), (None, None), [WITHOUT_STAMPS])
        for burst in (32, 64):
            yield self.case(2, "MAC swap", "macswap", PIPELINES["macswap"], burst, null(0), (1.8, 1.5))
        for burst in (32, 64):
            yield self.case(3, "forward, frames copied by the link", "io", PIPELINES["copy"], burst, null(1), (2.0, 1.6))
        for flows in (1, 1024):
            capture = captures() / f"udp-{flows}.pcap"
            link = f'port.0.link={{ kind = "pcap", input = "{capture}", loop = true }}'
            device = f"net_pcap0,rx_pcap={capture},infinite_rx=1"
            kinds = [("forward, pcap file", "io", "capture", (2.0, 1.6)), ("recompute checksums", "csum", "csum", (1.5, 1.3))]
            for work, mode, config, goals in kinds:
                name = f"{work}, {flows:,} flow{'s' if flows > 1 else ''}"
                yield self.case(4, name, mode, PIPELINES[config], 32, device, goals, [link])

    def workers(self):
        """Yields the cases of row 12: two workers compared with one. Forwarding is also compared with testpmd on two cores."""
        cores, burst = sorted({self.main_core, self.core}), 32
        link = 'port.0.link={ kind = "generator", size = 64, copy = false, flows = 1024 }'
        more = ["--rxq=2", "--txq=2"]
        testpmd = self.peers("io", burst, "net_null0,size=64,copy=0", (None, None), cores=cores, more=more)
        for work, config, sets, peers in (
            ("forward", PIPELINES["io"], [link], testpmd),
            ("IPv4 routing, 1,024 flows", PIPELINES["route"], [], ()),
        ):
            ours = functools.partial(self.ours, config, burst, *sets)
            yield Case(
                12,
                f"{work}, two workers, RSS, burst {burst}",
                ours(cores=cores),
                [Peer("Dataplane with one worker", ours(), 1.95), *peers],
                cores,
                note="One of the two cores also runs all other programs of this machine.",
            )
