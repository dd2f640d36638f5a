"""Versions of the policy's weights, and the rollouts that are older than `--env.max_staleness` allows."""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from environments.config import AgentEnvConfig
from environments.credit.crediting import NO_CREDIT, without_peer_of
from environments.policy.base import Policy
from environments.trajectory import CreditedGroup, Turn
from tools.errors import ConfigError
from tools.plain_text import count_noun

STALE = "stale"
UNNAMED = "default"
_OPTION = "--env.max_staleness"
_KEPT = 1000

logger = logging.getLogger(__name__)


class WeightVersions:
    """Versions that one environment object has seen, in the order of their first turns.

    A version has a name but no number, so a known one is never new again, unless trainer or process
    restarted.
    """

    def __init__(self, config: AgentEnvConfig) -> None:
        self.max_staleness = config.max_staleness
        self._seen: dict[str, None] = {}
        self._former: set[str] = set()
        self._has_any = self._has_warned = False

    @property
    def seen(self) -> tuple[str, ...]:
        return tuple(self._seen)[-_KEPT:]

    def restore(self, seen: Sequence[str]) -> None:
        self._seen = dict.fromkeys(seen)
        self.note_restart()

    def note_restart(self) -> None:
        """Let every known version become current again: the trainer may continue from older weights."""
        self._former = set(self._seen)

    def note(self, turn: Turn) -> None:
        self.merge([version for version in turn.weight_versions if version is not None])

    def merge(self, seen: Sequence[str]) -> None:
        """Add versions in the order in which another process saw them.

        A new version is inserted before the known one that follows it in `seen`; otherwise it is the newest.
        """
        self._has_any |= bool(seen)
        again = self._former.intersection(seen)
        if not again and self._seen.keys() >= set(seen):
            return
        self._former -= again
        order = [version for version in self._seen if version not in again]
        at = len(order)
        for version in reversed(seen):
            if version in order:
                at = order.index(version)
            else:
                order.insert(at, version)
        self._seen = dict.fromkeys(order)

    def refuse_without(self, policy: Policy | None) -> None:
        if self.max_staleness is not None and policy is None:
            raise ConfigError(
                f"{_OPTION} counts versions of weights, and the scripted agent has none; name a model server "
                f"that reports them (--openai.base_url), or leave it out"
            )

    def staleness(self, versions: Sequence[str | None]) -> str | None:
        if self.max_staleness is not None and versions and not self._has_any:
            raise ConfigError(
                f"{_OPTION} counts versions of weights, and no completion names one; use a server that does "
                f"(SGLang; vLLM from 0.33 on), a policy that sets Completion.weight_version, or leave it out"
            )
        if self.max_staleness is not None and UNNAMED in versions and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "the model server calls its weights %r, the default until they are named: %s counts names, "
                "so name new weights when you load them",
                UNNAMED,
                _OPTION,
            )
        return self.too_old(versions)

    def withhold(self, credited: CreditedGroup) -> CreditedGroup:
        if self.staleness(credited.group.weight_versions) is None:
            return credited
        return withhold(credited, self.too_old)

    def too_old(self, versions: Sequence[str | None]) -> str | None:
        return None if self.max_staleness is None else staleness(versions, self._seen, self.max_staleness)


def withhold(credited: CreditedGroup, too_old: Callable[[Sequence[str | None]], str | None]) -> CreditedGroup:
    """Return the group without credit for siblings for which `too_old` returns a reason.

    The other advantages stay: computed anew, they would compare with short rollouts only.
    """
    ages = [(each, too_old(each.weight_versions)) for each in credited.group.trajectories]
    if credited.status == "failed" or not any(why for _, why in ages):
        return credited
    group = replace(
        credited.group, trajectories=tuple(each if why is None else each.withhold(why) for each, why in ages)
    )
    rows = zip(credited.advantages, ages, strict=True)
    advantages = tuple(row if why is None else (0.0,) * len(row) for row, (_, why) in rows)
    learns = any(map(any, advantages))
    left = replace(credited, group=group, advantages=advantages)
    alone = without_peer_of(left)
    return replace(
        left,
        status="ok" if learns else "no_credit" if credited.status == "ok" else credited.status,
        reason=None if learns else group.stale or credited.reason or NO_CREDIT,
        turns_without_peer=credited.turns_without_peer if alone is None else sum(map(sum, alone)),
    )


def staleness(versions: Iterable[str | None], seen: Iterable[str], max_staleness: int) -> str | None:
    """Return why a rollout or group is too old for training, or None.

    The oldest of the `versions` that sampled it decides; `seen` are all known versions, oldest first.
    """
    given = set(versions)
    if None in given:
        return f"{STALE}: the version of the weights is unknown in some of its turns"
    newest_first = dict.fromkeys(reversed(tuple(seen)))
    ages = {version: age for age, version in enumerate(newest_first)}
    # An unknown version is from an earlier run: everything known is newer.
    age = max((ages.get(str(version), len(ages)) for version in given), default=0)
    if age <= max_staleness:
        return None
    newer = f"{count_noun(age, 'newer version')} of the weights"
    return f"{STALE}: {newer} since its oldest turn, max_staleness is {max_staleness}"
