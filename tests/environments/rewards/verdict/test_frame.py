import asyncio

import pytest

from environments.rewards.verdict.frame import Control, NoVerdict, decide, fresh_machine
from tests.tables import cases
from tools.errors import AgentCausedError, SandboxError, SandboxUnavailable

GONE = SandboxUnavailable("gone")


def giving(*answers):
    """A run of tests that gives these, one after the other; `calls` counts them."""
    left = iter(answers)

    async def run():
        run.calls += 1
        await asyncio.sleep(0)
        answer = next(left)
        if answer is None:
            raise NoVerdict
        if isinstance(answer, BaseException):
            raise answer
        return answer

    run.calls = 0
    return run


@cases("answers", [[1], [None, 1], [GONE, 1], [GONE, None, 1], [None, GONE, 1], [0]])
async def test_a_verdict_counts_whatever_one_try_before_it_gave(answers):
    assert await decide(giving(*answers), giving(), Control()) == answers[-1]


@cases("answers", [[None, None], [GONE, None, None], [None, GONE, None]])
async def test_files_that_keep_tests_from_a_verdict_twice_are_the_cause_where_clean_ones_do_not(answers):
    with pytest.raises(AgentCausedError) as caught:
        await decide(giving(*answers), giving(0), Control())
    assert caught.value.cause == "no_verdict"


@cases(
    "answers, control",
    [
        ([None, None], [None]),
        ([None, None], [GONE]),
        ([None, None], [AgentCausedError("full", cause="sandbox_lost")]),
        ([GONE, GONE], [1]),
        ([GONE, None, GONE], [1]),
    ],
)
async def test_nothing_else_is_a_score(answers, control):
    with pytest.raises(SandboxError):
        await decide(giving(*answers), giving(*control), Control())


async def test_the_control_runs_once_for_all_that_ask_meanwhile_and_later():
    control, clean = Control(), giving(0)
    assert await asyncio.gather(*(control.has_verdict(clean) for _ in range(5))) == [True] * 5
    assert (await control.has_verdict(clean), clean.calls) == (True, 1)


async def test_those_that_wait_share_a_control_without_a_verdict_and_the_next_one_runs_another():
    control, clean = Control(), giving(None, 0)
    assert await asyncio.gather(*(control.has_verdict(clean) for _ in range(5))) == [False] * 5
    assert (await control.has_verdict(clean), clean.calls) == (True, 2)


async def test_a_control_that_broke_or_was_cancelled_is_no_answer_to_those_that_wait():
    control, clean = Control(), giving(GONE, asyncio.CancelledError(), 0)
    first, *others = (asyncio.ensure_future(control.has_verdict(clean)) for _ in range(4))
    ended = await asyncio.gather(first, *others, return_exceptions=True)
    assert [type(each) for each in ended] == [SandboxUnavailable, asyncio.CancelledError, bool, bool]
    assert (ended[2:], clean.calls) == ([True, True], 3)


async def test_a_fresh_machine_at_its_own_limit_is_no_verdict_and_no_agents_doing():
    async def silent():
        with fresh_machine():
            raise AgentCausedError("cpu_s", cause="sandbox_lost")

    with pytest.raises(SandboxError, match="nor over the clean image"):
        await decide(silent, silent, Control())
