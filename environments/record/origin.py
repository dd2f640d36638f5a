"""What all groups of one run have in common: files hold groups of one run, and refuse those of another."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import orjson

from tools.errors import RecordError


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOrigin:
    """What makes two runs the same, as far as their groups may be mixed."""

    env: str
    policy: str
    estimator: str
    estimator_params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    group_size: int
    view: str | None = None
    """What the trainer is shown; `None` where credit is kept in every view, as in a record."""

    def facts(self) -> dict[str, str]:
        """What is known, as text to compare, to show and to keep."""
        facts = {
            "env": self.env,
            "policy": self.policy,
            "estimator": self.estimator,
            "estimator_params": orjson.dumps(
                dict(self.estimator_params), option=orjson.OPT_SORT_KEYS
            ).decode(),
            "group_size": str(self.group_size),
        }
        return facts if self.view is None else facts | {"view": self.view}

    def differences(self, before: Self) -> list[str]:
        """What is not as it was, each in words; what one of the two does not know is no difference."""
        was = before.facts()
        return [
            f"{name} was {was[name]!r}, is {now!r}"
            for name, now in self.facts().items()
            if was.get(name, now) != now
        ]

    def to_json(self) -> str:
        """The facts, as a file keeps them."""
        return json.dumps(self.facts(), sort_keys=True)


def origin_of_line(fields: Mapping[str, Any]) -> RunOrigin:
    """The origin of a recorded group, from the fields of its line."""
    return RunOrigin(
        env=str(fields.get("env")),
        policy=str(fields.get("policy")),
        estimator=str(fields.get("estimator")),
        estimator_params=fields.get("estimator_params") or {},
        group_size=len(fields.get("trajectories") or ()) + len(fields.get("failures") or ()),
    )


def origin_from_json(text: str) -> RunOrigin:
    """What `to_json` wrote, also before a view was part of it."""
    facts: dict[str, str] = json.loads(text)
    return RunOrigin(
        env=facts["env"],
        policy=facts["policy"],
        estimator=facts["estimator"],
        estimator_params=json.loads(facts["estimator_params"]),
        group_size=int(facts["group_size"]),
        view=facts.get("view"),
    )


def refuse_other_run(file: str, before: RunOrigin | None, now: RunOrigin, *, instead: str) -> None:
    """Refuse to mix the groups of two runs.

    Args:
        file: what holds the groups, in words.
        before: the origin of its groups; `None` when it holds none.
        now: the origin of this run.
        instead: what the user can do.

    Raises:
        RecordError: the runs differ; it names what was, what is and what to do.
    """
    differences = [] if before is None else now.differences(before)
    if differences:
        raise RecordError(f"{file} holds groups of another run ({'; '.join(differences)}); {instead}")
