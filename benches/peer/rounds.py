"""Measures a case: ours, theirs, ours, for as many rounds as wanted, with the clock of the core beside each."""

import contextlib
import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Callable

from measure import fail, note
from peer.native import target


@dataclass
class Peer:
    """Who is measured beside us: `make` gives something to enter that has `measure(seconds)`."""

    name: str
    make: Callable
    # What ours ÷ theirs is to be; None: shown for comparison alone.
    goal: float | None = None


@dataclass
class Case:
    """A line of the table."""

    row: int
    work: str
    ours: Callable
    peers: list[Peer]
    unit: str = "Mpps"
    # Compares what comes out on all sides, and says how.
    check: Callable[[], str] | None = None
    note: str = ""


@dataclass
class Result:
    case: Case
    ours: list[float] = field(default_factory=list)
    theirs: dict[str, list[float]] = field(default_factory=dict)
    ratios: dict[str, list[float]] = field(default_factory=dict)
    clock_ghz: list[float] = field(default_factory=list)
    checked: str = ""


class Clock:
    """The clock of a core, by a small program that is compiled for it."""

    def __init__(self, core):
        source = Path(__file__).with_name("clock.c")
        self.core, self.program = core, target() / "clock"
        self.program.parent.mkdir(parents=True, exist_ok=True)
        if subprocess.run(["gcc", "-O2", "-o", self.program, source]).returncode != 0:
            fail(f"gcc did not compile {source}: see above")

    def ghz(self):
        def pin():
            os.sched_setaffinity(0, {self.core})

        printed = subprocess.run([self.program], capture_output=True, text=True, check=True, preexec_fn=pin).stdout
        return float(printed)


def measure(case, rounds, seconds, clock):
    result = Result(case, theirs={peer.name: [] for peer in case.peers}, ratios={peer.name: [] for peer in case.peers})
    if case.check:
        result.checked = case.check()
    with contextlib.ExitStack() as stack:
        ours = stack.enter_context(case.ours())
        theirs = {peer.name: stack.enter_context(peer.make()) for peer in case.peers}
        for number in range(1, rounds + 1):
            result.clock_ghz.append(clock.ghz())
            before = ours.measure(seconds)
            result.ours.append(before)
            for name, peer in theirs.items():
                rate = peer.measure(seconds)
                after = ours.measure(seconds)
                result.ours.append(after)
                result.theirs[name].append(rate)
                # Ours is what it was on both sides of theirs: a machine that drifts does so for both.
                result.ratios[name].append(round(mean((before, after)) / rate, 3))
                before = after
            last = ", ".join(f"{name} {rates[-1]} ({result.ratios[name][-1]})" for name, rates in result.theirs.items())
            note(f"row {case.row}, {case.work}, round {number} of {rounds}: ours {result.ours[-1]}, {last}")
    return result
