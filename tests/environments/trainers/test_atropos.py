"""Atropos' own machinery on one of our environments."""

import json
import subprocess
import sys
from dataclasses import replace
from statistics import mean, pstdev

import pytest

from environments.trainers.atropos import atropos_env
from tests.environments.wire.forked_groups import forked_group, with_credit
from tests.environments.write_file import ITEMS, ScalarWriteFile, WriteFile, by_sibling
from tools.errors import ConfigError, WireError


def adapted(cls=WriteFile, **fields):
    theirs = atropos_env(cls)
    config, servers = theirs.config_init()
    return theirs(config.model_copy(update={"group_size": 4, **fields}), servers)


async def test_a_group_whose_scores_are_equal_is_kept_for_its_turns(tmp_path):
    class Tied(WriteFile):
        async def compute_turn_rewards(self, item, trajectory, ctx):
            return [1.0, 0.0] if trajectory.sibling % 2 else [0.0, 1.0]

        async def compute_outcome(self, item, trajectory, ctx):
            return None

    env = adapted(Tied, data_path_to_save_groups=str(tmp_path / "out.jsonl"))
    env.process_mode, env.n_groups_to_process, env.group_size_to_process = True, 1, 4
    await env.process_manager()
    (group,) = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    assert len(set(group["scores"])) == 1


async def test_the_view_that_the_settings_name_is_the_one_that_atropos_sends(tmp_path):
    env = adapted(credit_view="binary_masks", data_path_to_save_groups=str(tmp_path / "out.jsonl"))
    env.process_mode, env.n_groups_to_process, env.group_size_to_process = True, 1, 2
    await env.process_manager()
    (group,) = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    assert {label for mask in group["masks"] for label in mask} == {0, 1}


@pytest.mark.parametrize("view", ["turn_rows", "prefix_rows"])
def test_a_view_of_single_rows_is_refused(view):
    with pytest.raises(ConfigError, match=f"credit_view {view} makes a group of every row.*turnwise serve"):
        adapted(credit_view=view)


@pytest.fixture
async def opened():
    envs = []

    async def opening(cls=WriteFile, **fields):
        env = adapted(cls, **fields)
        envs.append(env)
        await env.setup()
        return env

    yield opening
    for env in envs:
        await env.aclose()


async def test_rewritten_histories_are_groups_of_that_size_with_the_scores_of_the_whole(opened):
    env = await opened()
    scores = [0.0, 1.0, 2.0, 3.0]

    async def run_group(task, size):
        return with_credit(forked_group([[[2], [2]], [[2]], [[2]], [[2]]], outcomes=scores))

    env.agent_env.run_group = run_group
    groups, _ = await env.collect_trajectories(ITEMS[0])
    assert [len(group["tokens"]) for group in groups] == [4, 4]
    spreads = [(mean(group["scores"]), pstdev(group["scores"])) for group in groups]
    assert spreads == [pytest.approx((mean(scores), pstdev(scores)))] * 2


class TextAlone(WriteFile):
    """As if played by a server that gives no token ids."""

    lacking = frozenset({0, 1, 2, 3})

    async def rollout_group(self, task, size, **named):
        group = await super().rollout_group(task, size, **named)
        given = (replace(each, exact=each.sibling not in self.lacking) for each in group.trajectories)
        return replace(group, trajectories=tuple(given))


@pytest.mark.parametrize("collect", ["collect_trajectories", "collect_trajectory"])
async def test_tokens_that_were_never_sampled_go_to_no_trainer(opened, collect):
    with pytest.raises(ConfigError, match=r"gives no token ids.*--env.allow_approximate_tokens"):
        await getattr(await opened(TextAlone), collect)(ITEMS[0])


async def test_one_rollout_without_token_ids_is_dropped_alone(opened):
    class Once(TextAlone):
        lacking = frozenset({1})

    group, _ = await (await opened(Once)).collect_trajectories(ITEMS[0])
    assert ["padding" in each for each in group["overrides"]] == [False, False, False, True]


async def test_without_the_mixin_the_payload_is_plain_scalar_data(opened):
    env = await opened(ScalarWriteFile, estimator="grpo")
    env.agent_env.compute_outcome = by_sibling
    group, _ = await env.collect_trajectories(ITEMS[0])
    assert group["scores"] == [0.0, 1.0, 2.0, 3.0]
    assert set(group) == {
        "tokens", "masks", "scores", "messages", "inference_logprobs", "group_overrides"
    }  # fmt: skip


async def test_collect_trajectory_gives_one_scored_item_with_its_turns_in_the_overrides(opened):
    item, backlog = await (await opened()).collect_trajectory(ITEMS[0])
    assert backlog == []
    assert isinstance(item["scores"], float)
    assert len(item["tokens"]) == len(item["masks"])
    assert "advantages" not in item
    assert len(item["overrides"]["turn_rewards"]) == len(item["overrides"]["turn_spans"])


async def test_a_trajectory_of_several_rows_is_no_item(opened):
    class Forking(WriteFile):
        async def rollout_group(self, task, size, **_):
            group = await super().rollout_group(task, size)
            (trajectory,) = group.trajectories
            return replace(group, trajectories=(replace(trajectory, rows=trajectory.rows * 2),))

    with pytest.raises(WireError, match="2 token rows, and a ScoredDataItem holds one"):
        await (await opened(Forking)).collect_trajectory(ITEMS[0])


async def test_an_evaluation_has_its_own_items_beside_training(opened, tmp_path):
    class Evaluated(WriteFile):
        async def load_items(self):
            return ITEMS

        async def load_eval_items(self):
            return [{**ITEMS[0], "id": "held out"}]

    env = await opened(
        Evaluated,
        data_dir_to_save_evals=str(tmp_path),
        eval_rollouts=3,
    )
    await env.evaluate()
    metrics = json.loads((tmp_path / "metrics.json").read_text())["results"]["all"]
    assert metrics["eval/rollouts"] == 3
    assert len(env.agent_env.items) == len(ITEMS)


CLI = """
from environments.trainers.atropos import atropos_env
from tests.environments.serve.served_env import Talk
from tests.environments.write_file import WriteFile
atropos_env(WriteFile).cli()
"""


def cli(tmp_path, *options):
    command = [sys.executable, "-c", CLI, "process", "--env.use_wandb", "false", "--env.total_steps", "1"]
    out = ["--env.group_size", "2", "--env.data_path_to_save_groups", str(tmp_path / "out.jsonl")]
    return subprocess.run([*command, *out, *options], capture_output=True, text=True, timeout=280)


def test_atropos_own_command_line_takes_the_estimators_parameters_as_json(tmp_path):
    done = cli(tmp_path, "--env.estimator_params", '{"gamma": 0.5}')
    assert done.returncode == 0, done.stderr[-2000:]
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 1


async def test_siblings_are_compared_in_a_group_and_refused_for_a_rollout_alone():
    class Compared(ScalarWriteFile):
        async def compute_reward(self, item, trajectory, ctx):
            return 0.0

        async def score_group(self, item, trajectories, ctx):
            return [float(each.sibling) for each in trajectories]

    env = adapted(Compared, group_size=2)
    await env.setup()
    try:
        item = await env.get_next_item()
        group, _ = await env.collect_trajectories(item)
        assert group["scores"] == [0.0, 1.0]
        with pytest.raises(ConfigError, match="writes score_group, which compares siblings"):
            await env.collect_trajectory(item)
    finally:
        await env.aclose()


async def test_a_trajectory_of_which_nothing_was_scored_is_none(opened):
    class Unscored(WriteFile):
        async def score_turn(self, item, turn, ctx):
            return None

        async def compute_outcome(self, item, trajectory, ctx):
            return None

    assert await (await opened(Unscored)).collect_trajectory(ITEMS[0]) == (None, [])
