"""Curves of learning as an SVG: every seed thin, medians thick, readable on light and on dark."""

from collections.abc import Mapping, Sequence
from html import escape
from statistics import median

_WIDTH, _HEIGHT = 760, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 20, 44, 52
_COLORS = ("a", "b", "c", "d", "e", "f")
_STYLE = """
.ground{fill:#fff}.text{fill:#222;font:13px system-ui,sans-serif}.title{font-size:15px;font-weight:600}
.axis{stroke:#777;fill:none}.grid{stroke:#ddd}.target{stroke:#777;stroke-dasharray:5 4}
.line{fill:none;stroke-linejoin:round}.seed{stroke-width:1;opacity:.45}.median{stroke-width:3}
.a{stroke:#0b62c4}.b{stroke:#c2410c}.c{stroke:#6b7280}.d{stroke:#15803d}.e{stroke:#7e22ce}.f{stroke:#a16207}
@media (prefers-color-scheme:dark){.ground{fill:#0d1117}.text{fill:#e6edf3}.grid{stroke:#30363d}
.axis,.target{stroke:#9aa4af}.a{stroke:#58a6ff}.b{stroke:#ff9d5c}.c{stroke:#aab2bd}.d{stroke:#4ade80}
.e{stroke:#c792ea}.f{stroke:#e3b341}}
"""


Curve = Sequence[float]
"""A value from 0 to 1 at each step; a run that ended counts on with its last."""


def curve_plot(
    curves: Mapping[str, Sequence[Curve]],
    legend: Mapping[str, str],
    *,
    title: str,
    value: str,
    target: float,
) -> str:
    """The SVG.

    Args:
        curves: of all arms, by seed.
        legend: a line for each arm.
        title: above.
        value: what the curves show.
        target: of it, as a dashed line.
    """
    steps = max(1, *(len(each) - 1 for seeds in curves.values() for each in seeds))
    drawn = [*_axes(steps, value), f'<path class="target" d="M{_LEFT} {_y(target):.1f}H{_WIDTH - _RIGHT}"/>']
    colors = {name: _COLORS[index % len(_COLORS)] for index, name in enumerate(curves)}
    for name, seeds in curves.items():
        drawn += [_line(each, steps, f"line seed {colors[name]}") for each in seeds]
    for name, seeds in curves.items():
        drawn.append(_line(_medians(seeds), steps, f"line median {colors[name]}"))
    for index, (name, color) in enumerate(colors.items()):
        y = _HEIGHT + 6 + 20 * index
        drawn.append(f'<path class="line median {color}" d="M{_LEFT} {y - 4}h26"/>')
        drawn.append(_text(_LEFT + 34, y, f"{name}: {legend[name]}"))
    height = _HEIGHT + 20 * len(curves)
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" '
        f'aria-label="{escape(title)}">',
        f"<style>{_STYLE}</style>",
        f'<rect class="ground" width="{_WIDTH}" height="{height}"/>',
        _text(_LEFT, 26, title, "text title"),
        *drawn,
        "</svg>",
        "",
    ])  # fmt: skip


def _medians(seeds: Sequence[Curve]) -> list[float]:
    """At each step over all seeds, as far as half of them went."""
    lengths = sorted(map(len, seeds))
    steps = range(lengths[len(lengths) // 2])
    return [median(values[min(step, len(values) - 1)] for values in seeds) for step in steps]


def _x(step: float, steps: int) -> float:
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * step / steps


def _y(value: float) -> float:
    return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - min(1.0, max(0.0, value)))


def _axes(steps: int, value: str) -> list[str]:
    lines: list[str] = []
    for tenths in range(0, 11, 2):
        y = _y(tenths / 10)
        lines.append(f'<path class="grid" d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}"/>')
        lines.append(_text(_LEFT - 8, y + 4, f"{tenths / 10:g}", anchor="end"))
    round_numbers = [digit * 10**power for power in range(9) for digit in (1, 2, 5)]
    every = next(each for each in round_numbers if steps / each <= 8)
    for step in range(0, steps + 1, every):
        lines.append(_text(_x(step, steps), _HEIGHT - _BOTTOM + 20, str(step), anchor="middle"))
    bottom = _HEIGHT - _BOTTOM
    lines.append(f'<path class="axis" d="M{_LEFT} {_TOP}V{bottom}H{_WIDTH - _RIGHT}"/>')
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    lines.append(_text(middle, _HEIGHT - 12, "steps of the policy", anchor="middle"))
    lines.append(_text(16, (_TOP + bottom) / 2, value, anchor="middle", turned=-90))
    return lines


def _line(values: Sequence[float], steps: int, style: str) -> str:
    points = " ".join(f"{_x(step, steps):.1f},{_y(value):.1f}" for step, value in enumerate(values))
    return f'<polyline class="{style}" points="{points}"/>'


def _text(
    x: float, y: float, text: str, style: str = "text", *, anchor: str = "start", turned: float = 0
) -> str:
    turn = f' transform="rotate({turned:g} {x:.1f} {y:.1f})"' if turned else ""
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{turn}>{escape(text)}</text>'
