"""`CodeDebugEnv`: find and fix the bug in a Python function, with a reward for every turn."""

import asyncio
import hashlib
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from environments.base_env import AgentEnv
from environments.code_debug_env.diagnosis import calls_fail, note_calls, terminal_commands
from environments.code_debug_env.hidden_checks import CheckLimits, CheckReport, run_checks
from environments.code_debug_env.row_checks import check_rows
from environments.code_debug_env.script import debug_script
from environments.code_debug_env.signals import (
    SOLUTION,
    SignalWeights,
    TurnFacts,
    turn_signals,
)
from environments.code_debug_env.workspace import (
    EXAMPLES_CPU_S,
    REQUIRED_FIELDS,
    SYSTEM_PROMPT,
    buggy_text,
    embedded_tasks,
    task_prompt,
    workspace_files,
)
from environments.config import AgentEnvConfig
from environments.policy.scripted import Choice
from environments.reward_context import Reward, RolloutContext
from environments.trajectory import Message, Trajectory, Turn
from environments.turn_level_reward import TurnLevelRewardMixin
from tools.calls import ToolSpec
from tools.errors import DatasetError
from tools.files import file
from tools.sandbox.base import Sandbox
from tools.terminal import terminal

logger = logging.getLogger(__name__)

MAX_REPORTS = 16
"""Of an item."""
Task = Mapping[str, Any]
"""One task in the schema of HumanEvalPack."""


@dataclass(slots=True, kw_only=True)
class JudgedSoFar:
    """What is known about one rollout so far."""

    start: CheckReport
    """The hidden checks of the buggy solution."""
    solution: bytes
    """The solution file after the last turn."""
    report: CheckReport
    """Its hidden checks."""
    facts: list[TurnFacts]


class CodeDebugConfig(AgentEnvConfig):
    """Settings of `CodeDebugEnv`: the most that each signal can give in one trajectory."""

    weight_test_signal: float = Field(
        default=0.5, ge=0, le=1, description="What fixing every hidden check is worth."
    )
    weight_diagnosis: float = Field(
        default=0.3, ge=0, le=1, description="What showing the failure before the first edit is worth."
    )
    weight_efficiency: float = Field(default=0.2, ge=0, le=1, description="What fixing in one turn is worth.")

    unsound_items: Literal["drop", "refuse", "keep"] = Field(
        default="drop",
        description="Items of a dataset whose own solution fails a hidden check, or whose buggy one fails "
        "none: leave them out, start nothing, or roll them out all the same. They are named in each case.",
    )

    @model_validator(mode="after")
    def _at_most_one(self) -> Self:
        total = self.weight_test_signal + self.weight_diagnosis + self.weight_efficiency
        if total > 1 + 1e-9:
            raise ValueError(f"the three --env.weight_* add up to {total:g}; a trajectory is worth at most 1")
        return self


class CodeDebugEnv(TurnLevelRewardMixin, AgentEnv):
    """A buggy function, its docstring and a few examples; hidden checks say how much of it works."""

    name = "code_debug"
    tools = (terminal, file)
    system_prompt = SYSTEM_PROMPT
    required_fields = REQUIRED_FIELDS
    env_config_cls = CodeDebugConfig
    config: CodeDebugConfig  # pyright: ignore[reportIncompatibleVariableOverride]  # narrowed, as env_config_cls says

    async def load_items(self) -> Sequence[Task]:
        """The tasks that the config names, or the embedded ones."""
        if self.config.dataset_name or self.config.dataset_path:
            return await super().load_items()
        return embedded_tasks()[: self.config.max_items]

    async def preflight(self, notify: Callable[[str], None] = logger.info) -> None:
        """As every environment, and the items of a dataset against their own solutions.

        Raises:
            DatasetError: an item cannot be judged and `unsound_items` is `refuse`, or none can.
        """
        await super().preflight(notify)
        if not (self.config.dataset_name or self.config.dataset_path):
            return  # Our own are checked by the tests.
        notify(f"running the hidden checks of {len(self.items)} items against their own solutions")
        report = await check_rows(self.items, self.open_sandbox)
        names = [item["task_id"] for item in self.items]
        self._limits.update(zip(names, report.limits, strict=True))
        if not report.unsound:
            return
        policy = self.config.unsound_items
        found = f"{len(report.unsound)} of {len(self.items)} items cannot be judged ({policy}): "
        found += report.describe(self.item_ids)
        if policy == "refuse" or (policy == "drop" and len(report.unsound) == len(self.items)):
            raise DatasetError(
                f"{found}; --env.unsound_items says what to do with them: drop, refuse or keep"
            )
        notify(found)
        if policy == "drop":
            sound = [index for index in range(len(self.items)) if index not in report.unsound]
            self._items, self.item_ids = [self.items[i] for i in sound], [self.item_ids[i] for i in sound]

    def format_prompt(self, item: Task) -> str:
        """What is broken and how it is judged."""
        return task_prompt(item)

    async def prepare(self, item: Task, sandbox: Sandbox) -> None:
        """The buggy solution and its example test."""
        limits = self._limits.get(item["task_id"])
        examples_cpu_s = EXAMPLES_CPU_S if limits is None else limits.total_s
        for name, text in workspace_files(item, examples_cpu_s).items():
            await sandbox.write_file(name, text.encode())

    async def score_turn(self, item: Task, turn: Turn, ctx: RolloutContext) -> None:
        """Note what this turn did to the solution; the rewards follow when the last turn is known."""
        judged = await self._judged(item, ctx)
        solution = await _read_solution(ctx.sandbox)
        changed = solution != judged.solution
        if changed:
            judged.solution, judged.report = solution, await self._checks(item, solution, ctx)
        untold = not changed and not any(fact.changed or fact.reproduced for fact in judged.facts)
        reproduced = untold and await self._shows_failure(item, terminal_commands(turn), ctx)
        judged.facts.append(
            TurnFacts(fraction=judged.report.fraction, changed=changed, reproduced=reproduced)
        )

    async def compute_turn_rewards(
        self, item: Task, trajectory: Trajectory, ctx: RolloutContext
    ) -> Sequence[Reward]:
        """Per turn: what its tests, its diagnosis and its economy are worth."""
        judged = await self._judged(item, ctx)
        ctx.metrics["checks_held"] = judged.report.fraction
        weights = SignalWeights(
            test_signal=self.config.weight_test_signal,
            diagnosis=self.config.weight_diagnosis,
            efficiency=self.config.weight_efficiency,
        )
        return turn_signals(judged.start.fraction, judged.facts, self.config.max_turns, weights)

    def passed(self, item: Task, trajectory: Trajectory) -> bool:
        """Passed is fixed: every hidden check holds at the end."""
        return trajectory.metrics.get("checks_held") == 1.0

    def scripted_choices(
        self, item: Task, messages: Sequence[Message], tools: Sequence[ToolSpec], skill: float
    ) -> Sequence[Choice]:
        """An agent that knows the fix, and makes mistakes as its skill allows."""
        return debug_script(item, messages, tools, skill)

    async def _judged(self, item: Task, ctx: RolloutContext) -> JudgedSoFar:
        """The notes of this rollout, started when there are none."""
        judged = ctx.notes.get("judged")
        if not isinstance(judged, JudgedSoFar):
            solution = buggy_text(item).encode()
            start = await self._checks(item, solution, ctx)
            judged = ctx.notes["judged"] = JudgedSoFar(start=start, solution=solution, report=start, facts=[])
        return judged

    async def _shows_failure(self, item: Task, commands: Sequence[str], ctx: RolloutContext) -> bool:
        """Whether the commands of a turn made the function fail, as it was at the start."""
        limits = self._limits.get(item["task_id"], CheckLimits())
        notes = await note_calls(ctx, item, commands, limits) if commands else ""
        if not notes:
            return False
        # Siblings run the same examples.
        async with self._judging[ctx.item_id]:
            if self._compared.get(ctx.item_id, ("", False))[0] != notes:
                self._compared[ctx.item_id] = notes, await calls_fail(ctx.verify, item, notes, limits)
            return self._compared[ctx.item_id][1]

    async def _checks(self, item: Task, solution: bytes, ctx: RolloutContext) -> CheckReport:
        """The hidden checks of a solution; siblings often write the same one, which is judged once."""
        limits = self._limits.get(item["task_id"], CheckLimits())
        digest = hashlib.sha256(solution).digest()
        async with self._judging[ctx.item_id]:
            reports = self._reports[ctx.item_id]
            if digest not in reports:
                if len(reports) >= MAX_REPORTS:
                    del reports[next(iter(reports))]
                reports[digest] = await run_checks(ctx.verify, item, solution, limits)
            return reports[digest]

    @cached_property
    def _limits(self) -> dict[str, CheckLimits]:
        """Of the tasks of a dataset, with room for their right solutions; ours need none."""
        return {}

    @cached_property
    def _compared(self) -> dict[str, tuple[str, bool]]:
        """Of each item the calls that were compared last, and whether one failed."""
        return {}

    @cached_property
    def _reports(self) -> defaultdict[str, dict[bytes, CheckReport]]:
        """The hidden checks of each item's solutions, by a hash of their text."""
        return defaultdict(dict)

    @cached_property
    def _judging(self) -> defaultdict[str, asyncio.Lock]:
        return defaultdict(asyncio.Lock)


async def _read_solution(sandbox: Sandbox) -> bytes:
    """The solution file as it is now; one that is gone, or is no file any more, solves nothing."""
    try:
        return await sandbox.read_file(SOLUTION)
    except OSError:
        return b""
