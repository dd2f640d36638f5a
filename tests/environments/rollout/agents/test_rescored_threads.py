"""Records of agents with several threads: what is credited again is what the live rollout had."""

import asyncio

from environments.record.recorder import read_contents
from environments.run.process_run import process
from environments.run.rescore_run import rescore
from tests.environments.rollout.agents.recorded import Talk, ask, played, system, user
from tests.environments.rollout.agents.test_threads import PacedPolicy, Told
from tests.environments.run.rescoring import by_item
from tests.environments.write_file import quiet
from tools.errors import AgentCausedError
from turnwise import AgentEnvConfig


def recorded_and_rescored(path, play, policy=None, base=Told, **attributes):
    async def both():
        cls, out = played(base, play, **attributes), path.with_suffix(".new")
        settings = {"group_size": 1, "min_group_size": 1, "estimator_params": {"singleton": "raw"}}
        config = AgentEnvConfig(total_steps=1, data_path_to_save_groups=str(path), **settings)
        await process(cls(config, policy=policy), quiet())
        await rescore(cls(AgentEnvConfig(group_size=1)), path, read_contents(path), out, quiet())
        return by_item(path)[0], by_item(out)[0]

    return asyncio.run(both())


def test_undelivered_turns_and_untrained_threads_are_rescored_as_they_were(tmp_path):
    policy = PacedPolicy()

    async def play(self, item, ctx):
        first = await policy.answer(ctx.endpoint, "title 1", system("title"))
        await policy.abandon(ctx.endpoint, "slow 2")
        policy.may_end["slow 2"].set()
        await policy.answer(ctx.endpoint, "more 4", system("title"), user("title 1"), first)
        await policy.answer(ctx.endpoint, "quick 8", system("another"))

    before, after = recorded_and_rescored(tmp_path / "record.jsonl", play, policy, train_threads="with_tools")

    turns, (trajectory,) = before.group.trajectories[0].turns, after.group.trajectories
    assert [turn.kind for turn in turns] == ["act", "undelivered", "act", "act"]
    assert not any(turn.trained for turn in turns)
    assert trajectory.turns == turns
    assert trajectory.rewards == before.group.trajectories[0].rewards
    assert trajectory.rewards.turns == (1.0, None, 4.0, 8.0)


def test_turns_that_waited_to_be_scored_when_the_agent_broke_it_are_not_scored_afterwards(tmp_path):
    async def play(self, item, ctx):
        for name in "abc":
            first = await ask(ctx.endpoint, system(name), user("x"))
            if name == "b":
                await ask(ctx.endpoint, system(name), user("x"), first, user("go on"))
        raise AgentCausedError("gone", cause="unreadable_files")

    before, after = recorded_and_rescored(
        tmp_path / "record.jsonl", play, base=Talk, score_turn=lambda self, item, turn, ctx: 1.0
    )

    for credited in (before, after):
        (trajectory,) = credited.group.trajectories
        assert [turn.thread for turn in trajectory.turns] == [0, 1, 1, 2]
        assert trajectory.rewards.turns == (None, 1.0, None, None)
