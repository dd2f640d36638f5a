"""`credit --rewards` of records of the shipped environments, and of one whose judge is a model server."""

import pytest

from environments.base_env import AgentEnv
from environments.config import JudgeConfig
from environments.policy.scripted import Choice, say
from environments.record.recorder import read_contents, read_groups
from environments.run.process_run import process
from environments.run.rescore_run import rescore
from environments.shipped.judged_writing import JudgedWritingEnv
from environments.shipped.long_math import LongMathEnv
from environments.shipped.retail import RetailEnv
from environments.shipped.sales_chat import SalesChatEnv
from environments.shipped.word_guess import WordGuessEnv
from tests.environments.policy.text_server import playing
from tests.environments.write_file import quiet
from tools.errors import ConfigError
from tools.sandbox.base import SandboxSpec


def opened(cls, *servers, **settings):
    own = cls.env_config_cls(max_items=2, group_size=4, scripted_skill=0.5, seed=7, **settings)
    return cls(own, servers)


async def rescored(path, cls, *servers):
    console = quiet()
    await rescore(opened(cls, *servers), path, read_contents(path), path.with_suffix(".new"), console)
    return console.file.getvalue()


def what_is_learned(path):
    return sorted(
        (group.group.item_id, group.advantages, [(t.rewards, t.metrics) for t in group.group.trajectories])
        for group in read_groups(path)
    )


@pytest.mark.parametrize(
    "cls", [SalesChatEnv, WordGuessEnv, JudgedWritingEnv, LongMathEnv], ids=lambda cls: cls.name
)
async def test_a_shipped_environment_gives_the_same_again(tmp_path, cls):
    path = tmp_path / "r.jsonl"
    await process(opened(cls, data_path_to_save_groups=str(path)), quiet())
    assert "2 groups, 8 rollouts: rewards of 0 changed" in await rescored(path, cls)
    assert what_is_learned(path.with_suffix(".new")) == what_is_learned(path)


class Prepared(AgentEnv):
    """Its verdict needs what `prepare_sandbox` left."""

    name = "prepared"

    async def load_items(self):
        return [{"item_id": "a"}, {"item_id": "b"}]

    def sandbox_for(self, item):
        return SandboxSpec(prepared=item["item_id"])

    async def prepare_sandbox(self, item, sandbox):
        await sandbox.write_file("left.txt", item["item_id"].encode())

    def format_prompt(self, item):
        return "Say anything."

    def scripted_choices(self, item, messages, tools, skill):
        return [Choice(probability=1, message=say("Done."))]

    async def compute_reward(self, item, trajectory, ctx):
        return float((await ctx.verify(command="cat left.txt")).text() == item["item_id"])


async def test_a_verification_begins_with_what_was_prepared(tmp_path):
    path = tmp_path / "r.jsonl"
    await process(opened(Prepared, data_path_to_save_groups=str(path)), quiet())
    assert "mean score 1.000 -> 1.000" in await rescored(path, Prepared)


async def test_a_shop_is_refused_for_its_database(tmp_path):
    path = tmp_path / "r.jsonl"
    await process(opened(RetailEnv, data_path_to_save_groups=str(path)), quiet())
    with pytest.raises(
        ConfigError, match=r"environment 'retail' cannot be rescored: score_turn uses ctx\.state"
    ):
        await rescored(path, RetailEnv)


class Stricter(JudgedWritingEnv):
    """The judge of whole texts is asked otherwise."""

    async def compute_outcome(self, item, trajectory, ctx):
        draft = trajectory.turns[-1].message.content
        return await ctx.judge(f"Strictly: <<<text\n{draft}\ntext>>>") / 20


async def test_a_judge_over_http_is_asked_what_the_record_does_not_hold_and_only_that(tmp_path):
    path = tmp_path / "r.jsonl"
    async with playing(JudgedWritingEnv, "judge") as url:
        judge = JudgeConfig(base_url=url, model_name="m")
        await process(opened(JudgedWritingEnv, judge, data_path_to_save_groups=str(path)), quiet())
        await rescored(path, Stricter, judge)
    groups = list(read_groups(path.with_suffix(".new")))
    calls = [call for group in groups for t in group.group.trajectories for call in t.judge_calls]
    before = {
        c.messages for group in read_groups(path) for t in group.group.trajectories for c in t.judge_calls
    }
    asked = [call for call in calls if call.messages not in before]
    assert {call.model for call in calls} == {"m"}
    assert {call.hook for call in asked} == {"compute_outcome"}
    assert len(asked) == 8
    assert not any(group.group.failures for group in groups)
