"""Which weights have played so far, and which rollouts are older than `--env.max_staleness` allows."""

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
"""How the reason of a rollout begins that is too old."""
UNNAMED = "default"
"""The name that vLLM and SGLang give unnamed weights."""
_OPTION = "--env.max_staleness"
_KEPT = 1000

logger = logging.getLogger(__name__)


class WeightVersions:
    """The versions that one environment object has met, in the order that it first met them.

    A version has a name and no number: one that was met before is never new again. So
    versions that several rollouts meet at once, in turn, count once each. Only where a life of the trainer,
    or ours, is over may a version of it be met anew, and is the newest then.
    """

    def __init__(self, config: AgentEnvConfig) -> None:
        self.max_staleness = config.max_staleness
        """How many versions may be newer than what is trained on; `None`: any number."""
        self._met: dict[str, None] = {}
        """Oldest first."""
        self._former: set[str] = set()
        """Those of them that may be met anew."""
        self._is_told = self._has_warned = False

    @property
    def met(self) -> tuple[str, ...]:
        """The newest ones, oldest first: for who keeps them from one process to the next."""
        return tuple(self._met)[-_KEPT:]

    def restore(self, met: Sequence[str]) -> None:
        """Begin with what an earlier process met: none of it is as new as what is met from here on."""
        self._met = dict.fromkeys(met)
        self.may_go_back()

    def may_go_back(self) -> None:
        """Whoever trains began anew, perhaps with older weights: of those met so far, any may be met anew."""
        self._former = set(self._met)

    def meet(self, turn: Turn) -> None:
        """Take in what a turn was sampled by, as soon as it was."""
        self.merge([version for version in turn.weight_versions if version is not None])

    def merge(self, met: Sequence[str]) -> None:
        """Take in what another process met, in its order: first what is new here, before what it met next.

        What follows nothing that is known is the newest.
        """
        self._is_told |= bool(met)
        again = self._former.intersection(met)
        if not again and self._met.keys() >= set(met):
            return
        self._former -= again
        order = [version for version in self._met if version not in again]
        at = len(order)
        for version in reversed(met):
            if version in order:
                at = order.index(version)
            else:
                order.insert(at, version)
        self._met = dict.fromkeys(order)

    def refuse_without(self, policy: Policy | None) -> None:
        """Raise ConfigError if it is known beforehand that there are no versions."""
        if self.max_staleness is not None and policy is None:
            raise ConfigError(
                f"{_OPTION} counts versions of weights, and the scripted agent has none; name a model server "
                f"that says them (--openai.base_url), or leave it out"
            )

    def staleness(self, versions: Sequence[str | None]) -> str | None:
        """Why a group of these versions that ended is too old to be trained on by now; `None`: it is not.

        Raises:
            ConfigError: age is bounded, and no version was ever stated.
        """
        if self.max_staleness is not None and versions and not self._is_told:
            raise ConfigError(
                f"{_OPTION} counts versions of weights, and whoever plays says none; use a server that does "
                f"(SGLang; vLLM from 0.33 on), a policy that sets Completion.weight_version, or leave it out"
            )
        if self.max_staleness is not None and UNNAMED in versions and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "the model server calls its weights %r, as it does until somebody names them: %s counts "
                "names, so whoever loads new weights must give theirs",
                UNNAMED,
                _OPTION,
            )
        return self.too_old(versions)

    def withheld(self, credited: CreditedGroup) -> CreditedGroup:
        """The group that ended, without credit for those of its siblings that are too old by now.

        Raises:
            ConfigError: as for `staleness`.
        """
        if self.staleness(credited.group.weight_versions) is None:
            return credited
        return withheld(credited, self.too_old)

    def too_old(self, versions: Sequence[str | None]) -> str | None:
        """Why rollouts of these versions are too old to be trained on by now; `None`: they are not."""
        return None if self.max_staleness is None else staleness(versions, self._met, self.max_staleness)


def withheld(credited: CreditedGroup, too_old: Callable[[Sequence[str | None]], str | None]) -> CreditedGroup:
    """The group without credit for siblings whose versions are `too_old`, for the reason that it gives.

    They are still compared with, so that the advantages of the others stay: without them the others would
    be compared with short rollouts alone.
    """
    ages = [(each, too_old(each.weight_versions)) for each in credited.group.trajectories]
    if credited.status == "failed" or not any(why for _, why in ages):
        return credited
    group = replace(
        credited.group, trajectories=tuple(each if why is None else each.withheld(why) for each, why in ages)
    )
    rows = zip(credited.advantages, ages, strict=True)
    advantages = tuple(row if why is None else (0.0,) * len(row) for row, (_, why) in rows)
    learns = any(map(any, advantages))
    left = replace(credited, group=group, advantages=advantages)
    alone = without_peer_of(left)
    return replace(
        left,
        status="ok" if learns else "no_credit",
        reason=None if learns else group.stale or credited.reason or NO_CREDIT,
        turns_without_peer=credited.turns_without_peer if alone is None else sum(map(sum, alone)),
    )


def staleness(versions: Iterable[str | None], met: Iterable[str], max_staleness: int) -> str | None:
    """Why rollouts of these versions are too old to be trained on once others were met; `None`: they are not.

    The oldest one counts.

    Args:
        versions: of a rollout or a group, in any order.
        met: all so far, oldest first; one that is named again is as new as its last name.
        max_staleness: how many may be newer than the oldest of `versions`.
    """
    given = set(versions)
    if None in given:
        return f"{STALE}: the version of the weights is unknown in some of its turns"
    newest_first = dict.fromkeys(reversed(tuple(met)))
    ages = {version: age for age, version in enumerate(newest_first)}
    # One that was never met is of an earlier run: all that was met came since.
    age = max((ages.get(str(version), len(ages)) for version in given), default=0)
    if age <= max_staleness:
        return None
    newer = f"{count_noun(age, 'newer version')} of the weights"
    return f"{STALE}: {newer} since its oldest turn, max_staleness is {max_staleness}"
