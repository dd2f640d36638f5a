"""The scripted agent of `terminal_tasks`: it knows the command, and makes mistakes as its skill allows."""

import json
from collections.abc import Sequence

from environments.policy.scripted import Choice, call, choices, generic_script, say
from environments.shipped.terminal_tasks.embedded_tasks import TerminalTask
from environments.trajectory import Message
from tools.calls import ToolSpec


def terminal_script(
    task: TerminalTask, messages: Sequence[Message], tools: Sequence[ToolSpec], skill: float
) -> Sequence[Choice]:
    """What comes next: mostly look, make the file, see that it is right, answer; else a mistake.

    Without a terminal the agent plays `generic_script`.
    """
    if "terminal" not in {tool.name for tool in tools}:
        return generic_script(messages, tools, skill)
    p_right = 0.3 + 0.69 * skill
    right, wrong = _next_steps(task, _commands_run(messages))
    clumsy = [
        call("terminal", '{"command": "ls"'),
        call("terminal", {"cmd": "ls"}),
        call("bash", {"command": "ls"}),
    ]
    p_other = (1 - p_right) / 2
    return choices((p_right, [right]), (p_other, wrong), (p_other, clumsy))


def _next_steps(task: TerminalTask, done: Sequence[str]) -> tuple[Message, Sequence[Message]]:
    """The right step, and wrong ones."""
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
