"""`CodeDebugEnv`: find and fix the bug in a Python function, with a reward for every turn."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self, cast

from pydantic import Field, model_validator

from environments.base_env import AgentEnv
from environments.config import AgentEnvConfig
from environments.policy.scripted import Choice
from environments.rewards.reward_context import Reward, RolloutContext
from environments.rewards.verdict.code_judge import (
    REQUIRED_FIELDS,
    CodeJudge,
    Task,
    Unsound,
    buggy_text,
)
from environments.rollout.items.items import load_items
from environments.shipped.code_debug.script import debug_script
from environments.trajectory import Message, Trajectory, Turn
from environments.turn_level_reward import TurnLevelRewardMixin
from tools.calls import ToolSpec
from tools.files import file
from tools.sandbox.base import Sandbox
from tools.terminal import terminal

logger = logging.getLogger(__name__)

SOLUTION, EXAMPLES = "solution.py", "test_example.py"
EXAMPLES_CPU_S = 0.1


class CodeDebugConfig(AgentEnvConfig):
    """The weight of each signal: its largest sum in one trajectory."""

    weight_test_signal: float = Field(
        default=0.5, ge=0, le=1, description="What fixing every hidden check is worth."
    )
    weight_diagnosis: float = Field(
        default=0.3, ge=0, le=1, description="What showing the failure before the first edit is worth."
    )
    weight_efficiency: float = Field(default=0.2, ge=0, le=1, description="What fixing in one turn is worth.")

    unsound_items: Unsound = Field(
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFacts:
    fraction: float
    """Share of hidden checks that pass."""
    changed: bool = False
    reproduced: bool = False
    """Whether a command of the turn showed the failure of the original function."""
    called: bool = True


@dataclass(slots=True, kw_only=True)
class Progress:
    start: float
    """Share of hidden checks that the buggy solution passes."""
    solution: bytes
    fraction: float
    facts: list[TurnFacts] = field(default_factory=list[TurnFacts])


class CodeDebugEnv(TurnLevelRewardMixin, AgentEnv):
    """A buggy function with its docstring and a few examples; hidden checks measure the repair."""

    name = "code_debug"
    tools = (terminal, file)
    system_prompt = (
        "You are a careful software engineer. You work in a sandbox through tools, one small step at a time. "
        "First see the failure, then change the code, then check that it works. When you are done, answer "
        "without calling a tool."
    )
    required_fields = REQUIRED_FIELDS
    env_config_cls = CodeDebugConfig
    config: CodeDebugConfig  # pyright: ignore[reportIncompatibleVariableOverride]  # narrowed, as env_config_cls says

    @cached_property
    def judge(self) -> CodeJudge:
        return CodeJudge()

    async def load_items(self) -> Sequence[Task]:
        if self.config.has_dataset:
            return await super().load_items()
        return load_tasks()

    async def preflight(self, notify: Callable[[str], None] = logger.info) -> None:
        """Check the items of a dataset against their own solutions, besides the usual checks."""
        await super().preflight(notify)
        if self.config.has_dataset:  # the tests check the embedded ones
            items = dict(zip(self.item_ids, self.items, strict=True))
            kept = await self.judge.sound_items(items, self.open_sandbox, self.config.unsound_items, notify)
            self.lifecycle.replace_items(kept)

    def format_prompt(self, item: Task) -> str:
        examples = f"`{EXAMPLES}` holds a few examples (run `python3 {EXAMPLES}`). "
        return (
            f"The function `{item['entry_point']}` in `{SOLUTION}` has a bug: it does not do what its "
            f"docstring says. Find the bug and fix it in `{SOLUTION}`. "
            f"{examples if item.get('example_test') else ''}"
            f"Your fix is judged by hidden checks of the described behaviour, so keep the name and the "
            f"parameters of the function."
        )

    async def prepare(self, item: Task, sandbox: Sandbox) -> None:
        limits = self.judge.learned_limits.get(item["task_id"])
        examples_cpu_s = EXAMPLES_CPU_S if limits is None else limits.total_s
        for name, text in workspace_files(item, examples_cpu_s).items():
            await sandbox.write_file(name, text.encode())

    async def score_turn(self, item: Task, turn: Turn, ctx: RolloutContext) -> None:
        """Record the facts of this turn; `compute_turn_rewards` scores them after the last one."""
        progress = await self._progress(item, ctx)
        async with ctx.files.paused():
            try:
                solution = await ctx.artefact(SOLUTION)
            except OSError:
                solution = b""
            changed = solution != progress.solution
            if changed:
                report = await self.judge.check(ctx.verify, ctx.item_id, item, solution)
                progress.solution, progress.fraction = solution, report.fraction
            is_open = not changed and not any(fact.changed or fact.reproduced for fact in progress.facts)
            reproduced = is_open and await self.judge.shows_failure(
                ctx.verify, ctx.item_id, item, turn, ctx.files
            )
        called = bool(turn.message.tool_calls)
        progress.facts.append(
            TurnFacts(fraction=progress.fraction, changed=changed, reproduced=reproduced, called=called)
        )

    async def compute_turn_rewards(
        self, item: Task, trajectory: Trajectory, ctx: RolloutContext
    ) -> Sequence[Reward]:
        progress = await self._progress(item, ctx)
        ctx.metrics["checks_held"] = progress.fraction
        return turn_signals(progress.start, progress.facts, self.config)

    def passed(self, item: Task, trajectory: Trajectory) -> bool:
        return trajectory.metrics.get("checks_held") == 1.0

    def scripted_choices(
        self, item: Task, messages: Sequence[Message], tools: Sequence[ToolSpec], skill: float
    ) -> Sequence[Choice]:
        return debug_script(item, messages, tools, skill)

    async def _progress(self, item: Task, ctx: RolloutContext) -> Progress:
        if "progress" not in ctx.notes:
            if self.config.has_dataset:
                await self.judge.learn(ctx.verify, item)
            solution = buggy_text(item).encode()
            start = (await self.judge.check(ctx.verify, ctx.item_id, item, solution)).fraction
            ctx.notes["progress"] = Progress(start=start, solution=solution, fraction=start)
        return cast(Progress, ctx.notes["progress"])


def load_tasks() -> list[dict[str, Any]]:
    return load_items(path=Path(__file__).with_name("bugs.jsonl"))


def workspace_files(task: Task, examples_cpu_s: float = EXAMPLES_CPU_S) -> dict[str, str]:
    contents = {SOLUTION: buggy_text(task)}
    if task.get("example_test"):
        contents[EXAMPLES] = (
            "import signal\n\n"
            f"from solution import *\nfrom solution import {task['entry_point']}\n\n"
            "# The examples take far less processor time: a loop without an end is stopped.\n"
            f"signal.setitimer(signal.ITIMER_VIRTUAL, {examples_cpu_s:g})\n\n\n"
            f"{task['example_test'].strip()}\nprint('all examples pass')\n"
        )
    return contents


def turn_signals(start: float, facts: Sequence[TurnFacts], config: CodeDebugConfig) -> list[dict[str, float]]:
    """Return the rewards of each turn by signal.

    `test_signal`: the change of progress p = (f - f₀) / (1 - f₀), clipped to 0..1. `diagnosis`: the final
    progress, for the first turn that reproduces the failure before the solution changes; 0 if the solution
    changes in a turn without a tool call, through a background process. `efficiency`: on the last turn, the
    final progress times the share of unused turns, where an answer without a tool call counts as used. So
    nothing pays without progress, and neither an extra turn nor a stop at a limit adds reward.
    """
    signals: list[dict[str, float]] = []
    before, is_diagnosed, is_touched = 0.0, False, False
    final = progress_of(facts[-1].fraction, start) if facts else 0.0
    in_background = any(turn.changed and not turn.called for turn in facts)
    for index, turn in enumerate(facts):
        after = progress_of(turn.fraction, start)
        is_touched = is_touched or turn.changed
        diagnosis = turn.reproduced and not is_touched and not is_diagnosed
        is_diagnosed = is_diagnosed or diagnosis
        last = index == len(facts) - 1
        unused = max(0.0, 1 - (index + turn.called) / config.max_turns)
        signals.append(
            {
                "test_signal": config.weight_test_signal * (after - before),
                "diagnosis": config.weight_diagnosis * final * (diagnosis and not in_background),
                "efficiency": config.weight_efficiency * final * unused * last,
            }
        )
        before = after
    return signals


def progress_of(fraction: float, start: float) -> float:
    return 0.0 if start >= 1 else min(max((fraction - start) / (1 - start), 0.0), 1.0)
