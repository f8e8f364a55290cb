"""The plot of the docs: a bar for every ratio, with its spread and its goal, as SVG."""

from html import escape
from statistics import median

WIDTH, LEFT, RIGHT = 960, 430, 60
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

    def x(ratio):
        return LEFT + (WIDTH - LEFT - RIGHT) * ratio / most

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="16" y="24" font-size="15">{escape(title)}</text>',
        f'<text x="16" y="42" fill="#4a5568">bar: median; line: least to most; mark: goal; dashed: as fast as the peer</text>',
    ]
    step = 0.5 if most <= 6 else 1 if most <= 12 else 5
    for number in range(int(most / step) + 1):
        at = x(number * step)
        out.append(f'<line x1="{at:.1f}" y1="{TOP}" x2="{at:.1f}" y2="{height - 24}" stroke="#e2e8f0"/>')
        out.append(f'<text x="{at:.1f}" y="{height - 8}" text-anchor="middle" fill="#4a5568">{number * step:g}</text>')
    for place, (name, values, goal) in enumerate(bars):
        y, middle = TOP + place * (BAR + GAP), median(values)
        line, colour = y + BAR / 2, OURS if goal is None or middle >= goal else BEHIND
        out.append(f'<text x="{LEFT - 8}" y="{y + 12}" text-anchor="end">{escape(name)}</text>')
        out.append(f'<rect x="{LEFT}" y="{y}" width="{x(middle) - LEFT:.1f}" height="{BAR}" fill="{colour}"/>')
        out.append(
            f'<line x1="{x(min(values)):.1f}" y1="{line}" x2="{x(max(values)):.1f}" y2="{line}" stroke="#a0aec0" stroke-width="2"/>'
        )
        if goal is not None:
            out.append(f'<rect x="{x(goal) - 1.5:.1f}" y="{y - 2}" width="3" height="{BAR + 4}" fill="{GOAL}"/>')
        out.append(f'<text x="{x(max(values)) + 6:.1f}" y="{y + 12}">{middle:.2f}</text>')
    out.append(
        f'<line x1="{x(1):.1f}" y1="{TOP}" x2="{x(1):.1f}" y2="{height - 24}" stroke="{GOAL}" stroke-dasharray="4 3"/>'
    )
    return "\n".join([*out, "</svg>", ""])
