"""Formats the results: the full table, the short table of the README, and the JSON document."""

from dataclasses import asdict
from math import inf
from statistics import median

from measure import REPO, cell, machine_sentence, summary

PERFORMANCE = REPO / "docs/performance.md"
HEAD = "| workload | input | Dataplane | compared with | ratio | goal |"
# The socket family of each link kind.
AF = {"`packet`": "packet", "`xdp`": "xdp"}


def met(peer, ratios):
    return None if peer.goal is None else median(ratios) >= peer.goal


def goal(peer, ratios):
    if peer.goal is None:
        return ""
    if met(peer, ratios):
        return f"{peer.goal:g}, met"
    # If rounding to two digits reaches the goal, show three digits.
    exact = f" ({median(ratios):.3f})" if round(median(ratios), 2) >= peer.goal else ""
    return f"{peer.goal:g}, **missed**{exact}"


def table(results, facts, chosen, cores):
    lines = [
        "| row | workload | Dataplane | peer | result of the peer | Dataplane ÷ peer | goal | clock, GHz | undisturbed |",
        "| --: | --- | --: | --- | --: | --: | --- | --: | --: |",
    ]
    for result in results:
        case = result.case
        first = [case.row, case.work, f"{cell(result.ours)} {case.unit}"]
        counted = [attempts[-1] for _, attempts in result.measured]
        undisturbed = sum(cores.was_undisturbed(attempt) for attempt in counted)
        last = [f"{median(clocks(counted)):.2f}", f"{undisturbed} of {len(counted)}"]
        for peer in case.peers:
            ratios = result.ratios[peer.name]
            theirs = [peer.name, cell(result.theirs[peer.name]), cell(ratios, 2), goal(peer, ratios)]
            lines.append(f"| {' | '.join(map(str, first + theirs + last))} |")
            first, last = ["", "", ""], ["", ""]
    lines += [
        "",
        f"Median (minimum to maximum) of {chosen.rounds} rounds of {chosen.seconds:g} s. {machine_sentence(facts)}",
        "",
        *notes(results),
    ]
    return "\n".join(lines)


def clocks(attempts):
    return [speed.ghz for attempt in attempts for speeds in attempt.speeds.values() for speed in speeds]


def notes(results):
    """Returns the notes on the rows. A note that several rows share appears once."""
    rows = {}
    for result in results:
        for text in (result.checked, result.case.note):
            if text:
                rows.setdefault(text, set()).add(result.case.row)
    return [f"- Row {', '.join(map(str, sorted(numbers)))}: {text}" for text, numbers in rows.items()]


def headline(results):
    """Returns the table of the README: for each row, the worst result, which has the smallest ratio relative to its goal."""
    least = {}
    for result in results:
        for peer in result.case.peers:
            reached = median(result.ratios[peer.name]) / peer.goal if peer.goal else inf
            if reached < least.get(result.case.row, (inf,))[0]:
                least[result.case.row] = reached, result, peer
    lines = [HEAD, "| --- | --- | --: | --: | --: | --- |"]
    for _, (_, result, peer) in sorted(least.items()):
        ours, theirs = median(result.ours), median(result.theirs[peer.name])
        ratios, case = result.ratios[peer.name], result.case
        compared = f"{theirs:.1f} ({peer.name})"
        lines.append(
            f"| {case.work} | memory | {ours:.1f} {case.unit} | {compared} | {median(ratios):.2f} | {goal(peer, ratios)} |"
        )
    return "\n".join(lines + interface_rows(PERFORMANCE.read_text()))


def interface_rows(page):
    """Returns rows for the README from the section `wires` of docs/performance.md, which benches/wires writes."""
    section = page.partition("<!-- begin wires -->")[2].partition("<!-- end wires -->")[0]
    measured = {}
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and len(cells) == 3 and cells[1][:1].isdigit():
            # The medians, without minimum and maximum.
            measured[cells[0]] = cells[1].partition(" ")[0], cells[2].partition(" ")[0]
    rows = []
    for name, (rate, ratio) in measured.items():
        if name.startswith("`"):
            peer = next(other for other in measured if other.startswith("testpmd") and other.endswith(f"af_{AF[name]}"))
            rows.append(f"| forward, link {name} | veth pair | {rate} Mpps | {measured[peer][0]} ({peer}) | {ratio} |  |")
        elif not name.startswith("testpmd"):
            rows.append(f"| for reference: forward in the kernel, without Dataplane | veth pair | – | {rate} ({name}) | – | – |")
    return rows


def with_interface_rows(short, page):
    """Returns the short table with its veth rows replaced by rows from this page."""
    kept = [line for line in short.splitlines() if "| veth pair |" not in line]
    return "\n".join(kept + interface_rows(page))


def document(results, facts, chosen, complete):
    return {
        "machine": facts,
        "complete": complete,
        "rounds": chosen.rounds,
        "seconds": chosen.seconds,
        "rows": [
            {
                "row": result.case.row,
                "work": result.case.work,
                "unit": result.case.unit,
                "checked": result.checked,
                "note": result.case.note,
                # A disturbed measurement is repeated. The last attempt counts.
                "measured": [
                    {"side": name, "attempts": [asdict(attempt) for attempt in attempts]} for name, attempts in result.measured
                ],
                "ours": {**summary(result.ours), "all": result.ours},
                "peers": [
                    {
                        "name": peer.name,
                        "goal": peer.goal,
                        "met": met(peer, result.ratios[peer.name]),
                        "theirs": {**summary(result.theirs[peer.name]), "all": result.theirs[peer.name]},
                        "ratio": {**summary(result.ratios[peer.name]), "all": result.ratios[peer.name]},
                    }
                    for peer in result.case.peers
                ],
            }
            for result in results
        ],
    }
