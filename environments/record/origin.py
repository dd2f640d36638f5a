"""The identity of a run: a record refuses groups of another run."""

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
"""Prefix of facts about files that rollouts read first; they are not in the fingerprint."""
SHARD = "shard of the plan"
"""Name of a fact outside the fingerprint."""
_DIGEST = "sha256:"
_SHOWN_CHARS = 80
_SHOWN_DIFFERENCES = 12


def digest(data: bytes) -> str:
    return _DIGEST + hashlib.sha256(data).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOrigin:
    """The facts about a run that all groups of a record share."""

    env: str
    policy: str
    estimator: str
    estimator_params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    view: str | None = None
    """The trainer's view; None in a record, which serves every view."""
    experiment: Mapping[str, str] = field(default_factory=dict[str, str])
    """Facts that shape rollouts and rewards: text or a `digest`."""
    shard: str | None = None

    @property
    def fingerprint(self) -> str:
        """A hash without shard and credit, which can be computed again."""
        facts = {name: value for name, value in self.facts().items() if name != SHARD}
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]

    def facts(self) -> dict[str, str]:
        shard = {} if self.shard is None else {SHARD: self.shard}
        return {"env": self.env, "policy": self.policy, **self.experiment, **shard}

    def credit_facts(self) -> dict[str, str]:
        facts = {
            "estimator": self.estimator,
            "estimator_params": json.dumps(dict(self.estimator_params), sort_keys=True),
        }
        return facts if self.view is None else facts | {"view": self.view}

    def to_json(self) -> str:
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
    return f"{estimator}({', '.join(f'{name}={value}' for name, value in sorted(params.items()))})"


def differences(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    changed: list[str] = []
    other_env = before.get("env") != now.get("env")  # then everything else differs too
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
    pass


def refuse_other_run(file: str, changed: list[str], *, instead: str) -> None:
    if changed:
        raise OtherRunError(f"{file} holds groups of another run ({in_short(changed)}); {instead}")


def in_short(changed: Sequence[str]) -> str:
    more = len(changed) - _SHOWN_DIFFERENCES
    return "; ".join(changed[:_SHOWN_DIFFERENCES]) + (f"; and {more} more" if more > 0 else "")


GroupKey = tuple[str, int]
"""`(item_id, epoch)`"""
_REFUSED_REQUEST = re.compile(r" answered 4(?:00|13|22): ")


def is_outage(stop_reason: str | None, error: str, error_class: str) -> bool:
    """Whether a server, engine or disk failed for all rollouts."""
    return bool(stop_reason) and not (
        _REFUSED_REQUEST.search(error)
        or error_class in ("ImageUnavailable", "ContextOverflow", "RefusedSettingError")
    )


@dataclass(slots=True, kw_only=True)
class Contents:
    """An index of a record's groups; failed ones will run again."""

    finished: set[GroupKey] = field(default_factory=set[GroupKey])
    failed: set[GroupKey] = field(default_factory=set[GroupKey])
    tries: Counter[tuple[str | None, GroupKey]] = field(default_factory=Counter[tuple[str | None, GroupKey]])
    """Failures by fingerprint and group, without outages."""
    has_credit: bool = False
    has_reward: bool = False
    estimators: set[str] = field(default_factory=set[str])
    fingerprints: set[str | None] = field(default_factory=set["str | None"])
    origins: dict[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    item_hashes: dict[str, str] = field(default_factory=dict[str, str])

    def add(self, line: Mapping[str, Any]) -> None:
        fingerprint = line.get("fingerprint")
        if fingerprint is not None and isinstance(origin := line.get("origin"), dict):
            # Later lines add files that rollouts read in the meantime.
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
        return self.origins.get(fingerprint or "", {}) if fingerprint in self.fingerprints else {}

    @property
    def shards(self) -> set[str | None]:
        held = [self.origins.get(each or "", {}).get(SHARD) for each in self.fingerprints.union(self.origins)]
        return {None if each is None else str(each) for each in held}

    def differences(self, now: RunOrigin) -> list[str]:
        """Describe how a run differs from the record's, unless the record already accepted groups of it."""
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

    def find_changed_items(self, items: Iterable[tuple[str, Any]], *, all_items: bool) -> list[str]:
        left = dict(self.item_hashes)
        changed = [
            f"item {identity!r} changed"
            for identity, item in items
            if (recorded := left.pop(identity, None)) is not None and recorded != item_hash(item)
        ]
        return changed + ([f"item {identity!r} is gone" for identity in left] if all_items else [])
