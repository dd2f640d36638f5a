"""What all groups of one run have in common: files hold groups of one run, and refuse those of another."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from environments.credit.crediting import UNSCORED
from environments.rollout.items.item_json import item_hash
from tools.errors import RecordError
from tools.plain_text import shorten

LATER = "later data of "
"""How a file is named that rollouts read first; the fingerprint was made before, so it is not of these."""
SHARD = "shard of the plan"
"""The name of the fact that is no part of the fingerprint; no setting has it, as it is no identifier."""
_DIGEST = "sha256:"
_SHOWN_CHARS = 80
_SHOWN_DIFFERENCES = 12


def digest(data: bytes) -> str:
    """A short hash of what is too long to be kept; two that differ are "changed"."""
    return _DIGEST + hashlib.sha256(data).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOrigin:
    """What makes two runs the same, as far as their groups may be mixed."""

    env: str
    policy: str
    estimator: str
    estimator_params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    view: str | None = None
    """What the trainer is shown; `None` where credit is kept in every view, as in a record."""
    experiment: Mapping[str, str] = field(default_factory=dict[str, str])
    """All that decides how rollouts go and what they earn, by name; a value is text or a `digest`."""
    shard: str | None = None
    """Which groups of the plan, as K/N; `None`: all of them."""

    @property
    def fingerprint(self) -> str:
        """Equal for groups that may stand in one record. Credit is no part of it: it can be computed anew."""
        facts = {name: value for name, value in self.facts().items() if name != SHARD}
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]

    def facts(self) -> dict[str, str]:
        """What the fingerprint is of, by name; beside it the shard: those of one run share a fingerprint."""
        shard = {} if self.shard is None else {SHARD: self.shard}
        return {"env": self.env, "policy": self.policy, **self.experiment, **shard}

    def credit_facts(self) -> dict[str, str]:
        """How credit was computed and is shown, by name."""
        facts = {
            "estimator": self.estimator,
            "estimator_params": json.dumps(dict(self.estimator_params), sort_keys=True),
        }
        return facts if self.view is None else facts | {"view": self.view}

    def to_json(self) -> str:
        """All of it, as an outbox keeps it."""
        return json.dumps(self.credit_facts() | {"experiment": self.facts()}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Self:
        kept: dict[str, Any] = json.loads(text)
        experiment: dict[str, str] = kept["experiment"]
        return cls(
            env=experiment.pop("env"),
            policy=experiment.pop("policy"),
            estimator=kept["estimator"],
            estimator_params=json.loads(kept["estimator_params"]),
            view=kept.get("view"),
            experiment=experiment,
        )


def credit_text(estimator: str, params: Mapping[str, Any]) -> str:
    """An estimator with its parameters, for people: `turn_return(gamma=1.0)`."""
    return f"{estimator}({', '.join(f'{name}={value}' for name, value in sorted(params.items()))})"


def differences(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """What is not as it was, each in words."""
    changed: list[str] = []
    other_env = before.get("env") != now.get("env")  # then all the rest differs, too
    for name in ("env",) if other_env else sorted({*before, *now}):
        was, is_ = before.get(name), now.get(name)
        if was == is_ or name.startswith(LATER) or name == SHARD:
            continue
        if was is None:
            changed.append(f"{name} is new")
        elif is_ is None:
            changed.append(f"{name} is gone")
        elif was.startswith(_DIGEST) or is_.startswith(_DIGEST):
            changed.append(f"{name} changed")
        else:
            changed.append(f"{name} was {shorten(was, _SHOWN_CHARS)}, is {shorten(is_, _SHOWN_CHARS)}")
    return changed


class OtherRunError(RecordError):
    """A file holds groups of another run."""


def refuse_other_run(file: str, changed: list[str], *, instead: str) -> None:
    """Raises OtherRunError if two runs, whose groups one file would mix, differ.

    Args:
        file: what holds the groups, in words.
        changed: how the run that made them differs from this one, in words.
        instead: what the user can do.
    """
    if changed:
        raise OtherRunError(f"{file} holds groups of another run ({in_short(changed)}); {instead}")


def in_short(changed: Sequence[str]) -> str:
    """Differences in a line; of many the first."""
    more = len(changed) - _SHOWN_DIFFERENCES
    return "; ".join(changed[:_SHOWN_DIFFERENCES]) + (f"; and {more} more" if more > 0 else "")


GroupKey = tuple[str, int]
"""`(item_id, epoch)`: names a group within a run."""
_ITS_OWN = ("ImageUnavailable", "ContextOverflow", "RefusedSettingError")
_REFUSED_REQUEST = re.compile(r" answered 4(?:00|13|22): ")


def is_outage(stop_reason: str | None, error: str, error_class: str) -> bool:
    """Whether a rollout was lost to a server, an engine or a disk that was away for all of them."""
    return bool(stop_reason) and not (_REFUSED_REQUEST.search(error) or error_class in _ITS_OWN)


@dataclass(slots=True, kw_only=True)
class Contents:
    """Only `add` changes it. Of failed groups, which are done again, nothing but names and tries count."""

    finished: set[GroupKey] = field(default_factory=set[GroupKey])
    failed: set[GroupKey] = field(default_factory=set[GroupKey])
    tries: Counter[tuple[str | None, GroupKey]] = field(default_factory=Counter[tuple[str | None, GroupKey]])
    """How often each failed, by fingerprint: what a former version of the code broke is no try of this one.
    Nor are outages, which are no fault of the group's."""
    has_credit: bool = False
    """Whether a group among them can be learned from."""
    has_reward: bool = False
    """Whether any group of the record has a reward."""
    estimators: set[str] = field(default_factory=set[str])
    """With their parameters, see `credit_text`."""
    fingerprints: set[str | None] = field(default_factory=set["str | None"])
    origins: dict[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    """What fingerprints stand for, as far as the file says."""
    item_hashes: dict[str, str] = field(default_factory=dict[str, str])

    def add(self, line: Mapping[str, Any]) -> None:
        """Take the fields of one more line in, see `parse_head`."""
        fingerprint = line.get("fingerprint")
        if fingerprint is not None and isinstance(origin := line.get("origin"), dict):
            # A later line adds the files that rollouts read since.
            self.origins[fingerprint] = {**self.origins.get(fingerprint, {}), **origin}
        key = str(line.get("item_id")), int(line.get("epoch") or 0)
        self.has_credit |= line.get("status") == "ok"
        if line.get("status") == "failed":
            self.failed.add(key)
            self.tries[fingerprint, key] += not any(
                is_outage(each.get("stop_reason"), str(each.get("error")), str(each.get("error_class")))
                for each in line.get("failures") or ()
            )
            return
        self.finished.add(key)
        self.has_reward |= line.get("reason") != UNSCORED
        self.estimators.add(credit_text(str(line.get("estimator")), line.get("estimator_params") or {}))
        self.fingerprints.add(fingerprint)
        if line.get("item_hash") is not None:
            self.item_hashes.setdefault(key[0], line["item_hash"])

    def facts_of(self, fingerprint: str | None) -> Mapping[str, str]:
        """What the file says of a fingerprint; nothing where no such group finished."""
        return self.origins.get(fingerprint or "", {}) if fingerprint in self.fingerprints else {}

    @property
    def shards(self) -> set[str | None]:
        """Which groups of the plan the runs had to do that wrote it, see `RunOrigin.shard`."""
        held = [self.origins.get(each or "", {}).get(SHARD) for each in self.fingerprints.union(self.origins)]
        return {None if each is None else str(each) for each in held}

    def differences(self, now: RunOrigin) -> list[str]:
        """How a run differs from the one that made the groups, each difference in words.

        None where groups of this very run are among them: to go on was accepted then.
        """
        if now.fingerprint in self.fingerprints:
            return []
        changed: list[str] = []
        for fingerprint in self.fingerprints:
            if fingerprint is None:
                changed.append("they carry no fingerprint")
            elif fingerprint in self.origins:
                changed += differences(self.origins[fingerprint], now.facts())
            else:
                changed.append(f"fingerprint was {fingerprint}, is {now.fingerprint}")
        return changed

    def changed_items(self, items: Iterable[tuple[str, Any]], *, all_items: bool) -> list[str]:
        """Which recorded items are not as they were, in words.

        Of the run's items, each with its id, every recorded one must be there where `all_items`.
        """
        left = dict(self.item_hashes)
        changed = [
            f"item {identity!r} changed"
            for identity, item in items
            if (recorded := left.pop(identity, None)) is not None and recorded != item_hash(item)
        ]
        return changed + ([f"item {identity!r} is gone" for identity in left] if all_items else [])
