"""The ledger adds up to the recorded advantage, or says that nobody can say how."""

import math
import statistics
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from environments.credit import ESTIMATORS, PRESETS, credited, register_estimator, resolve
from environments.credit.ledger import ledger, peers_of, spread_of
from environments.credit.terms import NO_PEER
from environments.testing import group_of

VARIANTS = [
    ("turn_return", {"gamma": 0.5, "baseline": baseline, "scale": scale, "outcome_weight": 0.5})
    for baseline in ("loo_index", "loo_total", "group_mean", "none")
    for scale in ("none", "group_std")
] + [
    *(("rloo", {"singleton": each}) for each in ("zero", "raw")),
    *(
        ("grpo", {"norm_by_std": by_std, "ddof": ddof, "singleton": alone})
        for by_std in (True, False)
        for ddof in (0, 1)
        for alone in ("zero", "raw")
    ),
    *(
        ("gigpo", {"mode": mode, "episode_stats": stats, "step_weight": 0.5})
        for mode in ("mean_norm", "mean_std_norm")
        for stats in ("trajectory", "rows")
    ),
    *(("mt_grpo", {"segments": each, "turn_coef": 0.5}) for each in ("two", "per_turn")),
    *((name, {"gamma": 0.5}) for name in ("process_supervision", "progress")),
    ("turn_gae", {"gamma": 0.9, "lam": 0.5}),
    *((name, {"preset": preset}) for preset, names in PRESETS.items() for name in names),
]
IDS = [f"{name}-{'-'.join(map(str, params.values()))}" for name, params in VARIANTS]
MEANS = [
    (name, params) for name, params in VARIANTS if name in {"turn_return", "rloo", "grpo", "gigpo", "mt_grpo"}
]

quick = settings(max_examples=10, deadline=None)
small = st.integers(min_value=-64, max_value=64).map(lambda eighths: eighths / 8)


@st.composite
def groups(draw):
    """Ragged groups with unscored turns, summaries, states, and turns that are not trained."""
    shape = draw(st.lists(st.integers(0, 4), min_size=0, max_size=4))
    kinds = [[draw(st.sampled_from(["act", "act", "act", "summary"])) for _ in range(n)] for n in shape]
    rewards = [[None if kind == "summary" else draw(st.none() | small) for kind in row] for row in kinds]
    outcomes = [draw(st.none() | small) for _ in shape]
    states = [[draw(st.sampled_from("ab")) for _ in row] for row in kinds]
    group = group_of(rewards, outcomes=outcomes, anchors=states, kinds=kinds)
    return replace(
        group,
        trajectories=tuple(
            replace(
                each, turns=tuple(replace(turn, trained=draw(st.integers(0, 3)) > 0) for turn in each.turns)
            )
            for each in group.trajectories
        ),
    )


def credit(group, name, *, preset=None, **params):
    return credited(group, name, policy="p", preset=preset, params=params)


def entries(group):
    """Each turn with its entry."""
    for trajectory, row in zip(group.group.trajectories, ledger(group), strict=True):
        yield from zip(trajectory.turns, row, strict=True)


def near(one, other, *sizes):
    return math.isclose(one, other, rel_tol=1e-12, abs_tol=1e-12 * max([1.0, *map(abs, sizes)]))


def test_the_variants_name_every_shipped_estimator():
    shipped = {
        name for name, each in ESTIMATORS.items() if each.__module__.startswith("environments.credit.")
    }

    assert {name for name, _ in VARIANTS} == shipped


@pytest.mark.parametrize(("name", "params"), VARIANTS, ids=IDS)
@quick
@given(group=groups())
def test_the_terms_of_a_trained_turn_add_up_to_its_recorded_advantage(name, params, group):
    done = credit(group, name, **params)

    for turn, entry in entries(done):
        if turn.trained and done.status != "failed":
            total = math.fsum(term.advantage for term in entry.terms)
            assert near(total, entry.advantage, *(term.value / (term.divisor or 1.0) for term in entry.terms))


@quick
@given(group=groups())
def test_the_ledger_has_the_recorded_advantages(group):
    done = credit(group, "turn_return")

    assert [[entry.advantage for entry in row] for row in ledger(done)] == [[*row] for row in done.advantages]


@pytest.mark.parametrize(
    ("name", "params"), MEANS, ids=[f"{name}-{'-'.join(map(str, params.values()))}" for name, params in MEANS]
)
@quick
@given(group=groups())
def test_a_baseline_is_the_mean_of_its_peers(name, params, group):
    done = credit(group, name, **params)

    for _, entry in entries(done):
        for term in entry.terms:
            assert (term.baseline is None) == (not term.peers)
            if term.peers:
                values = [peer.value for peer in term.peers]
                assert near(statistics.fmean(values), term.baseline, *values)


@quick
@given(group=groups())
def test_a_reward_and_what_follows_it_are_the_value_compared(group):
    done = credit(group, "turn_return", gamma=0.5)

    for _, entry in entries(done):
        for term in entry.terms:
            assert near((entry.reward or 0.0) + entry.follows, term.value, entry.follows)


@quick
@given(group=groups())
def test_peers_are_turns_of_the_same_act_index_in_other_siblings(group):
    done = credit(group, "turn_return")
    trajectories = done.group.trajectories

    for trajectory, row in zip(trajectories, ledger(done), strict=True):
        acts = 0
        for turn, entry in zip(trajectory.turns, row, strict=True):
            for term in entry.terms:
                for peer in peers_of(term, trajectories, turn):
                    other = trajectories[peer.sibling]
                    assert other.sibling != trajectory.sibling
                    assert [each.index for each in other.acts].index(peer.turn) == acts
            acts += turn.kind == "act"


def test_a_turn_that_no_sibling_reached_has_no_baseline_and_says_so():
    done = credit(group_of([[1.0], [1.0, 5.0]]), "turn_return")

    entry = ledger(done)[1][1]

    assert (entry.terms[0].value, entry.terms[0].baseline, entry.notes) == (5.0, None, (NO_PEER,))


def test_the_spread_is_that_of_the_peers_alone():
    done = credit(group_of([[1.0], [2.0], [4.0]]), "turn_return")

    assert spread_of(ledger(done)[0][0].terms[0]) == statistics.stdev([2.0, 4.0])


def test_a_turn_that_is_not_trained_trains_no_token_and_says_so():
    group = group_of([[1.0], [2.0]], lengths=[[3], [4]])
    masked = replace(group.trajectories[0], turns=(replace(group.trajectories[0].turns[0], trained=False),))
    done = credit(replace(group, trajectories=(masked, group.trajectories[1])), "turn_return")

    rows = ledger(done)

    assert [(row[0].tokens, row[0].advantage) for row in rows] == [(0, 0.0), (4, 1.0)]
    assert rows[0][0].notes[0].startswith("not trained")


def test_a_summary_is_explained_as_the_act_that_follows_it():
    kinds = [["act", "summary", "act"], ["act", "act"]]
    done = credit(group_of([[0.0, None, 2.0], [0.0, 1.0]], kinds=kinds), "turn_return")

    _, summary, act = ledger(done)[0]

    assert summary.terms == act.terms
    assert summary.notes == ("a summary is credited as the act that follows it is",)


@pytest.mark.usefixtures("forgets_registrations")
def test_an_estimator_that_says_nothing_of_itself_is_not_explained():
    @register_estimator("halves")
    def halves(group):
        return [[0.5] * len(each.turns) for each in group.trajectories]

    entry = ledger(credit(group_of([[1.0]]), "halves"))[0][0]

    assert (entry.terms, entry.notes) == ((), ("halves does not say how",))


@pytest.mark.usefixtures("forgets_registrations")
def test_an_explanation_that_raises_is_none():
    def explained(group):
        raise ValueError(group)

    @register_estimator("halves", explained=explained)
    def halves(group):
        return [[0.5] * len(each.turns) for each in group.trajectories]

    entry = ledger(credit(group_of([[1.0]]), "halves"))[0][0]

    assert (entry.terms, entry.notes) == ((), ("halves cannot say how: ValueError",))


def test_an_estimator_that_is_not_registered_here_is_not_explained():
    done = replace(credit(group_of([[1.0], [2.0]]), "turn_return"), estimator="somebodys")

    assert all(not entry.terms and "no estimator" in entry.notes[0] for _, entry in entries(done))


def test_numbers_that_are_not_the_estimators_are_not_explained():
    done = replace(credit(group_of([[1.0], [2.0]]), "turn_return"), advantages=((0.25,), (1.0,)))

    first, second = (row[0] for row in ledger(done))

    assert (first.terms, len(second.terms)) == ((), 1)
    assert "another number" in first.notes[0]


def test_parameters_that_the_estimator_no_longer_has_explain_nothing():
    done = replace(credit(group_of([[1.0], [2.0]]), "turn_return"), estimator_params={"former": 1})

    assert ledger(done)[0][0].notes == ("turn_return cannot say how: CreditError",)


def test_a_failed_group_has_entries_without_terms():
    done = credit(group_of([[1.0], [2.0]], outcomes=[1.0, None]), "turn_return")

    assert {(entry.terms, entry.notes) for _, entry in entries(done)} == {
        ((), ("the group failed: no credit",))
    }


def test_a_critics_values_are_baselines():
    group, values = group_of([[1.0, 2.0]]), [[0.5, 0.25]]
    params = {**resolve("turn_gae"), "values": values}
    done = replace(credit(group, "turn_gae"), advantages=((2.5, 1.75),), estimator_params=params)

    assert [entry.terms[0].baseline for _, entry in entries(done)] == [0.5, 0.25]
