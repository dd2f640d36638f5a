from environments.rewards.verdict.code_judge import buggy_text, right_text
from environments.shipped.code_debug.env import load_tasks
from environments.shipped.code_debug.script import smallest_edit, wrong_text
from tools.files import file
from tools.terminal import terminal
from tools.toolsets import select_toolsets

BUGS = load_tasks()
NAMES = [bug["entry_point"] for bug in BUGS]
TOOLS = select_toolsets([terminal, file]).specs
FAILED, PASSED = "AssertionError\n[exit code: 1]", "all examples pass\n[exit code: 0]"


def test_each_edit_is_unique_and_gives_the_fix():
    def gives_the_fix(bug):
        old, new = smallest_edit(buggy_text(bug), right_text(bug))
        return buggy_text(bug).count(old) == 1 and buggy_text(bug).replace(old, new) == right_text(bug)

    assert [name for name, bug in zip(NAMES, BUGS, strict=True) if not gives_the_fix(bug)] == []


def test_each_wrong_fix_is_python_and_not_the_fix():
    def is_wrong(bug):
        compile(wrong_text(bug), bug["entry_point"], "exec")
        return wrong_text(bug) not in (buggy_text(bug), right_text(bug))

    assert [name for name, bug in zip(NAMES, BUGS, strict=True) if not is_wrong(bug)] == []
