"""What condensers did is summed up: how often, from how many tokens to how many, and by which summaries."""

from dataclasses import replace

from environments.record.condensations import Condensations
from environments.record.summary import Summary, summary_rows
from environments.testing import group_of
from environments.trajectory import Condensed
from tests.environments.record.recorded import credited

KINDS = ["act", "summary", "act", "act"]


def rollouts(*condensed, kinds=KINDS):
    """A rollout for each, condensed before its last turn; `None`: it was not."""
    group = group_of([[None] * len(kinds)] * len(condensed), kinds=[kinds] * len(condensed))
    return replace(
        group,
        trajectories=tuple(
            replace(each, turns=(*each.turns[:-1], replace(each.turns[-1], condensed=how)))
            for each, how in zip(group.trajectories, condensed, strict=True)
        ),
    )


def made(cause, before, after, **fields):
    return Condensed(cause=cause, tokens_before=before, tokens_after=after, **fields)


def condensations(group):
    summed = Condensations()
    for each in group.trajectories:
        summed.add(each)
    return summed


def test_nothing_is_said_where_nothing_was_condensed():
    summed = condensations(rollouts(None, kinds=["act", "act"]))
    assert (summed.rows(), summed.values()) == ([], {})


def test_means_are_over_condensations_and_counts_over_rollouts():
    summed = condensations(
        rollouts(made("fit_context", 1000, 500, seconds=0.25), made("a, b", 3000, 500), None)
    )
    assert dict(summed.rows()) == {
        "condensed": "2 times in 2 of 3 rollouts, 2,000 to 500 tokens on average, 0.2 s: "
        "a, b 1, fit_context 1",
        "summaries": "3 by the policy, 1 tokens on average",
    }
    values = summed.values()
    assert (values["per_rollout"], values["summaries_per_rollout"]) == (2 / 3, 1.0)
    assert (values["tokens_before"]["mean"], values["tokens_after"]["mean"]) == (2000.0, 500.0)


def test_an_estimate_is_called_one():
    summed = condensations(rollouts(made("fit_context", 1000, 500, is_estimate=True)))
    assert "tokens on average, estimated" in dict(summed.rows())["condensed"]


def test_summaries_without_a_condensation_have_no_tokens_before():
    values = condensations(rollouts(None)).values()
    assert (values["summaries_per_rollout"], values["tokens_before"]["mean"]) == (1.0, None)


def test_a_summary_of_a_run_counts_acts_as_turns():
    group = group_of([[0.5, None, 0.25, 1.0]], kinds=[KINDS])
    summary = Summary()
    summary.add(replace(credited(group), advantages=((0.5, 0.5, 0.5, 0.5),), turns_without_peer=1))

    rows = dict(summary_rows(summary, wall_s=1.0))

    assert rows["turns"] == "mean 3.000, min 3, max 3"
    assert rows["reward by turn"] == "1: 0.500  2: 0.250  3: 1.000"
    assert rows["without a peer"].startswith("1 of 3 turns")
    assert rows["summaries"] == "1 by the policy, 1 tokens on average"
