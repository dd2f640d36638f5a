"""The whole flow with real parts: real sandboxes, the scripted policy, a model server."""

import os
import re
import signal
from collections import Counter
from contextlib import contextmanager, suppress

import pytest
from atroposlib.envs.base import APIServerConfig

from environments.base_env import AgentEnv
from environments.config import AgentEnvConfig, ServerConfig
from environments.policy.mock_server import mock_app
from environments.policy.rendering.chatml import ChatMLRenderer
from environments.policy.scripted import Choice, ScriptedPolicy, say
from environments.record.recorder import Recorder, read_groups
from environments.trajectory import Rewards, StopReason, Trajectory
from tests.environments.write_file import (
    ITEMS,
    Breaking,
    ScalarWriteFile,
    WriteFile,
    group_from,
    made,
)
from tests.equipment.running_server import running_server
from tests.tables import cases
from tools.errors import ConfigError
from tools.sandbox.host import ownership as processes


async def test_every_turn_is_scored_in_the_rollouts_own_sandbox():
    credited = await group_from(made())
    scores = {trajectory.rewards.turns for trajectory in credited.group.trajectories}
    assert scores == {(1.0, None), (0.0, None)}


async def test_the_outcome_is_verified_where_only_the_artefact_exists():
    credited = await group_from(made())
    for trajectory in credited.group.trajectories:
        assert trajectory.rewards.outcome == (0.5)


async def test_what_a_rollout_changes_in_its_item_reaches_no_sibling_and_no_record():
    class Counting(WriteFile):
        async def prepare(self, item, sandbox):
            item["prepared"] = item.get("prepared", 0) + 1
            assert item["prepared"] == 1

    credited = await group_from(made(Counting))
    assert credited.group.failures == ()
    assert credited.group.item == ITEMS[0]


async def test_equal_seeds_give_equal_rollouts():
    runs = [await group_from(made(seed=5)) for _ in range(2)]
    rows = [[trajectory.rows for trajectory in run.group.trajectories] for run in runs]
    assert rows[0] == rows[1]


async def test_another_seed_gives_other_rollouts():
    runs = [await group_from(made(seed=seed, group_size=8)) for seed in (1, 2)]
    rows = [[trajectory.rows for trajectory in run.group.trajectories] for run in runs]
    assert rows[0] != rows[1]


async def test_a_model_server_gives_token_for_token_what_the_scripted_policy_gives():
    scripted = made()
    expected = await group_from(scripted)

    def script_for(messages):
        return lambda conversation, tools, skill: scripted.scripted_choices(
            ITEMS[0], conversation, tools, skill
        )

    app = mock_app(script_for, skill=0.6, renderer=scripted.renderer)
    async with running_server(app) as base_url:
        server = ServerConfig(base_url=base_url, model_name="scripted")
        env = made(servers=[server])
        await group_from(env)
        credited = await group_from(env)  # opened once more, with new connections
    assert [t.rows for t in credited.group.trajectories] == [t.rows for t in expected.group.trajectories]
    assert all(trajectory.exact for trajectory in credited.group.trajectories)


async def test_a_group_that_teaches_nothing_is_recorded_but_not_sent():
    env = made(scripted_skill=1.0)
    credited = await group_from(env)
    assert (credited.status, credited.reason) == ("no_credit", "every advantage is zero")


async def test_a_reward_that_raises_drops_its_sibling_and_no_other_with_where_it_broke():
    group = (await group_from(made(Breaking))).group
    assert [trajectory.sibling for trajectory in group.trajectories] == [0, 2, 3]
    (failure,) = group.failures
    assert failure.error.startswith("ZeroDivisionError: the judge broke (write_file.py:")
    assert "compute_turn_rewards" in failure.traceback


async def test_too_few_survivors_fail_the_group_and_give_no_credit():
    class MostlyBroken(Breaking):
        broken = frozenset({0, 1, 2})

    credited = await group_from(made(MostlyBroken))
    assert credited.status == "failed"
    assert credited.reason == "1 of 4 rollouts survived, at least 2 are needed"
    assert not any(value for turns in credited.advantages for value in turns)


async def test_a_lost_sandbox_is_a_failure_and_never_a_number():
    class Killing(WriteFile):
        async def score_turn(self, item, turn, ctx):
            for outer in processes.children(os.getpid()):
                for pid in (*processes.children(outer), outer):
                    with suppress(ProcessLookupError):  # its sibling may have killed it
                        os.kill(pid, signal.SIGKILL)
            await ctx.sandbox.exec("true")

    credited = await group_from(made(Killing, group_size=2))
    assert {failure.stop_reason for failure in credited.group.failures} == {StopReason.SANDBOX_LOST}


async def test_an_error_that_is_no_utf8_text_is_recorded_all_the_same(tmp_path):
    class Undecodable(WriteFile):
        async def score_turn(self, item, turn, ctx):
            raise OSError("no file \udcff.txt")

    credited = await group_from(made(Undecodable))
    with Recorder(tmp_path / "r.jsonl") as recorder:
        recorder.append(credited)
    (read,) = read_groups(tmp_path / "r.jsonl")
    assert read == credited
    assert read.group.failures[0].error.startswith(r"OSError: no file \udcff.txt")


@pytest.mark.parametrize("state", [5, "\udcff"])
async def test_an_anchor_state_that_a_record_cannot_hold_drops_the_sibling(state):
    class Counting(WriteFile):
        def state_key(self, item, turn):
            return state

    credited = await group_from(made(Counting))
    assert (
        "RewardError: environment 'write_file', item 'hello', before the first turn"
        in credited.group.failures[0].error
    )


async def test_the_score_is_aggregated_as_the_class_declares():
    class Averaged(WriteFile):
        score_aggregation = "mean"

        async def compute_turn_rewards(self, item, trajectory, ctx):
            return [2.0, 0.0] if len(trajectory.turns) == 2 else [1.0] * len(trajectory.turns)

        async def compute_outcome(self, item, trajectory, ctx):
            return None

    credited = await group_from(made(Averaged, group_size=1))
    assert credited.group.trajectories[0].score == 1.0


async def test_a_prompt_that_is_drawn_at_random_is_recorded_as_it_was_sampled_from():
    class Varied(WriteFile):
        variants = iter("ab")  # what `next` takes is one rollout's alone: `def` hooks run side by side

        def format_prompt(self, item):
            return f"Variant {next(self.variants)}."

    env = made(Varied, group_size=2)
    for trajectory in (await group_from(env)).group.trajectories:
        said = trajectory.prompt[-1].content
        sampled_from = env.renderer.decode(trajectory.rows[0].token_ids)
        assert said in sampled_from
    assert next(env.variants, None) is None


async def test_an_environment_without_a_reward_says_what_to_write():
    class Unfinished(AgentEnv):
        name = "unfinished"

        async def load_items(self):
            return ITEMS

        def format_prompt(self, item):
            return "do"

    with pytest.raises(ConfigError, match="write compute_reward"):
        made(Unfinished)


async def test_an_environment_without_a_prompt_says_what_to_write():
    class Unfinished(AgentEnv):
        name = "unfinished"

        async def compute_reward(self, item, trajectory, ctx):
            return 0.0

    with pytest.raises(ConfigError, match=r"'unfinished' has no prompt; write format_prompt\(self, item\)"):
        made(Unfinished)


async def test_an_environment_without_a_name_is_refused():
    class Nameless(WriteFile):
        name = ""

    with pytest.raises(ConfigError, match="class Nameless has no name"):
        made(Nameless)


@cases("prompt", [None, [["do"]], [{"role": "user"}], {"role": "user"}, b"do"], ids=str)
async def test_a_prompt_that_is_neither_text_nor_messages_drops_the_rollout(prompt):
    class Odd(WriteFile):
        def format_prompt(self, item):
            return prompt

    (failure,) = (await group_from(made(Odd, group_size=1))).group.failures
    assert re.search(r"format_prompt gave .*give text, or a list of .*Message", failure.error)


@pytest.mark.parametrize(
    ("rewards", "passed"),
    [
        (Rewards(turns=(1.0, 1.0), outcome=0.0, score=2.0), False),
        (Rewards(turns=(-1.0,), outcome=1.0, score=0.0), True),
        (Rewards(turns=(0.5, 0.5), outcome=None, score=1.0), True),
        (Rewards(outcome=0.5, score=0.5), False),
    ],
    ids=["turns without the outcome", "outcome in spite of turns", "no outcome", "scalar"],
)
def test_what_passes_is_the_outcome_and_without_one_the_score(rewards, passed):
    trajectory = Trajectory(item_id="hello", turns=(), rows=(), rewards=rewards)
    assert made().passed(ITEMS[0], trajectory) == passed


async def test_a_policy_that_the_user_brings_plays_and_is_recorded_under_its_own_name():
    def script(messages, tools, skill):
        return [Choice(probability=1.0, message=say("no"))]

    class Checkpoint(ScriptedPolicy):
        name = "my checkpoint"

    policy = Checkpoint(script, skill=1.0, renderer=ChatMLRenderer.embedded())
    async with made(policy=policy) as env:
        credited = await env.run_group(env.tasks()[0])
    assert credited.policy == "my checkpoint"
    assert {t.turns[0].message.content for t in credited.group.trajectories} == {"no"}


async def test_rollouts_in_flight_can_be_watched():
    seen = []

    @contextmanager
    def watch(_):
        seen.append("began")
        yield
        seen.append("ended")

    async with made(group_size=2) as env:
        await env.run_group(env.tasks()[0], watch=watch)
    assert Counter(seen) == {"began": 2, "ended": 2}


@pytest.mark.parametrize("server", [ServerConfig, APIServerConfig])
def test_the_servers_of_the_class_play_unless_others_are_given(server):
    class Served(WriteFile):
        @classmethod
        def config_init(cls):
            return cls.env_config_cls(), [server(base_url="http://127.0.0.1:1/v1", model_name="mine")]

    assert Served().policy_name == "mine"
    assert Served(servers=[]).policy_name == "scripted:0.6"


@pytest.mark.parametrize(
    "policy",
    ["gpt", ScriptedPolicy, object(), type("Mute", (), {"name": "mute"})()],
    ids=["text", "a class", "no name", "no complete"],
)
def test_a_policy_that_cannot_play_or_be_recorded_is_refused_at_once(policy):
    with pytest.raises(ConfigError, match="a policy has a `name`, which the record shows, and"):
        made(policy=policy)


@pytest.mark.parametrize(
    ("config", "servers"), [({"group_size": 2}, ()), (AgentEnvConfig, ()), (None, ["http://h"])]
)
def test_settings_that_are_none_are_refused_at_once(config, servers):
    with pytest.raises(ConfigError, match=r"AgentEnvConfig|ServerConfig"):
        WriteFile(config, servers)


def test_a_way_to_aggregate_that_does_not_exist_is_refused_at_once():
    class Odd(WriteFile):
        score_aggregation = "max"

    with pytest.raises(ConfigError, match="score_aggregation 'max'; choose one of sum, mean, outcome"):
        made(Odd)


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.parametrize("is_async", [False, True])
async def test_a_forgotten_await_is_named_as_one(is_async):
    def forgets(self, item, trajectory, ctx):
        return float(ctx.sandbox.exec("true").exit_code)

    async def forgets_in_async(self, item, trajectory, ctx):
        return 1.0 + ctx.sandbox.exec("true")

    reward = forgets_in_async if is_async else forgets
    cls = type("Forgets", (ScalarWriteFile,), {"compute_reward": reward})
    failures = (await group_from(made(cls, group_size=2))).group.failures
    assert ["is `await` missing" in failure.error for failure in failures] == [True, True]
