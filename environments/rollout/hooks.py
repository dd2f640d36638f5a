"""The hooks of an environment, each with its default."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from inspect import Parameter, isasyncgenfunction, iscoroutinefunction, isfunction, signature
from pathlib import Path
from typing import Any, TypeVar

from environments.config import AgentEnvConfig, ModelServerConfig, ServerConfig
from environments.policy.scripted import Choice, generic_script, generic_summary
from environments.rewards.reward_context import GroupContext, Reward, RolloutContext
from environments.rollout.agents.command import Command, TrainThreads, listener_of
from environments.rollout.context import Condenser
from environments.rollout.items.items import load_items
from environments.rollout.items.tasks import RunHistory
from environments.trajectory import Message, MissingOutcome, Trajectory, Turn
from environments.turn_level_reward import def_or_async
from tools.calls import ToolSpec
from tools.errors import NoModelError
from tools.sandbox.base import Sandbox, SandboxSpec
from tools.toolsets import ToolSource

LEFT_OUT_LOG = logging.getLogger(f"{__name__}.left_out")
"""Logger of warnings about items that `load_items` left out; `check` silences it and lists them."""

Item = Any
T = TypeVar("T")
MaybeAsync = T | Awaitable[T]
Said = Message | Mapping[str, str]
"""A message; a mapping has `role` and `content`."""
Replies = str | Said | Sequence[Said] | None


class Hooks:
    """Hooks and attributes of environments; only the prompt and a reward have no default.

    `TurnLevelRewardMixin` adds the hooks of turn rewards. A hook may be `async def`, which runs on the event
    loop, or `def`, which runs on a thread, always the same one if `prepare` is a `def`. Hooks with `*args,
    **kwargs` may declare the rollout's context, `ctx`, as their last parameter.
    """

    name: str = ""
    tools: tuple[ToolSource, ...] = ()
    system_prompt: str | None = None
    sandbox: str | None = None
    """Backend of the agent's sandbox unless `--env.sandbox` is set: `local`, `docker`, `none`; unset:
    `local`."""
    data: tuple[str, ...] = ()
    """Files or folders that only C libraries open (SQLite, Arrow), relative to the class's folder; the
    fingerprint includes them, like files that Python opens."""
    keep: tuple[str, ...] = ()
    """Files and folders of the agent's sandbox that are stored beside the record after a rollout."""
    packages: tuple[str, ...] = ()
    """Python packages in all sandboxes: requirements such as `pytest==8.4.2`, or one path of a lock file;
    resolved once, before the first rollout."""
    dataset_path: str | None = None
    """File of items next to the class's own; `--env.dataset_path` and `--env.dataset_name` replace it."""
    required_fields: tuple[str, ...] = ()
    default_estimator: str = "grpo"
    missing_outcome: MissingOutcome | None = None
    """Treatment of a rollout without an outcome (or any reward) if a sibling has one. Unset: its group is
    refused if the class writes `compute_outcome`; otherwise an unscored rollout counts as 0."""
    failed_score: float = 0.0
    """Outcome of a rollout that the agent broke. It must not exceed that of an honest failure."""
    condenser: Condenser | Sequence[Condenser] | None = None
    """Shortens long conversations, unless `--env.condenser` is set; several are applied in order."""
    agent: Command | None = None
    """Program that plays instead of the loop with `tools`; its requests to the endpoint are recorded."""
    other_models: Mapping[str, str] = {}
    """Further model names of a recorded agent, each with the second model that answers (`judge`, `user`,
    `summariser`). Such calls are recorded, but not trained."""
    train_threads: TrainThreads = "all"
    """`with_tools` excludes a recorded agent's thread from training until a request offers tools."""
    own_thread: bool = False
    """Whether all `def` code of a rollout shares one thread even if `prepare` is `async def`."""
    scripted_solves: bool = False
    """Whether the scripted agent solves every item at skill 1 and none at 0; `check` tests it."""
    left_out: Mapping[str, str] = {}
    """What `load_items` found but refused as an item, with the reason."""
    env_config_cls: type[AgentEnvConfig] = AgentEnvConfig

    config: AgentEnvConfig

    @classmethod
    def config_init(cls) -> tuple[AgentEnvConfig, list[ModelServerConfig]]:
        """Return default settings and servers. Without a `base_url` the scripted agent plays."""
        return cls.env_config_cls(), [ServerConfig()]

    @def_or_async
    async def setup(self) -> None:
        """Open what all rollouts share; called once, before the items are loaded."""

    @def_or_async
    async def teardown(self) -> None:
        """Close what `setup` opened; called once, after the last rollout, even after an error."""

    @def_or_async
    async def load_items(self) -> Sequence[Item]:
        """Return the items to roll out; by default the dataset of the config."""
        return load_items(
            name=self.config.dataset_name,
            config=self.config.dataset_config,
            split=self.config.dataset_split,
            path=self.config.dataset_path,
            limit=self.config.max_items,
            required_fields=self.required_fields,
        )

    def load_eval_items(self) -> MaybeAsync[Sequence[Item]]:
        """Return the items of `evaluate`; by default those of `load_items`."""
        return self.load_items()

    def item_files(self, item: Item) -> Sequence[Path]:
        """Return folders with files that decide an item's rollouts; `check` plays it again if one changes."""
        return ()

    def next_items(self, history: RunHistory) -> MaybeAsync[Sequence[str] | None]:
        """Return the ids of the items to roll out next, for example for a curriculum.

        Called by `process` and `serve` when all earlier items are rolling out or done. After an empty result
        it is called again after the next group; the run ends if no group is in flight.
        """

    def format_prompt(self, item: Item, *args: Any, **kwargs: Any) -> MaybeAsync[str | Said | Sequence[Said]]:
        """Return the task: the text of one user message, or a whole opening conversation."""
        raise NotImplementedError

    def prepare(self, item: Item, sandbox: Sandbox, *args: Any, **kwargs: Any) -> Any:
        """Fill the workspace and return the rollout's state; called first.

        A generator yields the state once; the code after the `yield` runs after the rewards, even after an
        error, for at most 10 s.
        """

    def sandbox_for(self, item: Item) -> MaybeAsync[SandboxSpec | None]:
        """Return image and limits of this item's sandboxes (`ctx.verify`'s, too); `None`: as configured."""

    def prepare_sandbox(self, item: Item, sandbox: Sandbox) -> MaybeAsync[None]:
        """Fill the workspace once for all items with an equal spec that has a `prepared` key.

        Their rollouts, and each `ctx.verify`, start with a copy of the result.
        """

    def play(self, item: Item, ctx: RolloutContext) -> MaybeAsync[None]:
        """Be the agent: call the model at `ctx.endpoint`, and return when done.

        `ctx.endpoint` has `base_url`, `api_key` and `model`, and `client()` returns an `AsyncOpenAI`. Every
        completion becomes a turn. A `def` runs on its own thread.
        """

    def tools_for(self, item: Item, *args: Any, **kwargs: Any) -> MaybeAsync[Sequence[str] | None]:
        """Return the names of the tools for this item, a subset of `tools`; `None`: all."""

    def limits_for(self, item: Item) -> MaybeAsync[Mapping[str, float]]:
        """Return smaller limits for this item: `{"max_turns": 6}`.

        Possible: `max_turns`, `max_tokens_per_turn`, `token_budget`, `max_token_length`, `rollout_timeout_s`,
        `tool_timeout_s` and `tool_output_chars`.
        """
        return {}

    def respond(self, item: Item, turn: Turn, ctx: RolloutContext) -> MaybeAsync[Replies]:
        """Return the reply of the world or a user after a turn and its tool results.

        Text is a user message; messages have role `user` or `system`. Without a reply the rollout continues
        only if the turn called a tool. Called even if a budget ends the rollout, but not after `ctx.end`.
        """

    def branch_at(self, item: Item, ctx: RolloutContext) -> MaybeAsync[bool]:
        """Return whether to branch at the next turn.

        Called before the request of each turn, until it returns True once. Continuations replay what
        came before, so `--env.branches` needs tools and hooks that give the same again.
        """
        raise NotImplementedError

    def train_turn(self, item: Item, turn: Turn, ctx: RolloutContext) -> MaybeAsync[bool]:
        """Return whether to train a turn; if not, its rewards still count for other turns."""
        return True

    def score_group(
        self, item: Item, trajectories: Sequence[Trajectory], ctx: GroupContext
    ) -> MaybeAsync[Sequence[Reward | None] | None]:
        """Return the part of each outcome that compares siblings, one entry per trajectory, or None.

        Called once for the surviving siblings, after they are scored and their sandboxes are closed; not
        called by `evaluate`.
        """

    def compute_reward(self, item: Item, trajectory: Trajectory, ctx: RolloutContext) -> MaybeAsync[Reward]:
        """Return one number for the whole trajectory, while the sandbox is still open."""
        raise NotImplementedError("AgentEnv has no reward of its own: leave out super().compute_reward")

    def state_key(self, item: Item, turn: Turn | None, *args: Any, **kwargs: Any) -> MaybeAsync[str | None]:
        """Return the state after `turn` (`None`: the start), for estimators that compare equal states."""
        return None

    def values(self, item: Item, trajectory: Trajectory) -> MaybeAsync[Sequence[float]]:
        """Return a critic's value of the state before each of `trajectory.turns`, for `turn_gae`.

        Called after the rewards, which it does not see. A value that its own turn can influence biases
        credit.
        """
        raise NotImplementedError

    def passed(self, item: Item, trajectory: Trajectory) -> MaybeAsync[bool]:
        """Return whether `evaluate` counts this rollout as passed."""
        outcome = trajectory.rewards.outcome if trajectory.rewards else None
        reached = trajectory.score if outcome is None else outcome
        return reached is not None and reached >= self.config.pass_score

    def scripted_judge(self, item: Item, messages: Sequence[Message]) -> MaybeAsync[str]:
        """Answer `ctx.judge` with one JSON object if the judge has no model server."""
        raise NoModelError(
            f"environment {self.name!r} asks a judge, and nobody plays it: name its model server with "
            f"--judge.base_url, or write scripted_judge(self, item, messages)"
        )

    def scripted_user(self, item: Item, messages: Sequence[Message]) -> MaybeAsync[str]:
        """Answer as the model of a `SimulatedUser` if it has no model server."""
        raise NoModelError(
            f"environment {self.name!r} has a simulated user, and nobody plays it: name its model server "
            f"with --user.base_url, or write scripted_user(self, item, messages)"
        )

    def scripted_summariser(self, item: Item, messages: Sequence[Message]) -> MaybeAsync[str]:
        """Summarise as the second model if it has no model server."""
        raise NoModelError(
            f"environment {self.name!r} has a condenser that asks a second model to sum up, and nobody plays "
            f"it: name its model server with --summariser.base_url, write scripted_summariser(self, item, "
            f'messages), or let the policy sum up (--env.condenser summarise, by="policy")'
        )

    def scripted_choices(
        self, item: Item, messages: Sequence[Message], tools: Sequence[ToolSpec], skill: float
    ) -> MaybeAsync[Sequence[Choice]]:
        """Return the scripted agent's possible next messages, with probabilities."""
        return generic_script(messages, tools, skill)

    def scripted_summary(
        self, item: Item, messages: Sequence[Message], tools: Sequence[ToolSpec], skill: float
    ) -> MaybeAsync[Sequence[Choice]]:
        """Return the scripted agent's possible summaries of the conversation."""
        return generic_summary(messages, tools, skill)


def writes(env: Hooks, hook: str) -> bool:
    """Whether an environment overrides a hook, in its class or on the object."""
    return getattr(getattr(env, hook), "__func__", None) is not getattr(Hooks, hook)


def hooks_of(env: Hooks) -> frozenset[str]:
    return frozenset(name for name, ours in vars(Hooks).items() if isfunction(ours) and writes(env, name))


def takes_context(hook: Callable[..., Any], others: int) -> bool:
    """Whether a hook has a parameter after the first `others` that is `ctx` or has no default."""
    named = [
        each
        for each in signature(hook).parameters.values()
        if each.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    ]
    return len(named) > others and (named[others].name == "ctx" or named[others].default is Parameter.empty)


def is_recorded(env: Hooks) -> bool:
    return env.agent is not None or writes(env, "play")


async def refuse_no_listener(env: Hooks, sandbox: Sandbox) -> None:
    """Raise IsolationError if an agent in the sandbox could reach more than its endpoint."""
    if env.agent is not None and env.agent.where == "sandbox":
        (await listener_of(sandbox)).close()


def plays_on_thread(env: Hooks) -> bool:
    return writes(env, "play") and not iscoroutinefunction(env.play)


def pins_thread(env: Hooks) -> bool:
    """Whether a rollout has its own thread: if `prepare` is a `def`, or the class asks for it."""
    is_async = iscoroutinefunction(env.prepare) or isasyncgenfunction(env.prepare)
    return env.own_thread or (writes(env, "prepare") and not is_async)
