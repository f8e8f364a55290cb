"""Rows 1 to 4, and 12: forwarding, beside testpmd."""

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
# Neither side of `csum` touches the addresses.
CSUM = ["csum mac-swap off 0"]


class Forwarding:
    """`builds`: the peer's builds by name, each a path of testpmd and which of the two goals is its own."""

    def __init__(self, program, builds, main_core, core):
        self.program, self.builds, self.main_core, self.core = program, builds, main_core, core
        self.checked = {}

    def ours(self, config, burst, *sets, cores=None):
        return functools.partial(Pipeline, self.program, config, cores or [self.core], burst, sets)

    def testpmd(self, path, mode, burst, device, cores=None, more=()):
        orders = CSUM if mode == "csum" else []
        return Testpmd(path, device, mode, self.main_core, cores or [self.core], burst, orders, more)

    def peers(self, mode, burst, device, goals, **more):
        for (name, path), goal in zip(self.builds.items(), goals):
            yield Peer(f"testpmd {mode}, {name}", functools.partial(self.testpmd, path, mode, burst, device, **more), goal)

    def check(self, mode, config):
        """Once for each way of forwarding."""
        if (mode, config) not in self.checked:
            peers = {name: functools.partial(self.testpmd, path, mode, 32) for name, path in self.builds.items()}
            capture = captures() / "udp-1024.pcap"
            count = check_forwarding(mode, capture, config, self.program, self.core, peers)
            self.checked[mode, config] = (
                f"`{mode}`: {count} frames of as many flows went from a capture into a capture through each side, and came out "
                "alike, byte by byte, as they must."
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
        # The columns of goals: Debian's build, native.
        for burst in (32, 64):
            yield self.case(1, "forward", "io", PIPELINES["io"], burst, null(0), (2.5, 1.8))
        # What they cost, of which the peer has nothing.
        for burst in (32, 64):
            work = "forward, without stamps and latency"
            yield self.case(1, work, "io", PIPELINES["io"], burst, null(0), (None, None), [WITHOUT_STAMPS])
        for burst in (32, 64):
            yield self.case(2, "MAC swap", "macswap", PIPELINES["macswap"], burst, null(0), (1.8, 1.5))
        for burst in (32, 64):
            yield self.case(3, "forward, copied in and out", "io", PIPELINES["copy"], burst, null(1), (2.0, 1.6))
        for flows in (1, 1024):
            capture = captures() / f"udp-{flows}.pcap"
            link = f'port.0.link={{ kind = "pcap", input = "{capture}", loop = true }}'
            device = f"net_pcap0,rx_pcap={capture},infinite_rx=1"
            kinds = [("capture", "io", "capture", (2.0, 1.6)), ("capture, checksums", "csum", "csum", (1.5, 1.3))]
            for work, mode, config, goals in kinds:
                name = f"{work}, {flows:,} flow{'s' if flows > 1 else ''}"
                yield self.case(4, name, mode, PIPELINES[config], 32, device, goals, [link])

    def workers(self):
        """Two cores, beside one worker of ours; of row 1 also beside testpmd on two."""
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
                [Peer("ours with one worker", ours(), 1.95), *peers],
                cores,
                note="Of the two cores one also has all else that runs on this machine.",
            )
