"""The curves of the arms as an SVG: a line per seed."""

COLOURS = {
    "gamma-0": "#0b6e4f", "gamma-0.5": "#7a9e00", "gamma-1": "#2f6fb0",
    "scalar": "#c8553d", "rloo": "#c8553d", "grpo": "#8e5fa8",
}  # fmt: skip
WIDTH, HEIGHT, MARGIN = 480, 260, 34
LEFT, RIGHT, TOP, BOTTOM = MARGIN, WIDTH - 10, 20, HEIGHT - MARGIN


def drawn(curves, title="share of right letters, mean of five steps"):
    """`{(arm, learning rate): [shares of a seed]}` as a picture."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
        f'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="white"/>{_axes(title)}'
    ]
    for index, ((arm, rate), seeds) in enumerate(curves.items()):
        parts += [_line(shares, COLOURS[arm]) for shares in seeds]
        y, text = BOTTOM - 14 * (len(curves) - index) + 6, f"{arm}, rate {rate:g}"
        parts.append(f'<text x="{RIGHT}" y="{y}" text-anchor="end" fill="{COLOURS[arm]}">{text}</text>')
    return "".join([*parts, "</svg>\n"])


def _axes(title):
    marks = [
        f'<text x="{LEFT - 4}" y="{BOTTOM - share * (BOTTOM - TOP) + 4}" text-anchor="end">{share:g}</text>'
        for share in (0, 0.5, 1)
    ]
    return (
        f'<path d="M{LEFT} {TOP}V{BOTTOM}H{RIGHT}" fill="none" stroke="#888"/>{"".join(marks)}'
        f'<text x="{(LEFT + RIGHT) / 2}" y="{HEIGHT - 10}" text-anchor="middle">step</text>'
        f'<text x="{LEFT}" y="12">{title}</text>'
    )


def _line(shares, colour, window=5):
    means = [sum(shares[max(0, end - window) : end]) / min(end, window) for end in range(1, len(shares) + 1)]
    step = (RIGHT - LEFT) / max(1, len(means) - 1)
    points = " ".join(
        f"{LEFT + index * step:.1f},{BOTTOM - mean * (BOTTOM - TOP):.1f}" for index, mean in enumerate(means)
    )
    return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.4" opacity="0.8"/>'
