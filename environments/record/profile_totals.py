"""Where the time of a run's rollouts went, and their tokens: the profiles of all of them as one table."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from environments.record.spread import Spread, finite
from environments.time_profile import MAX_NAMES, OTHER, CallTimes, TimeProfile
from environments.trajectory import Trajectory, TrajectoryGroup

SHOWN_CALLS = 16
_REST = "between calls"
_HEAD = ("", "calls", "own time", "share", "with inner", "mean", "longest")


@dataclass(slots=True, kw_only=True)
class CallTotals:
    """The calls of one name, of all rollouts."""

    count: int = 0
    total_s: float = 0.0
    own_s: float = 0.0
    max_s: float = 0.0

    def add(self, times: CallTimes) -> None:
        """Take those of one rollout in."""
        self.count += times.count
        self.total_s += times.total_s
        self.own_s += times.own_s
        self.max_s = max(self.max_s, times.max_s)


@dataclass(slots=True, kw_only=True)
class ProfileTotals:
    """Only `add` changes it; it stays empty where rollouts have no profile."""

    wall_s: float = 0.0
    """Of all rollouts, one after the other."""
    calls: dict[str, CallTotals] = field(default_factory=dict[str, CallTotals])
    prompts: Spread = field(default_factory=Spread)
    """Tokens that the model saw, per call."""
    sampled: Spread = field(default_factory=Spread)

    def add(self, group: TrajectoryGroup) -> None:
        """Take the rollouts of a group in, those that broke, too, and their comparison."""
        for each in (*group.trajectories, *group.failures, group):
            if each.profile is not None:
                self._add_times(each.profile)
        for trajectory in group.trajectories:
            if trajectory.profile is not None:
                self._add_tokens(trajectory)

    def rows(self) -> list[tuple[str, str]]:
        """Names and texts for people; none where there is no profile."""
        if not self.wall_s:
            return []
        return [("time", self._table()), ("tokens by call", self._tokens())]

    def values(self) -> dict[str, Any]:
        """As JSON: the share of each, and its calls; empty where there is no profile."""
        if not self.wall_s:
            return {}
        return {
            "rollout_s": finite(self.wall_s),
            "share": {name: own_s / self.wall_s for name, own_s in self._shares()},
            "calls": {name: each.count for name, each in self.calls.items()},
        }

    def _add_times(self, profile: TimeProfile) -> None:
        self.wall_s += profile.wall_s
        for name, times in profile.calls.items():
            known = name if name in self.calls or len(self.calls) < MAX_NAMES else OTHER
            self.calls.setdefault(known, CallTotals()).add(times)

    def _add_tokens(self, trajectory: Trajectory) -> None:
        for turn in trajectory.turns:
            self.prompts.add(turn.span.start)
            self.sampled.add(turn.span.end - turn.span.start)

    def _shares(self) -> list[tuple[str, float]]:
        """The own time of each, the longest first, and what is left of the wall clock."""
        own = {name: each.own_s for name, each in self.calls.items()}
        own[_REST] = max(0.0, self.wall_s - sum(own.values()))
        return sorted(own.items(), key=lambda entry: (-entry[1], entry[0]))

    def _table(self) -> str:
        shares = self._shares()
        lines = [_HEAD, *(self._line(name, own_s) for name, own_s in shares[:SHOWN_CALLS])]
        if later := shares[SHOWN_CALLS:]:
            own_s = sum(own for _, own in later)
            lines.append((f"and {len(later)} more", "", *self._part(own_s), "", "", ""))
        lines.append(("sum", "", *self._part(self.wall_s), "", "", ""))
        return _columns(lines)

    def _line(self, name: str, own_s: float) -> Sequence[str]:
        if (each := self.calls.get(name)) is None:
            return name, "", *self._part(own_s), "", "", ""
        mean_s = each.total_s / max(1, each.count)
        return (
            name,
            f"{each.count:,}",
            *self._part(own_s),
            _seconds(each.total_s),
            _seconds(mean_s),
            _seconds(each.max_s),
        )

    def _part(self, own_s: float) -> tuple[str, str]:
        return _seconds(own_s), f"{own_s / self.wall_s:.1%}"

    def _tokens(self) -> str:
        if not self.prompts.count:
            return ""
        kinds = (("prompt", self.prompts), ("sampled", self.sampled))
        return ", ".join(
            f"{name} {spread.total:,.0f} (mean {spread.mean:,.0f}, most {spread.high:,.0f})"
            for name, spread in kinds
        )


def _seconds(seconds: float) -> str:
    """With three digits: `812 µs`, `12.3 ms`, `4.56 s`, `1,234 s`."""
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        value = seconds * scale
        if value >= 1 or unit == "µs":
            digits = 0 if value >= 100 else 1 if value >= 10 else 2
            return f"{value:,.{digits}f} {unit}" if value else "0 s"
    raise AssertionError("the last unit takes any number")


def _columns(lines: Sequence[Sequence[str]]) -> str:
    """Names to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            f"{cell:{'>' if index else '<'}{width}}"
            for index, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
