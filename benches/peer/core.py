"""Detects whether another guest or program uses the hyperthread siblings of the measured cores."""

import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from measure import fail, note
from peer.native import target

# A core with at least this fraction of its maximum additions per cycle is undisturbed.
UNDISTURBED = 0.9
# The time to find the maximum of each core before the measurements, in seconds.
CALIBRATION_S = 5


@dataclass
class CoreSpeed:
    """The clock of a core, and its number of additions per cycle."""

    ghz: float
    additions: float


@dataclass
class Attempt:
    """A measured rate, with the speed of each core before and after the measurement."""

    rate: float
    speeds: dict[int, list[CoreSpeed]]


def siblings(core):
    """Returns the hyperthreads of a core, including the core itself."""
    try:
        text = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list").read_text().strip()
    except OSError:
        return {core}
    spans = [part.partition("-") for part in text.split(",")]
    return {core for first, _, last in spans for core in range(int(first), int(last or first) + 1)}


class Cores:
    """Watches the cores for interference by hyperthread siblings (SMT).

    On a virtual machine, another guest may use the second hyperthread of a core. The measured program then takes up to twice the
    time, and no counter of the guest shows the cause. Two cores of the guest may also be hyperthreads of one core, with the same
    effect. The number of additions per cycle shows such interference. The program core.c measures this number."""

    def __init__(self, cores, patience):
        """`patience`: the time in seconds that one comparison (`Case`) may wait for undisturbed cores and repeat measurements. After that
        time, a disturbed measurement is accepted."""
        source = Path(__file__).with_name("core.c")
        self.patience, self.left = patience, 0
        self.maximum = dict.fromkeys(cores, 0)
        self.program = target() / "core"
        self.program.parent.mkdir(parents=True, exist_ok=True)
        if subprocess.run(["gcc", "-O2", "-pthread", "-o", self.program, source]).returncode != 0:
            fail(f"gcc failed to compile {source}: see above")
        # One core at a time, because two cores may be hyperthreads of one core.
        for core in cores:
            end = time.monotonic() + CALIBRATION_S
            while time.monotonic() < end:
                self.speeds([core])
        note(f"maximum additions per cycle: {', '.join(f'{most} (core {core})' for core, most in self.maximum.items())}")

    def begin(self, cores):
        """Starts a case. If two of the cores are hyperthreads of one core, waiting is useless, so the case does not wait."""
        shared = any(other in siblings(core) for core in cores for other in cores if other != core)
        self.left = 0 if shared else self.patience

    def speeds(self, cores):
        """Measures the speed of these cores at the same time, and updates their maximum."""
        done = subprocess.run([self.program, *map(str, cores)], capture_output=True, text=True)
        if done.returncode != 0:
            fail(done.stderr.strip())
        speeds = {core: CoreSpeed(*map(float, line.split())) for core, line in zip(cores, done.stdout.splitlines(), strict=True)}
        for core, speed in speeds.items():
            self.maximum[core] = max(self.maximum[core], speed.additions)
        return speeds

    def is_undisturbed(self, core, speed):
        return speed.additions >= UNDISTURBED * self.maximum[core]

    def was_undisturbed(self, attempt):
        """Returns whether all cores were undisturbed before and after the attempt, compared with the current maximum."""
        return all(self.is_undisturbed(core, speed) for core, speeds in attempt.speeds.items() for speed in speeds)

    def measure(self, cores, work):
        """Measures `work` and returns all attempts. The last attempt counts: the attempt was undisturbed, or no time is left."""
        attempts = []
        while True:
            began = time.monotonic()
            before = self.speeds(cores)
            while not all(self.is_undisturbed(*speed) for speed in before.items()) and time.monotonic() - began < self.left:
                before = self.speeds(cores)
            waited = time.monotonic() - began
            rate = work()
            after = self.speeds(cores)
            attempts.append(Attempt(rate, {core: [before[core], after[core]] for core in cores}))
            if self.was_undisturbed(attempts[-1]):
                self.left -= waited
                return attempts
            self.left -= time.monotonic() - began
            if self.left <= 0:
                return attempts
