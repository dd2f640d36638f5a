"""Runs whose model sees less than the conversation, and what is made of their records."""

import json

import pytest
from click.testing import CliRunner

from environments.record.recorder import read_contents, read_groups
from environments.run.evaluation_run import evaluate
from environments.run.process_run import process
from environments.run.rescore_run import rescore
from environments.shipped.long_math import LongMathEnv
from environments.shipped.sales_chat import SalesChatEnv
from environments.wire.views import VIEWS
from tests.environments.write_file import quiet
from tests.tables import cases
from turnwise.cli import credit, export

CONDENSERS = {
    "keep_last_turns": {"condenser": ["keep_last_turns"], "condenser_turns": 2},
    "fit_context": {"condenser": ["fit_context"], "condenser_tokens": 900},
    "trim_tool_output": {"condenser": ["trim_tool_output"], "condenser_tool_tokens": 32},
    "summarise": {"condenser": ["summarise"], "condenser_turns": 3, "condenser_tokens": 1200},
    "all": {
        "condenser": ["trim_tool_output", "summarise", "fit_context"],
        "condenser_tool_tokens": 32,
        "condenser_turns": 4,
        "condenser_tokens": 1200,
    },
}
SUMS_UP = ("summarise", "all")


def opened(name, **settings):
    fields = {"facts": 8, "max_items": 2, "group_size": 3, "scripted_skill": 0.6, "seed": 7}
    return LongMathEnv(LongMathEnv.env_config_cls(**fields, **CONDENSERS[name], **settings), ())


@pytest.fixture(scope="module")
def record_of(tmp_path_factory):
    """The record of a run with a condenser, and what the run said; each is run once."""
    folder, said = tmp_path_factory.mktemp("runs"), {}

    async def recorded(name):
        path = folder / f"{name}.jsonl"
        if name not in said:
            console = quiet()
            assert await process(opened(name, data_path_to_save_groups=str(path)), console) == 0
            said[name] = console.file.getvalue()
        return path, said[name]

    return recorded


@cases("name", CONDENSERS)
async def test_rewards_computed_again_are_those_of_the_run(record_of, name):
    path, _ = await record_of(name)
    out, console = path.with_suffix(".rescored"), quiet()

    await rescore(opened(name), path, read_contents(path), out, console)

    assert "2 groups, 6 rollouts: rewards of 0 changed" in console.file.getvalue()
    for old, new in zip(by_item(path), by_item(out), strict=True):
        assert new.group.trajectories == old.group.trajectories
        assert (new.advantages, new.status) == (old.advantages, old.status)


def by_item(path):
    return sorted(read_groups(path), key=lambda credited: credited.group.item_id)


@cases("name", CONDENSERS)
async def test_a_record_says_what_was_condensed_and_a_run_sums_it_up(record_of, name):
    path, shown = await record_of(name)
    turns = [turn for done in read_groups(path) for each in done.group.trajectories for turn in each.turns]

    assert any(turn.condensed is not None for turn in turns)
    assert any(turn.kind == "summary" for turn in turns) == (name in SUMS_UP)
    condensed = [line for line in shown.splitlines() if line.startswith("condensed")]
    assert len(condensed) == 1
    assert ("summaries" in shown) == (name in SUMS_UP)
    # Summaries have no reward, and are no turns where turns are counted.
    trajectories = [each for done in read_groups(path) for each in done.group.trajectories]
    for each in trajectories:
        for turn, reward in zip(each.turns, each.rewards.turns, strict=True):
            assert (reward is None) == (turn.kind == "summary")
    acts = [len(each.acts) for each in trajectories]
    assert f"min {min(acts)}, max {max(acts)}" in shown


@cases("view", [*VIEWS, "list_scores"])
async def test_records_are_exported_and_credited_anew(record_of, tmp_path, view):
    path, _ = await record_of("summarise")
    anew, rows = tmp_path / "anew.jsonl", tmp_path / "rows.jsonl"
    command = [str(path), "--estimator", "turn_return", "--set", "gamma=0.9", "--write", str(anew)]

    credited_anew = CliRunner().invoke(credit.command, command, catch_exceptions=False)
    CliRunner().invoke(
        export.command, [str(anew), "--view", view, "--out", str(rows)], catch_exceptions=False
    )

    acts = sum(len(each.acts) for done in read_groups(path) for each in done.group.trajectories)
    assert f"2 groups, {acts} turns;" in credited_anew.output
    assert rows.read_bytes().count(b"\n") >= 2


async def test_a_customer_hears_no_summary_also_when_rewards_are_computed_again(tmp_path):
    path, console = tmp_path / "r.jsonl", quiet()
    fields = {"max_items": 2, "group_size": 4, "scripted_skill": 0.3, "condenser": ["summarise"]}

    def chats(**own):
        return SalesChatEnv(SalesChatEnv.env_config_cls(**fields, condenser_turns=1, **own), ())

    await process(chats(data_path_to_save_groups=str(path)), quiet())
    await rescore(chats(), path, read_contents(path), tmp_path / "anew.jsonl", console)

    assert "2 groups, 8 rollouts: rewards of 0 changed" in console.file.getvalue()
    trajectories = [each for done in read_groups(path) for each in done.group.trajectories]
    assert any(len(each.turns) > len(each.acts) for each in trajectories)
    for each in trajectories:
        heard = [int(turn.anchor.split()[0]) for turn in each.acts]
        assert heard == list(range(len(heard)))


async def test_an_evaluation_says_what_was_condensed(tmp_path):
    env = opened("all", data_dir_to_save_evals=str(tmp_path), eval_rollouts=2)
    console = quiet()

    assert await evaluate(env, console) == 0

    numbers = json.loads((tmp_path / "metrics.json").read_text())["results"]["all"]
    assert numbers["eval/condensed/summaries_per_rollout"] > 0
    assert numbers["eval/condensed/tokens_before"] > numbers["eval/condensed/tokens_after"]
    assert "condensed" in console.file.getvalue()
    samples = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    assert all(len(each["turn_rewards"]) == each["turns"] for each in samples)
    assert any(each["summaries"] for each in samples)
