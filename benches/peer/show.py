"""How results show: the table, the table of the README, and what is written for programs."""

from dataclasses import asdict
from math import inf
from statistics import median

from measure import cell, of_machine, summary


def met(peer, ratios):
    return None if peer.goal is None else median(ratios) >= peer.goal


def goal(peer, ratios):
    if peer.goal is None:
        return ""
    if met(peer, ratios):
        return f"{peer.goal:g}, met"
    # What two digits hide.
    exact = f" ({median(ratios):.3f})" if round(median(ratios), 2) >= peer.goal else ""
    return f"{peer.goal:g}, **missed**{exact}"


def table(results, facts, chosen, cores):
    lines = [
        "| row | work | ours | peer | theirs | ours ÷ theirs | goal | clock, GHz | alone |",
        "| --: | --- | --: | --- | --: | --: | --- | --: | --: |",
    ]
    for result in results:
        case = result.case
        first = [case.row, case.work, f"{cell(result.ours)} {case.unit}"]
        taken = [tries[-1] for _, tries in result.measured]
        alone = sum(cores.was_alone(one) for one in taken)
        last = [f"{median(clocks(taken)):.2f}", f"{alone} of {len(taken)}"]
        for peer in case.peers:
            ratios = result.ratios[peer.name]
            theirs = [peer.name, cell(result.theirs[peer.name]), cell(ratios, 2), goal(peer, ratios)]
            lines.append(f"| {' | '.join(map(str, first + theirs + last))} |")
            first, last = ["", "", ""], ["", ""]
    lines += [
        "",
        f"Median (least to most) of {chosen.rounds} rounds of {chosen.seconds:g} s. {of_machine(facts)}",
        "",
        *notes(results),
    ]
    return "\n".join(lines)


def clocks(tries):
    return [look.ghz for one in tries for looks in one.looks.values() for look in looks]


def notes(results):
    """What was compared, and what is to be known of a row; what several rows say is said once."""
    rows = {}
    for result in results:
        for text in (result.checked, result.case.note):
            if text:
                rows.setdefault(text, set()).add(result.case.row)
    return [f"- Row {', '.join(map(str, sorted(of)))}: {text}" for text, of in rows.items()]


def headline(results):
    """One line a row: where it is least of its goal."""
    least = {}
    for result in results:
        for peer in result.case.peers:
            reached = median(result.ratios[peer.name]) / peer.goal if peer.goal else inf
            if reached < least.get(result.case.row, (inf,))[0]:
                least[result.case.row] = reached, result, peer
    lines = ["| work | ours | beside | ours ÷ theirs | goal |", "| --- | --: | --: | --: | --: |"]
    for _, (_, result, peer) in sorted(least.items()):
        ours, theirs = median(result.ours), median(result.theirs[peer.name])
        ratios, case = result.ratios[peer.name], result.case
        beside = f"{theirs:.1f} ({peer.name})"
        lines.append(f"| {case.work} | {ours:.1f} {case.unit} | {beside} | {median(ratios):.2f} | {goal(peer, ratios)} |")
    return "\n".join(lines)


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
                # Those behind which the cores were not alone are tried again: the last one counts.
                "measured": [{"side": name, "tries": [asdict(one) for one in tries]} for name, tries in result.measured],
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
