"""Credit of summaries without bias, as a fact: expected gradients over all groups, as in test_unbiased.

An agent acts (state 0: it has forgotten, state 2: it knows), and after each act but the last it sums up
(state 1). What the summary says decides what the agent knows afterwards, and a summary that rambles uses the
budget up: no act follows it.
"""

import math
from dataclasses import replace

import numpy as np
import pytest

from environments.credit import estimate
from environments.testing import group_of
from tests.benchmarks.credit_bias import Expectation, Market, Session, a_policy
from tests.environments.credit.test_unbiased import UNBIASED

FORGOT, SUMS_UP, KNOWS = range(3)
WORK, FINISH, LEAVE = KEEP, LOSE, RAMBLE = range(3)
EARNED = {FORGOT: 0.3, KNOWS: 0.7}
"""What work pays, by what the agent knows: a reward of the turn."""
SUCCEEDS = {FORGOT: 0.1, KNOWS: 0.8}
OUT_OF_BUDGET = 0.4
"""The outcome of a rollout that ends with its summary."""


def played(acts, state=FORGOT):
    """Every rollout of at most so many acts."""
    for success, chance in ((1.0, SUCCEEDS[state]), (0.0, 1 - SUCCEEDS[state])):
        yield Session(steps=((state, FINISH),), rewards=(-0.2,), outcome=success, chance=chance)
    yield Session(steps=((state, LEAVE),), rewards=(None,), outcome=0.0, chance=1.0)
    work = Session(steps=((state, WORK),), rewards=(EARNED[state],), outcome=0.0, chance=1.0)
    if acts == 1:
        yield work
        return
    for summary, after in ((KEEP, KNOWS), (LOSE, FORGOT)):
        for rest in played(acts - 1, after):
            yield replace(
                rest,
                steps=(*work.steps, (SUMS_UP, summary), *rest.steps),
                rewards=(*work.rewards, None, *rest.rewards),
            )
    ended = (*work.steps, (SUMS_UP, RAMBLE))
    yield replace(work, steps=ended, rewards=(*work.rewards, None), outcome=OUT_OF_BUDGET)


class Condensed(Market):
    """Its rollouts as trajectories, and the gradient that discounted returns of its turns point along."""

    def __init__(self, acts):
        super().__init__(played=played(acts))
        self.kinds = [
            ["summary" if state == SUMS_UP else "act" for state, _ in each.steps] for each in self.sessions
        ]

    def values(self):
        rewards, outcomes = zip(*((each.rewards, each.outcome) for each in self.sessions), strict=True)
        states = [[str(state) for state, _ in each.steps] for each in self.sessions]
        return group_of(rewards, outcomes=outcomes, kinds=self.kinds, anchors=states).trajectories

    def discounted(self, logits, gamma):
        """The expected sum over turns of the return that follows, time counted in acts, times the score."""
        returns = np.zeros(self.taken.shape[:2])
        for index, (session, kinds) in enumerate(zip(self.sessions, self.kinds, strict=True)):
            for turn in range(len(kinds)):
                following = [
                    r for r, k in zip(session.rewards[turn:], kinds[turn:], strict=True) if k == "act"
                ]
                terms = [gamma**step * (reward or 0.0) for step, reward in enumerate(following)]
                last = gamma ** max(0, len(following) - 1) * session.outcome
                returns[index, turn] = math.fsum([*terms, last])
        weights = self.probabilities(logits)[:, None] * returns
        return np.einsum("nt,ntp->p", weights, self.scores(logits))


@pytest.fixture(scope="module")
def rollouts():
    return Condensed(2)


def gradient_of(rollouts, logits, name, size=2, **params):
    return Expectation(rollouts, size, lambda group: estimate(name, group, **params)).gradient(logits)


def test_summaries_decide_what_follows_and_whether_anything_does(rollouts):
    assert rollouts.probabilities(a_policy(1)).sum() == pytest.approx(1.0)
    assert {kinds[-1] for kinds in rollouts.kinds} == {"act", "summary"}


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("case", UNBIASED)
def test_the_expected_gradient_is_the_true_one(rollouts, case, size):
    name, params, scale = UNBIASED[case]
    logits = a_policy(1)

    gradient = gradient_of(rollouts, logits, name, size, **params)

    shrunk = (size - 1) / size if scale is None else scale
    assert gradient == pytest.approx(shrunk * rollouts.gradient(logits), abs=1e-12)


def test_the_expected_gradient_is_the_true_one_where_a_rollout_sums_up_twice():
    rollouts, logits = Condensed(3), a_policy(2)

    gradient = gradient_of(rollouts, logits, "turn_return")

    assert gradient == pytest.approx(rollouts.gradient(logits), abs=1e-12)


@pytest.mark.parametrize("gamma", [0.5, 0.0])
def test_with_a_discount_it_is_that_of_the_discounted_returns(rollouts, gamma):
    logits = a_policy(1)

    gradient = gradient_of(rollouts, logits, "turn_return", gamma=gamma)

    assert gradient == pytest.approx(rollouts.discounted(logits, gamma), abs=1e-12)


def test_a_critic_that_knows_what_a_summary_is_worth_adds_no_bias(rollouts):
    logits = a_policy(1)
    worth = {str(FORGOT): 0.2, str(SUMS_UP): 0.6, str(KNOWS): 1.1}

    def weigh(group):
        values = [[worth[turn.anchor] for turn in each.turns] for each in group.trajectories]
        return estimate("turn_gae", group, values=values)

    gradient = Expectation(rollouts, 1, weigh).gradient(logits)

    assert gradient == pytest.approx(rollouts.gradient(logits), abs=1e-12)
