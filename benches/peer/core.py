"""Whether the cores that are measured are this machine's alone."""

import subprocess
import time
from collections import defaultdict
from pathlib import Path

from measure import fail, note
from peer.native import target

# A core that does so much of the most that it was seen to do has no other work.
ALONE = 0.9
# How long it is looked at, before anything is measured, to know the most.
FIRST_LOOK_S = 5


class Cores:
    """Of the two threads of a core (SMT) a virtual machine may have one, and another guest the other: then everything takes up to
    twice the time, some things more than others, and no counter of the guest tells. So it is where two cores of the guest
    are for a while the two threads of one. What additions a core does in a cycle tells, which a small program counts that is
    compiled for it."""

    def __init__(self, cores, patience):
        """`patience`: how long to wait, in seconds, until a case is measured alone. Then it is measured all the same."""
        source = Path(__file__).with_name("core.c")
        self.patience, self.left = patience, 0
        self.most, self.ghz = defaultdict(float), []
        self.program = target() / "core"
        self.program.parent.mkdir(parents=True, exist_ok=True)
        if subprocess.run(["gcc", "-O2", "-pthread", "-o", self.program, source]).returncode != 0:
            fail(f"gcc did not compile {source}: see above")
        end = time.monotonic() + FIRST_LOOK_S
        while time.monotonic() < end:
            self.are_alone(cores)
        note(f"additions a cycle at the most: {', '.join(f'{most} (core {core})' for core, most in self.most.items())}")

    def begin(self):
        """A case begins."""
        self.left, self.ghz = self.patience, []

    def are_alone(self, cores):
        looked = subprocess.run([self.program, *map(str, cores)], capture_output=True, text=True, check=True).stdout
        alone = True
        for core, line in zip(cores, looked.splitlines(), strict=True):
            ghz, additions = map(float, line.split())
            self.ghz.append(ghz)
            self.most[core] = max(self.most[core], additions)
            alone &= additions >= ALONE * self.most[core]
        return alone

    def measure(self, cores, work):
        """What `work` gives, and whether the cores were alone before and behind it; if not it is done again, while there is
        patience left."""
        while True:
            began = time.monotonic()
            while not (alone := self.are_alone(cores)) and time.monotonic() - began < self.left:
                pass
            result = work()
            if alone and self.are_alone(cores):
                return result, True
            self.left -= time.monotonic() - began
            if self.left <= 0:
                return result, False
