"""Rewards that need the live rollout are not computed from a record, however the need is hidden."""

import asyncio

import pytest

from environments.record.recorder import read_contents
from environments.run.process_run import process
from environments.run.rescore_run import rescore
from tests.environments.chat.chat_env import Chat, chat
from tests.environments.write_file import quiet
from tools.errors import ConfigError


async def uses(attribute, ctx):
    return getattr(ctx, attribute)


async def openly(attribute, ctx):
    await uses(attribute, ctx)
    return 0.0


async def behind_a_broad_except(attribute, ctx):
    try:
        await uses(attribute, ctx)
    except BaseException:  # noqa: BLE001
        return 0.0


async def in_a_task(attribute, ctx):
    await asyncio.gather(uses(attribute, ctx), return_exceptions=True)
    return 0.0


async def and_then_it_exits(attribute, ctx):
    try:
        await uses(attribute, ctx)
    finally:
        raise SystemExit(0)


WAYS = [openly, behind_a_broad_except, in_a_task, and_then_it_exits]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    path = tmp_path_factory.mktemp("recorded") / "r.jsonl"
    asyncio.run(process(chat(Chat, data_path_to_save_groups=str(path)), quiet()))
    return path.read_bytes()


@pytest.fixture
def record(recorded, tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_bytes(recorded)
    return path


async def refused(record, cls=Chat, **hooks):
    with pytest.raises(ConfigError) as refusal:
        await rescore(chat(cls, **hooks), record, read_contents(record), record.with_suffix(".new"), quiet())
    assert [each.name for each in record.parent.iterdir()] == ["r.jsonl"]
    return str(refusal.value)


@pytest.mark.parametrize("attribute", ["sandbox", "state"])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_the_whole_command_is_refused_and_names_hook_and_attribute(record, way, attribute):
    async def compute_outcome(self, item, trajectory, ctx):
        return await way(attribute, ctx)

    text = await refused(record, compute_outcome=compute_outcome)
    assert f"compute_outcome uses ctx.{attribute}, which a rollout has and its record has not" in text
    assert "\n" not in text


@pytest.mark.parametrize(
    "ask",
    [
        lambda ctx: ctx.artefact("answer"),
        lambda ctx: ctx.files.get_archive("answer"),
    ],
    ids=["artefact", "files"],
)
async def test_so_for_a_file_that_was_not_kept_even_if_the_refusal_is_caught(record, ask):
    async def compute_outcome(self, item, trajectory, ctx):
        try:
            await ask(ctx)
        except BaseException:  # noqa: BLE001
            return 0.0

    text = await refused(record, compute_outcome=compute_outcome)
    assert "compute_outcome takes 'answer' after the last turn, which its rollout did not take" in text


async def score_turn(self, item, turn, ctx):
    return 0.0 if ctx.state is None else 1.0


async def compute_turn_rewards(self, item, trajectory, ctx):
    return [0.0 if ctx.state is None else 1.0] * 3


def train_turn(self, item, turn, ctx):
    return ctx.state is None


@pytest.mark.parametrize(
    "hook", [score_turn, compute_turn_rewards, train_turn], ids=lambda hook: hook.__name__
)
async def test_so_for_each_hook(record, hook):
    assert f"{hook.__name__} uses ctx.state" in await refused(record, **{hook.__name__: hook})


async def test_a_hook_that_hangs_costs_its_rollout_alone(record):
    async def compute_outcome(self, item, trajectory, ctx):
        if trajectory.sibling == 1:
            await asyncio.Event().wait()
        return 0.0

    console = quiet()
    env = chat(Chat, compute_outcome=compute_outcome, hook_timeout_s=2.0)
    await rescore(env, record, read_contents(record), record.with_suffix(".new"), console)
    assert "failed now 3x TimeLimitExceeded: compute_outcome took longer than 2 s" in console.file.getvalue()
