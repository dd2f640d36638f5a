"""Whether a turn's commands showed the failure: found by running them again, not in their output."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from environments.code_debug_env.hidden_checks import STARVED_S, CheckLimits, Verify, program
from environments.code_debug_env.workspace import buggy_text, fixed_text
from environments.reward_context import RolloutContext
from environments.trajectory import Turn
from tools.errors import RewardError

MAX_CALLS = 200
RERUN_S = 10.0


def terminal_commands(turn: Turn) -> list[str]:
    """The commands that the turn ran in the terminal."""
    ran = {result.call_id for result in turn.tool_results if result.exit_code is not None}
    calls = [call for call in turn.message.tool_calls if call.name == "terminal" and call.id in ran]
    # They ran, so their arguments are objects with a command.
    return [str(json.loads(call.arguments)["command"]) for call in calls]


async def note_calls(
    ctx: RolloutContext,
    task: Mapping[str, Any],
    commands: Sequence[str],
    limits: CheckLimits,
    *,
    total_s: float = RERUN_S,
) -> str:
    """How commands call the task's function as it was at the start, and what comes of it.

    They run once more, in a fresh sandbox with the agent's files and the original solution, each in the
    workspace. The notes are only a claim, since the commands could have written them.

    Args:
        ctx: Of the rollout; its workspace has to be as the commands left it.
        task: In HumanEvalPack's schema.
        commands: Of one turn, in order; each runs in a shell of its own.
        limits: What a call of the task's function may take.
        total_s: Wall clock of all commands, without that in which they wait for a processor.

    Raises:
        SandboxError: a sandbox is broken.
    """
    observer = program("observer")
    request = {
        "commands": list(commands),
        "workspace": ctx.sandbox.workdir,
        "entry_point": task["entry_point"],
        "solution": buggy_text(task),
        "cpu_s": limits.cpu_s,
        "wall_s": 2 * limits.wall_s,
        "total_s": total_s,
        "starved_s": STARVED_S / 2,
    }
    result = await ctx.verify(
        command=observer.command,
        artefacts=["."],
        files=observer.files,
        stdin=json.dumps(request).encode(),
        timeout_s=total_s + STARVED_S,
    )
    notes = result.text()
    return notes if "('called', " in notes else ""


async def calls_fail(verify: Verify, task: Mapping[str, Any], notes: str, limits: CheckLimits) -> bool:
    """Whether one of the noted calls goes as noted on the original, and the right solution does otherwise.

    The calls are made in a sandbox where nothing of the agent's runs. So whatever forges the notes has to
    know a call that fails, and how it does.

    Raises:
        RewardError: the comparison itself failed.
        SandboxError: a sandbox is broken.
    """
    comparison = program("comparison", "solution_server", "confinement", "object_graph")
    request = {
        "notes": notes,
        "max_calls": MAX_CALLS,
        "entry_point": task["entry_point"],
        "original": "original.py",
        "right": "right.py",
        "limits": asdict(limits),
    }
    result = await verify(
        command=comparison.command,
        files={**comparison.files, "original.py": buggy_text(task), "right.py": fixed_text(task)},
        stdin=json.dumps(request).encode(),
        timeout_s=limits.total_s * 2 + STARVED_S,
    )
    words = result.text().split()
    if "ready" not in words:
        said = result.stderr.decode("utf-8", "replace")[-500:].strip()
        raise RewardError(
            f"task {task['task_id']!r}: the comparison did not start, exit code {result.exit_code}: {said}"
        )
    return "shown" in words
