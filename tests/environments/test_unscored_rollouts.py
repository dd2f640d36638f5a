"""Where turns are rewarded only when something happens, a rollout in which nothing did has earned 0."""

import io
from statistics import fmean

import pytest
from click.testing import CliRunner
from rich.console import Console

from environments.config import AgentEnvConfig
from environments.record.recorder import read_groups
from environments.run.process_run import process
from turnwise import AgentEnv, Choice, TurnLevelRewardMixin, say
from turnwise.cli.credit import command


class Game(TurnLevelRewardMixin, AgentEnv):
    """An ordinary game: a turn is paid when the treasure is found, and nothing else is."""

    name = "game"
    sandbox = "none"

    def load_items(self):
        return [{"id": number} for number in range(12)]

    def format_prompt(self, item):
        return "Dig."

    def respond(self, item, turn, ctx):
        return "Nothing here." if turn.index < 1 and turn.message.content != "found" else None

    def score_turn(self, item, turn, ctx):
        return 1.0 if turn.message.content == "found" else None

    def scripted_choices(self, item, messages, tools, skill):
        return [Choice(probability=0.2, message=say("found")), Choice(probability=0.8, message=say("mud"))]


async def played(cls, path, **settings):
    console = Console(file=io.StringIO(), width=200)
    config = AgentEnvConfig(
        group_size=4, max_concurrent_rollouts=4, data_path_to_save_groups=str(path), **settings
    )
    code = await process(cls(config), console)
    return code, list(read_groups(path)), console.file.getvalue()


def scores_of(groups):
    return [each.score for group in groups for each in group.group.trajectories]


async def test_its_groups_are_credited_and_the_mean_score_is_the_rate_of_wins(tmp_path):
    code, groups, said = await played(Game, tmp_path / "r.jsonl")
    rollouts = [each for group in groups for each in group.group.trajectories]
    won = [any(each.rewards.turns) for each in rollouts]
    assert 0 < sum(won) < len(won) == 48
    assert [each.score for each in rollouts] == [float(each) for each in won]
    # The record has what the hooks gave, and the score alone says what it counts as.
    assert {each.rewards.outcome for each in rollouts} == {None}
    assert all(set(each.rewards.turns) == {None} for each, one in zip(rollouts, won, strict=True) if not one)
    assert f"score             mean {fmean(map(float, won)):.3f}" in said
    mixed = [len({each.score for each in group.group.trajectories}) == 2 for group in groups]
    assert [group.status == "ok" for group in groups] == mixed
    assert (code, {group.status for group in groups}) == (0, {"ok", "no_credit"})
    assert "played by         scripted:" in said
    assert f"turnwise view {tmp_path / 'r.jsonl'}" in said


@pytest.mark.parametrize("stated", ["refuse", "drop", -1.0])
async def test_what_is_stated_holds_in_a_class_without_outcomes_too(tmp_path, stated):
    _, groups, _ = await played(Game, tmp_path / "r.jsonl", missing_outcome=stated)
    reasons, scores = " ".join(group.reason or "" for group in groups), scores_of(groups)
    assert ("nothing scored beside siblings with rewards" in reasons) == (stated == "refuse")
    assert 0.0 not in scores
    assert (-1.0 in scores) == (stated == -1.0)


@pytest.mark.parametrize(("stated", "score"), [((), 0.0), (("--missing-outcome", "-1"), -1.0)])
async def test_such_a_record_is_credited_anew_as_it_was_or_as_is_stated(tmp_path, stated, score):
    path, out = tmp_path / "r.jsonl", tmp_path / "out.jsonl"
    _, before, _ = await played(Game, path)
    arguments = [str(path), "--estimator", "turn_return", *stated, "--write", str(out)]
    done = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    after = list(read_groups(out))
    assert [group.status for group in after] == [group.status for group in before]
    of_mixed = [group for group in after if group.status == "ok"]
    assert min(scores_of(of_mixed)) == score
