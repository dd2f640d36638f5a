"""What an environment writes: its hooks, each with what it gives by default."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from inspect import Parameter, isasyncgenfunction, iscoroutinefunction, isfunction, signature
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

Item = Any
T = TypeVar("T")
MaybeAsync = T | Awaitable[T]
"""What a hook gives that may be `def` or `async def`."""
Said = Message | Mapping[str, str]
"""A message; a mapping has `role` and `content`."""
Replies = str | Said | Sequence[Said] | None


class Hooks:
    """Only the prompt and a reward have no default; `TurnLevelRewardMixin` adds the hooks of turn rewards.

    Each may be `async def`, which runs on the event loop, or `def`, which runs on a thread: always the same
    one of a rollout where `prepare` is a `def`. Those with `*args, **kwargs` may take the rollout's context,
    `ctx`, as their last argument.
    """

    name: str = ""
    tools: tuple[ToolSource, ...] = ()
    system_prompt: str | None = None
    sandbox: str | None = None
    """Where the agent's code runs unless `--env.sandbox` says: `local`, `docker`, `none`; unset: `local`."""
    data: tuple[str, ...] = ()
    """Files or folders that only C libraries open (SQLite, Arrow), from the class's folder on. The
    fingerprint covers them like those that Python opens in `setup` and `load_items`."""
    keep: tuple[str, ...] = ()
    """Files and folders of the agent's sandbox that are kept when a rollout has ended, beside the record."""
    packages: tuple[str, ...] = ()
    """What Python imports in the sandboxes, `ctx.verify`'s included: requirements such as `pytest==8.4.2`, or
    one path of a lock file; resolved once, before the first rollout. See `SandboxLimits.packages`."""
    required_fields: tuple[str, ...] = ()
    """Fields that every item must have."""
    default_estimator: str = "grpo"
    missing_outcome: MissingOutcome | None = None
    """Of a rollout without an outcome, or without any reward, beside siblings with one. Unset: its group is
    refused where the class writes `compute_outcome`; where it writes none, nothing scored counts as 0."""
    failed_score: float = 0.0
    """The outcome of a rollout that the agent broke (`AgentCausedError`), unless `--env.failed_score` is set:
    at most what an honest rollout that loses gets."""
    condenser: Condenser | Sequence[Condenser] | None = None
    """What keeps long conversations short, unless `--env.condenser` is set; several are applied in order."""
    agent: Command | None = None
    """The program that plays, instead of the loop with `tools`: it is recorded at the endpoint it calls."""
    other_models: Mapping[str, str] = {}
    """Of a recorded agent: model names beside the policy's, each with the second model that answers to it
    (`judge`, `user`, `summariser`). Such calls are recorded, and not trained."""
    train_threads: TrainThreads = "all"
    """Of a recorded agent, which conversations are trained: `with_tools` leaves out turns of a thread none of
    whose requests has offered tools yet, such as a title's. Rewards flow through them all the same."""
    own_thread: bool = False
    """Whether all `def` code of a rollout runs on one thread also where `prepare` is `async def`."""
    scripted_solves: bool = False
    """Whether the scripted agent solves every item at skill 1 and none at 0: `check` names the others."""
    env_config_cls: type[AgentEnvConfig] = AgentEnvConfig

    config: AgentEnvConfig
    """The settings of this instance."""

    @classmethod
    def config_init(cls) -> tuple[AgentEnvConfig, list[ModelServerConfig]]:
        """Class defaults. Without a `base_url` there is no model server, and the scripted agent plays."""
        return cls.env_config_cls(), [ServerConfig()]

    @def_or_async
    async def setup(self) -> None:
        """Once, before the items are loaded: open what all rollouts share."""

    @def_or_async
    async def teardown(self) -> None:
        """Once, after the last rollout, however it ended: close what `setup` opened."""

    @def_or_async
    async def load_items(self) -> Sequence[Item]:
        """The items to roll out; by default the dataset that the config names."""
        return load_items(
            name=self.config.dataset_name,
            config=self.config.dataset_config,
            split=self.config.dataset_split,
            path=self.config.dataset_path,
            limit=self.config.max_items,
            required_fields=self.required_fields,
        )

    def load_eval_items(self) -> MaybeAsync[Sequence[Item]]:
        """The items that `evaluate` uses; by default those of `load_items`."""
        return self.load_items()

    def next_items(self, history: RunHistory) -> MaybeAsync[Sequence[str] | None]:
        """The ids of the items to roll out next, such as a curriculum; without it all come in turn.

        Asked by `process` and `serve` when all that it named is rolling out, and only for items of the run:
        an id may come several times. Nothing: it is asked again after the next group, and ends the run where
        no group is in flight.
        """

    def format_prompt(self, item: Item, *args: Any, **kwargs: Any) -> MaybeAsync[str | Said | Sequence[Said]]:
        """The task: the text of one user message, or a whole opening conversation."""
        raise NotImplementedError

    def prepare(self, item: Item, sandbox: Sandbox, *args: Any, **kwargs: Any) -> Any:
        """First of all: fill the workspace, and give this rollout's state.

        As a generator it yields the state once; what follows runs after the rewards, however the rollout
        ended, for at most 10 s.
        """

    def sandbox_for(self, item: Item) -> MaybeAsync[SandboxSpec | None]:
        """Image and limits of this item's sandboxes, those of `ctx.verify` included; `None`: as set."""

    def prepare_sandbox(self, item: Item, sandbox: Sandbox) -> MaybeAsync[None]:
        """Once for all items to which `sandbox_for` gives one spec with a `prepared` key: fill the workspace.

        Their rollouts, and each `ctx.verify`, begin with a copy of what it left.
        """

    def play(self, item: Item, ctx: RolloutContext) -> MaybeAsync[None]:
        """The agent itself: it calls its model at `ctx.endpoint`, and returns when it is done.

        `ctx.endpoint` has `base_url`, `api_key` and `model`, and `client()` gives an `AsyncOpenAI`. Every
        completion that it gets is a turn. A `def` runs on a thread of its own.
        """

    def tools_for(self, item: Item, *args: Any, **kwargs: Any) -> MaybeAsync[Sequence[str] | None]:
        """Names of the tools that the agent gets for this item, among those of `tools`; `None`: all."""

    def limits_for(self, item: Item) -> MaybeAsync[Mapping[str, float]]:
        """Settings of a rollout's budget that are smaller for this item: `{"max_turns": 6}`.

        Possible: `max_turns`, `max_tokens_per_turn`, `token_budget`, `max_token_length`, `rollout_timeout_s`,
        `tool_timeout_s` and `tool_output_chars`.
        """
        return {}

    def respond(self, item: Item, turn: Turn, ctx: RolloutContext) -> MaybeAsync[Replies]:
        """The reply of the world or a user after a turn and its tool results.

        Text is a user message; messages are of role `user` or `system`. With any, the rollout goes on.
        `None`: it goes on when the turn called a tool, and ends when it did not. Asked also where a budget
        ends the rollout after this turn, and not after `ctx.end`.
        """

    def train_turn(self, item: Item, turn: Turn, ctx: RolloutContext) -> MaybeAsync[bool]:
        """Whether a turn is trained on; where it is not, its rewards still count for other turns."""
        return True

    def score_group(
        self, item: Item, trajectories: Sequence[Trajectory], ctx: GroupContext
    ) -> MaybeAsync[Sequence[Reward | None] | None]:
        """The part of each outcome that compares siblings, one entry per trajectory; `None`: no part.

        Asked once for those that survived, when they are scored and their sandboxes are closed; `evaluate`
        does not ask.
        """

    def compute_reward(self, item: Item, trajectory: Trajectory, ctx: RolloutContext) -> MaybeAsync[Reward]:
        """One number for the whole trajectory, while the sandbox is still open."""
        raise NotImplementedError

    def state_key(self, item: Item, turn: Turn | None, *args: Any, **kwargs: Any) -> MaybeAsync[str | None]:
        """The state that `turn` led to (`None`: the start), for estimators that compare equal states."""
        return None

    def values(self, item: Item, trajectory: Trajectory) -> MaybeAsync[Sequence[float]]:
        """A critic's value of the state before each of `trajectory.turns`, for `turn_gae`.

        Asked after the rewards, which it does not see. A value that its own turn can move biases credit.
        """
        raise NotImplementedError

    def passed(self, item: Item, trajectory: Trajectory) -> MaybeAsync[bool]:
        """Whether `evaluate` counts this rollout as passed."""
        outcome = trajectory.rewards.outcome if trajectory.rewards else None
        reached = trajectory.score if outcome is None else outcome
        return reached is not None and reached >= self.config.pass_score

    def scripted_judge(self, item: Item, messages: Sequence[Message]) -> MaybeAsync[str]:
        """What the judge answers to `ctx.judge`, with one JSON object, when it has no model server."""
        raise NoModelError(
            f"environment {self.name!r} asks a judge, and nobody plays it: name its model server with "
            f"--judge.base_url, or write scripted_judge(self, item, messages)"
        )

    def scripted_user(self, item: Item, messages: Sequence[Message]) -> MaybeAsync[str]:
        """What the model of a `SimulatedUser` answers, when it has no model server."""
        raise NoModelError(
            f"environment {self.name!r} has a simulated user, and nobody plays it: name its model server "
            f"with --user.base_url, or write scripted_user(self, item, messages)"
        )

    def scripted_summariser(self, item: Item, messages: Sequence[Message]) -> MaybeAsync[str]:
        """What a second model that sums up answers, when it has no model server."""
        raise NoModelError(
            f"environment {self.name!r} has a condenser that asks a second model to sum up, and nobody plays "
            f"it: name its model server with --summariser.base_url, write scripted_summariser(self, item, "
            f'messages), or let the policy sum up (--env.condenser summarise, by="policy")'
        )

    def scripted_choices(
        self, item: Item, messages: Sequence[Message], tools: Sequence[ToolSpec], skill: float
    ) -> MaybeAsync[Sequence[Choice]]:
        """The scripted agent's possible next messages, with probabilities."""
        return generic_script(messages, tools, skill)

    def scripted_summary(
        self, item: Item, messages: Sequence[Message], tools: Sequence[ToolSpec], skill: float
    ) -> MaybeAsync[Sequence[Choice]]:
        """What the scripted agent may answer when it is asked to sum the conversation up."""
        return generic_summary(messages, tools, skill)


def writes(env: Hooks, hook: str) -> bool:
    """Whether an environment has a hook of its own, in its class or set on the object."""
    return getattr(getattr(env, hook), "__func__", None) is not getattr(Hooks, hook)


def written_hooks(env: Hooks) -> frozenset[str]:
    """The hooks that an environment writes."""
    return frozenset(name for name, ours in vars(Hooks).items() if isfunction(ours) and writes(env, name))


def takes_context(hook: Callable[..., Any], others: int) -> bool:
    """Whether a hook names one more argument than `others`, which it calls `ctx` or has no default for.

    What a wrapper's `*args` may take is unknown.
    """
    named = [
        each
        for each in signature(hook).parameters.values()
        if each.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    ]
    return len(named) > others and (named[others].name == "ctx" or named[others].default is Parameter.empty)


def is_recorded(env: Hooks) -> bool:
    """Whether the agent owns its loop: a program, or the hook `play`."""
    return env.agent is not None or writes(env, "play")


async def refuse_no_listener(env: Hooks, sandbox: Sandbox) -> None:
    """Raise IsolationError where its agent runs in the sandbox, and would reach more than its endpoint."""
    if env.agent is not None and env.agent.where == "sandbox":
        (await listener_of(sandbox)).close()


def plays_on_thread(env: Hooks) -> bool:
    """Whether its agent is a `def play`, which has a thread of its own."""
    return writes(env, "play") and not iscoroutinefunction(env.play)


def pins_thread(env: Hooks) -> bool:
    """Whether a rollout has a thread of its own: where `prepare` is a `def`, or the class asks for it."""
    is_async = iscoroutinefunction(env.prepare) or isasyncgenfunction(env.prepare)
    return env.own_thread or (writes(env, "prepare") and not is_async)
