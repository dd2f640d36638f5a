import json
import math
from dataclasses import replace

import pytest

from environments.rewards.verdict.code_judge import buggy_text, fixed_text
from environments.shipped.code_debug.env import embedded_tasks
from environments.shipped.code_debug.script import debug_script, smallest_edit, wrong_text
from environments.trajectory import Message
from tests.tables import cases
from tools.files import file
from tools.terminal import terminal
from tools.toolsets import select_toolsets

BUGS = embedded_tasks()
NAMES = [bug["entry_point"] for bug in BUGS]
BUG = BUGS[0]
TOOLS = select_toolsets([terminal, file]).specs
FAILED, PASSED = "AssertionError\n[exit code: 1]", "all examples pass\n[exit code: 0]"


def likeliest(messages: list[Message]) -> Message:
    return max(debug_script(BUG, messages, TOOLS, 1.0), key=lambda choice: choice.probability).message


def conversation(*answers: str) -> list[Message]:
    """The right steps so far, each call answered as given."""
    messages = [Message(role="user", content="fix it")]
    for number, answer in enumerate(answers):
        step = likeliest(messages)
        (asked,) = step.tool_calls
        named = Message(
            role="assistant",
            tool_calls=(type(asked)(id=str(number), name=asked.name, arguments=asked.arguments),),
        )
        messages += [named, Message(role="tool", content=answer, tool_call_id=str(number))]
    return messages


def test_each_edit_is_unique_and_gives_the_fix():
    def gives_the_fix(bug):
        old, new = smallest_edit(buggy_text(bug), fixed_text(bug))
        return buggy_text(bug).count(old) == 1 and buggy_text(bug).replace(old, new) == fixed_text(bug)

    assert [name for name, bug in zip(NAMES, BUGS, strict=True) if not gives_the_fix(bug)] == []


def test_each_wrong_fix_is_python_and_not_the_fix():
    def is_wrong(bug):
        compile(wrong_text(bug), bug["entry_point"], "exec")
        return wrong_text(bug) not in (buggy_text(bug), fixed_text(bug))

    assert [name for name, bug in zip(NAMES, BUGS, strict=True) if not is_wrong(bug)] == []


def test_a_good_agent_reads_runs_fixes_runs_and_answers():
    answers = ["1\tdef f():", FAILED, "Replaced 1 place", PASSED]
    names = [message.tool_calls[0].name for message in conversation(*answers) if message.tool_calls]
    assert names == ["read_file", "terminal", "edit_file", "terminal"]
    assert likeliest(conversation(*answers)).tool_calls == ()


def test_a_call_that_could_not_be_read_is_tried_again():
    messages = conversation("The call was not run: its arguments are no JSON. Write it again, …")
    (cut,) = messages[-2].tool_calls
    messages[-2] = replace(messages[-2], tool_calls=(replace(cut, arguments=cut.arguments[:-1]),))
    assert likeliest(messages).tool_calls[0].name == cut.name


def test_a_refused_call_is_tried_again():
    refused = conversation("read_file was not run. `path` is missing. Parameters: path: string (required).")
    assert likeliest(refused).tool_calls[0].name == "read_file"


def test_an_edit_that_did_not_help_is_replaced_by_the_whole_fix():
    messages = conversation("1\tdef f():", FAILED, "Replaced 1 place", FAILED)
    fix = likeliest(messages).tool_calls[0]
    assert (fix.name, json.loads(fix.arguments)["content"]) == ("write_file", fixed_text(BUG))


@cases("skill", [0.0, 0.6, 1.0])
@cases("answers", [(), ("text",), ("text", FAILED), ("text", FAILED, "ok"), ("text", FAILED, "ok", PASSED)])
def test_the_choices_are_a_distribution(answers: tuple[str, ...], skill: float):
    choices = debug_script(BUG, conversation(*answers), TOOLS, skill)
    assert math.fsum(choice.probability for choice in choices) == pytest.approx(1)


def test_skill_makes_the_right_step_likelier():
    def p_right(skill: float) -> float:
        return max(choice.probability for choice in debug_script(BUG, conversation(), TOOLS, skill))

    assert p_right(0.0) < p_right(0.6) < p_right(1.0)


def test_without_file_tools_the_agent_still_plays():
    assert debug_script(BUG, conversation(), terminal.specs, 0.5)
