"""Draws the plots of the docs as SVG: bars for ratios with spread and goal, and curves."""

from html import escape
from math import log10
from statistics import median

# Widths in pixels: the area of the bars, the right margin, and a letter of a bar's name.
BARS, RIGHT, LETTER = 470, 60, 6.6
# Heights in pixels: a bar, the gap between bars, and the title.
BAR, GAP, TOP = 16, 6, 56
OURS, BEHIND, GOAL = "#2b6cb0", "#c05621", "#1a202c"


def ratios(results, title):
    bars = [
        (f"{result.case.row}  {result.case.work} ÷ {peer.name}", result.ratios[peer.name], peer.goal)
        for result in results
        for peer in result.case.peers
    ]
    most = max([1.5, *(max(values) for _, values, _ in bars), *(goal or 0 for *_, goal in bars)])
    height = TOP + len(bars) * (BAR + GAP) + 30
    left = 16 + round(LETTER * max(len(name) for name, *_ in bars))
    width = left + BARS + RIGHT

    def x(ratio):
        return left + BARS * ratio / most

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="16" y="24" font-size="15">{escape(title)}</text>',
        f'<text x="16" y="42" fill="#4a5568">bar: median; line: minimum to maximum; mark: goal; dashed line: equal speed</text>',
    ]
    step = 0.5 if most <= 6 else 1 if most <= 12 else 5
    for number in range(int(most / step) + 1):
        at = x(number * step)
        out.append(f'<line x1="{at:.1f}" y1="{TOP}" x2="{at:.1f}" y2="{height - 24}" stroke="#e2e8f0"/>')
        out.append(f'<text x="{at:.1f}" y="{height - 8}" text-anchor="middle" fill="#4a5568">{number * step:g}</text>')
    for place, (name, values, goal) in enumerate(bars):
        y, middle = TOP + place * (BAR + GAP), median(values)
        line, colour = y + BAR / 2, OURS if goal is None or middle >= goal else BEHIND
        out.append(f'<text x="{left - 8}" y="{y + 12}" text-anchor="end">{escape(name)}</text>')
        out.append(f'<rect x="{left}" y="{y}" width="{x(middle) - left:.1f}" height="{BAR}" fill="{colour}"/>')
        out.append(
            f'<line x1="{x(min(values)):.1f}" y1="{line}" x2="{x(max(values)):.1f}" y2="{line}" stroke="#a0aec0" stroke-width="2"/>'
        )
        if goal is not None:
            out.append(f'<rect x="{x(goal) - 1.5:.1f}" y="{y - 2}" width="3" height="{BAR + 4}" fill="{GOAL}"/>')
        out.append(f'<text x="{x(max(*values, goal or 0)) + 6:.1f}" y="{y + 12}">{middle:.2f}</text>')
    out.append(
        f'<line x1="{x(1):.1f}" y1="{TOP}" x2="{x(1):.1f}" y2="{height - 24}" stroke="{GOAL}" stroke-dasharray="4 3"/>'
    )
    return "\n".join([*out, "</svg>", ""])


# Width and height of a panel in pixels, the number of panels per row, and the margin of a curve in its panel.
PANEL_WIDTH, PANEL_HEIGHT, ACROSS, EDGE = 400, 220, 3, 44


def curves(measured):
    """Returns one panel per curve: nanoseconds over a count on a logarithmic scale. `measured`: pairs of a title and the values by
    count."""
    rows = -(-len(measured) // ACROSS)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {PANEL_WIDTH * ACROSS} {PANEL_HEIGHT * rows}" font-family="sans-serif" font-size="10">',
        f'<rect width="{PANEL_WIDTH * ACROSS}" height="{PANEL_HEIGHT * rows}" fill="white"/>',
    ]
    for number, (title, values) in enumerate(measured):
        out += panel(title, values, number % ACROSS * PANEL_WIDTH, number // ACROSS * PANEL_HEIGHT)
    return "\n".join([*out, "</svg>", ""])


def panel(title, values, left, top):
    most, wide, tall = max(max(ns) for ns in values.values()), PANEL_WIDTH - EDGE - 16, PANEL_HEIGHT - 2 * EDGE
    first, last = (log10(at) for at in (min(values), max(values)))

    def place(at, ns):
        x = left + EDGE + wide * ((log10(at) - first) / (last - first) if last > first else 0.5)
        return x, top + EDGE + tall * (1 - ns / most)

    out = [f'<text x="{left + 8}" y="{top + 20}" font-size="11">{escape(title)}</text>']
    for part in (0, 0.5, 1):
        y = top + EDGE + tall * (1 - part)
        out.append(f'<line x1="{left + EDGE}" y1="{y:.1f}" x2="{left + EDGE + wide}" y2="{y:.1f}" stroke="#e2e8f0"/>')
        out.append(f'<text x="{left + EDGE - 4}" y="{y + 3:.1f}" text-anchor="end" fill="#4a5568">{most * part:.3g} ns</text>')
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(at, median(ns)) for at, ns in values.items()))
    out.append(f'<polyline points="{line}" fill="none" stroke="{OURS}" stroke-width="1.5"/>')
    for at, ns in values.items():
        (x, high), (_, low), (_, y) = place(at, max(ns)), place(at, min(ns)), place(at, median(ns))
        out.append(f'<line x1="{x:.1f}" y1="{low:.1f}" x2="{x:.1f}" y2="{high:.1f}" stroke="#a0aec0" stroke-width="2"/>')
        out.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{OURS}"/>')
        out.append(f'<text x="{x:.1f}" y="{top + EDGE + tall + 14}" text-anchor="middle" fill="#4a5568">{short(at)}</text>')
    return out


def short(count):
    for unit, letter in ((1_000_000, "M"), (1000, "k")):
        if count >= unit:
            return f"{count / unit:.3g}{letter}"
    return str(count)
