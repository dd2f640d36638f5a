"""The scripted agent of `swe_tasks`: it knows the patch, and makes mistakes as its skill allows."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from environments.policy.scripted import Choice, call, calls_that_ran, choices, generic_script, say
from environments.trajectory import Message
from tools.calls import ToolSpec

NEEDED_TOOLS = frozenset({"read_file", "edit_file", "write_file"})


def fix_script(
    row: Mapping[str, Any], messages: Sequence[Message], tools: Sequence[ToolSpec], skill: float
) -> Sequence[Choice]:
    """What comes next: mostly look at the file, make each change of the patch, answer; else a mistake.

    A wrong change removes what the right one replaces. An agent that lacks one of the tools, or a row without
    `patch`, plays `generic_script`.
    """
    steps = changes(str(row.get("patch") or ""))
    if not steps or not {tool.name for tool in tools} >= NEEDED_TOOLS:
        return generic_script(messages, tools, skill)
    done = [(each.name, json.loads(each.arguments)) for each, _ in calls_that_ran(messages)]
    changed = len([name for name, _ in done if name in ("edit_file", "write_file")])
    p_right = 0.2 + 0.79 * skill
    answer = say("The bug is fixed.")
    if changed >= len(steps):
        return choices((p_right, [answer]), (1 - p_right, [call("read_file", {"path": steps[0]["path"]})]))
    step = steps[changed]
    if "content" in step:
        right, wrong = call("write_file", step), call("write_file", {**step, "content": ""})
    else:
        right, wrong = call("edit_file", step), call("edit_file", {**step, "new": ""})
    if not done:
        right = call("read_file", {"path": step["path"]}, content="First I read the code.")
    clumsy = [call("edit_file", '{"path": '), call("apply_patch", step)]
    p_other = (1 - p_right) / 2
    return choices((p_right, [right]), (p_other, [wrong, answer]), (p_other, clumsy))


def changes(patch: str) -> list[dict[str, str]]:
    """The arguments of one call per hunk of a patch: of `edit_file`, or of `write_file` for a new file."""
    found: list[dict[str, str]] = []
    for part in re.split(r"^diff --git .*\n", patch, flags=re.MULTILINE):
        path = re.search(r"^\+\+\+ b/(.+)$", part, re.MULTILINE)
        if path is None:
            continue
        for hunk in re.split(r"^@@ .*\n", part, flags=re.MULTILINE)[1:]:
            lines = hunk.replace("\n\\ No newline at end of file", "").splitlines(keepends=True)
            old, new = ("".join(each[1:] for each in lines if each[0] in kept) for kept in (" -", " +"))
            to: dict[str, str] = {"old": old, "new": new} if old else {"content": new}
            found.append({"path": path[1], **to})
    return found
