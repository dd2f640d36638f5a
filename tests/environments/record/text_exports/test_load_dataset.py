"""`load_dataset("json", data_files=…)`, without another argument, gives back what the record says."""

from dataclasses import replace

import datasets
import orjson
import pytest

from tests.environments.record.text_exports.exported import group, lines_of, said, trajectory, write

LONG = "x" * 6_000_000
"""Two of them are more than what `datasets` guesses types from."""
NUMBERS = ("reward", "return", "advantage", "outcome", "score")
DATE = "2026-11-22"


@pytest.fixture
def loaded(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()

    def load(view, *groups):
        path = tmp_path / "out.jsonl"
        write(path, view, *groups)
        return list(datasets.load_dataset("json", data_files=str(path), split="train"))

    return load


def same(rows, lines):
    """Whether loaded rows are these lines, in any order: exactly, but for the eleventh decimal of numbers."""
    return sorted(map(_key, rows)) == sorted(map(_key, lines))


def _key(line):
    shown = dict(line)
    for name in ("prompt", "completion", "chosen", "rejected"):
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
    assert same(loaded("prompt_response", *CASES[case]), lines_of("prompt_response", *CASES[case])[0])


def test_pairs_are_what_the_record_says(loaded):
    groups = [
        group(
            *(trajectory(said(text, call), rewards=(worth,), prompt=prompt) for text, call, worth in answers)
        )
        for prompt, answers in (
            ("a", (("a", "{}", 1.0), ("b", '{"x": 1}', 0.0))),
            ("long", ((LONG, "{}", 1.0), ("a" + LONG, "{}", 0.0))),
            (DATE, ((DATE, '{"y": "z"}', 1.0), ("2026-11-23", '{"cut', 0.5))),
        )
    ]
    assert same(loaded("preference", *groups), lines_of("preference", *groups)[0])


def test_a_message_has_the_keys_that_it_had_and_no_others(loaded):
    rows = loaded("prompt_response", group(trajectory(said("a", "{}"), said("b"), rewards=(1.0, 0.0))))
    assert [set(message) for message in rows[1]["prompt"]] == [
        {"role", "content"},
        {"role", "content"},
        {"role", "content", "tool_calls"},
        {"role", "content", "tool_call_id"},
    ]


def test_an_item_named_by_a_date_keeps_its_name_in_quotes(loaded):
    groups = [named(group(trajectory(said("a"), said("b"), rewards=(1.0, 0.0))), DATE)]
    assert [row["item_id"] for row in loaded("prompt_response", *groups)] == [f'"{DATE}"'] * 2


def test_lines_with_the_first_number_of_a_column_come_early_and_none_is_lost(tmp_path):
    path = tmp_path / "out.jsonl"
    write(path, "prompt_response", *CASES["late numbers, dates, calls and reasoning"])
    rewards = [orjson.loads(line)["reward"] for line in path.read_bytes().splitlines()]
    assert (len(rewards), rewards[1]) == (5, 0.5)


def test_openai_lines_can_be_loaded_too(loaded):
    groups = CASES["calls of different shapes"]
    (row,) = loaded("openai", *groups)
    (line,) = lines_of("openai", *groups)[0]
    assert row == line
