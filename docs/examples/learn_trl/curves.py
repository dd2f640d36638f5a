"""The curves of the arms as an SVG: a line per seed, one panel per learning rate."""

COLOURS = {"turns": "#0b6e4f", "scalar": "#c8553d"}
WIDTH, HEIGHT, MARGIN = 320, 220, 34


def drawn(curves):
    """`{(arm, learning rate): [scores of a seed]}` as a picture."""
    rates = sorted({rate for _, rate in curves})
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH * len(rates)}" height="{HEIGHT}" '
        f'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="white"/>'
    ]
    for panel, rate in enumerate(rates):
        parts.append(f'<g transform="translate({panel * WIDTH} 0)">{_axes(rate)}')
        for (arm, of), seeds in curves.items():
            parts += [_line(scores, COLOURS[arm]) for scores in seeds if of == rate]
        parts.append("</g>")
    for index, (arm, colour) in enumerate(COLOURS.items()):
        parts.append(f'<text x="{MARGIN + 8}" y="{MARGIN + 14 * (index + 1)}" fill="{colour}">{arm}</text>')
    return "".join([*parts, "</svg>\n"])


def _axes(rate):
    left, right, top, bottom = MARGIN, WIDTH - 10, 20, HEIGHT - MARGIN
    marks = [
        f'<text x="{left - 4}" y="{bottom - share * (bottom - top) + 4}" text-anchor="end">{share:g}</text>'
        for share in (0, 0.5, 1)
    ]
    return (
        f'<path d="M{left} {top}V{bottom}H{right}" fill="none" stroke="#888"/>{"".join(marks)}'
        f'<text x="{(left + right) / 2}" y="{HEIGHT - 10}" text-anchor="middle">step (learning rate {rate:g})</text>'
        f'<text x="{left}" y="12">share of right letters</text>'
    )


def _line(scores, colour):
    left, right, top, bottom = MARGIN, WIDTH - 10, 20, HEIGHT - MARGIN
    step = (right - left) / max(1, len(scores) - 1)
    points = " ".join(
        f"{left + index * step:.1f},{bottom - score * (bottom - top):.1f}"
        for index, score in enumerate(scores)
    )
    return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.4" opacity="0.8"/>'
