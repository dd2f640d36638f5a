"""The scripted agent of `code_debug`: it knows the fix, and makes fewer mistakes with more skill."""

import ast
import json
from collections.abc import Sequence

from environments.policy.scripted import Choice, call, calls_that_ran, generic_script, mostly, say
from environments.rewards.verdict.code_judge import Task, buggy_text, right_text
from environments.trajectory import Message
from tools.calls import ToolSpec
from tools.python_syntax import parse_python

NEEDED_TOOLS = frozenset({"terminal", "read_file", "edit_file", "write_file"})
LOOK = {"path": "solution.py"}
RUN = {"command": "python3 test_example.py"}


def debug_script(
    task: Task, messages: Sequence[Message], tools: Sequence[ToolSpec], skill: float
) -> Sequence[Choice]:
    """Mostly take the right step of look, reproduce, fix, check and answer; else make a mistake."""
    if not {tool.name for tool in tools} >= NEEDED_TOOLS:
        return generic_script(messages, tools, skill)
    right, wrong, clumsy = _next_steps(task, messages)
    return mostly(0.2 + 0.79 * skill, [right], wrong, clumsy)


def smallest_edit(before: str, after: str) -> tuple[str, str]:
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    shortest = min(len(old), len(new))
    head = next((i for i in range(shortest) if old[i] != new[i]), shortest)
    tail = next((i for i in range(shortest - head) if old[-1 - i] != new[-1 - i]), shortest - head)
    while before.count("".join(old[head : len(old) - tail])) != 1:
        head, tail = max(0, head - 1), max(0, tail - 1)
    return "".join(old[head : len(old) - tail]), "".join(new[head : len(new) - tail])


def wrong_text(task: Task) -> str:
    """Return the buggy solution with a guard for empty input."""
    text = buggy_text(task)
    nodes = ast.walk(parse_python(text))
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    function = next(node for node in functions if node.name == task["entry_point"])
    first = function.body[1 if ast.get_docstring(function) is not None and len(function.body) > 1 else 0]
    name = function.args.args[0].arg if function.args.args else "None"
    indent = " " * first.col_offset
    lines = text.splitlines(keepends=True)
    guard = f"{indent}if not {name}:\n{indent}    return {name}\n"
    return "".join([*lines[: first.lineno - 1], guard, *lines[first.lineno - 1 :]])


def _next_steps(
    task: Task, messages: Sequence[Message]
) -> tuple[Message, Sequence[Message], Sequence[Message]]:
    text = original = buggy_text(task)
    looked = edited = passed = False
    ran = False  # the examples, since the last change
    for tool_call, answer in calls_that_ran(messages):
        arguments = json.loads(tool_call.arguments or "{}")
        if tool_call.name == "read_file":
            looked = True
        elif tool_call.name == "terminal" and "test_example.py" in arguments["command"]:
            ran, passed = True, answer.endswith("[exit code: 0]")
        elif tool_call.name == "edit_file":
            text, edited, ran = text.replace(arguments["old"], arguments["new"]), True, False
        elif tool_call.name == "write_file":
            text, edited, ran = arguments["content"], True, False

    wrong_fix = call("write_file", {**LOOK, "content": wrong_text(task)})
    run = call("terminal", RUN, content="I run the examples.")
    give_up = say("I could not find the reason.")
    if text == original:
        old, new = smallest_edit(text, right_text(task))
        fix = call("edit_file", {**LOOK, "old": old, "new": new}, content="This is the mistake.")
    else:
        whole = {**LOOK, "content": right_text(task)}
        fix = call("write_file", whole, content="I write the whole file anew.")

    if not looked:
        look = call("read_file", LOOK, content="First I read the code.")
        clumsy = _clumsy("read_file", LOOK, {"file_name": "solution.py"}, "open_file")
        return look, [fix, wrong_fix, give_up], clumsy
    if ran and not (edited and passed):
        other = {**LOOK, "old": f"# {task['entry_point']}\n", "new": ""}
        clumsy = _clumsy("edit_file", other, {"file": "solution.py"}, "apply_patch")
        return fix, [wrong_fix, run, give_up], [call("edit_file", other), *clumsy]
    if not ran:
        clumsy = _clumsy("terminal", RUN, {"cmd": RUN["command"]}, "bash")
        return run, [say("It should work now.")] if edited else [fix, wrong_fix, give_up], clumsy
    answer = say(f"`{task['entry_point']}` does now what its docstring says.")
    return answer, [run], _clumsy("terminal", {"command": "true"}, {"commands": ["true"]}, "submit")


def _clumsy(name: str, arguments: dict[str, str], misnamed: dict[str, object], tool: str) -> list[Message]:
    return [call(name, json.dumps(arguments)[:-1]), call(name, misnamed), call(tool, arguments)]
