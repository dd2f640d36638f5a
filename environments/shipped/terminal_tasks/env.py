"""`TerminalTasksEnv`: make one file in a terminal; the file is right or it is not."""

from collections.abc import Mapping, Sequence
from typing import Any

from environments.base_env import AgentEnv
from environments.policy.scripted import Choice
from environments.rewards.reward_context import RolloutContext
from environments.shipped.terminal_tasks.embedded_tasks import TASKS, TerminalTask
from environments.shipped.terminal_tasks.script import terminal_script
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
        """The embedded tasks."""
        if self.config.dataset_name or self.config.dataset_path:
            raise ConfigError(
                f"{self.name} has its own tasks and reads no dataset; unset dataset_name and dataset_path"
            )
        return [{"task_id": task.task_id, "task": task} for task in TASKS][: self.config.max_items]

    def format_prompt(self, item: Item) -> str:
        """What to make."""
        return _task(item).instruction

    async def prepare(self, item: Item, sandbox: Sandbox) -> None:
        """What the task works on."""
        for name, text in _task(item).files.items():
            await sandbox.write_file(name, text.encode())

    async def compute_reward(self, item: Item, trajectory: Trajectory, ctx: RolloutContext) -> float:
        """Whether the file is there with the right content."""
        try:
            data = await ctx.artefact(_task(item).path, max_bytes=MAX_BYTES)
        except OSError:
            return 0.0
        return float(_task(item).solved_by(data))

    def scripted_choices(
        self, item: Item, messages: Sequence[Message], tools: Sequence[ToolSpec], skill: float
    ) -> Sequence[Choice]:
        """An agent that knows the command, and makes mistakes as its skill allows."""
        return terminal_script(_task(item), messages, tools, skill)


def _task(item: Item) -> TerminalTask:
    return item["task"]
