"""Which weights played in a run, which groups and rollouts are of several, and which groups were too old."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from environments.trajectory import TrajectoryGroup

UNKNOWN = "unknown"
SEVERAL = ("2", "more")
_NAME_CHARS = 40


@dataclass(slots=True, kw_only=True)
class WeightTotals:
    """Only `add` changes it."""

    versions: dict[str, None] = field(default_factory=dict[str, None])
    """Each once, in the order they were first seen, of groups as these ended."""
    groups: Counter[str] = field(default_factory=Counter[str])
    """By how many versions sampled them: `1`, `2`, `more`, `unknown` where a turn's is."""
    rollouts: Counter[str] = field(default_factory=Counter[str])
    """Likewise."""
    stale: int = 0
    """Groups that were too old to be trained on."""

    def add(self, group: TrajectoryGroup) -> None:
        """Take a group in."""
        self.stale += group.stale is not None
        if group.trajectories:
            self.groups[_how_many(group.weight_versions)] += 1
        for trajectory in group.trajectories:
            self.rollouts[_how_many(trajectory.weight_versions)] += 1
        self.versions.update(dict.fromkeys(each for each in group.weight_versions if each is not None))

    @property
    def oldest(self) -> str | None:
        """The version that was seen first, as a terminal and a chart can hold its name."""
        return next(map(_shown, self.versions), None)

    @property
    def newest(self) -> str | None:
        """The version that was seen first after all others."""
        return next(map(_shown, reversed(self.versions)), None)

    def values(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "versions": len(self.versions),
            "oldest": self.oldest,
            "newest": self.newest,
            "groups": dict(self.groups),
            "rollouts": dict(self.rollouts),
            "stale": self.stale,
        }

    def text(self) -> str:
        """For people; empty where no version is known."""
        return weights_text(self.values())


def weights_text(values: Mapping[str, Any]) -> str:
    """What `WeightTotals.values` says, for people; empty where no version is known."""
    count, groups, rollouts = values["versions"], values["groups"], values["rollouts"]
    parts = [
        f"{count:,} versions, {values['oldest']} to {values['newest']}" if count > 1 else values["oldest"]
    ]
    counts = {
        "groups of several": _several(groups),
        "rollouts of several": _several(rollouts),
        "groups of unknown ones": groups.get(UNKNOWN, 0),
        "stale groups": values["stale"],
    }
    parts += [f"{name} {number:,}" for name, number in counts.items() if number]
    return ", ".join(parts) if count else ""


def _how_many(versions: Sequence[str | None]) -> str:
    if not versions or None in versions:
        return UNKNOWN
    return str(len(versions)) if len(versions) < 3 else SEVERAL[-1]


def _several(counted: Mapping[str, int]) -> int:
    return sum(counted.get(name, 0) for name in SEVERAL)


def _shown(version: str) -> str:
    if len(version) > _NAME_CHARS:  # of a path, its end tells which
        version = f"{version[: _NAME_CHARS // 2]}…{version[1 - _NAME_CHARS // 2 :]}"
    return "".join(each if each.isprintable() else " " for each in version)
