import io
from dataclasses import replace

import pytest
from rich.console import Console

from environments.record.summary import Summary, duration, print_summary, summary_rows
from environments.record.tally import MAX_TEXTS
from environments.trajectory import (
    CreditedGroup,
    Failure,
    JudgeCall,
    Message,
    Rewards,
    Span,
    StopReason,
    TokenRow,
    Trajectory,
    TrajectoryGroup,
    Turn,
)
from tools.calls import ToolResult


def trajectory(*rewards, score=None, exact=True, errors=(), parts=()):
    turns = tuple(
        Turn(
            index=index,
            message=Message(role="assistant"),
            span=Span(row=0, start=3 * index, end=3 * index + 2),
            tool_results=tuple(
                ToolResult(call_id="c", name="t", content="", error=error) for error in errors
            ),
        )
        for index in range(len(rewards))
    )
    return Trajectory(
        item_id="a",
        turns=turns,
        rows=(TokenRow(token_ids=(0,) * 3 * len(rewards), logprobs=None),),
        stop_reason=StopReason.COMPLETED,
        exact=exact,
        rewards=Rewards(
            turns=rewards,
            score=sum(filter(None, rewards)) if score is None else score,
            turn_components=parts,
        ),
    )


def credited(*trajectories, status="ok", reason=None, errors=()):
    failures = tuple(
        Failure(sibling=n, stop_reason=None, error=error, traceback="", turns=0)
        for n, error in enumerate(errors)
    )
    group = TrajectoryGroup(item_id="a", trajectories=trajectories, failures=failures)
    return CreditedGroup(
        group=group,
        advantages=tuple((0.0,) * len(t.turns) for t in trajectories),
        policy="p",
        estimator="e",
        status=status,
        reason=reason,
    )


def summary_of(*groups):
    summary = Summary()
    for group in groups:
        summary.add(group)
    return summary


def rows_of(*groups):
    return dict(summary_rows(summary_of(*groups), wall_s=1.0))


def printed(*groups, path="out.jsonl", width=80):
    out = io.StringIO()
    print_summary(Console(file=out, width=width), summary_of(*groups), path=path, wall_s=2.0)
    return out.getvalue()


def test_the_score_is_averaged_over_rollouts_with_its_range():
    rows = rows_of(credited(trajectory(1.0), trajectory(0.0)), credited(trajectory(0.5)))
    assert rows["score"] == "mean 0.500, sd 0.500, min 0, max 1"


def test_rewards_are_averaged_by_turn_index():
    rows = rows_of(credited(trajectory(1.0, 0.5), trajectory(0.0)))
    assert rows["reward by turn"] == "1: 0.500  2: 0.500"


def test_a_turn_that_was_not_scored_does_not_pull_its_mean_down():
    rows = rows_of(credited(trajectory(1.0), trajectory(None)))
    assert rows["reward by turn"] == "1: 1.000"


def test_many_turn_indices_end_in_one_mean_of_the_rest():
    rows = rows_of(credited(trajectory(*[0.0] * 12, 1.0, 3.0)))
    assert rows["reward by turn"].endswith("12: 0.000  13+: 2.000")


def test_reward_parts_are_summed_over_a_trajectory_before_they_are_averaged():
    one = trajectory(0.0, 0.0, parts=({"test": 0.25}, {"test": 0.25, "speed": 1.0}))
    assert rows_of(credited(one))["reward by part"] == "speed: 1.000 (1)  test: 0.500 (1)"


def test_tool_errors_are_counted_by_kind():
    one = trajectory(0.0, errors=("invalid_json", "unknown_tool", "invalid_json", None))
    rows = rows_of(credited(one))
    assert (rows["tool calls"], rows["tool errors"]) == ("4", "invalid_json 2, unknown_tool 1")


def test_sampled_tokens_are_told_apart_by_exactness():
    rows = rows_of(credited(trajectory(0.0), trajectory(0.0, 0.0, exact=False)))
    assert rows["tokens sampled"] == "2 exact, 4 approximate"


def test_skipped_and_failed_groups_are_counted_with_their_reasons():
    rows = rows_of(
        credited(trajectory(0.0), status="no_credit", reason="every advantage is zero"),
        credited(trajectory(0.0), status="no_credit", reason="every advantage is zero"),
        credited(status="failed", reason="0 of 4 rollouts survived", errors=("ValueError: x",)),
        credited(trajectory(1.0)),
    )
    assert rows["groups"] == "4 (no_credit 2, failed 1, ok 1)"
    assert rows["skipped groups"] == (
        "2x no_credit: every advantage is zero\n1x failed: 0 of 4 rollouts survived"
    )
    assert rows["dropped rollouts"] == "1x ValueError: x"


def test_an_empty_run_has_no_mean_score():
    assert rows_of()["score"] == "-"


def test_reasons_stay_few_however_different_they_are():
    summary = summary_of(*(credited(errors=(f"ValueError: {n}",)) for n in range(500)))
    assert len(summary.failures) == MAX_TEXTS + 1
    assert summary.failures["ValueError: other texts"] == 500 - MAX_TEXTS


def test_the_path_is_printed_on_a_line_of_its_own_however_long():
    path = "folder/" * 30 + "out.jsonl"
    assert printed(credited(trajectory(1.0)), path=path).splitlines()[-1] == path


def test_text_in_brackets_is_printed_as_it_is():
    assert "KeyError: [red]" in printed(credited(errors=("KeyError: [red]",)))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (59.9, "59.9 s"), (59.96, "1:00 min"), (125, "2:05 min"), (3723, "1:02:03 h")],
)
def test_a_duration_reads_like_a_clock(seconds, text):
    assert duration(seconds) == text


def test_failures_are_tallied_by_class_first_clause_and_place():
    summary = summary_of(
        *(
            credited(
                errors=(f"HTTPError: judge at 10.0.0.1:80 failed: request {n}, try {n} (env.py:3 in f)",)
            )
            for n in range(500)
        )
    )
    assert summary.failures == {"HTTPError: judge at 10.0.0.1:80 failed": 500}


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        ("RewardError: environment 'e', item '1, 2': turn 3: a reward is a number", "a reward is a number"),
        ("RewardError: environment 'e', item '1': compute_outcome: {} is no reward; give parts",
         "compute_outcome: {} is no reward"),
        ("RewardError: no outcome", "no outcome"),
        ("RewardError: environment 'e': respond gave 5; give text", "respond gave 5"),
        ("RewardError: user.reply() got an unexpected keyword", "user.reply() got an unexpected keyword"),
    ],
)  # fmt: skip
def test_whose_reward_was_wrong_does_not_hide_what_was(error, shown):
    assert summary_of(credited(errors=(error, error))).failures == {f"RewardError: {shown}": 2}


def test_what_is_told_of_one_item_is_tallied_without_its_name():
    failure = "RewardError: environment 'x', item 'a': compute_turn_rewards gave 1 rewards; give one"
    summary = summary_of(credited(errors=(failure,)), credited(errors=(failure.replace("'a'", "'b'"),)))
    assert summary.failures == {"RewardError: compute_turn_rewards gave 1 rewards": 2}


def test_the_share_of_turns_without_a_peer_is_told():
    two = trajectory(1.0, 1.0)
    group = replace(credited(two, two), advantages=((0.5, 0.5), (0.0, 0.0)), turns_without_peer=1)
    rows = dict(summary_rows(summary_of(group), wall_s=1.0))
    assert rows["without a peer"] == "1 of 4 turns (25.0%), whose advantage is their raw return"


def test_forks_are_told_only_when_there_are_some():
    whole = trajectory(1.0, 1.0)
    first, second = whole.turns
    forked = replace(whole, turns=(first, replace(second, fork="template")))
    assert "forks" not in rows_of(credited(whole))
    assert rows_of(credited(forked))["forks"].startswith("1 of 2 turns began a new row: template 1")


def ended(reason):
    return replace(trajectory(1.0), stop_reason=StopReason.ENDED, end_reason=reason)


def test_the_reasons_that_environments_gave_for_an_end_are_counted():
    summary = Summary()
    summary.add(credited(ended("won"), ended("won"), ended("lost"), trajectory(1.0)))
    shown = dict(summary_rows(summary, wall_s=1.0))["stop reasons"]
    assert shown == "ended: won 2, completed 1, ended: lost 1"


def test_reasons_without_an_end_become_one():
    summary = Summary()
    for index in range(100):
        summary.add(credited(ended(f"reason {index}")))
    assert len(summary.stop_reasons) <= MAX_TEXTS + 1
    assert summary.stop_reasons["ended"] == 100 - MAX_TEXTS


def test_what_judges_and_users_answered_is_counted_with_what_it_cost():
    call = JudgeCall(hook="h", model="m", messages=(), answer="a")
    paid = replace(call, usage={"prompt_tokens": 1200, "completion_tokens": 3})
    rows = rows_of(credited(replace(trajectory(1.0), judge_calls=(paid, call), user_calls=(call,))))
    assert (rows["judge"], rows["user"]) == ("2 answers, 1,203 tokens", "1 answer")


def test_without_questions_there_is_no_line_of_them():
    assert not {"judge", "user"} & rows_of(credited(trajectory(1.0))).keys()
