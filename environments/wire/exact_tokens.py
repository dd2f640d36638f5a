"""Only tokens that were sampled go to a trainer: what a server gave as text alone is dropped or refused."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from environments.dropped_sibling import dropped
from environments.trajectory import CreditedGroup, StopReason, Trajectory, TrajectoryGroup
from tools.errors import ConfigError

MOST_IN_A_ROW = 8
"""Groups with such a rollout, of a server that has given tokens, after which it gives none any more."""


def refuse_text_alone(servers: Sequence[str]) -> None:
    """Say at the start what would be said after the first group.

    Args:
        servers: what was said of those that give no token ids.

    Raises:
        ConfigError: there is one.
    """
    if servers:
        raise ConfigError(
            f"{servers[0]}, and gives no token ids, so a trainer would learn from tokens that were never "
            f"sampled; use vLLM or SGLang, or accept it with --env.allow_approximate_tokens"
        )


class ExactTokens:
    """Takes rollouts without exact tokens out of groups, as long as they are the exception."""

    def __init__(
        self, credit: Callable[[TrajectoryGroup], CreditedGroup], *, say: Callable[[str], None]
    ) -> None:
        """Prepare; `credit` gives what is left of a group its advantages."""
        self._credit = credit
        self._say = say
        self._seen = False
        self._in_a_row = 0

    def only(self, credited: CreditedGroup) -> CreditedGroup:
        """The group without the rollouts whose tokens a trainer must not learn from: they are failures.

        Raises:
            ConfigError: the model server has never given exact tokens, or does no more.
        """
        group = credited.group
        lacking = {each.sibling: _lacking(each) for each in group.trajectories}
        kept = tuple(each for each in group.trajectories if lacking[each.sibling] is None)
        self._seen = self._seen or bool(kept)
        if len(kept) == len(group.trajectories):
            self._in_a_row = 0
            return credited
        self._in_a_row += 1
        what = next(each for each in lacking.values() if each is not None)
        if not self._seen or self._in_a_row >= MOST_IN_A_ROW:
            raise ConfigError(
                f"the model server gives no {what}, so a trainer would learn from tokens that were never "
                f"sampled, or refuse them; use a server that answers return_token_ids and logprobs (vLLM, "
                f"SGLang), or accept it with --env.allow_approximate_tokens"
            )
        without = [each for each in group.trajectories if lacking[each.sibling] is not None]
        self._say(f"item {group.item_id}: {len(without)} rollouts dropped, the model server gave no {what}")
        failures = [
            dropped(
                each,
                "PolicyError",
                f"the model server gave no {lacking[each.sibling]}",
                stop_reason=StopReason.POLICY_ERROR,
            )
            for each in without
        ]
        return self._credit(replace(group, trajectories=kept, failures=(*group.failures, *failures)))


def _lacking(trajectory: Trajectory) -> str | None:
    """What a trainer needs and the model server did not give."""
    if not trajectory.exact:
        return "token ids"
    return "logprobs" if any(row.logprobs is None for row in trajectory.rows) else None
