"""The scripted agent of `code_debug`: it knows the fix, and makes mistakes as its skill allows."""

import ast
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from environments.code_debug_env.signals import EXAMPLE_TEST, SOLUTION
from environments.code_debug_env.workspace import buggy_text, fixed_text
from environments.policy.scripted import Choice, call, calls_that_ran, generic_script, say
from environments.python_syntax import parse_python
from environments.trajectory import Message
from tools.calls import ToolSpec

NEEDED_TOOLS = frozenset({"terminal", "read_file", "edit_file", "write_file"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a conversation has come."""

    text: str
    """The solution file as the agent left it."""
    looked: bool = False
    edited: bool = False
    ran: bool = False
    """Whether the examples were run since the last change."""
    passed: bool = False
    """Whether they passed then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """What an agent could do next."""

    right: Message
    wrong: Sequence[Message]
    clumsy: Sequence[Message]


def debug_script(
    task: Mapping[str, Any], messages: Sequence[Message], tools: Sequence[ToolSpec], skill: float
) -> Sequence[Choice]:
    """What comes next: mostly the right step of look, reproduce, fix, check, answer; else a mistake.

    With skill 1 nearly every step is right. Of the other steps half are wrong (a fix that is none, no
    diagnosis, going in circles, giving up) and half clumsy (malformed arguments, tools and parameters that do
    not exist, an edit that does not match), after which the agent tries again. An agent that lacks one of the
    shipped tools plays `generic_script`.
    """
    if not {tool.name for tool in tools} >= NEEDED_TOOLS:
        return generic_script(messages, tools, skill)
    steps = _next_steps(task, _progress(task, messages))
    p_right = 0.2 + 0.79 * skill
    p_other = (1 - p_right) / 2
    return [
        Choice(probability=p_right, message=steps.right),
        *(Choice(probability=p_other / len(steps.wrong), message=message) for message in steps.wrong),
        *(Choice(probability=p_other / len(steps.clumsy), message=message) for message in steps.clumsy),
    ]


def smallest_edit(before: str, after: str) -> tuple[str, str]:
    """Lines of `before` that occur once, and what to put there to get `after`."""
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    shortest = min(len(old), len(new))
    head = next((i for i in range(shortest) if old[i] != new[i]), shortest)
    tail = next((i for i in range(shortest - head) if old[-1 - i] != new[-1 - i]), shortest - head)
    while before.count("".join(old[head : len(old) - tail])) != 1:
        head, tail = max(0, head - 1), max(0, tail - 1)
    return "".join(old[head : len(old) - tail]), "".join(new[head : len(new) - tail])


def wrong_text(task: Mapping[str, Any]) -> str:
    """The buggy solution with a guard for empty input: what a hasty programmer tries first."""
    text = buggy_text(task)
    function = next(
        node
        for node in ast.walk(parse_python(text))
        if isinstance(node, ast.FunctionDef) and node.name == task["entry_point"]
    )
    first = function.body[1 if ast.get_docstring(function) is not None and len(function.body) > 1 else 0]
    name = function.args.args[0].arg if function.args.args else "None"
    indent = " " * first.col_offset
    lines = text.splitlines(keepends=True)
    guard = f"{indent}if not {name}:\n{indent}    return {name}\n"
    return "".join([*lines[: first.lineno - 1], guard, *lines[first.lineno - 1 :]])


def _next_steps(task: Mapping[str, Any], state: Progress) -> Steps:
    fix, wrong_fix = _fix(task, state), call("write_file", {"path": SOLUTION, "content": wrong_text(task)})
    run_examples = {"command": f"python3 {EXAMPLE_TEST}"}
    run = call("terminal", run_examples, content="I run the examples.")
    give_up = say("I could not find the reason.")
    if not state.looked:
        return Steps(
            right=call("read_file", {"path": SOLUTION}, content="First I read the code."),
            wrong=[fix, wrong_fix, give_up],
            clumsy=_clumsy("read_file", {"path": SOLUTION}, {"file_name": SOLUTION}, "open_file"),
        )
    if state.ran and not (state.edited and state.passed):
        old = {"path": SOLUTION, "old": f"# {task['entry_point']}\n", "new": ""}
        return Steps(
            right=fix,
            wrong=[wrong_fix, run, give_up],
            clumsy=[call("edit_file", old), *_clumsy("edit_file", old, {"file": SOLUTION}, "apply_patch")],
        )
    if not state.ran:
        return Steps(
            right=run,
            wrong=[say("It should work now.")] if state.edited else [fix, wrong_fix, give_up],
            clumsy=_clumsy("terminal", run_examples, {"cmd": run_examples["command"]}, "bash"),
        )
    return Steps(
        right=say(f"`{task['entry_point']}` does now what its docstring says."),
        wrong=[run],
        clumsy=_clumsy("terminal", {"command": "true"}, {"commands": ["true"]}, "submit"),
    )


def _fix(task: Mapping[str, Any], state: Progress) -> Message:
    fixed = fixed_text(task)
    if state.text != buggy_text(task):
        return call(
            "write_file", {"path": SOLUTION, "content": fixed}, content="I write the whole file anew."
        )
    old, new = smallest_edit(state.text, fixed)
    return call("edit_file", {"path": SOLUTION, "old": old, "new": new}, content="This is the mistake.")


def _clumsy(name: str, arguments: Mapping[str, Any], misnamed: Mapping[str, Any], tool: str) -> list[Message]:
    """One call written badly in three ways."""
    return [call(name, json.dumps(arguments)[:-1]), call(name, misnamed), call(tool, arguments)]


def _progress(task: Mapping[str, Any], messages: Sequence[Message]) -> Progress:
    state = Progress(text=buggy_text(task))
    for tool_call, answer in calls_that_ran(messages):
        arguments = json.loads(tool_call.arguments or "{}")
        match tool_call.name:
            case "read_file":
                state = replace(state, looked=True)
            case "terminal" if EXAMPLE_TEST in arguments["command"]:
                state = replace(state, ran=True, passed=answer.endswith("[exit code: 0]"))
            case "edit_file":
                text = state.text.replace(arguments["old"], arguments["new"])
                state = replace(state, text=text, edited=True, ran=False)
            case "write_file":
                state = replace(state, text=arguments["content"], edited=True, ran=False)
            case _:
                pass
    return state
