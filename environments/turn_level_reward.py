"""Scoring of rollouts: `TurnLevelRewardMixin` turn by turn, and the scalar path beside it."""

import inspect
import math
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Literal, ParamSpec, Protocol, get_args

from environments.rewards.reward_checks import (
    check_reward,
    number_and_parts,
    optional_reward,
    raw_parts,
    reward_per_turn,
    where_of,
)
from environments.rewards.reward_context import Reward, RolloutContext
from environments.trajectory import Rewards, Trajectory, Turn
from tools.errors import ConfigError, RewardError

P = ParamSpec("P")


def def_or_async(hook: Callable[P, Awaitable[Any]]) -> Callable[P, Any]:
    """Let subclasses write an awaitable hook as a plain `def`, for type checkers."""
    return hook


class TurnLevelRewardMixin:
    """Gives an environment one reward per turn. List it before `AgentEnv` among the bases.

    Write `compute_turn_rewards` to score after the rollout, or `score_turn` to score while it runs.
    """

    name: str = ""
    score_aggregation: "Aggregation" = "sum"
    default_estimator: str = "turn_return"

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Refuse a base order in which turn rewards would be ignored."""
        super().__init_subclass__(**kwargs)
        owner = next(base for base in cls.__mro__ if "scoring" in vars(base))
        if not issubclass(owner, TurnLevelRewardMixin):
            raise TypeError(
                f"{cls.__name__}: list TurnLevelRewardMixin before {owner.__name__} among the bases, "
                f"or its turn rewards are ignored"
            )

    @def_or_async
    async def score_turn(self, item: Any, turn: Turn, ctx: RolloutContext) -> Reward | None:
        """Score one turn right after it happened; `None` leaves it unscored."""
        return None

    @def_or_async
    async def compute_turn_rewards(
        self, item: Any, trajectory: Trajectory, ctx: RolloutContext
    ) -> Sequence[Reward | None]:
        """Return one entry per turn of `trajectory.acts`, `None` for an unscored turn.

        Default: the values of `score_turn`.
        """
        return ctx.turn_scores

    @def_or_async
    async def compute_outcome(self, item: Any, trajectory: Trajectory, ctx: RolloutContext) -> Reward | None:
        """Return the reward of the whole trajectory, or None."""
        return None

    @property
    def writes_outcome(self) -> bool:
        return type(self).compute_outcome is not TurnLevelRewardMixin.compute_outcome

    def scoring(self) -> "NewScoring":
        """Return the scoring by turn rewards; overrides that of `AgentEnv`."""
        if all(getattr(type(self), hook) is getattr(TurnLevelRewardMixin, hook) for hook in _HOOKS):
            raise ConfigError(
                f"environment {self.name!r} has no reward; write {', '.join(_HOOKS[:-1])} or {_HOOKS[-1]}"
            )
        if self.score_aggregation not in get_args(Aggregation):
            raise ConfigError(
                f"environment {self.name!r} has score_aggregation {self.score_aggregation!r}; choose one of "
                f"{', '.join(get_args(Aggregation))}"
            )
        if self.score_aggregation == "outcome" and not self.writes_outcome:
            raise ConfigError(
                f"environment {self.name!r} has score_aggregation 'outcome' and no compute_outcome, so that "
                f"nothing would be scored; write compute_outcome, or choose another aggregation"
            )
        classes = [cls for cls in type(self).__mro__ if issubclass(cls, TurnLevelRewardMixin)]
        if not self.writes_outcome and any("compute_reward" in vars(cls) for cls in classes):
            raise ConfigError(
                f"environment {self.name!r} writes compute_reward, which is not called beside turn "
                f"rewards; reward the whole trajectory in compute_outcome"
            )
        return partial(TurnScoring, self)


Aggregation = Literal["sum", "mean", "outcome"]
FAILED = "failed"
"""Name of the outcome's part for an agent that broke its rollout."""
_TURN_HOOKS = ("score_turn", "compute_turn_rewards")
_HOOKS = (*_TURN_HOOKS, "compute_outcome")


class Scoring(Protocol):
    """Scores one rollout: each turn as it happens, then the whole, while the sandbox is open."""

    async def on_turn(self, turn: Turn) -> None: ...

    async def finish(self, trajectory: Trajectory) -> Rewards:
        """Return all rewards after the last turn.

        Raises:
            RewardError: if the environment returned invalid rewards.
        """
        ...

    def floor(self, trajectory: Trajectory, failed_score: float) -> Rewards:
        """Return the rewards of a rollout that the agent broke: those of turns so far, and `failed_score`."""
        ...


CallHook = Callable[..., Awaitable[Any]]
"""Calls a hook, `def` or `async def`, within its limits: name, function, arguments of the function."""


async def call_hook(name: str, function: Callable[..., Any], *args: Any) -> Any:
    given = function(*args)
    return await given if inspect.isawaitable(given) else given


NewScoring = Callable[[Any, RolloutContext, CallHook], Scoring]
"""Begins the scoring of one rollout: (item, context, how to call hooks)."""


class TurnScoring:
    def __init__(
        self, env: TurnLevelRewardMixin, item: Any, ctx: RolloutContext, call: CallHook = call_hook
    ) -> None:
        self._env, self._item, self._ctx, self._call = env, item, ctx, call
        self._given: list[Reward | None] | None = None
        """The result of `compute_turn_rewards`, once called."""

    async def on_turn(self, turn: Turn) -> None:
        if turn.kind != "act":
            return
        hook = self._env.score_turn
        self._ctx.turn_scores.append(await self._call("score_turn", hook, self._item, turn, self._ctx))

    async def finish(self, trajectory: Trajectory) -> Rewards:
        where = where_of(self._ctx)
        hook = self._env.compute_turn_rewards
        answer = await self._call("compute_turn_rewards", hook, self._item, trajectory, self._ctx)
        self._given = reward_per_turn(answer, trajectory, f"{where}: compute_turn_rewards")
        hook = self._env.compute_outcome
        ended = await self._call("compute_outcome", hook, self._item, trajectory, self._ctx)
        return self._rewards(self._given, ended)

    def floor(self, trajectory: Trajectory, failed_score: float) -> Rewards:
        given = self._given
        if given is None:
            so_far = iter(self._ctx.turn_scores)
            given = [next(so_far, None) if turn.kind == "act" else None for turn in trajectory.turns]
        return self._rewards(given, {FAILED: failed_score})

    def _rewards(self, given: Sequence[Reward | None], ended: Reward | None) -> Rewards:
        where = where_of(self._ctx)
        is_written = type(self._env).compute_turn_rewards is not TurnLevelRewardMixin.compute_turn_rewards
        hook = "compute_turn_rewards" if is_written else "score_turn"
        turns = [
            optional_reward(reward, f"{where}, turn {number}: {hook}")
            for number, reward in enumerate(given, 1)
        ]
        outcome, outcome_components = optional_reward(ended, f"{where}: compute_outcome")
        values = tuple(value for value, _ in turns)
        components = tuple(parts for _, parts in turns)
        raw = tuple(map(raw_parts, given))
        score = aggregate(values, outcome, self._env.score_aggregation)
        if score is None and not self._env.writes_outcome:
            own = getattr(self._env, "missing_outcome", None)
            set_to = getattr(getattr(self._env, "config", None), "missing_outcome", None)
            score = 0.0 if own is None and set_to is None else None
        return Rewards(
            turns=values,
            outcome=outcome,
            score=None if score is None else check_reward(score, f"{where}: the sum"),
            turn_components=components if any(components) else (),
            outcome_components=outcome_components,
            turn_raw=raw if any(raw) else (),
            outcome_raw=raw_parts(ended),
        )


def aggregate(turns: Sequence[float | None], outcome: float | None, how: Aggregation) -> float | None:
    """Return a trajectory's scalar, infinite on overflow, or None without any reward."""
    scored = [] if how == "outcome" else [reward for reward in turns if reward is not None]
    if outcome is None and not scored:
        return None
    total = outcome or 0.0
    try:
        if how == "sum":
            return math.fsum([total, *scored])
        if how == "mean" and scored:
            return total + math.fsum(scored) / len(scored)
    except OverflowError:
        return math.inf
    return total


class ScalarScoring:
    def __init__(self, env: Any, item: Any, ctx: RolloutContext, call: CallHook = call_hook) -> None:
        self._env, self._item, self._ctx, self._call = env, item, ctx, call

    async def on_turn(self, turn: Turn) -> None: ...

    async def finish(self, trajectory: Trajectory) -> Rewards:
        hook, where = self._env.compute_reward, f"{where_of(self._ctx)}: compute_reward"
        reward = await self._call("compute_reward", hook, self._item, trajectory, self._ctx)
        # User code may give anything; without turn rewards there would be nothing to learn from.
        if reward is None:
            raise RewardError(f"{where} gave None; give a number, or named components")
        outcome, components = number_and_parts(reward, where)
        return Rewards(
            outcome=outcome, score=outcome, outcome_components=components, outcome_raw=raw_parts(reward)
        )

    def floor(self, trajectory: Trajectory, failed_score: float) -> Rewards:
        parts = {FAILED: failed_score}
        return Rewards(outcome=failed_score, score=failed_score, outcome_components=parts)


def scalar_scoring(env: Any) -> NewScoring:
    unused = [hook for hook in _TURN_HOOKS if hasattr(env, hook)]
    if unused and not isinstance(env, TurnLevelRewardMixin):
        raise ConfigError(
            f"environment {env.name!r} writes {', '.join(unused)}, which is called only when "
            f"TurnLevelRewardMixin is listed before AgentEnv among the bases; do that, or rename it"
        )
    return partial(ScalarScoring, env)


def writes_turn_rewards(env: object) -> bool:
    own = TurnLevelRewardMixin
    return isinstance(env, own) and any(
        getattr(type(env), each) is not getattr(own, each) for each in _TURN_HOOKS
    )
