from collections import Counter

import pytest

from environments.code_debug_env.hidden_checks import prepare_test, run_checks
from environments.code_debug_env.workspace import buggy_text, embedded_tasks, fixed_text

BUGS = embedded_tasks()
NAMES = [bug["entry_point"] for bug in BUGS]


def assertions(test: str) -> set[str]:
    return {line.strip() for line in test.splitlines() if line.strip().startswith("assert ")}


async def held(verify, bug, solution: str) -> tuple[tuple[bool, ...], tuple[bool, ...]]:
    """Hidden checks and examples, judged in one go."""
    both = {**bug, "test": f"{bug['test']}\n\n{bug['example_test']}"}
    report = await run_checks(verify, both, solution)
    hidden = prepare_test(bug["test"], bug["task_id"])[1]
    return report.held[:hidden], report.held[hidden:]


@pytest.mark.parametrize("bug", BUGS, ids=NAMES)
async def test_the_fix_holds_every_check(verify, bug):
    hidden, examples = await held(verify, bug, fixed_text(bug))
    assert all(hidden + examples)


@pytest.mark.parametrize("bug", BUGS, ids=NAMES)
async def test_the_bug_fails_some_checks_and_the_examples_show_it(verify, bug):
    hidden, examples = await held(verify, bug, buggy_text(bug))
    assert (any(hidden), all(hidden), all(examples)) == (True, False, False)


@pytest.mark.parametrize("bug", BUGS, ids=NAMES)
def test_most_hidden_checks_are_not_among_the_examples(bug):
    hidden, shown = assertions(bug["test"]), assertions(bug["example_test"])
    assert 5 <= prepare_test(bug["test"], bug["task_id"])[1] <= 12
    assert len(hidden - shown) >= len(hidden) - 1


def test_there_are_enough_bugs_of_many_kinds():
    kinds = Counter(bug["bug_type"] for bug in BUGS)
    symptoms = Counter(bug["failure_symptoms"] for bug in BUGS)
    assert (len(BUGS) >= 44, len(kinds) >= 15) == (True, True)
    assert symptoms["infinite loop"] >= 3
    assert symptoms["stackoverflow"] >= 2


def test_every_bug_has_a_name_of_its_own():
    assert len(set(NAMES)) == len({bug["task_id"] for bug in BUGS}) == len(BUGS)
