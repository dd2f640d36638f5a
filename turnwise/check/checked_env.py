"""The environment that is checked: made with a policy that can play at any skill, its calls traced."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Any

from environments.base_env import AgentEnv
from environments.config import AgentEnvConfig, ModelServerConfig
from environments.policy.base import CompletionRequest, Policy
from environments.policy.rendering.chatml import ChatMLRenderer
from environments.policy.scripted import Choice, PlaysByScript, Script, ScriptedPolicy, generic_script, say
from environments.rollout.boundary import unwrap_user_error
from environments.rollout.containment.hook_calls import HookCalls
from environments.rollout.items.item_json import stable_text
from environments.rollout.items.tasks import GroupTask
from environments.trajectory import Completion, CreditedGroup, Message, Trajectory
from tools.errors import ContextOverflow, ToolError
from tools.signature import ArgumentsRefused
from turnwise.check.report import Report

SIBLINGS = 4
"""Rollouts of one item."""
_HOOK_S, _ROLLOUT_S, _BLOCK_S = 20.0, 60.0, 10.0
"""Longest that code of the environment may take here; a check that waits for minutes is not used."""
_NOT_OF_THE_ENV = ("model", "the image", "play")
"""Calls that are no code of the environment's."""


class CheckPolicy(PlaysByScript):
    """The scripted agent at the skill of the moment, or agents that repeat earlier rollouts."""

    def __init__(self, renderer: ChatMLRenderer) -> None:
        """Play at the environment's own skill."""
        self._renderer = renderer
        self.skill: float | None = None
        self.said: dict[tuple[int, int], Message] = {}
        """Every message so far, by the seed and the number of its call."""
        self.repeats = False
        """Whether these are said again; where none was, the agent is silent."""
        self.padded: Callable[[Script], Script] | None = None
        """A function that rewrites the messages of the scripted agent."""

    @property
    def name(self) -> str:
        """What a record would call it."""
        return "check"

    def playing_by_script(self, script: Script, summary: Script, skill: float) -> Policy:
        """The policy of one rollout."""
        skill = skill if self.skill is None else self.skill
        script = script if self.padded is None else self.padded(script)
        if not self.repeats:
            return _Remembered(script, self.said, skill=skill, renderer=self._renderer, summary=summary)

        def again(request: CompletionRequest) -> Message:
            return self.said.get((request.seed, request.number), say(""))

        return _Repeating(again, self._renderer)


class _Remembered(ScriptedPolicy):
    def __init__(self, script: Script, said: dict[tuple[int, int], Message], **options: Any) -> None:
        super().__init__(script, **options)
        self._said = said

    async def complete(self, request: CompletionRequest) -> Completion:
        completion = await super().complete(request)
        self._said[request.seed, request.number] = completion.message
        return completion


class _Repeating(ScriptedPolicy):
    def __init__(self, again: Callable[[CompletionRequest], Message], renderer: ChatMLRenderer) -> None:
        super().__init__(generic_script, skill=1.0, renderer=renderer)
        self._again = again

    async def choices(self, request: CompletionRequest) -> Sequence[Choice]:
        return [Choice(probability=1.0, message=self._again(request))]


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedCall:
    """One call of the environment's code."""

    name: str
    """`prepare`, `score_turn`, `tool terminal`, …"""
    given: str
    """The result, as JSON as far as that goes, or what was raised."""
    seconds: float


class TracedCalls(HookCalls):
    """The calls of one rollout, noted as they end."""

    def __init__(self, checked: "CheckedEnv", *args: Any, **how: Any) -> None:
        super().__init__(*args, **how)
        self._checked = checked

    async def run(self, function: Callable[[], Any], *, doing: str, **how: Any) -> Any:
        """As `HookCalls.run`."""
        if doing.startswith(_NOT_OF_THE_ENV):
            return await super().run(function, doing=doing, **how)
        self._checked.report.add({"doing": doing})
        started = monotonic()
        try:
            given = await super().run(function, doing=doing, **how)
        except BaseException as error:
            self._note(doing, unwrap_user_error(error), monotonic() - started)
            raise
        self._note(doing, given, monotonic() - started)
        return given

    def _note(self, doing: str, given: Any, seconds: float) -> None:
        checked, name = self._checked, doing.rpartition(": ")[2].partition(", ")[0]
        if checked.calls is not None:
            text = _raised(given) if isinstance(given, BaseException) else _text_of(given)
            checked.calls.append(TracedCall(name=name, given=text, seconds=round(seconds, 6)))


@dataclass(slots=True, kw_only=True)
class CheckedEnv:
    """What the checks work with."""

    env_cls: type[AgentEnv]
    config: AgentEnvConfig
    """As the user set it."""
    servers: Sequence[ModelServerConfig]
    items: int
    """How many are played."""
    report: Report
    warnings: list[str] = field(default_factory=list[str])
    """What was logged so far."""
    env: AgentEnv = field(init=False)
    """While it is open."""
    policy: CheckPolicy = field(init=False)
    """The policy it was made with."""
    played: dict[float, list[CreditedGroup]] = field(default_factory=dict[float, list[CreditedGroup]])
    """The groups that were played, by skill; the first rollout is not among them."""
    first_calls: Sequence[TracedCall] = ()
    """Those of the first rollout."""
    first: Trajectory | None = None
    """The first rollout if it came to an end; otherwise the others would break alike."""
    calls: list[TracedCall] | None = None
    """Those of the moment, where they are traced."""

    @property
    def block_s(self) -> float:
        """How long code may block the event loop before the process ends."""
        return min(self.config.hook_block_s, _BLOCK_S)

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[None]:
        """With `env`: it has limits that a check can wait for, its calls are traced, and the script plays.

        Raises:
            UsageError: the class or a setting is wrong.
        """
        self.policy = CheckPolicy(ChatMLRenderer.load(self.config.tokenizer_name))
        # A class of slow tasks says so by a default of its own.
        own_s, usual_s = (
            each.model_fields["rollout_timeout_s"].default for each in (type(self.config), AgentEnvConfig)
        )
        limits = {
            "hook_timeout_s": min(self.config.hook_timeout_s, _HOOK_S),
            "rollout_timeout_s": min(
                self.config.rollout_timeout_s, _ROLLOUT_S if own_s == usual_s else own_s
            ),
            "hook_block_s": self.block_s,
            "group_size": SIBLINGS,
            "min_group_size": min(self.config.min_group_size, SIBLINGS),
            "use_wandb": False,
            "use_trackio": False,
            "total_steps": -1,
        }
        config = self.config.model_copy(update=limits)
        self.env = self.env_cls(config, self.servers, policy=self.policy)
        self.env.lifecycle.new_hook_calls = partial(TracedCalls, self)
        async with self.env.opened(notify=lambda _: None):
            yield

    @property
    def tasks(self) -> list[GroupTask]:
        """Those that are played: the first ones."""
        return self.env.tasks()[: self.items]

    async def play(self, skill: float) -> list[CreditedGroup]:
        """A group for each task, played at a skill; once for each skill."""
        if skill not in self.played:
            self.policy.skill = skill
            groups = await asyncio.gather(*(self.env.run_group(task) for task in self.tasks))
            self.played[skill] = list(groups)
        return self.played[skill]

    @property
    def trajectories(self) -> list[Trajectory]:
        """Of everything that was played."""
        return [
            each for groups in self.played.values() for group in groups for each in group.group.trajectories
        ]


def _raised(error: BaseException) -> str:
    """What a call raised; a tool's answer to the model is no error."""
    if isinstance(error, ToolError | ArgumentsRefused):
        return f"told the model: {error}"
    if isinstance(error, ContextOverflow):
        return f"ended the rollout: {error}"
    return f"raised {type(error).__name__}"


def _text_of(given: Any) -> str:
    try:
        return stable_text(given)
    except Exception as error:  # noqa: BLE001  # it is read by code of the environment's own
        return f"<{type(given).__name__}, which cannot be read: {type(error).__name__}>"
