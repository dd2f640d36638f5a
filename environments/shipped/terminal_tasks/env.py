"""`TerminalTasksEnv`: make one file in a terminal, which is right or wrong."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from environments.base_env import AgentEnv
from environments.policy.scripted import Choice, call, calls_that_ran, generic_script, mostly, say
from environments.rewards.reward_context import RolloutContext
from environments.rollout.items.items import load_items
from environments.trajectory import Message, Trajectory
from tools.calls import ToolSpec
from tools.errors import ConfigError
from tools.sandbox.base import Sandbox
from tools.terminal import terminal

MAX_BYTES = 64 << 10

Item = Mapping[str, Any]
"""`task_id`, and the `TerminalTask` as `task`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminalTask:
    """A line of `tasks.jsonl`: one file to make."""

    task_id: str
    instruction: str
    path: str
    expected: str
    command: str
    """A shell command that solves the task; only the scripted agent sees it."""
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    """Content of the workspace at the start, by path."""
    compare: Literal["text", "json"] = "text"
    """`text`: equal but for white space at the end; `json`: the same value."""

    def accepts(self, data: bytes) -> bool:
        try:
            text = data.decode("utf-8")
            if self.compare == "text":
                return text.rstrip() == self.expected.rstrip()
            return _canonical(json.loads(text)) == _canonical(json.loads(self.expected))
        except (ValueError, RecursionError):
            return False


def _canonical(value: Any) -> str:
    # Compared as text, because in Python 1, 1.0 and True are equal.
    return json.dumps(value, sort_keys=True)


def load_tasks() -> list[TerminalTask]:
    return [TerminalTask(**row) for row in load_items(path=Path(__file__).with_name("tasks.jsonl"))]


class TerminalTasksEnv(AgentEnv):
    """A file with given content, made in a terminal: 1.0 if it is right, else 0.0."""

    name = "terminal_tasks"
    tools = (terminal,)
    system_prompt = (
        "You work in a Linux sandbox through a terminal. Do what the task says, check the result, then "
        "answer without calling a tool."
    )

    async def load_items(self) -> Sequence[Item]:
        if self.config.has_dataset:
            raise ConfigError(
                f"{self.name} has its own tasks and reads no dataset; unset dataset_name and dataset_path"
            )
        return [{"task_id": task.task_id, "task": task} for task in load_tasks()]

    def format_prompt(self, item: Item) -> str:
        return item["task"].instruction

    async def prepare(self, item: Item, sandbox: Sandbox) -> None:
        for name, text in item["task"].files.items():
            await sandbox.write_file(name, text.encode())

    async def compute_reward(self, item: Item, trajectory: Trajectory, ctx: RolloutContext) -> float:
        try:
            data = await ctx.artefact(item["task"].path, max_bytes=MAX_BYTES)
        except OSError:
            return 0.0
        return float(item["task"].accepts(data))

    def scripted_choices(
        self, item: Item, messages: Sequence[Message], tools: Sequence[ToolSpec], skill: float
    ) -> Sequence[Choice]:
        """Mostly look, make the file, check it, and answer; else a mistake. Needs the terminal."""
        if "terminal" not in {tool.name for tool in tools}:
            return generic_script(messages, tools, skill)
        calls = [each for each, _ in calls_that_ran(messages) if each.name == "terminal"]
        done = [json.loads(each.arguments)["command"] for each in calls]
        right, wrong = _next_steps(item["task"], done)
        malformed, misnamed = call("terminal", '{"command": "ls"'), call("terminal", {"cmd": "ls"})
        clumsy = [malformed, misnamed, call("bash", {"command": "ls"})]
        return mostly(0.3 + 0.69 * skill, [right], wrong, clumsy)


def _next_steps(task: TerminalTask, done: Sequence[str]) -> tuple[Message, Sequence[Message]]:
    show = f"cat {task.path}"
    misplaced = f"touch {task.path.rpartition('/')[2]}.tmp"
    if task.command in done:
        if done[-1] == show:
            return say(f"`{task.path}` is there."), [_run(show)]
        return _run(show), [say("That should do."), _run(misplaced), _run(f": > {task.path}")]
    if "ls -R" not in done:
        return _run("ls -R"), [_run(task.command), say(f"I have made `{task.path}`.")]
    return _run(task.command), [_run(misplaced), say(f"I have made `{task.path}`.")]


def _run(command: str) -> Message:
    return call("terminal", {"command": command})
