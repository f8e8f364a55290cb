"""Measures a case: ours, theirs, ours, for as many rounds as wanted, with a look at the cores before and behind each."""

import contextlib
from dataclasses import dataclass, field
from statistics import mean
from typing import Callable

from measure import note
from peer.core import Try

OURS = "ours"


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
    # All that it is measured on.
    cores: list[int]
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
    # All that was measured, in order: the name of the side, and its tries, of which the last one counts.
    measured: list[tuple[str, list[Try]]] = field(default_factory=list)
    checked: str = ""


def measure(case, rounds, seconds, cores):
    result = Result(case, theirs={peer.name: [] for peer in case.peers}, ratios={peer.name: [] for peer in case.peers})
    if case.check:
        result.checked = case.check()
    cores.begin(case.cores)

    def rate(name, side):
        tries = cores.measure(case.cores, lambda: side.measure(seconds))
        result.measured.append((name, tries))
        return tries[-1].rate

    for number in range(1, rounds + 1):
        # Each round starts all sides anew: a start differs from the next, with the memory that it is given.
        with contextlib.ExitStack() as stack:
            ours = stack.enter_context(case.ours())
            theirs = {peer.name: stack.enter_context(peer.make()) for peer in case.peers}
            before = rate(OURS, ours)
            result.ours.append(before)
            for name, peer in theirs.items():
                between = rate(name, peer)
                after = rate(OURS, ours)
                result.ours.append(after)
                result.theirs[name].append(between)
                # Ours is what it was on both sides of theirs: a machine that drifts does so for both.
                result.ratios[name].append(round(mean((before, after)) / between, 3))
                before = after
        last = ", ".join(f"{name} {rates[-1]} ({result.ratios[name][-1]})" for name, rates in result.theirs.items())
        note(f"row {case.row}, {case.work}, round {number} of {rounds}: ours {result.ours[-1]}, {last}")
    return result
