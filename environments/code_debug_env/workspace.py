"""The embedded tasks, and what a task looks like to the agent: its prompt, its files, its solution."""

from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import jsonlines

from environments.code_debug_env.signals import EXAMPLE_TEST, SOLUTION

REQUIRED_FIELDS = (
    "task_id",
    "prompt",
    "declaration",
    "canonical_solution",
    "buggy_solution",
    "entry_point",
    "test",
)
"""Fields of a HumanEvalPack task that this environment needs; `example_test` may be empty or missing."""

EXAMPLES_CPU_S = 0.3
"""Of the embedded tasks: a hundred times what right solutions take. Without it a bug that hangs would cost
whatever limit the agent's tool has, each time."""

SYSTEM_PROMPT = (
    "You are a careful software engineer. You work in a sandbox through tools, one small step at a time. "
    "First see the failure, then change the code, then check that it works. When you are done, answer "
    "without calling a tool."
)


def embedded_tasks() -> list[dict[str, Any]]:
    """The bugs that come with this environment."""
    with files("environments.code_debug_env").joinpath("bugs.jsonl").open("rb") as lines:
        return list(jsonlines.Reader(lines))


def task_prompt(task: Mapping[str, Any]) -> str:
    """The task in words."""
    example = f"`{EXAMPLE_TEST}` holds a few examples (run `python3 {EXAMPLE_TEST}`). "
    return (
        f"The function `{task['entry_point']}` in `{SOLUTION}` has a bug: it does not do what its docstring "
        f"says. Find the bug and fix it in `{SOLUTION}`. {example if task.get('example_test') else ''}"
        f"Your fix is judged by hidden checks of the described behaviour, so keep the name and the "
        f"parameters of the function."
    )


def workspace_files(task: Mapping[str, Any], examples_cpu_s: float = EXAMPLES_CPU_S) -> dict[str, str]:
    """The files the agent finds, by name.

    Args:
        task: In HumanEvalPack's schema.
        examples_cpu_s: Processor time after which the examples end themselves.
    """
    contents = {SOLUTION: buggy_text(task)}
    if task.get("example_test"):
        contents[EXAMPLE_TEST] = (
            "import signal\n\n"
            f"from solution import *\nfrom solution import {task['entry_point']}\n\n"
            "# The examples take far less processor time: a loop without an end is stopped.\n"
            f"signal.setitimer(signal.ITIMER_VIRTUAL, {examples_cpu_s:g})\n\n\n"
            f"{task['example_test'].strip()}\nprint('all examples pass')\n"
        )
    return contents


def buggy_text(task: Mapping[str, Any]) -> str:
    """The solution file at the start."""
    return task["prompt"] + task["buggy_solution"]


def fixed_text(task: Mapping[str, Any]) -> str:
    """The solution file as it should be."""
    return task["prompt"] + task["canonical_solution"]
