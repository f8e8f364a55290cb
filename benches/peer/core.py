"""Whether somebody else is at work on the cores that are measured."""

import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from measure import fail, note
from peer.native import target

# A core that does so much of the most that it was seen to do has its other thread idle.
ALONE = 0.9
# How long a core is looked at, before anything is measured, to know the most.
FIRST_LOOK_S = 5


@dataclass
class Look:
    """The clock of a core, and how many additions it did in a cycle."""

    ghz: float
    additions: float


@dataclass
class Try:
    """A measurement, with the looks at each core before and behind it."""

    rate: float
    looks: dict[int, list[Look]]


def siblings(core):
    """The cores that are threads of the same, this one among them."""
    try:
        text = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list").read_text().strip()
    except OSError:
        return {core}
    spans = [part.partition("-") for part in text.split(",")]
    return {core for first, _, last in spans for core in range(int(first), int(last or first) + 1)}


class Cores:
    """Of the two threads of a core (SMT) a virtual machine may have one, and another guest the other: then everything takes up to
    twice the time, some things more than others, and no counter of the guest tells. So it is where two cores of the guest
    are for a while the two threads of one. What additions a core does in a cycle tells, which a small program counts that is
    compiled for it."""

    def __init__(self, cores, patience):
        """`patience`: how long a case may wait, and measure anew, in seconds. Then it is measured all the same."""
        source = Path(__file__).with_name("core.c")
        self.patience, self.left = patience, 0
        self.most = dict.fromkeys(cores, 0)
        self.program = target() / "core"
        self.program.parent.mkdir(parents=True, exist_ok=True)
        if subprocess.run(["gcc", "-O2", "-pthread", "-o", self.program, source]).returncode != 0:
            fail(f"gcc did not compile {source}: see above")
        # Each by itself: two at a time may be two threads of one.
        for core in cores:
            end = time.monotonic() + FIRST_LOOK_S
            while time.monotonic() < end:
                self.look([core])
        note(f"additions a cycle at the most: {', '.join(f'{most} (core {core})' for core, most in self.most.items())}")

    def begin(self, cores):
        """A case begins. For cores that are always threads of one, nothing is waited for."""
        shared = any(other in siblings(core) for core in cores for other in cores if other != core)
        self.left = 0 if shared else self.patience

    def look(self, cores):
        looked = subprocess.run([self.program, *map(str, cores)], capture_output=True, text=True)
        if looked.returncode != 0:
            fail(looked.stderr.strip())
        looks = {core: Look(*map(float, line.split())) for core, line in zip(cores, looked.stdout.splitlines(), strict=True)}
        for core, look in looks.items():
            self.most[core] = max(self.most[core], look.additions)
        return looks

    def is_alone(self, core, look):
        return look.additions >= ALONE * self.most[core]

    def was_alone(self, one):
        """Whether all looks of a try say so, by what is known of the cores by now."""
        return all(self.is_alone(core, look) for core, looks in one.looks.items() for look in looks)

    def measure(self, cores, work):
        """All tries of what `work` gives. The last one counts: the cores were alone before and behind it, or patience is over."""
        tries = []
        while True:
            began = time.monotonic()
            before = self.look(cores)
            while not all(self.is_alone(*one) for one in before.items()) and time.monotonic() - began < self.left:
                before = self.look(cores)
            waited = time.monotonic() - began
            rate = work()
            behind = self.look(cores)
            tries.append(Try(rate, {core: [before[core], behind[core]] for core in cores}))
            if self.was_alone(tries[-1]):
                self.left -= waited
                return tries
            self.left -= time.monotonic() - began
            if self.left <= 0:
                return tries
