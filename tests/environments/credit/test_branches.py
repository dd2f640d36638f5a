"""Credit of branches: expected gradients over every possible group, against the true gradient."""

import math
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pytest

from environments.credit import credited, describe, estimate
from environments.credit.crediting import GroupRules, comparable
from environments.testing import group_of
from environments.trajectory import drop_sibling
from tools.errors import CreditError

# --- a game of three turns at most; what was done before decides when it ends -----------------------------

STATES, ACTIONS, HORIZON = 3, 2, 3
LOGITS = np.array([[0.4, -0.3], [-0.5, 0.2], [0.3, -0.6]])
REWARDS = np.array([[0.3, 0.1], [0.6, -0.4], [0.15, 1.0]])
ENDS = {(1, 1), (2, 0)}


@dataclass(frozen=True)
class Step:
    state: int
    action: int

    @property
    def reward(self):
        return float(REWARDS[self.state, self.action])


def policy(state):
    chances = np.exp(LOGITS[state])
    return chances / chances.sum()


def following(step):
    """The next state: what was done in this one decides."""
    return (step.state + 1 + step.action) % STATES


def is_over(path):
    return bool(path) and ((path[-1].state, path[-1].action) in ENDS or len(path) == HORIZON)


def continuations(path=()):
    """Every way on from a path, with its chance given the path."""
    if is_over(path):
        return [(1.0, path)]
    state = following(path[-1]) if path else 0
    ways = []
    for action, chance in enumerate(policy(state)):
        ways += [(chance * more, whole) for more, whole in continuations((*path, Step(state, action)))]
    return ways


def outcome(path):
    return (1.0 if path[-1].state == 2 else 0.0) - 0.1 * len(path) ** 2


def score_of(path):
    return math.fsum(step.reward for step in path) + outcome(path)


def push(gradient, step, amount):
    gradient[step.state] += amount * (np.eye(ACTIONS)[step.action] - policy(step.state))


def true_gradient():
    gradient = np.zeros((STATES, ACTIONS))
    for chance, path in continuations():
        for step in path:
            push(gradient, step, chance * score_of(path))
    return gradient


# --- the choice of the branch turn ------------------------------------------------------------------------


def at_turn_two(path, turn, draw):
    return turn == 1


def drawn(path, turn, draw):
    return turn == draw


def after_a_low_reward(path, turn, draw):
    return turn > 0 and path[turn - 1].reward < 0.2


def in_state_two(path, turn, draw):
    return path[turn].state == 2


def by_its_own_result(path, turn, draw):
    """What no choice may see: the completion at the turn."""
    return path[turn].reward < 0.2


CHOICES = [at_turn_two, drawn, after_a_low_reward, in_state_two]


def families(choice, draw):
    """Every trunk with one branch, its chance, and the turn it branches at; alone where none is chosen."""
    for chance, trunk in continuations():
        turn = next((turn for turn in range(len(trunk)) if choice(trunk, turn, draw)), None)
        if turn is None:
            yield chance, (trunk,), None
            continue
        for more, branch in continuations(trunk[:turn]):
            yield chance * more, (trunk, branch), turn


def group_with(first, second):
    """The group of two families, each (paths, branch turn)."""
    trunks = [paths[0] for paths, _ in (first, second)]
    branches = [(number, path) for number, (paths, _) in enumerate((first, second)) for path in paths[1:]]
    paths = [*trunks, *(path for _, path in branches)]
    turns = [first[1], second[1], *((first, second)[number][1] for number, _ in branches)]
    group = group_of(
        [[step.reward for step in path] for path in paths], outcomes=[outcome(path) for path in paths]
    )
    trajectories = []
    for index, each in enumerate(group.trajectories):
        trunk = None if index < len(trunks) else branches[index - len(trunks)][0]
        shared = 0 if trunk is None else turns[index]
        own = tuple(replace(turn, trained=turn.index >= shared) for turn in each.turns)
        trajectories.append(replace(each, trunk=trunk, branch_turn=turns[index], turns=own))
    return replace(group, trajectories=tuple(trajectories)), paths


def expected_gradient(choice, weigh, draws=(None,)):
    """The mean of Σ A ∇log π over trunks, over every group of two families."""
    gradient = np.zeros((STATES, ACTIONS))
    for draw in product(draws, repeat=2):
        every = [list(families(choice, each)) for each in draw]
        for (p, *first), (q, *second) in product(*every):
            group, paths = group_with(first, second)
            for path, advantages in zip(paths, weigh(group), strict=True):
                for step, advantage in zip(path, advantages, strict=True):
                    if advantage:
                        push(gradient, step, p * q * advantage / 2 / len(draws) ** 2)
    return gradient


def draws_of(choice):
    return (1, 2) if choice is drawn else (None,)


ESTIMATORS = {
    "turn_return": lambda group: estimate("turn_return", group),
    "no_baseline": lambda group: estimate("turn_return", group, baseline="none"),
    "rloo": lambda group: estimate("rloo", group),
}


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_expected_gradient_is_the_true_one(choice, name):
    gradient = expected_gradient(choice, ESTIMATORS[name], draws_of(choice))

    assert gradient == pytest.approx(true_gradient(), abs=1e-9)


# --- each rule violated once --------------------------------------------------------------------------------


def is_family(group, index):
    each = group.trajectories[index]
    return each.trunk is not None or any(other.trunk == each.sibling for other in group.trajectories)


def by_turn(group, of_shared, of_own):
    """Advantages by two functions of (trajectory, turn, what the estimator gives)."""
    rows = estimate("turn_return", group)
    for index, (row, each) in enumerate(zip(rows, group.trajectories, strict=True)):
        if is_family(group, index):
            for turn in range(len(row)):
                change = of_shared if turn < each.branch_turn else of_own
                row[turn] = change(index, turn, row[turn])
    return rows


def as_given(index, turn, advantage):
    return advantage


def weight_1_each(group):
    return by_turn(group, as_given, lambda index, turn, advantage: 2 * advantage)


def other_of(group, index):
    """The index of the other continuation of a trajectory's trunk."""
    each = group.trajectories[index]
    if each.trunk is not None:
        return each.trunk
    return next(at for at, other in enumerate(group.trajectories) if other.trunk == each.sibling)


def own_continuation_in_the_baseline(group):
    raw = estimate("turn_return", group, baseline="none")

    def minus_the_mean(index, turn, advantage):
        rivals = [raw[at][turn] for at in (index, other_of(group, index)) if turn < len(raw[at])]
        return raw[index][turn] - sum(rivals) / len(rivals)

    return by_turn(group, as_given, minus_the_mean)


def own_trunk_in_the_prefix_baseline(group):
    free = replace(group, trajectories=tuple(replace(each, trunk=None) for each in group.trajectories))
    returns = estimate("turn_return", free, baseline="none")

    def minus_the_branch(index, turn, advantage):
        if group.trajectories[index].trunk is not None:
            return advantage
        branch = group.trajectories[other_of(group, index)]
        known = math.fsum(each for each in branch.rewards.turns[turn:]) + branch.rewards.outcome
        return returns[index][turn] - known

    return by_turn(group, minus_the_branch, as_given)


def prefix_trained_in_each(group):
    shared = estimate("turn_return", group)

    def as_in_the_trunk(index, turn, advantage):
        trunk = group.trajectories[index].trunk
        return shared[index if trunk is None else trunk][turn]

    return by_turn(group, as_in_the_trunk, as_given)


def as_siblings(group):
    alike = (
        replace(each, trunk=None, turns=tuple(replace(turn, trained=True) for turn in each.turns))
        for each in group.trajectories
    )
    return estimate("turn_return", replace(group, trajectories=tuple(alike)))


# (cosine, length along the true gradient), as docs/credit.md has them.
VIOLATIONS = {
    weight_1_each: (0.985, 1.88),
    own_continuation_in_the_baseline: (0.950, 0.54),
    own_trunk_in_the_prefix_baseline: (0.936, 0.88),
    prefix_trained_in_each: (0.960, 1.12),
    as_siblings: (0.994, 1.92),
}


def along_the_truth(gradient):
    true = true_gradient()
    along = (gradient * true).sum()
    return along / np.linalg.norm(gradient) / np.linalg.norm(true), along / (true * true).sum()


@pytest.mark.parametrize("violate", VIOLATIONS)
def test_a_violated_rule_bends_or_scales_the_gradient(violate):
    cosine, length = along_the_truth(expected_gradient(at_turn_two, violate))

    assert cosine == pytest.approx(VIOLATIONS[violate][0], abs=6e-4)
    assert length == pytest.approx(VIOLATIONS[violate][1], abs=6e-3)


def test_a_choice_that_sees_its_own_turn_bends_the_gradient():
    cosine, length = along_the_truth(expected_gradient(by_its_own_result, ESTIMATORS["turn_return"]))

    assert (cosine, length) == (pytest.approx(0.969, abs=6e-4), pytest.approx(1.09, abs=6e-3))


def noise(groups):
    """(variance of the gradient, sampled turns) over groups, given as (chance, group, paths, trunks)."""
    squares = turns = 0.0
    for chance, group, paths, trunks in groups:
        gradient = np.zeros((STATES, ACTIONS))
        for path, advantages in zip(paths, estimate("turn_return", group), strict=True):
            for step, advantage in zip(path, advantages, strict=True):
                push(gradient, step, advantage / trunks)
        squares += chance * (gradient * gradient).sum()
        turns += chance * sum(len(each.own_turns) for each in group.trajectories)
    return squares - (true_gradient() ** 2).sum(), turns


def test_branches_do_not_save_noise_where_the_prefix_is_short():
    def plain(every):
        for chosen in product(every, repeat=3):
            paths = [path for _, path in chosen]
            rewards = [[step.reward for step in path] for path in paths]
            group = group_of(rewards, outcomes=[outcome(path) for path in paths])
            yield math.prod(chance for chance, _ in chosen), group, paths, 3

    def branched(every):
        for (p, *first), (q, *second) in product(every, repeat=2):
            yield p * q, *group_with(first, second), 2

    rollouts, branches = noise(plain(continuations())), noise(branched(list(families(at_turn_two, None))))

    assert rollouts == (pytest.approx(0.30, abs=0.005), pytest.approx(7.0, abs=0.06))
    assert branches == (pytest.approx(0.38, abs=0.005), pytest.approx(7.3, abs=0.06))


# --- facts of one group -------------------------------------------------------------------------------------


def forked(turn_rewards, trunks, branch_turns, **more):
    """A group of rewards `[trajectory][turn]`; `trunks` and `branch_turns` have one entry each."""
    group = group_of(turn_rewards, **more)
    trajectories = tuple(
        replace(
            each,
            trunk=trunk,
            branch_turn=at,
            turns=tuple(
                replace(turn, trained=trunk is None or turn.index >= (at or 0)) for turn in each.turns
            ),
        )
        for each, trunk, at in zip(group.trajectories, trunks, branch_turns, strict=True)
    )
    return replace(group, trajectories=trajectories)


def test_continuations_are_compared_from_their_turn_and_the_prefix_with_other_trunks():
    rewards = [[1.0, 4.0], [2.0, 3.0], [1.0, 0.0], [1.0, 2.0]]
    group = forked(rewards, [None, None, 0, 0], [1, None, 1, 1])

    rows = estimate("turn_return", group)

    assert rows == [[3.0 - 5.0, 3.0 / 3], [5.0 - 3.0, 3.0 - 2.0], [0.0, -3.0 / 3], [0.0, 0.0]]


def test_a_condensation_at_the_branch_turn_belongs_to_the_continuation():
    rewards = [[0.0, None, 4.0], [2.0, 3.0], [0.0, None, 0.0]]
    kinds = [["act", "summary", "act"], ["act", "act"], ["act", "summary", "act"]]
    group = forked(rewards, [None, None, 0], [1, None, 1], kinds=kinds)

    assert estimate("turn_return", group)[0][1:] == [2.0, 2.0]


def test_a_branch_that_alone_goes_on_keeps_its_raw_return():
    group = forked([[1.0, 4.0], [2.0], [1.0, 0.0, 2.0]], [None, None, 0], [1, None, 1])

    assert estimate("turn_return", group)[2][2] == 1.0
    assert credited(group, "turn_return", policy="p").turns_without_peer == 1


@pytest.mark.parametrize(
    ("name", "params"),
    [("grpo", {}), ("gigpo", {}), ("turn_return", {"baseline": "group_mean"}), ("reinforce_pp", {})],
)
def test_other_estimators_are_refused_with_those_that_can(name, params):
    group = forked([[1.0, 4.0], [2.0, 1.0], [1.0, 0.0]], [None, None, 0], [1, None, 1])

    reason = credited(group, "turn_return", policy="p").reason
    with pytest.raises(CreditError, match=f"{name}.* possible: turn_return, baseline loo_index or none"):
        describe(name).terms(group, **params)
    assert reason is None


def test_a_branch_goes_with_its_trunk():
    group = forked([[2.0, 1.0], [1.0, 0.0]], [None, 5], [None, 1])

    left, reason = comparable(group, GroupRules())

    assert (len(left.trajectories), reason) == (1, None)
    assert left.failures[0].trunk == 5


def test_branches_do_not_count_as_survivors():
    group = forked([[2.0, 1.0], [1.0, 0.0]], [None, 0], [1, 1])
    lost = drop_sibling(group.trajectories[0], "RolloutError", "lost")

    group = replace(group, failures=(replace(lost, sibling=2), replace(lost, sibling=3, trunk=2)))

    assert comparable(group, GroupRules(min_trajectories=2))[1] == (
        "1 of 2 rollouts survived, at least 2 are needed"
    )
