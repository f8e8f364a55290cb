"""Measures a case in several rounds. Measurements of Dataplane ("ours") and of each peer ("theirs") alternate. The speed of the cores
is measured before and after each measurement."""

import contextlib
from dataclasses import dataclass, field
from statistics import mean
from typing import Callable

from measure import note
from peer.core import Attempt

OURS = "ours"


@dataclass
class Peer:
    """A peer. `make` returns a context manager with a method `measure(seconds)`."""

    name: str
    make: Callable
    # The goal of Dataplane ÷ peer. None: there is no goal.
    goal: float | None = None


@dataclass
class Case:
    """A comparison of Dataplane with its peers. Several cases may belong to one row."""

    row: int
    work: str
    ours: Callable
    peers: list[Peer]
    # All cores of the measurement.
    cores: list[int]
    unit: str = "Mpps"
    # Compares the output of all sides, and returns a description of the comparison.
    check: Callable[[], str] | None = None
    note: str = ""


@dataclass
class Result:
    case: Case
    ours: list[float] = field(default_factory=list)
    theirs: dict[str, list[float]] = field(default_factory=dict)
    ratios: dict[str, list[float]] = field(default_factory=dict)
    # All measurements in order: the name of the side and its attempts. The last attempt counts.
    measured: list[tuple[str, list[Attempt]]] = field(default_factory=list)
    checked: str = ""


def measure(case, rounds, seconds, cores):
    result = Result(case, theirs={peer.name: [] for peer in case.peers}, ratios={peer.name: [] for peer in case.peers})
    if case.check:
        result.checked = case.check()
    cores.begin(case.cores)

    def rate(name, side):
        attempts = cores.measure(case.cores, lambda: side.measure(seconds))
        result.measured.append((name, attempts))
        return attempts[-1].rate

    for number in range(1, rounds + 1):
        # Each round restarts all sides, because the memory placement differs between starts and influences the rate.
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
                # The mean of the measurements before and after the peer cancels a linear drift of the machine.
                result.ratios[name].append(round(mean((before, after)) / between, 3))
                before = after
        last = ", ".join(f"{name} {rates[-1]} ({result.ratios[name][-1]})" for name, rates in result.theirs.items())
        note(f"row {case.row}, {case.work}, round {number} of {rounds}: ours {result.ours[-1]}, {last}")
    return result
