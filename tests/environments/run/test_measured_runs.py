"""Parts of rewards and metrics: recorded, and shown wherever a run shows its scores."""

import json

import pytest
from rich.console import Console

from environments.record.recorder import read_groups
from environments.run.evaluation_run import evaluate
from environments.run.process_run import process
from environments.run.tracking import MAX_NAMES, limit_names
from tests.environments.write_file import made
from turnwise import AgentEnv, TurnLevelRewardMixin
from turnwise.rewards import Rubric

RUBRIC = Rubric(answer=2.0, shape=0.5)
PART = "answer: 2.000 (4)  shape: 0.250 (4)"
RAW = "answer: 1.000 (4)  shape: 0.500 (4)"
NUMBERS = {
    "part/answer": 2.0,
    "part/shape": 0.25,
    "raw/answer": 1.0,
    "raw/shape": 0.5,
    "metric/seen": 0.75,
}


class Scalar(AgentEnv):
    """The same reward for every rollout, from a rubric."""

    name = "measured"

    def load_items(self):
        return ["a", "b"]

    def format_prompt(self, item):
        return item

    def compute_reward(self, item, trajectory, ctx):
        ctx.metrics["seen"] = 0.75
        return RUBRIC(answer=True, shape=0.5)


class PerTurn(TurnLevelRewardMixin, Scalar):
    """The same, as a turn reward and an outcome."""

    name = "measured_by_turn"

    def score_turn(self, item, turn, ctx):
        ctx.metrics["seen"] = 0.75
        return RUBRIC(answer=None, shape=0.5)

    def compute_outcome(self, item, trajectory, ctx):
        return RUBRIC(answer=True, shape=None)


def rows(text, *names):
    return {
        name: line.removeprefix(name).strip()
        for line in text.splitlines()
        for name in names
        if line.startswith(name)
    }


@pytest.mark.parametrize("cls", [Scalar, PerTurn])
async def test_a_run_ends_with_the_means_of_parts_and_metrics(tmp_path, capsys, cls):
    env = made(cls, data_path_to_save_groups=str(tmp_path / "r.jsonl"), group_size=2)
    assert await process(env, Console(width=200)) == 0
    assert rows(capsys.readouterr().out, "reward by part", "before weights", "metrics") == {
        "reward by part": PART,
        "before weights": RAW,
        "metrics": "seen: 0.750 (4)",
    }
    (trajectory, *_) = next(read_groups(tmp_path / "r.jsonl")).group.trajectories
    raw, parts = {}, {}
    for each in (*trajectory.rewards.turn_raw, trajectory.rewards.outcome_raw):
        raw |= each
    for each in (*trajectory.rewards.turn_components, trajectory.rewards.outcome_components):
        parts |= each
    assert (raw, parts) == ({"answer": 1.0, "shape": 0.5}, {"answer": 2.0, "shape": 0.25})


async def test_an_evaluation_shows_and_keeps_parts_metrics_and_answers_of_its_judge(tmp_path, capsys):
    class Judged(Scalar):
        async def compute_reward(self, item, trajectory, ctx):
            await ctx.judge("Good?")
            return super().compute_reward(item, trajectory, ctx)

        def scripted_judge(self, item, messages):
            return '{"score": 1}'

    env = made(Judged, data_dir_to_save_evals=str(tmp_path), eval_rollouts=2)
    assert await evaluate(env, Console(width=200)) == 0
    assert rows(capsys.readouterr().out, "reward by part", "before weights", "metrics", "judge") == {
        "reward by part": PART,
        "before weights": RAW,
        "metrics": "seen: 0.750 (4)",
        "judge": "4 answers",
    }
    kept = json.loads((tmp_path / "metrics.json").read_text())["results"]["all"]
    assert {name: kept[f"eval/{name}"] for name in NUMBERS} == NUMBERS
    first = json.loads((tmp_path / "samples.jsonl").read_text().splitlines()[0])
    assert (first["parts"], first["metrics"]) == ({"answer": 2.0, "shape": 0.25}, {"seen": 0.75})


def test_a_tracked_run_has_few_names_however_many_come():
    known = set()
    tracked = [limit_names({"score": 1.0, f"{number}": 1.0}, known) for number in range(500)]
    assert len(set().union(*tracked)) == MAX_NAMES
    assert tracked[-1] == {"score": 1.0}
