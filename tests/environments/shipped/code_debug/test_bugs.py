import asyncio

from environments.rewards.verdict.code_judge import buggy_text, right_text, run_checks
from environments.rewards.verdict.prepared_test import prepare_test
from environments.shipped.code_debug.env import load_tasks

BUGS = load_tasks()
NAMES = [bug["entry_point"] for bug in BUGS]


def assertions(test: str) -> set[str]:
    return {line.strip() for line in test.splitlines() if line.strip().startswith("assert ")}


async def held(verify, bug, solution: str) -> tuple[tuple[bool, ...], tuple[bool, ...]]:
    """Hidden checks and examples, judged in one go."""
    both = {**bug, "test": f"{bug['test']}\n\n{bug['example_test']}"}
    report = await run_checks(verify, both, solution)
    hidden = prepare_test(bug["test"], bug["task_id"])[1]
    return report.held[:hidden], report.held[hidden:]


async def names_where(expected, judge):
    """The bugs whose judgement is not as expected; four are judged at a time."""
    slots = asyncio.Semaphore(4)

    async def wrong(bug):
        async with slots:
            return await judge(bug) != expected

    judged = await asyncio.gather(*map(wrong, BUGS))
    return [name for name, is_wrong in zip(NAMES, judged, strict=True) if is_wrong]


async def test_every_fix_holds_every_check(verify):
    async def judge(bug):
        hidden, examples = await held(verify, bug, right_text(bug))
        return all(hidden + examples)

    assert await names_where(True, judge) == []


async def test_every_bug_fails_some_checks_and_the_examples_show_it(verify):
    async def judge(bug):
        hidden, examples = await held(verify, bug, buggy_text(bug))
        return any(hidden), all(hidden), all(examples)

    assert await names_where((True, False, False), judge) == []


def test_most_hidden_checks_of_every_bug_are_not_among_its_examples():
    few = []
    for bug in BUGS:
        hidden, shown = assertions(bug["test"]), assertions(bug["example_test"])
        checks = prepare_test(bug["test"], bug["task_id"])[1]
        if not (5 <= checks <= 12 and len(hidden - shown) >= len(hidden) - 1):
            few.append(bug["entry_point"])
    assert few == []
