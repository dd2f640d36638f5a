"""Runs whose model sees less than the conversation, and what is made of their records."""

import pytest

from environments.record.recorder import read_contents, read_groups
from environments.run.process_run import process
from environments.run.rescore_run import rescore
from environments.shipped.long_math import LongMathEnv
from tests.environments.write_file import quiet
from tests.tables import cases

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
