"""Rows 7 to 11 of docs/peers.md: lookup tables in isolation, and a ring between two cores.

For tables, both sides load the same file and do the same lookups."""

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
# The memory of each table of DPDK, in MiB of huge pages. All tables of a case exist at the same time.
MEMORY_MIB = {"lpm-x4": 400, "fib": 500, "fib6": 1300, "hash": 300, "acl": 500}
RING_MIB = 32
TABLES = {7, 8, 9, 10}
ROWS = TABLES | {11}
BUILD_TIMEOUT_S = 300


class Part:
    """A program that fills a table and does lookups on request, or that passes items through a ring. `sums` maps the name of a file to
    the checksum of all results. All programs with the same file must get the same checksum."""

    def __init__(self, command, name, sums):
        self.command, self.name, self.sums = command, name, sums

    def __enter__(self):
        self.program = Program(self.command)
        ready = self.program.wait_for(READY, BUILD_TIMEOUT_S)
        expected = self.sums.setdefault(self.name, ready[2])
        if ready[2] != expected:
            self.program.failed(f"the results for {self.name} differ from Dataplane's: checksum {ready[2]} instead of {expected}")
        return self

    def __exit__(self, failed, *_):
        self.program.close(failed)

    def measure(self, seconds):
        """Returns the rate in millions of lookups or items per second."""
        self.program.write_line(f"measure {seconds}")
        return float(self.program.wait_for(RATE)[1])


def build_peer(part, name, folder=None):
    """Compiles a part, `tables` or `ring`, for this processor. Links with the native build in `folder`, or with Debian's library if
    `folder` is None. Returns the path of the program."""
    environment = dict(os.environ)
    static = []
    if folder:
        environment["PKG_CONFIG_PATH"] = str(folder / "meson-uninstalled")
        static = ["--static"]

    def flags(option):
        command = ["pkg-config", option, *static, "libdpdk"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            fail(f"{' '.join(command)}: {done.stderr.strip()}; help: run tools/setup bench, which installs libdpdk-dev")
        return [flag for flag in done.stdout.split() if is_linkable(flag)]

    program = target() / f"{part}-{name}"
    source = REPO / f"benches/peer/{part}.c"
    command = ["gcc", "-O3", "-march=native", *flags("--cflags"), "-o", program, source, *flags("--libs")]
    if subprocess.run(command).returncode != 0:
        fail(f"gcc failed to compile {source}: see above")
    return program


def is_linkable(flag):
    """Returns False for the flag of a library that the linker does not find. The static libpcap names optional libraries that are not
    in the -dev packages of DPDK's dependencies."""
    if not flag.startswith("-l") or flag.startswith("-l:"):
        return True
    names = [f"lib{flag[2:]}.so", f"lib{flag[2:]}.a"]
    return any(output("gcc", f"-print-file-name={name}") != name for name in names)


class Parts:
    """`builds`: a dictionary from the name of each DPDK build to its directory. The directory of Debian's build is None."""

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
            # DPDK uses AVX-512 only with this option.
            eal = [*self.eal(MEMORY_MIB[structure], f"0@{self.core}"), "--force-max-simd-bitwidth=512"]
            return self.part(name, program, *eal, "--", structure, path)

        peers = [
            Peer(f"{shown}, {build}", command(program, structure), goal)
            for build, program in programs.items()
            for structure, shown in theirs.items()
        ]
        ours = self.part(name, self.ours, kind, path, self.core)
        compared = "The sum over all lookup results was equal on both sides."
        return Case(row, work, ours, peers, [self.core], unit="M/s", note=f"{compared} {note}".strip())

    def ring(self):
        """Returns the case that passes items from one core to another."""
        eal = self.eal(RING_MIB, f"0@{self.core},1@{self.main_core}")
        peers = [
            Peer(f"rte_ring SP/SC, {build}", self.part("ring", program, *eal), 1.0)
            for build, program in self.peers("ring").items()
        ]
        note = (
            "Items of 8 bytes, 1,024 slots. A checksum over value and position of every item proves that all items arrive in order. "
            "One of the two cores also runs all other programs of this machine."
        )
        ours = self.part("ring", self.ours, "ring", self.main_core, self.core)
        cores = [self.main_core, self.core]
        return Case(11, "ring between two cores, burst 32", ours, peers, cores, unit="M/s", note=note)

    def cases(self, rows):
        """Yields the cases of these rows. Writes missing input files."""
        programs = self.peers("tables") if rows & TABLES else {}
        table = functools.partial(self.table, programs)
        if 7 in rows:
            work = "IPv4 LPM, a million prefixes, random addresses"
            # To add a rule, rte_lpm searches all rules of the same length. A million rules take minutes.
            note = (
                "rte_fib stores next hops of 2 bytes. Dataplane also stores values below 65,534 in 2 bytes, and all values of this row "
                "are below 65,534. Larger values need a second load. rte_lpm is omitted because filling it takes minutes."
            )
            yield table(7, work, "lpm4", "lpm4", {"fib": "rte_fib"}, 1.2, note)
        if 8 in rows:
            work = "IPv6 LPM, 200,000 prefixes, random addresses inside prefixes"
            yield table(8, work, "lpm6", "lpm6", {"fib6": "rte_fib6"}, 1.2, "")
        if 9 in rows:
            note = "A lookup in rte_hash returns the position of a key. A lookup in Dataplane returns the value."
            for name in ("hit", "miss"):
                work = f"exact match, a million 5-tuples, {name}"
                yield table(9, work, "exact", f"exact-{name}", {"hash": "rte_hash"}, 1.3, note)
        if 10 in rows:
            for count in (100, 1000, 10_000):
                work = f"ACL of {count:,} rules"
                yield table(10, work, "acl", f"acl-{count}", {"acl": "rte_acl"}, 1.0, "")
        if 11 in rows:
            yield self.ring()
