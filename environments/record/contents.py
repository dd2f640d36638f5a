"""What a record holds already: which groups are done, and what run they came from."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from environments.data.item_json import item_hash
from environments.record.origin import RunOrigin, credit_text, differences

GroupKey = tuple[str, int]
"""`(item_id, epoch)`: names a group within a run."""


@dataclass(slots=True, kw_only=True)
class Contents:
    """Only `add` changes it. Of failed groups, which are done again, nothing but their names counts."""

    finished: set[GroupKey] = field(default_factory=set[GroupKey])
    failed: set[GroupKey] = field(default_factory=set[GroupKey])
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
        if line.get("status") == "failed":
            self.failed.add(key)
            return
        self.finished.add(key)
        self.estimators.add(credit_text(str(line.get("estimator")), line.get("estimator_params") or {}))
        self.fingerprints.add(fingerprint)
        if line.get("item_hash") is not None:
            self.item_hashes.setdefault(key[0], line["item_hash"])

    def facts_of(self, fingerprint: str | None) -> Mapping[str, str]:
        """What the file says of a fingerprint; nothing where no such group finished."""
        return self.origins.get(fingerprint or "", {}) if fingerprint in self.fingerprints else {}

    def differences(self, now: RunOrigin) -> list[str]:
        """How a run differs from the one that made the groups, each difference in words.

        None where groups of this very run are among them: to go on was accepted then.
        """
        if now.fingerprint in self.fingerprints:
            return []
        return [each for fingerprint in self.fingerprints for each in self._differences(fingerprint, now)]

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

    def _differences(self, fingerprint: str | None, now: RunOrigin) -> list[str]:
        if fingerprint == now.fingerprint:
            return []
        if fingerprint is None:
            return ["they carry no fingerprint"]
        if fingerprint not in self.origins:
            return [f"fingerprint was {fingerprint}, is {now.fingerprint}"]
        return differences(self.origins[fingerprint], now.facts())
