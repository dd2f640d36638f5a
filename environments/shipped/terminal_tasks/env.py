"""`TerminalTasksEnv`: make one file in a terminal; the file is right or it is not."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from environments.base_env import AgentEnv
from environments.policy.scripted import Choice, call, generic_script, mostly, say
from environments.rewards.reward_context import RolloutContext
from environments.shipped.terminal_tasks.embedded_tasks import TASKS, TerminalTask
from environments.trajectory import Message, Trajectory
from tools.calls import ToolSpec
from tools.errors import ConfigError
from tools.sandbox.base import Sandbox
from tools.terminal import terminal

MAX_BYTES = 64 << 10
"""Of a file that can be right; reading a larger one would only take time."""

Item = Mapping[str, Any]
"""`task_id`, and the `TerminalTask` as `task`."""


class TerminalTasksEnv(AgentEnv):
    """A file with given content, made in a terminal: 1.0 when it is right, else 0.0."""

    name = "terminal_tasks"
    tools = (terminal,)
    system_prompt = (
        "You work in a Linux sandbox through a terminal. Do what the task says, check the result, then "
        "answer without calling a tool."
    )

    async def load_items(self) -> Sequence[Item]:
        if self.config.dataset_name or self.config.dataset_path:
            raise ConfigError(
                f"{self.name} has its own tasks and reads no dataset; unset dataset_name and dataset_path"
            )
        return [{"task_id": task.task_id, "task": task} for task in TASKS][: self.config.max_items]

    def format_prompt(self, item: Item) -> str:
        return _task(item).instruction

    async def prepare(self, item: Item, sandbox: Sandbox) -> None:
        for name, text in _task(item).files.items():
            await sandbox.write_file(name, text.encode())

    async def compute_reward(self, item: Item, trajectory: Trajectory, ctx: RolloutContext) -> float:
        try:
            data = await ctx.artefact(_task(item).path, max_bytes=MAX_BYTES)
        except OSError:
            return 0.0
        return float(_task(item).solved_by(data))

    def scripted_choices(
        self, item: Item, messages: Sequence[Message], tools: Sequence[ToolSpec], skill: float
    ) -> Sequence[Choice]:
        """Mostly look, make the file, see that it is right, answer; else a mistake.

        Without a terminal the agent plays `generic_script`.
        """
        if "terminal" not in {tool.name for tool in tools}:
            return generic_script(messages, tools, skill)
        right, wrong = _next_steps(_task(item), _commands_run(messages))
        clumsy = [
            call("terminal", '{"command": "ls"'),
            call("terminal", {"cmd": "ls"}),
            call("bash", {"command": "ls"}),
        ]
        return mostly(0.3 + 0.69 * skill, [right], wrong, clumsy)


def _task(item: Item) -> TerminalTask:
    return item["task"]


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


def _commands_run(messages: Sequence[Message]) -> list[str]:
    """The commands that ran, in order. A call that was refused is recognised by its missing command."""
    commands: list[str] = []
    for message in messages:
        for tool_call in message.tool_calls:
            try:
                arguments = json.loads(tool_call.arguments)
            except ValueError:
                continue
            if tool_call.name == "terminal" and "command" in arguments:
                commands.append(arguments["command"])
    return commands
