"""The export `prompt_response`: its lines are what the record says, and `datasets` reads them back."""

import json
from collections import Counter
from dataclasses import replace

import datasets
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pandas.io.json import ujson_dumps, ujson_loads

from environments.record.prompt_response import LineFile, prompt_response, read_arguments
from environments.trajectory import (
    CreditedGroup,
    Kept,
    Message,
    Rewards,
    Span,
    TokenRow,
    Trajectory,
    TrajectoryGroup,
    Turn,
)
from tests.tables import cases
from tools.calls import ToolCall, ToolResult, ToolSpec

LOOK = ToolSpec(name="look", description="Look.", parameters={"type": "object", "properties": {}})


def said(text, *calls, **fields):
    """An assistant's message; `calls` are arguments."""
    made = tuple(ToolCall(id=f"c{n}", name="look", arguments=arguments) for n, arguments in enumerate(calls))
    return Message(role="assistant", content=text, tool_calls=made, **fields)


def trajectory(*messages, rewards, outcome=None, prompt="Go.", tools=(LOOK,), sibling=0):
    """One whose turns are these messages, each of two tokens after one that was not sampled."""
    turns = tuple(
        Turn(
            index=index,
            message=message,
            tool_results=tuple(
                ToolResult(call_id=call.id, name=call.name, content=f"result {index}")
                for call in message.tool_calls
            ),
            span=Span(row=0, start=3 * index + 1, end=3 * index + 3),
        )
        for index, message in enumerate(messages)
    )
    score = sum(reward or 0.0 for reward in rewards or ()) + (outcome or 0.0)
    return Trajectory(
        item_id="item",
        sibling=sibling,
        prompt=(Message(role="system", content="Be."), Message(role="user", content=prompt)),
        turns=turns,
        rows=(TokenRow(token_ids=tuple(range(3 * len(turns))), logprobs=None),),
        tools=tools,
        rewards=Rewards(turns=rewards, outcome=outcome, score=score),
    )


def group(*trajectories, advantages=None, **fields):
    siblings = tuple(replace(each, sibling=index) for index, each in enumerate(trajectories))
    return CreditedGroup(
        group=TrajectoryGroup(group_id="g", env="e", item_id="item", trajectories=siblings),
        advantages=advantages or tuple((0.5,) * len(each.turns) for each in siblings),
        policy="p",
        estimator="turn_return",
        **fields,
    )


def lines_of(*groups):
    notes = Counter()
    lines = [
        {name: _plain(value) for name, value in line.items()}
        for each in groups
        for line in prompt_response(each, notes)
    ]
    return lines, {name: count for name, count in notes.items() if count}


def write(path, *groups):
    with LineFile(path) as file:
        for each in groups:
            for line in prompt_response(each, Counter()):
                file.write(line)
        file.put_early()


def _plain(value):
    if isinstance(value, list):
        return [orjson.loads(each) if isinstance(each, bytes) else each for each in value]
    return value


def lines(*groups):
    return lines_of(*groups)[0]


def contents(messages):
    return [message["content"] for message in messages]


def test_a_turns_prompt_is_all_before_it_and_its_completion_its_own_message():
    first, second = lines(group(trajectory(said("a", '{"x": 1}'), said("b"), rewards=(0.25, None))))
    assert (contents(first["prompt"]), contents(first["completion"])) == (["Be.", "Go."], ["a"])
    assert contents(second["prompt"]) == ["Be.", "Go.", "a", "result 0"]
    assert contents(second["completion"]) == ["b"]


def test_a_condensed_prompt_is_what_the_model_saw():
    whole = trajectory(said("a"), said("b"), rewards=(0.0, 1.0))
    summary = Message(role="user", content="In short: a.")
    last = replace(whole.turns[1], context=(Kept(start=0, end=1), summary))
    (_, second) = lines(group(replace(whole, turns=(whole.turns[0], last))))
    assert contents(second["prompt"]) == ["Be.", "In short: a."]


def test_arguments_are_an_object_and_tools_a_json_text():
    (line,) = lines(group(trajectory(said("", '{"x": 1}'), rewards=(1.0,))))
    assert line["completion"][0]["tool_calls"][0]["function"]["arguments"] == {"x": 1}
    assert orjson.loads(line["tools"]) == [LOOK.to_openai()]
    assert lines(group(trajectory(said("a"), rewards=(1.0,), tools=())))[0]["tools"] == "null"


def test_groups_whose_calls_have_no_tools_are_counted_once():
    called = trajectory(said("", "{}"), said("", "{"), rewards=(1.0, 1.0), tools=())
    _, notes = lines_of(group(called, called))
    assert notes["groups have no tools recorded"] == 1


def test_calls_that_stay_text_are_counted_once_however_many_lines_hold_them():
    _, notes = lines_of(group(trajectory(said("", "{"), said("b"), rewards=(1.0, 1.0))))
    assert notes["tool calls keep their arguments as text"] == 1


@pytest.mark.parametrize(
    ("params", "returns"),
    [
        pytest.param({}, [1.0 + 4.0, 4.0], id="nothing recorded"),
        pytest.param({"gamma": 0.5}, [1.0 + 0.5 * 4.0, 4.0], id="gamma"),
        pytest.param({"outcome_weight": 0.5}, [1.0 + 2.0, 2.0], id="outcome weight"),
    ],
)
def test_a_return_is_that_of_the_recorded_parameters(params, returns):
    whole = trajectory(said("a"), said("b"), rewards=(1.0, None), outcome=4.0)
    assert [line["return"] for line in lines(group(whole, estimator_params=params))] == returns


def test_what_was_not_scored_is_null_and_never_0():
    whole = trajectory(said("a"), said("b"), rewards=(1.0, None))
    first, second = lines(group(whole))
    assert (first["return"], first["outcome"]) == (1.0, None)
    assert (second["reward"], second["return"]) == (None, None)


def test_in_a_scalar_environment_every_turn_has_the_score_as_its_return():
    whole = trajectory(said("a"), said("b"), rewards=None, outcome=2.0)
    assert [(line["reward"], line["return"], line["score"]) for line in lines(group(whole))] == [
        (None, 2.0, 2.0)
    ] * 2


def test_a_summary_has_the_return_of_the_act_that_follows_it():
    whole = trajectory(said("a"), said("sum"), said("b"), said("end"), rewards=(1.0, None, 2.0, None))
    kinds = ("act", "summary", "act", "summary")
    turns = tuple(replace(turn, kind=kind) for turn, kind in zip(whole.turns, kinds, strict=True))
    shown = lines(group(replace(whole, turns=turns), estimator_params={"gamma": 0.5}))
    assert [line["return"] for line in shown] == [2.0, 2.0, 2.0, None]


def test_untrained_turns_are_there_and_say_so():
    whole = trajectory(said("a"), rewards=(1.0,))
    masked = replace(whole, turns=(replace(whole.turns[0], trained=False),))
    assert lines(group(masked))[0]["trained"] is False


LONG = "x" * 6_000_000
"""Two of them are more than what `datasets` guesses types from."""
NUMBERS = ("reward", "return", "advantage", "outcome", "score")
DATE = "2026-11-22"


@pytest.fixture
def loaded(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()

    def load(*groups):
        path = tmp_path / "out.jsonl"
        write(path, *groups)
        return list(datasets.load_dataset("json", data_files=str(path), split="train"))

    return load


def same(rows, lines):
    """Whether loaded rows are these lines, in any order: exactly, but for the eleventh decimal of numbers."""
    return sorted(map(_key, rows)) == sorted(map(_key, lines))


def _key(line):
    shown = dict(line)
    for name in ("prompt", "completion"):
        if name in shown:
            shown[name] = [{k: v for k, v in each.items() if k != "first_line"} for each in shown[name]]
    for name in NUMBERS:
        if name in shown:
            shown[name] = None if shown[name] is None else round(shown[name], 10)
    return orjson.dumps(shown, option=orjson.OPT_SORT_KEYS)


def named(each, item_id):
    return replace(each, group=replace(each.group, item_id=item_id))


CALLS = (
    '{"path": "a", "limit": 3}',
    '{"query": {"all": [0.5, null, "é✓"], "": true}}',
    "{}",
    '{"cut": ',
    "[1]",
)

CASES = {
    "calls of different shapes": [
        group(trajectory(*(said("", call) for call in CALLS), rewards=(0.1, None, 1 / 3, 0.0, 2.0)))
    ],
    "other tools in each group": [
        group(trajectory(said("a"), rewards=(1.0,), tools=())),
        group(trajectory(said("", "{}"), rewards=(1.0,))),
    ],
    "nothing but dates": [
        named(
            group(trajectory(said(DATE), said(f"{DATE}T10:00:00+01:00"), rewards=(1.0, 0.0), prompt=DATE)),
            "d",
        )
    ],
    "empty and odd text": [
        group(
            trajectory(said(""), said("null"), said('\u2028\u0000\r\n"\\/ 1'), said("[]"), rewards=(0.0,) * 4)
        )
    ],
    "reasoning in some messages": [
        group(trajectory(said("a"), said("b", reasoning="hm"), said("c", reasoning=""), rewards=(0.0,) * 3))
    ],
    "late numbers, dates, calls and reasoning": [
        group(trajectory(said(LONG), said(LONG), rewards=(None, None))),
        group(
            trajectory(said(DATE), said(DATE, '{"late": 1}'), rewards=(0.5, None), outcome=0.25, prompt=DATE)
        ),
        group(trajectory(said("", reasoning="hm"), rewards=(None,), outcome=7.0, prompt="Späť.")),
    ],
    "whole numbers, then fractions": [
        group(trajectory(said(LONG), said(LONG), rewards=(1, 0), outcome=2)),
        group(trajectory(said("a"), rewards=(0.5,), outcome=0.125)),
    ],
}


@pytest.mark.parametrize("case", CASES)
def test_turns_are_what_the_record_says(loaded, case):
    assert same(loaded(*CASES[case]), lines_of(*CASES[case])[0])


def test_a_message_has_the_keys_that_it_had_and_no_others(loaded):
    rows = loaded(group(trajectory(said("a", "{}"), said("b"), rewards=(1.0, 0.0))))
    assert [set(message) for message in rows[1]["prompt"]] == [
        {"role", "content"},
        {"role", "content"},
        {"role", "content", "tool_calls"},
        {"role", "content", "tool_call_id"},
    ]


def test_an_item_named_by_a_date_keeps_its_name_in_quotes(loaded):
    groups = [named(group(trajectory(said("a"), said("b"), rewards=(1.0, 0.0))), DATE)]
    assert [row["item_id"] for row in loaded(*groups)] == [f'"{DATE}"'] * 2


def test_lines_with_the_first_number_of_a_column_come_early_and_none_is_lost(tmp_path):
    path = tmp_path / "out.jsonl"
    write(path, *CASES["late numbers, dates, calls and reasoning"])
    rewards = [orjson.loads(line)["reward"] for line in path.read_bytes().splitlines()]
    assert (len(rewards), rewards[1]) == (5, 0.5)


TEXT = st.text(st.characters(codec="utf-8"), max_size=3)
NUMBER = (
    st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.tuples(st.integers(-(10**9), 10**9), st.integers(0, 12)).map(lambda pair: pair[0] / 10 ** pair[1])
)


@given(st.dictionaries(TEXT, st.lists(NUMBER, max_size=2) | TEXT | NUMBER | st.none(), max_size=2))
@settings(max_examples=200, deadline=None)
def test_an_object_is_what_datasets_reads_back(value):
    arguments = read_arguments(json.dumps(value))
    if not isinstance(arguments, str):
        assert arguments == value
        assert ujson_loads(ujson_dumps(ujson_loads(json.dumps(arguments)))) == value


@cases("number", [0.5, 4.35, 100.0, -3, 2**63 - 1, 1e-3], ids=str)
def test_common_numbers_do_not_keep_arguments_from_being_an_object(number):
    assert read_arguments(json.dumps({"x": [number]})) == {"x": [number]}


@cases(
    "text",
    [
        '{"a": 1',
        "[1]",
        "",
        "null",
        '{"a": 1, "a": 2}',
        '{"a": NaN}',
        '{"a": -1.7}',
        '{"a": 1e400}',
        '{"a": 0.12345678901}',
        '{"a": 123456789012345678901}',
        '{"a": ' + "[" * 200 + "]" * 200 + "}",
        '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}",
    ],
)
def test_what_would_be_changed_stays_the_text_that_the_model_wrote(text):
    assert read_arguments(text) == text
