"""`CodeDebugEnv`: find and fix the bug in a Python function, with a reward for every turn."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from environments.base_env import AgentEnv
from environments.code_debug_env.checks import CheckReport, run_checks
from environments.code_debug_env.script import debug_script
from environments.code_debug_env.signals import SOLUTION, TurnFacts, reproduced_failure, turn_signals
from environments.code_debug_env.workspace import (
    REQUIRED_FIELDS,
    SYSTEM_PROMPT,
    buggy_text,
    embedded_tasks,
    task_prompt,
    workspace_files,
)
from environments.policy.scripted import Choice
from environments.reward_context import Reward, RewardContext
from environments.trajectory import Message, Trajectory, Turn
from environments.turn_level_reward import TurnLevelRewardMixin
from tools.calls import ToolSpec
from tools.files import file
from tools.sandbox.base import Sandbox
from tools.terminal import terminal

Task = Mapping[str, Any]
"""One task in the schema of HumanEvalPack."""


@dataclass(slots=True, kw_only=True)
class Session:
    """What is known about one rollout so far."""

    start: CheckReport
    """The hidden checks of the buggy solution."""
    solution: bytes
    """The solution file after the last turn."""
    report: CheckReport
    """Its hidden checks."""
    facts: list[TurnFacts]


class CodeDebugEnv(TurnLevelRewardMixin, AgentEnv):
    """A buggy function, its docstring and a few examples; hidden checks say how much of it works."""

    name = "code_debug"
    tools = (terminal, file)
    system_prompt = SYSTEM_PROMPT
    required_fields = REQUIRED_FIELDS
    default_estimator = "turn_return"

    async def load_items(self) -> Sequence[Task]:
        """The tasks that the config names, or the embedded ones."""
        if self.config.dataset_name or self.config.dataset_path:
            return await super().load_items()
        return embedded_tasks()[: self.config.max_items]

    def format_prompt(self, item: Task) -> str:
        """What is broken and how it is judged."""
        return task_prompt(item)

    async def prepare(self, item: Task, sandbox: Sandbox) -> None:
        """The buggy solution and its example test."""
        for name, text in workspace_files(item).items():
            await sandbox.write_file(name, text.encode())

    async def score_turn(self, item: Task, turn: Turn, ctx: RewardContext) -> None:
        """Note what this turn did to the solution; the rewards follow when the last turn is known."""
        session = await self._session(item, ctx)
        solution = await _read_solution(ctx.sandbox)
        changed = solution != session.solution
        if changed:
            session.solution, session.report = solution, await run_checks(ctx.verify, item, solution)
        session.facts.append(
            TurnFacts(
                fraction=session.report.fraction,
                changed=changed,
                reproduced=reproduced_failure(turn, hangs=session.start.hung),
            )
        )

    async def compute_turn_rewards(
        self, item: Task, trajectory: Trajectory, ctx: RewardContext
    ) -> Sequence[Reward]:
        """Per turn: what its tests, its diagnosis and its economy are worth."""
        session = await self._session(item, ctx)
        ctx.metrics["checks_held"] = session.report.fraction
        return turn_signals(session.start.fraction, session.facts, self.config.max_turns)

    def passed(self, item: Task, trajectory: Trajectory) -> bool:
        """Passed is fixed: every hidden check holds at the end."""
        return trajectory.metrics.get("checks_held") == 1.0

    def scripted_choices(
        self, item: Task, messages: Sequence[Message], tools: Sequence[ToolSpec], skill: float
    ) -> Sequence[Choice]:
        """An agent that knows the fix, and makes mistakes as its skill allows."""
        return debug_script(item, messages, tools, skill)

    async def _session(self, item: Task, ctx: RewardContext) -> Session:
        """The notes of this rollout, started when there are none."""
        session = ctx.notes.get("session")
        if not isinstance(session, Session):
            solution = buggy_text(item).encode()
            if ctx.item_id not in self._starts:
                self._starts[ctx.item_id] = await run_checks(ctx.verify, item, solution)
            start = self._starts[ctx.item_id]
            session = ctx.notes["session"] = Session(start=start, solution=solution, report=start, facts=[])
        return session

    @cached_property
    def _starts(self) -> dict[str, CheckReport]:
        """The hidden checks of each item's buggy solution: the same for all its rollouts."""
        return {}


async def _read_solution(sandbox: Sandbox) -> bytes:
    """The solution file as it is now; one that is gone, or is no file any more, solves nothing."""
    try:
        return await sandbox.read_file(SOLUTION)
    except OSError:
        return b""
