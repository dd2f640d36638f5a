"""The environment under check: its policy plays at any skill, and its calls are traced."""

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
from environments.policy.scripted import Choice, PlaysByScript, Script, ScriptedPolicy, say
from environments.rollout.boundary import unwrap_user_error
from environments.rollout.containment.hook_calls import HookCalls
from environments.rollout.items.item_json import stable_text
from environments.rollout.items.tasks import GroupTask
from environments.rollout.lifecycle.hook_checks import SharedState
from environments.trajectory import Completion, CreditedGroup, Message, Trajectory
from tools.errors import ContextOverflow, ToolError
from tools.signature import ArgumentsRefused
from turnwise.check.report import Report

SIBLINGS = 4
_HOOK_S, _ROLLOUT_S, _BLOCK_S = 20.0, 60.0, 10.0
"""Time limits for the environment's code, so that nobody waits minutes for a check."""
_NOT_OF_THE_ENV = ("model", "the image", "play")


class CheckPolicy(PlaysByScript):
    def __init__(self, renderer: ChatMLRenderer) -> None:
        self._renderer = renderer
        self.skill: float | None = None
        self.messages: dict[tuple[int, int], Message] = {}
        """Every message so far, by seed and number of the request."""
        self.repeats = False
        """Whether to repeat `messages`; the agent is silent for an unknown request."""
        self.padded: Callable[[Script], Script] | None = None

    @property
    def name(self) -> str:
        return "check"

    def playing_by_script(self, script: Script, summary: Script, skill: float) -> Policy:
        skill = skill if self.skill is None else self.skill
        script = script if self.padded is None else self.padded(script)
        policy = _RepeatingPolicy if self.repeats else _RecordingPolicy
        return policy(script, self.messages, skill=skill, renderer=self._renderer, summary=summary)


class _RecordingPolicy(ScriptedPolicy):
    def __init__(self, script: Script, messages: dict[tuple[int, int], Message], **options: Any) -> None:
        super().__init__(script, **options)
        self.messages = messages

    async def complete(self, request: CompletionRequest) -> Completion:
        completion = await super().complete(request)
        self.messages[request.seed, request.number] = completion.message
        return completion


class _RepeatingPolicy(_RecordingPolicy):
    async def choices(self, request: CompletionRequest) -> Sequence[Choice]:
        message = self.messages.get((request.seed, request.number), say(""))
        return [Choice(probability=1.0, message=message)]


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedCall:
    name: str
    """`prepare`, `score_turn`, `tool terminal`, …"""
    given: str
    """The result as text, or the exception."""
    seconds: float


class TracedCalls(HookCalls):
    def __init__(self, checked: "CheckedEnv", *args: Any, **how: Any) -> None:
        super().__init__(*args, **how)
        self._checked = checked

    async def run(self, function: Callable[[], Any], *, doing: str, **how: Any) -> Any:
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
            call = TracedCall(name=name, given=_describe_result(given), seconds=round(seconds, 6))
            checked.calls.append(call)


@dataclass(slots=True, kw_only=True)
class CheckedEnv:
    env_cls: type[AgentEnv]
    config: AgentEnvConfig
    """The user's settings, without the limits of the checks."""
    servers: Sequence[ModelServerConfig]
    items: int
    report: Report
    warnings: list[str] = field(default_factory=list[str])
    env: AgentEnv = field(init=False)
    policy: CheckPolicy = field(init=False)
    shared: SharedState = field(init=False)
    played: dict[float, list[CreditedGroup]] = field(default_factory=dict[float, list[CreditedGroup]])
    """Groups by skill, without the first rollout."""
    first_calls: Sequence[TracedCall] = ()
    first: Trajectory | None = None
    """The first rollout, or None if it failed: the others would fail, too."""
    calls: list[TracedCall] | None = None
    """Calls of the current rollout, if they are traced."""
    proposed_floor: float | None = None
    """A `failed_score` that no honest rollout undercuts, if the class has another."""

    @property
    def block_s(self) -> float:
        return min(self.config.hook_block_s, _BLOCK_S)

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None]:
        """Context manager: open `env` with short time limits and traced calls.

        Raises:
            UsageError: if the class or a setting is wrong.
        """
        self.policy = CheckPolicy(ChatMLRenderer.load(self.config.tokenizer_name))
        # A class of slow tasks has another default.
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
            "branches": 1,
            "min_group_size": min(self.config.min_group_size, SIBLINGS),
            "use_wandb": False,
            "use_trackio": False,
            "total_steps": -1,
        }
        config = self.config.model_copy(update=limits)
        self.env = self.env_cls(config, self.servers, policy=self.policy)
        self.env.lifecycle.new_hook_calls = partial(TracedCalls, self)
        async with self.env.opened(notify=lambda _: None):
            self.shared = SharedState(self.env)
            yield

    @property
    def tasks(self) -> list[GroupTask]:
        return self.env.tasks()[: self.items]

    async def play(self, skill: float) -> list[CreditedGroup]:
        """Play a group for each task at a skill, once per skill."""
        if skill not in self.played:
            self.policy.skill = skill
            groups = await asyncio.gather(*(self.env.run_group(task) for task in self.tasks))
            self.played[skill] = list(groups)
            self.shared.look()
        return self.played[skill]

    @property
    def trajectories(self) -> list[Trajectory]:
        return [
            each for groups in self.played.values() for group in groups for each in group.group.trajectories
        ]


def _describe_result(given: Any) -> str:
    if isinstance(given, ToolError | ArgumentsRefused):
        return f"told the model: {given}"
    if isinstance(given, ContextOverflow):
        return f"ended the rollout: {given}"
    if isinstance(given, BaseException):
        return f"raised {type(given).__name__}"
    try:
        return stable_text(given)
    except Exception as error:  # noqa: BLE001  # user code serialises the value
        return f"<{type(given).__name__}, which cannot be read: {type(error).__name__}>"
