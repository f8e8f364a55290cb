"""Rows 7 to 11: tables alone, each side filled from the same file and asked the same; and a ring from core to core."""

import functools
import os
import re
import subprocess

from measure import REPO, fail, output
from peer import sets
from peer.native import target
from peer.process import Program
from peer.rounds import Case, Peer

READY = re.compile(r"^ready (\S+) ([0-9a-f]{16})$")
RATE = re.compile(r"^rate (\S+)$")
# Memory of each structure of the peers, in MiB of huge pages. The tables of a case are all there at once.
MEMORY_MIB = {"lpm-x4": 400, "fib": 500, "fib6": 1300, "hash": 300, "acl": 500}
RING_MIB = 32
TABLES = {7, 8, 9, 10}
ROWS = TABLES | {11}
BUILD_TIMEOUT_S = 300


class Part:
    """A program that has filled a table, and looks up in it when it is asked to; or that has a ring, and hands items over by it.
    `sums` has the sums over all results by file: whoever comes second must find the same."""

    def __init__(self, command, name, sums):
        self.command, self.name, self.sums = command, name, sums

    def __enter__(self):
        self.program = Program(self.command)
        ready = self.program.until(READY, BUILD_TIMEOUT_S)
        expected = self.sums.setdefault(self.name, ready[2])
        if ready[2] != expected:
            self.program.failed(f"its results for {self.name} are not those of ours: their sum is {ready[2]}, not {expected}")
        return self

    def __exit__(self, failed, *_):
        self.program.leave(failed)

    def measure(self, seconds):
        """Lookups or items a second, in millions."""
        self.program.say(f"measure {seconds}")
        return float(self.program.until(RATE)[1])


def build_peer(part, name, folder=None):
    """Compiles a part, tables or ring, for this processor, against Debian's library or that of a build of our own; gives
    its path."""
    environment = dict(os.environ)
    static = []
    if folder:
        environment["PKG_CONFIG_PATH"] = str(folder / "meson-uninstalled")
        static = ["--static"]

    def flags(what):
        command = ["pkg-config", what, *static, "libdpdk"]
        asked = subprocess.run(command, env=environment, capture_output=True, text=True)
        if asked.returncode != 0:
            fail(f"{' '.join(command)}: {asked.stderr.strip()}; Debian has it in libdpdk-dev: tools/setup bench")
        return [flag for flag in asked.stdout.split() if is_there(flag)]

    program = target() / f"{part}-{name}"
    source = REPO / f"benches/peer/{part}.c"
    command = ["gcc", "-O3", "-march=native", *flags("--cflags"), "-o", program, source, *flags("--libs")]
    if subprocess.run(command).returncode != 0:
        fail(f"gcc did not compile {source}: see above")
    return program


def is_there(flag):
    """Whether a flag names no library, or one that the linker finds: a static one has libpcap ask for some that it can do without,
    and that come with no -dev package of DPDK's."""
    if not flag.startswith("-l") or flag.startswith("-l:"):
        return True
    names = [f"lib{flag[2:]}.so", f"lib{flag[2:]}.a"]
    return any(output("gcc", f"-print-file-name={name}") != name for name in names)


class Parts:
    """`builds`: the peers' folders by the name of the build."""

    def __init__(self, ours, builds, main_core, core):
        self.ours, self.builds, self.main_core, self.core, self.sums = ours, builds, main_core, core, {}

    def peers(self, part):
        return {build: build_peer(part, build, folder) for build, folder in self.builds.items()}

    def part(self, name, *command):
        return functools.partial(Part, command, name, self.sums)

    def eal(self, memory_mib, lcores):
        return ["-m", memory_mib, "--no-pci", "--in-memory", f"--lcores={lcores}", "--no-telemetry", "--log-level=4"]

    def table(self, programs, row, work, kind, name, theirs, goal, note):
        path = sets.path(name)

        def command(program, structure):
            # DPDK uses AVX-512 where it is told that it may.
            eal = [*self.eal(MEMORY_MIB[structure], f"0@{self.core}"), "--force-max-simd-bitwidth=512"]
            return self.part(name, program, *eal, "--", structure, path)

        peers = [
            Peer(f"{shown}, {build}", command(program, structure), goal)
            for build, program in programs.items()
            for structure, shown in theirs.items()
        ]
        ours = self.part(name, self.ours, kind, path, self.core)
        compared = "The results of all lookups have the same sum on each side."
        return Case(row, work, ours, peers, [self.core], unit="M/s", note=f"{compared} {note}".strip())

    def ring(self):
        """From the one core to the other."""
        eal = self.eal(RING_MIB, f"0@{self.core},1@{self.main_core}")
        peers = [
            Peer(f"rte_ring SP/SC, {build}", self.part("ring", program, *eal), 1.0)
            for build, program in self.peers("ring").items()
        ]
        note = (
            "Items of 8 bytes, 1,024 slots. Every item comes out in its place: of each the product with its place is added, and the "
            "sum must be that of the squares. Of the two cores one also has all else that runs on this machine."
        )
        ours = self.part("ring", self.ours, "ring", self.main_core, self.core)
        cores = [self.main_core, self.core]
        return Case(11, "hand-over between two cores, burst 32", ours, peers, cores, unit="M/s", note=note)

    def cases(self, rows):
        """Those of some rows. The files are written when they are needed."""
        programs = self.peers("tables") if rows & TABLES else {}
        table = functools.partial(self.table, programs)
        if 7 in rows:
            work = "IPv4 LPM, a million prefixes, random addresses"
            # rte_lpm searches all rules of a length for each that is added: minutes for a million.
            note = (
                "rte_fib has next hops of two bytes; ours has them where they fit, as all of these do, and takes a second load for others. "
                "rte_lpm is left out: it takes minutes to be filled."
            )
            yield table(7, work, "lpm4", "lpm4", {"fib": "rte_fib"}, 1.2, note)
        if 8 in rows:
            work = "IPv6 LPM, 200,000 prefixes, random addresses inside"
            yield table(8, work, "lpm6", "lpm6", {"fib6": "rte_fib6"}, 1.2, "")
        if 9 in rows:
            note = "rte_hash gives the place of a key, ours its value."
            for name in ("hit", "miss"):
                work = f"exact match, a million 5-tuples, {name}"
                yield table(9, work, "exact", f"exact-{name}", {"hash": "rte_hash"}, 1.3, note)
        if 10 in rows:
            for count in (100, 1000, 10_000):
                work = f"ACL of {count:,} rules"
                yield table(10, work, "acl", f"acl-{count}", {"acl": "rte_acl"}, 1.0, "")
        if 11 in rows:
            yield self.ring()
