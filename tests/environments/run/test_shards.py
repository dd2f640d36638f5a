"""`process --shard K/N`: the shards together are the run without shards, for every reader of records."""

import json
import os
import shutil
from pathlib import Path

import pytest

from environments.record.recorder import read_contents, records_at
from environments.record.run_folder import record_at
from tests.environments.serve.loopback import without_torch
from tests.equipment import commands
from tools.errors import RecordError
from turnwise.cli.main import main
from turnwise.records import load, read_groups

ENV = """
from turnwise import AgentEnv, AgentEnvConfig, Choice, say

class Toy(AgentEnv):
    name = "toy"
    sandbox = "none"

    def load_items(self):
        return [{"id": f"item {number}", "weight": number % 3} for number in range(7)]

    def format_prompt(self, item):
        return item["id"]

    def compute_reward(self, item, trajectory, ctx):
        return float(len(trajectory.turns[-1].message.content))

    def scripted_choices(self, item, messages, tools, skill):
        return [Choice(probability=0.5, message=say(text)) for text in ("yes", "perhaps")]

class Asks(Toy):
    def next_items(self, history):
        return None

class OwnConfig(AgentEnvConfig):
    shard: int = 0

class Own(Toy):
    env_config_cls = OwnConfig
"""
PLANS = {
    "in order": [],
    "rounds": ["--env.total_steps", "16", "--env.shuffle", "true"],
    "weights": ["--env.total_steps", "17", "--env.shuffle", "true", "--env.weight_field", "weight"],
    "held out": ["--env.eval_share", "0.3", "--env.max_items", "4", "--env.total_steps", "9"],
}
SHARDS = ["toy/default.0-of-3", "toy/default.1-of-3", "toy/default.2-of-3"]


def turnwise(*arguments, code=0):
    """What the command printed on both streams."""
    done = commands.turnwise(*arguments, **without_torch())
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def process(*options, cls="Toy", code=0):
    return turnwise("process", f"toy.py:{cls}", "--env.group_size", "3", *options, code=code)


def timeless(value):
    """JSON without ids and times, which no two runs share."""
    if isinstance(value, dict):
        known = {name: each for name, each in value.items() if name not in ("group_id", "origin", "crc32")}
        return {name: timeless(each) for name, each in known.items() if not name.endswith("_s")}
    return [timeless(each) for each in value] if isinstance(value, list) else value


def lines(*records):
    """The lines of records in the order of their groups."""
    found = [json.loads(line) for record in records for line in record_at(Path(record)).open()]
    return sorted(map(timeless, found), key=lambda line: (line["item_id"], line["epoch"]))


@pytest.fixture(scope="module")
def runs_of_all(tmp_path_factory):
    """A folder with a whole run, and the same one in three shards."""
    folder = tmp_path_factory.mktemp("runs")
    before = Path.cwd()
    os.chdir(folder)
    try:
        Path("toy.py").write_text(ENV)
        process(*PLANS["weights"], "--name", "whole")
        for index in range(3):
            process(*PLANS["weights"], "--shard", f"{index}/3")
    finally:
        os.chdir(before)
    return folder


@pytest.fixture
def runs(runs_of_all, tmp_path, monkeypatch):
    """The same folder, a test's own."""
    shutil.copytree(runs_of_all, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return Path("runs/toy")


@pytest.fixture
def toy(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("toy.py").write_text(ENV)


def test_the_union_of_three_shards_is_the_run_without_shards(runs):
    assert [len(lines(each)) for each in SHARDS] == [6, 6, 5]
    assert lines(*SHARDS) == lines("toy/whole")


@pytest.mark.soak
@pytest.mark.parametrize("plan", PLANS)
def test_the_union_is_the_whole_run_in_every_order(toy, plan):
    process(*PLANS[plan], "--out", "whole.jsonl")
    names = [f"part{index}.jsonl" for index in range(4)]
    for index, name in enumerate(names):
        process(*PLANS[plan], "--out", name, "--shard", f"{index}/4")
    assert lines(*names) == lines("whole.jsonl")


def test_shards_share_the_fingerprint_of_the_whole_run_and_say_which_they_are(runs):
    found = [read_contents(record_at(Path(each))) for each in ("toy/whole", *SHARDS)]
    assert len({fingerprint for each in found for fingerprint in each.origins}) == 1
    assert [each.shards for each in found] == [{None}, {"0/3"}, {"1/3"}, {"2/3"}]


@pytest.mark.parametrize("accept", [[], ["--accept"]])
def test_another_shard_another_n_and_none_at_all_are_refused_by_name(toy, accept):
    plan = ["--env.total_steps", "3", "--out", "part.jsonl", *accept]
    process(*plan, "--shard", "0/3")
    for other, named in (("1/3", "--shard 1/3"), ("0/4", "--shard 0/4"), (None, "a run without --shard")):
        said = process(*plan, *([] if other is None else ["--shard", other]), code=2)
        assert f"part.jsonl holds groups of --shard 0/3, and this is {named}" in said
        assert said.count("\n") == 1
    process("--env.total_steps", "2", "--out", "whole.jsonl")
    assert "of a run without --shard, and this is --shard 0/3" in process(
        "--env.total_steps", "2", "--out", "whole.jsonl", *accept, "--shard", "0/3", code=2
    )


@pytest.mark.parametrize("shard", ["4/4", "0/0", "a/b", "1", "-1/3", "1/3/5", "²/3"])
def test_what_names_no_shard_is_one_line(toy, shard, capsys):
    assert main(["process", "toy.py:Toy", f"--shard={shard}"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not Path("runs").exists()


def test_next_items_is_refused_with_a_shard_by_name(toy, capsys):
    assert main(["process", "toy.py:Asks", "--shard", "0/2"]) == 2
    assert "Asks has next_items" in capsys.readouterr().err
    assert not Path("runs").exists()


def test_a_shard_beyond_the_plan_says_so_and_is_not_missing(toy):
    for index in range(3):
        said = process("--env.total_steps", "2", "--shard", f"{index}/3")
    assert "shard 2/3 has no group of the 2 that are planned" in said
    assert "missing" not in turnwise("export", "toy/default", "--out", "rows.jsonl", "--view", "list_scores")


def test_an_empty_file_of_any_name_stands_for_a_shard(toy, caplog):
    for index in range(3):
        process("--env.total_steps", "2", "--out", f"{index}.jsonl", "--shard", f"{index}/3")
    records_at(["0.jsonl", "1.jsonl", "2.jsonl"])
    assert caplog.messages == []


def test_a_shard_is_resumed_and_starts_over_alone(toy):
    plan = ["--env.total_steps", "9", "--shard", "1/3"]
    process("--env.total_steps", "6", "--shard", "1/3")
    assert "resuming: 2 of 3 groups" in process(*plan)
    assert "put aside as runs/toy/default.1-of-3.1" in process(*plan, "--fresh")
    assert len(lines("toy/default.1-of-3")) == 3
    assert "toy/default.1-of-3.1" in turnwise("runs")
    records = records_at("toy/default")
    assert records == record_at(Path("toy/default.1-of-3"))


@pytest.mark.parametrize("places", [["toy/default"], ["runs/toy/default"], SHARDS])
def test_readers_take_the_base_name_and_several_records(runs, places, capsys):
    for command in (["view"], ["view", "--text"], ["export", "--out", "rows.jsonl", "--view", "list_scores"]):
        assert main([*command, *places]) == 0
    assert "17 groups, 51 rollouts" in capsys.readouterr().err
    assert main(["credit", *places, "--estimator", "rloo", "--write", "rloo.jsonl"]) == 0
    assert len(lines("rloo.jsonl")) == 17
    assert len(Path("rows.jsonl").read_text().splitlines()) == 13  # those with credit
    assert read_contents(Path("rloo.jsonl")).shards == {None}
    assert len(set(load(places, cache_dir="cache")["group_id"])) == 17
    assert [each.group.item_id for each in read_groups(places)] == [
        each.group.item_id for place in SHARDS for each in read_groups(record_at(Path(place)))
    ]


def test_shards_compare_as_the_run_does(runs, capsys):
    assert main(["compare", "toy/whole", "toy/default", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["a"]["items"] == shown["b"]["items"]
    assert shown["a"]["rollouts"] == shown["b"]["rollouts"] == 51


def test_rewards_of_all_shards_are_computed_anew_into_one_record(runs):
    settings = ["--env.group_size", "3", "--env.weight_field", "weight"]
    anew = ["credit", "toy/default", "--rewards", "--env", "toy.py:Toy", *settings, "--write", "new.jsonl"]
    assert main(anew) == 0
    (origin,) = read_contents(Path("new.jsonl")).origins.values()
    assert origin["changed since"] == "nothing"
    assert len(lines("new.jsonl")) == 17


def test_credit_of_one_shard_is_still_that_shard(runs):
    for index, place in enumerate(SHARDS):
        main(["credit", place, "--estimator", "rloo", "--write", f"{index}.jsonl"])
    assert read_contents(Path("1.jsonl")).shards == {"1/3"}
    main(["credit", SHARDS[2], "--rewards", "--env", "toy.py:Toy", "--write", "new.jsonl"])
    assert read_contents(Path("new.jsonl")).shards == {"2/3"}


def test_a_group_in_two_records_is_refused_with_both_files(runs):
    with pytest.raises(
        RecordError, match=r"item 'item .', epoch ., is in runs/toy/default.\d-of-3/record.jsonl"
    ):
        records_at([*SHARDS, "toy/whole"])
    said = turnwise("export", SHARDS[0], SHARDS[0], "--out", "rows.jsonl", code=2)
    assert said.count("default.0-of-3/record.jsonl") == 2
    assert not Path("rows.jsonl").exists()


def test_shards_of_another_n_are_refused_by_name(runs):
    process(*PLANS["weights"], "--shard", "4/5")
    with pytest.raises(RecordError, match=r"default.\d-of-3/record.jsonl is shard ./3, and .* is 4/5"):
        records_at("toy/default")
    assert turnwise("runs").count("missing shards: ") == 1


@pytest.mark.parametrize(
    "command", [["export", "--out", "rows.jsonl"], ["view"], ["credit", "--estimator", "grpo"], ["compare"]]
)
def test_missing_shards_are_named_in_one_line(runs, command):
    shutil.rmtree(runs / "default.1-of-3")
    places = ["toy/default", "toy/whole"] if command == ["compare"] else ["toy/default"]
    assert turnwise(*command, *places).count("missing shards: 1/3\n") == 1


def test_shards_of_different_experiments_are_read_with_a_warning(toy, caplog):
    process("--shard", "0/2")
    process("--shard", "1/2", "--env.seed", "1")
    assert len(list(read_groups("toy/default"))) == 7
    assert "groups of 2 experiments" in caplog.text


def test_a_run_of_that_name_goes_before_its_shards(runs):
    shutil.copytree(runs / "whole", runs / "default")
    assert records_at("toy/default") == runs / "default/record.jsonl"


@pytest.mark.parametrize("read", [load, lambda places: list(read_groups(places))])
def test_a_pattern_that_found_no_file_is_not_an_empty_record(toy, read):
    with pytest.raises(RecordError, match="no record given"):
        read(list(Path().glob("*.jsonl")))
