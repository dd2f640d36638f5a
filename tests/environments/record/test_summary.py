import io
from dataclasses import replace

from rich.console import Console

from environments.record.summary import (
    duration,
    forks_in_short,
    headline,
    print_summary,
    summary_rows,
    weights_text,
)
from environments.record.totals import Summary
from environments.testing import group_of
from environments.trajectory import (
    Condensed,
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
from tests.environments.record.any_group import all_withheld
from tests.environments.record.test_totals import of, sampled
from tests.tables import cases
from tools.calls import ToolResult


def trajectory(*rewards, score=None, exact=True, errors=(), **fields):
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
            **fields,
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
    return dict(summary_rows(summary_of(*groups).values(), wall_s=1.0))


def printed(*groups, path="out.jsonl", width=80):
    out = io.StringIO()
    print_summary(Console(file=out, width=width), summary_of(*groups), path=path, wall_s=2.0)
    return out.getvalue()


def test_rows_are_means_over_rollouts_with_their_range():
    rows = rows_of(credited(trajectory(1.0, 0.5), trajectory(0.0)), credited(trajectory(0.5)))
    assert rows["score"] == "mean 0.667, sd 0.764, min 0, max 1.5"
    assert rows["reward by turn"] == "1: 0.500  2: 0.500"
    # A turn that was not scored does not pull its mean down, and many indices end in one mean of the rest.
    assert rows_of(credited(trajectory(1.0), trajectory(None)))["reward by turn"] == "1: 1.000"
    many = rows_of(credited(trajectory(*[0.0] * 12, 1.0, 3.0)))["reward by turn"]
    assert many.endswith("12: 0.000  13+: 2.000")
    assert rows_of()["score"] == "-"


def test_tool_errors_are_counted_by_kind_and_tokens_by_exactness():
    one = trajectory(0.0, errors=("invalid_json", "unknown_tool", "invalid_json", None))
    rows = rows_of(credited(one, trajectory(0.0, 0.0, exact=False)))
    assert (rows["tool calls"], rows["tool errors"]) == ("4", "invalid_json 2, unknown_tool 1")
    assert rows["tokens sampled"] == "2 exact, 4 approximate"


def test_skipped_and_failed_groups_are_counted_with_their_reasons():
    skipped = credited(trajectory(0.0), status="no_credit", reason="every advantage is zero")
    lost = credited(status="failed", reason="0 of 4 rollouts survived", errors=("ValueError: x",))
    rows = rows_of(skipped, skipped, lost, credited(trajectory(1.0)))
    assert rows["groups"] == "4 (no_credit 2, failed 1, ok 1)"
    assert rows["skipped groups"] == (
        "2x no credit: a single rollout is compared with nothing\n1x broken: ValueError: x"
    )
    assert rows["what to do"] == "take more siblings, --env.group_size 4 or more"
    assert rows["dropped rollouts"] == "1x ValueError: x"


def test_a_path_has_a_line_of_its_own_however_long_and_brackets_are_text():
    path = "folder/" * 30 + "out.jsonl"
    lines = printed(credited(errors=("KeyError: [red]",)), path=path)
    assert lines.splitlines()[-1] == path
    assert "KeyError: [red]" in lines


@cases(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (59.9, "59.9 s"), (59.96, "1:00 min"), (125, "2:05 min"), (3723, "1:02:03 h")],
)
def test_a_duration_reads_like_a_clock(seconds, text):
    assert duration(seconds) == text


PLACE = "environment 'e', item '1, 2': turn 3: "


@cases(
    ("error", "shown"),
    [
        ("HTTPError: judge at 10.0.0.1:80 failed: request 3 (env.py:3 in f)", "judge at 10.0.0.1:80 failed"),
        (f"RewardError: {PLACE}a reward is a number", "a reward is a number"),
        ("RewardError: environment 'e', item '1': compute_outcome: {} is not a reward; give parts",
         "compute_outcome: {} is not a reward"),
        ("RewardError: no outcome", "no outcome"),
        ("RewardError: environment 'e': respond gave 5; give text", "respond gave 5"),
        ("RewardError: user.reply() got an unexpected keyword", "user.reply() got an unexpected keyword"),
    ],
)  # fmt: skip
def test_failures_are_tallied_by_class_and_first_clause_wherever_they_were(error, shown):
    kind = error.partition(": ")[0]
    elsewhere = error.replace("item '1", "item '2").replace("request 3", "request 4")
    assert summary_of(credited(errors=(error, elsewhere))).values()["failures"] == {f"{kind}: {shown}": 2}


def test_what_judges_and_users_answered_is_counted_with_what_it_cost():
    call = JudgeCall(hook="h", model="m", messages=(), answer="a")
    paid = replace(call, usage={"prompt_tokens": 1200, "completion_tokens": 3})
    rows = rows_of(credited(replace(trajectory(1.0), judge_calls=(paid, call), user_calls=(call,))))
    assert (rows["judge"], rows["user"]) == ("2 answers, 1,203 tokens", "1 answer")


def forked(*causes, prompt=10, sampled=2):
    """A rollout with a turn for each cause; one that forked is in a row whose prompt holds all before."""
    turns, rows, tokens = [], [], prompt
    for index, cause in enumerate(causes):
        if rows and cause is None:
            rows.pop()
        span = Span(row=len(rows), start=tokens, end=tokens + sampled)
        tokens += sampled
        rows.append(TokenRow(token_ids=(0,) * tokens, logprobs=None))
        turns.append(Turn(index=index, message=Message(role="assistant"), span=span, fork=cause))
    return Trajectory(item_id="a", turns=tuple(turns), rows=tuple(rows))


def forks(*rollouts):
    return rows_of(credited(*rollouts)).get("forks", "").splitlines()


def test_forks_are_counted_by_cause_and_what_a_trainer_gets_per_sampled_token():
    two = forks(forked(None, "template", None, "history"), forked(None, "template"))
    assert two[0] == "3 of 6 turns began a new row: template 2, history 1"
    rollout = forked(None, *["template"] * 49, prompt=470, sampled=600)
    ratio = "26.3 trainer tokens per sampled one"
    assert forks(rollout)[1] == f"a trainer gets 788,500 tokens for 30,000 sampled ({ratio})"
    assert forks_in_short(summary_of(credited(rollout)).values()) == f"forks 49, {ratio}"
    assert forks(forked(None, None)) == []
    assert forks_in_short(summary_of(credited(forked(None, None))).values()) == ""


def test_what_to_do_about_forks_names_the_setting():
    settings = {
        "template": "--openai.server_type",
        "renderer: no close": "--openai.family",
        "history: fit_context": "--env.condenser_tokens",
    }
    assert [cause for cause, name in settings.items() if name not in forks(forked(None, cause))[2]] == []
    assert len(forks(forked(None, "mine"))) == 2


KINDS = ["act", "summary", "act", "act"]


def condensed(*how, kinds=KINDS):
    """A rollout for each, condensed before its last turn; `None`: it was not."""
    group = group_of([[None] * len(kinds)] * len(how), kinds=[kinds] * len(how))
    rollouts = (
        replace(each, turns=(*each.turns[:-1], replace(each.turns[-1], condensed=one)))
        for each, one in zip(group.trajectories, how, strict=True)
    )
    return credited(*rollouts)


def made(cause, before, after, **fields):
    return Condensed(cause=cause, tokens_before=before, tokens_after=after, **fields)


def test_means_are_over_condensations_and_counts_over_rollouts():
    group = condensed(
        made("fit_context", 1000, 500, seconds=0.25), made("a, b", 3000, 500, is_estimate=True), None
    )
    rows, values = rows_of(group), summary_of(group).values()["condensed"]
    assert rows["condensed"] == (
        "2 times in 2 of 3 rollouts, 2,000 to 500 tokens on average, estimated, 0.2 s: a, b 1, fit_context 1"
    )
    assert rows["summaries"] == "3 by the policy, 1 tokens on average"
    assert (values["per_rollout"], values["summaries_per_rollout"]) == (2 / 3, 1.0)
    assert (values["tokens_before"]["mean"], values["tokens_after"]["mean"]) == (2000.0, 500.0)


def test_what_was_not_condensed_has_no_tokens_before_and_without_summaries_no_words():
    values = summary_of(condensed(None)).values()["condensed"]
    assert (values["summaries_per_rollout"], values["tokens_before"]["mean"]) == (1.0, None)
    group = condensed(None, kinds=["act", "act"])
    assert not {"condensed", "summaries", "judge", "user"} & rows_of(group).keys()
    assert summary_of(group).values()["condensed"] == {}


def test_a_summary_of_a_run_counts_acts_as_turns():
    group = credited(*group_of([[0.5, None, 0.25, 1.0]], kinds=[KINDS]).trajectories)
    rows = rows_of(replace(group, advantages=((0.5,) * 4,), turns_without_peer=1))
    assert rows["turns"] == "mean 3.000, min 3, max 3"
    assert rows["reward by turn"] == "1: 0.500  2: 0.250  3: 1.000"
    assert rows["without a peer"].startswith("1 of 3 turns")


def noted(metrics=None, **rewards):
    return replace(trajectory(0.0, 0.0, **rewards), metrics=metrics or {})


def test_parts_are_summed_over_a_rollout_raw_ones_and_metrics_averaged():
    one = noted(
        {"a": 1.0},
        turn_components=({"a": 0.25}, {"a": 0.5}),
        outcome_components={"a": 1.0, "b": 2.0},
        turn_raw=({"a": 0.0}, {"a": 1.0}),
        outcome_raw={"a": 0.5, "b": 3.0},
    )
    rows = rows_of(credited(one, noted({"a": 0.5, "b": 2.0})))
    assert rows["reward by part"] == "a: 1.750 (1)  b: 2.000 (1)"
    assert rows["before weights"] == "a: 0.500 (3)  b: 3.000 (1)"
    assert rows["metrics"] == "a: 0.750 (2)  b: 2.000 (1)"


def test_what_was_not_measured_or_overflows_is_not_shown():
    group = credited(replace(trajectory(0.0), rewards=None))
    assert not {"reward by part", "before weights", "metrics"} & rows_of(group).keys()
    assert headline(summary_of(group).values()) == ""
    assert "metrics" not in rows_of(credited(*[noted({"a": 1e308})] * 3))


def test_a_headline_has_a_few_parts_and_metrics_and_other_names_are_counted():
    one = noted({"x": 1.0, "y": 1.0}, outcome_components={"a": 0.5, "b": 1.0})
    assert headline(summary_of(credited(one)).values()) == "a 0.500, b 1.000, x 1.000, +1"
    text = rows_of(credited(*(noted({f"{n:04}": 1.0}) for n in range(100))))["metrics"]
    assert text.endswith("0019: 1.000 (1)  and 80 numbers of other names")


def test_the_weights_that_played_are_one_line():
    texts = {
        "": [sampled("--")],
        "a": [sampled("aa", "a")],
        "2 versions, a to b, groups of several 1, rollouts of several 1": [sampled("aa", "ab")],
        "a, groups of unknown ones 1": [sampled("a"), sampled("-")],
        "a, stale groups 1, withheld turns 1, by the turns of a rollout 50% of 1": [
            sampled("a"),
            all_withheld(sampled("a"), "stale: x"),
        ],
    }
    shown = [weights_text(of(*groups)) for groups in texts.values()]
    assert shown == list(texts)
