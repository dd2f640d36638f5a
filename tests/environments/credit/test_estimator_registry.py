"""Estimators by name: what is registered, how it is described, and what is refused."""

import dataclasses
from typing import Annotated, Literal

import pytest

from environments.credit import (
    ESTIMATORS,
    PRESETS,
    Param,
    describe,
    estimate,
    grpo,
    register_estimator,
    resolve,
    turn_return,
)
from environments.credit.estimator_registry import terms_of
from environments.credit.terms import Pool, Term
from environments.testing import group_of
from tests.environments.credit.test_properties import BUILT_IN
from tools.errors import CreditError

NAN, INF = float("nan"), float("inf")
OF_STEPS = ("gdpo", "gpg", "grpo_batch", "reinforce_pp", "reinforce_pp_baseline")


@pytest.mark.parametrize("name", [*BUILT_IN, *OF_STEPS])
def test_every_estimator_says_its_formula_its_bias_and_its_source(name):
    spec = describe(name)

    assert all((spec.summary, spec.formula, spec.bias, spec.source))
    assert all(parameter.description for parameter in spec.parameters)


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_described_defaults_are_those_of_the_function(name):
    group = group_of([[0.5, None], [1.0]], outcomes=[1.0, 0.0], anchors=[["a", "b"], ["a"]])
    defaults = {parameter.name: parameter.default for parameter in describe(name).parameters}

    assert ESTIMATORS[name](group, **defaults) == estimate(name, group)


@pytest.mark.parametrize(
    ("preset", "name"), [(p, name) for p, covered in PRESETS.items() for name in covered]
)
def test_every_preset_is_made_of_possible_values(preset, name):
    assert terms_of(name, group_of([[1.0], [0.0]]), preset=preset)
    assert resolve(name, preset=preset).items() >= PRESETS[preset][name].items()


def test_a_given_parameter_overrides_the_preset():
    group = group_of(None, outcomes=[1.0, 0.0], lengths=[[1], [1]])

    assert estimate("grpo", group, preset="trl", norm_by_std=False) == [[0.5], [-0.5]]


def test_presets_disagree_where_their_trainers_do():
    alone, pair = group_of([[2.0]]), group_of([[1e-4], [0.0]])

    assert estimate("grpo", alone, preset="verl")[0][0] == pytest.approx(2.0, rel=1e-5)
    assert estimate("grpo", alone, preset="trl") == [[0.0]]
    assert estimate("grpo", pair, preset="trl")[0][0] == pytest.approx(5e-5 / (1e-4 / 2**0.5 + 1e-4))
    assert estimate("grpo", pair, preset="torchtitan") == [[5e-5], [-5e-5]]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda g: estimate("turn_retrun", g), r"no estimator 'turn_retrun'; did you mean 'turn_return'\?"),
        (lambda g: estimate("zzz", g), r"no estimator 'zzz'; there are: .*grpo.*turn_return"),
        (lambda g: estimate("grpo", g, epsilon=1.0), r"no parameter of grpo named 'epsilon'.*eps"),
        (
            lambda g: estimate("grpo", g, preset="verll"),
            r"no estimator preset 'verll'; did you mean 'verl'\?",
        ),
        (lambda g: estimate("turn_return", g, preset="verl"), "preset 'verl' does not cover turn_return"),
        (lambda g: estimate("grpo", g, eps=-1.0), r"grpo: eps is -1.0; possible: number 0 … 1"),
        (lambda g: estimate("grpo", g, ddof=2), r"grpo: ddof is 2; possible: integer 0 … 1"),
        (lambda g: estimate("grpo", g, ddof=1.0), "grpo: ddof is 1.0"),
        (lambda g: estimate("grpo", g, norm_by_std=1), "norm_by_std is 1; possible: true · false"),
        (lambda g: estimate("turn_return", g, gamma=NAN), "turn_return: gamma is nan"),
        (lambda g: estimate("turn_return", g, gamma=True), "turn_return: gamma is True"),
        (lambda g: estimate("turn_return", g, baseline="loo"), "baseline is 'loo'; possible: loo_index"),
        (lambda g: turn_return(g, gamma=1.5), r"turn_return: gamma is 1.5; possible: number 0 … 1"),
        (lambda _: turn_return([[1.0]]), "takes a TrajectoryGroup, not list"),
        (lambda g: describe("turn_return").parameter("gama"), "did you mean 'gamma'"),
        (lambda g: resolve("grpo", epz=1), "did you mean 'eps'"),
    ],
)
def test_what_does_not_exist_or_fit_is_refused_with_what_is_possible(call, message):
    with pytest.raises(CreditError, match=message):
        call(group_of([[1.0], [0.0]]))


@pytest.mark.parametrize("name", BUILT_IN)
@pytest.mark.parametrize(
    ("turns", "outcomes", "message"),
    [
        ([[0.0], [0.0, NAN]], None, "reward of trajectory 1, turn 2 is nan"),
        ([[INF], [0.0]], None, "reward of trajectory 0, turn 1 is inf"),
        ([[0.0], [-INF]], None, "reward of trajectory 1, turn 1 is -inf"),
        ([[0.0], [1e101]], None, r"reward of trajectory 1, turn 1 is 1e\+101; sizes up to 1e\+100"),
        ([[0.0], [0.0]], [0.0, NAN], "outcome of trajectory 1 is nan"),
    ],
)
def test_a_reward_that_is_no_number_is_refused_by_trajectory_and_turn(name, turns, outcomes, message):
    with pytest.raises(CreditError, match=message):
        estimate(name, group_of(turns, outcomes=outcomes))


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_trajectory_without_rewards_gets_no_credit(name):
    group = group_of([[1.0], [0.0]])
    bare = dataclasses.replace(group.trajectories[1], rewards=None)
    unscored = dataclasses.replace(group, trajectories=(group.trajectories[0], bare))

    with pytest.raises(CreditError, match="trajectory 1 has no rewards"):
        estimate(name, unscored)


@pytest.mark.usefixtures("forgets_registrations")
def test_a_user_registers_an_estimator_with_described_parameters():
    @register_estimator("best_of", formula="1 for the best", bias="large", source="us")
    def best_of(
        group, *, bonus: Annotated[float, Param("for the best", low=0)] = 1.0, ties: Literal["all"] = "all"
    ):
        """Credit only the best sibling."""
        best = max(trajectory.score for trajectory in group.trajectories)
        return [[bonus * (t.score == best)] * len(t.turns) for t in group.trajectories]

    spec = describe("best_of")
    assert estimate("best_of", group_of([[0.0, 1.0], [0.5]]), bonus=2.0) == [[2.0, 2.0], [0.0]]
    assert [(p.name, p.kind, p.possible) for p in spec.parameters] == [
        ("bonus", "number", "number ≥ 0"),
        ("ties", "choice", "all"),
        ("singleton", "choice", "zero · raw · error"),
    ]


@pytest.mark.usefixtures("forgets_registrations")
def test_a_parameter_of_the_user_s_own_that_is_called_singleton_stays_the_user_s():
    @register_estimator("flat")
    def flat(group, *, singleton: bool = True):
        return [[float(singleton)] * len(t.turns) for t in group.trajectories]

    assert [p.kind for p in describe("flat").parameters] == ["flag"]
    assert estimate("flat", group_of([[0.5]])) == [[1.0]]


@pytest.mark.usefixtures("forgets_registrations")
@pytest.mark.parametrize(
    ("result", "message"),
    [
        ([[1.0]], "gave 1 lists for a group of 2 trajectories"),
        ([[1.0], [1.0]], "gave 1 advantages for 2 turns of trajectory 1"),
        ([[1.0], [1.0, NAN]], "gave nan to trajectory 1, turn 2"),
    ],
)
def test_a_user_s_estimator_that_gives_nonsense_is_named(result, message):
    @register_estimator("wrong")
    def wrong(group):
        return result

    with pytest.raises(CreditError, match=f"wrong {message}"):
        estimate("wrong", group_of([[0.0], [0.0, 0.0]]))


@pytest.mark.usefixtures("forgets_registrations")
@pytest.mark.parametrize("place", [(0, -1), (-1, 0), (-1, None), (0, 1), (2, None)])
def test_a_term_of_a_turn_that_the_group_does_not_have_is_refused(place):
    @register_estimator("elsewhere")
    def elsewhere(group):
        return [Term(name="reward", values=Pool([place], [1.0]))]

    with pytest.raises(CreditError, match="elsewhere gave a term for a turn that the group does not have"):
        elsewhere(group_of([[1.0], [0.0]]))


def test_a_name_that_is_taken_is_not_replaced():
    with pytest.raises(CreditError, match="an estimator named 'grpo' exists"):
        register_estimator("grpo")(lambda group: [])

    assert ESTIMATORS["grpo"] is grpo


def test_a_parameter_that_no_setting_can_carry_is_refused_at_registration():
    def needs_list(group, *, weights: list[float] = []): ...  # noqa: B006

    def needs_value(group, *, weight: float): ...

    with pytest.raises(CreditError, match="must be annotated float, int, bool"):
        register_estimator("needs_list")(needs_list)
    with pytest.raises(CreditError, match="parameter 'weight' needs a default"):
        register_estimator("needs_value")(needs_value)


@pytest.mark.parametrize(
    ("estimator", "parameter", "text", "value"),
    [
        ("turn_return", "gamma", "0.9", 0.9),
        ("grpo", "ddof", "0", 0),
        ("grpo", "norm_by_std", "False", False),
        ("turn_return", "baseline", "loo_total", "loo_total"),
    ],
)
def test_a_parameter_is_read_from_text(estimator, parameter, text, value):
    assert describe(estimator).parameter(parameter).read(text, estimator) == value


@pytest.mark.parametrize(
    ("estimator", "parameter", "text"),
    [("turn_return", "gamma", "much"), ("grpo", "ddof", "0.5"), ("grpo", "norm_by_std", "maybe")],
)
def test_text_that_is_no_possible_value_is_refused(estimator, parameter, text):
    with pytest.raises(CreditError, match=f"{estimator}: {parameter} is '{text}'; possible"):
        describe(estimator).parameter(parameter).read(text, estimator)


def test_an_estimator_that_is_gone_names_what_to_take():
    with pytest.raises(CreditError, match="the estimator 'progress' is gone: take turn_return"):
        describe("progress")
