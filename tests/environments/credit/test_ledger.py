"""The ledger adds up to the recorded advantage, or says that nobody can say how."""

import math
import statistics
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from environments.credit import (
    ESTIMATORS,
    PRESETS,
    credited,
    credited_batch,
    describe,
    register_estimator,
)
from environments.credit.ledger import ledger
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
    ("mt_grpo", {"turn_coef": 0.5}),
    *(("grpo_multiturn", {"norm_by_std": by_std}) for by_std in (True, False)),
    *((name, {"gamma": 0.5}) for name in ("process_supervision", "rllm_per_step", "gagpo", "rtmc")),
    *(("igpo", {"streams": each, "gamma": 0.5}) for each in ("joint", "separate")),
    ("hgpo", {"base_group": True}),
    *((name, {}) for name in ("salt", "tree_grpo")),
    ("turn_gae", {"gamma": 0.9, "lam": 0.5}),
    *((name, {"singleton": each}) for name in ("opo", "passk") for each in ("zero", "raw")),
    *(
        (name, {"preset": preset})
        for preset, names in PRESETS.items()
        for name in names
        if describe(name).over_step is None
    ),
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
        name
        for name, each in ESTIMATORS.items()
        if each.__module__.startswith("environments.credit.") and describe(name).over_step is None
    }

    assert {name for name, _ in VARIANTS} == shipped


@pytest.mark.parametrize(("name", "params"), VARIANTS, ids=IDS)
@quick
@given(group=groups())
def test_the_terms_of_a_trained_turn_add_up_to_its_recorded_advantage(name, params, group):
    done = credit(group, name, **params)

    for turn, entry in entries(done):
        if turn.trained and done.status != "failed":
            total = math.fsum(
                term.weight * (term.value - (term.baseline or 0.0)) / (term.divisor or 1.0)
                for term in entry.terms
            )
            assert near(total, entry.advantage, *(term.value / (term.divisor or 1.0) for term in entry.terms))


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
def test_peers_are_turns_of_the_same_act_index_in_other_siblings(group):
    done = credit(group, "turn_return")
    trajectories = done.group.trajectories

    for trajectory, row in zip(trajectories, ledger(done), strict=True):
        acts = 0
        for turn, entry in zip(trajectory.turns, row, strict=True):
            for term in entry.terms:
                for peer in term.peers:
                    other = trajectories[peer.sibling]
                    assert other.sibling != trajectory.sibling
                    assert [each.index for each in other.acts].index(peer.turn) == acts
            acts += turn.kind == "act"


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
    assert summary.notes == ["a summary is credited as the act that follows it is"]


@pytest.mark.usefixtures("forgets_registrations")
def test_an_estimator_that_refuses_its_group_now_explains_nothing():
    done = credit(group_of([[1.0], [0.0]]), "turn_return")

    @register_estimator("refuses")
    def refuses(group):
        raise ValueError(group)

    entry = ledger(replace(done, estimator="refuses", estimator_params={}))[0][0]

    assert (entry.terms, entry.notes) == ([], ["refuses cannot say how: ValueError"])


def test_numbers_that_are_not_the_estimators_are_not_explained():
    done = replace(credit(group_of([[1.0], [2.0]]), "turn_return"), advantages=((0.25,), (1.0,)))

    first, second = (row[0] for row in ledger(done))

    assert (first.terms, len(second.terms)) == ([], 1)
    assert "another number" in first.notes[0]


def test_a_group_that_nobody_credited_says_why_for_every_turn():
    done = credit(group_of([[1.0], [1.0], [4.0]]), "turn_return")
    evaluated = replace(done, advantages=((0.0,),) * 3, status="no_credit", reason="an evaluation")

    assert all((entry.terms, entry.notes) == ([], ["an evaluation"]) for _, entry in entries(evaluated))


def test_of_an_estimator_that_compares_a_step_one_group_does_not_show_how():
    alone = [credit(group_of([[1.0], [0.0]]), "rloo"), credit(group_of([[2.0], [0.5]]), "rloo")]

    one, _ = credited_batch(alone, "reinforce_pp")

    assert [entry.notes for _, entry in entries(one)] == [
        ["reinforce_pp compares all groups of its step, of which this is one"]
    ] * 2


def test_a_record_made_before_singleton_was_a_setting_explains_its_raw_returns():
    group = group_of([[1.0, 0.5]])
    old = replace(credit(group, "turn_return", singleton="raw"), estimator_params={"gamma": 1.0})

    assert [(entry.advantage, len(entry.terms)) for entry in ledger(old)[0]] == [(1.5, 1), (0.5, 1)]


@pytest.mark.usefixtures("forgets_registrations")
def test_what_is_gone_is_no_matter_of_a_user_s_estimator():
    @register_estimator("in_parts")
    def in_parts(group, *, segments: int = 3):
        return [[float(segments)] * len(each.turns) for each in group.trajectories]

    assert len(ledger(credit(group_of([[1.0], [0.0]]), "in_parts"))[0][0].terms) == 1


def test_a_record_of_what_is_gone_reads_and_explains_nothing():
    done = credit(group_of([[1.0], [0.0]]), "mt_grpo")

    for name, params in (("progress", {}), ("mt_grpo", {"segments": "per_turn"})):
        entry = ledger(replace(done, estimator=name, estimator_params=params))[0][0]
        assert entry.terms == []
