"""What each check finds: one environment with one thing wrong for each."""

from tests.turnwise.check import checked_envs
from tests.turnwise.check.checked_envs import checked
from turnwise.check.check_run import NAMES


async def test_an_environment_without_fault_passes_all_that_applies_and_its_calls_are_shown_in_order(
    monkeypatch, tmp_path
):
    report = await checked(checked_envs.Right, monkeypatch, tmp_path)
    assert [name for name in NAMES if report[name][0] != "ok"] == ["tools"]
    calls = [(each["name"], each["given"]) for each in report["shown hooks"]]
    assert [name for name, _ in calls] == [
        "format_prompt",
        *["scripted_choices", "respond", "score_turn"] * 3,
        "compute_turn_rewards",
        "compute_outcome",
    ]
    assert calls[0] == ("format_prompt", '"Say yes, 0."')
    assert report["shown prompt"] == [{"role": "user", "content": "Say yes, 0."}]
    assert [turn["answers"] for turn in report["shown rollout"]] == [["Go on."], ["Go on."], []]


async def test_a_tool_that_refuses_is_no_fault_and_a_policy_is_repeated_whole(monkeypatch, tmp_path):
    report = await checked(checked_envs.Refuses, monkeypatch, tmp_path, items=1)
    given = [each["given"] for each in report["shown hooks"] if each["name"] == "tool refuse"]
    assert given[0] == "told the model: there is no tea"
    assert report["hooks"][0] == "warn"
    assert "limits_for gives max_turns 300, and --env.max_turns permits 10" in report["hooks"][1]
    assert report["siblings"][0] == "ok"


FAULTS = {
    "Raises": [
        ("rollout", "fail", "KeyError: 'no such key' (checked_envs.py:"),
        ("hooks", "fail", "score_turn raised KeyError"),
        ("skill", "skipped", "the first rollout broke"),
    ],
    "RaisesForBad": [("failures", "fail", "ZeroDivisionError")],
    "Lucky": [
        ("siblings", "fail", "part luck differs: "),
    ],
    "LuckyReply": [
        ("siblings", "warn", "turn 1, reply differs: ['Go on 0."),
    ],
    "Constant": [
        ("skill", "fail", "skill 1 scores 1.5, skill 0 scores 1.5"),
        ("rewards by turn", "warn", "all turns of a rollout earn the same"),
        ("rewards in a group", "fail", "0 of 2 groups have advantages"),
    ],
    "Inverted": [("skill", "fail", "skill 1 scores -3, skill 0 scores 0")],
    "PaysForLength": [("padding", "fail", "a louder agent (more text, nothing else) scores ")],
    "PaysForTurns": [
        (
            "padding",
            "warn",
            "a longer agent (more turns, nothing else) scores 0.4 instead of 0.2, and no out",
        ),
    ],
    "PaysForCalls": [
        (
            "padding",
            "fail",
            "a busier agent (more calls, nothing else) scores 1.3 instead of 1.1, with no be",
        ),
    ],
    "Unscored": [("rewards by turn", "fail", "turns is scored")],
    "Scalar": [
        ("rewards by turn", "skipped", "one reward for the whole rollout"),
        ("skill", "skipped", "no scripted agent of its own"),
    ],
    "Twins": [
        ("items", "fail", "have the same id '1'"),
        ("opens", "fail", "have the same id '1'"),
        ("rollout", "skipped", "the environment does not open"),
    ],
    "Unclosed": [("closes", "fail", "teardown broke: RuntimeError: it does not close")],
    "Opaque": [("items", "warn", "1 hold what JSON has no form for (one)")],
    "Silent": [("prompt", "fail", "a prompt is empty")],
    "NearMiss": [("opens", "warn", "if it is meant to be compute_outcome, rename it")],
}


async def test_each_fault_is_found(monkeypatch, tmp_path):
    missed = []
    for env, expected in FAULTS.items():
        folder = tmp_path / env
        folder.mkdir()
        report = await checked(getattr(checked_envs, env), monkeypatch, folder)
        missed += [
            (env, check, report[check])
            for check, result, found in expected
            if report[check][0] != result or found not in report[check][1]
        ]
    assert missed == []


async def test_scores_are_compared_with_the_floor_that_was_set(monkeypatch, tmp_path):
    low = await checked(checked_envs.Inverted, monkeypatch, tmp_path, items=1)
    assert (low["failures"][0], "failed_score 0" in low["failures"][1]) == ("warn", True)
    lower = await checked(checked_envs.Inverted, monkeypatch, tmp_path, items=1, failed_score=-9.0)
    assert lower["failures"][0] == "ok"


async def test_what_rollouts_leave_behind_is_named(monkeypatch, tmp_path):
    report = await checked(checked_envs.Leaks, monkeypatch, tmp_path, items=1)
    assert report["leaks"][0] == "fail"
    for left in ("processes (sleep ", "threads (left-thread", "temporary files (left-folder"):
        assert left in report["leaks"][1]
