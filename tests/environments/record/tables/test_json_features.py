"""`load_dataset("json", features=records.features())` reads the lines of records as they are."""

import math
from dataclasses import replace
from pathlib import Path

import datasets
import orjson
import pytest

from environments.base_env import AgentEnv
from environments.record.group_line import encode_group, with_origin
from environments.run.discovery import find_environment
from environments.testing import group_of
from environments.trajectory import CreditedGroup, Message
from tests.environments.record.any_group import Draw
from tests.equipment.shipped import WITH_ITEMS
from turnwise import records

RECORD = Path(__file__).parents[1]


@pytest.fixture
def loaded(tmp_path):
    datasets.disable_progress_bars()

    def load(record):
        rows = datasets.load_dataset(
            "json",
            data_files=str(record),
            features=records.features(),
            split="train",
            cache_dir=str(tmp_path / "cache"),
        )
        return list(rows)

    return load


def assert_same(rows, record):
    """Each row is its line, with `None` in the columns that the line has not; numbers to ten decimals."""
    lines = [orjson.loads(line) for line in record.read_bytes().splitlines()]
    assert len(rows) == len(lines)
    for row, line in zip(rows, lines, strict=True):
        assert difference(row, dict.fromkeys(row) | line) is None


def difference(found, expected, path=""):
    """Where two values differ, and how."""
    if isinstance(expected, dict) and isinstance(found, dict) and set(found) == set(expected):
        pairs = [(found[name], expected[name], f"{path}.{name}") for name in expected]
    elif isinstance(expected, list) and isinstance(found, list) and len(found) == len(expected):
        pairs = [(*both, f"{path}[{n}]") for n, both in enumerate(zip(found, expected, strict=True))]
    elif {type(found), type(expected)} <= {int, float} and math.isclose(found, expected, abs_tol=6e-11):
        return None
    else:
        return None if found == expected and type(found) is type(expected) else (path, found, expected)
    return next((one for one in (difference(*pair) for pair in pairs) if one), None)


def bare_lines(until, *, size=200_000):
    """Lines without any of the optional fields, as many bytes of them."""
    group = group_of([[None, None], [None]])
    prompt = (Message(role="user", content="x" * size),)
    trajectories = tuple(replace(each, prompt=prompt) for each in group.trajectories)
    line = encode_group(
        CreditedGroup(
            group=replace(group, trajectories=trajectories, item_id="bare"),
            advantages=((0.0, 0.0), (0.0,)),
            policy="p",
            estimator="e",
        )
    )
    return [line] * (until // len(line) + 1)


def late_lines():
    return [with_origin(encode_group(Draw(seed).credited()), {"a": "b"}) for seed in range(12)]


@pytest.fixture
def megabytes(soak):
    """Past the stretch that types are guessed from, and 50 of them."""
    return 50 if soak else 12


def test_optional_fields_may_come_after_many_megabytes(loaded, tmp_path, megabytes):
    record = tmp_path / "record.jsonl"
    record.write_bytes(b"".join([*bare_lines(megabytes * 1_000_000), *late_lines()]))
    assert_same(loaded(record), record)


def test_without_features_such_a_record_cannot_be_loaded(tmp_path, megabytes):
    record = tmp_path / "record.jsonl"
    record.write_bytes(b"".join([*bare_lines(megabytes * 1_000_000), *late_lines()]))
    with pytest.raises(datasets.exceptions.DatasetGenerationError):
        datasets.load_dataset("json", data_files=str(record), cache_dir=str(tmp_path / "cache"))


def test_a_line_may_be_longer_than_what_is_read_at_a_time(loaded, tmp_path):
    record = tmp_path / "record.jsonl"
    record.write_bytes(b"".join([late_lines()[0], *bare_lines(0, size=6_000_000), *late_lines()]))
    assert_same(loaded(record), record)


def test_every_column_that_a_line_can_have_is_named():
    named = set(records.features())
    assert {name for line in late_lines() for name in orjson.loads(line)} <= named


def test_golden_lines_are_read(loaded):
    assert_same(loaded(RECORD / "golden.jsonl"), RECORD / "golden.jsonl")


@pytest.mark.parametrize("name", sorted(WITH_ITEMS))
async def test_groups_of_a_shipped_environment_are_read(loaded, tmp_path, name):
    env_cls: type[AgentEnv] = find_environment(name)
    config = env_cls.config_init()[0].model_copy(update={"group_size": 2, "max_items": 1})
    async with env_cls(config) as env:
        lines = [encode_group(await env.run_group(task)) for task in list(env.tasks())[:1]]
    record = tmp_path / "record.jsonl"
    record.write_bytes(b"".join(lines))
    assert_same(loaded(record), record)
