"""`--env.max_staleness` in `serve`: a group that waited is looked at again before it is sent."""

import asyncio
from dataclasses import replace

import pytest

from environments.config import AgentEnvConfig
from environments.record.recorder import read_groups
from environments.rollout.lifecycle.weight_versions import WeightVersions
from environments.run.open_run import RunOptions
from environments.serve.serving import serve
from environments.trajectory import TrajectoryGroup
from environments.wire.payloads import Shape
from tests.environments.chat.chat_env import Chat
from tests.environments.chat.versioned import Versioned, played_by
from tests.environments.serve.delivered import blocking, credited, delivering, groups_of, put, until
from tests.environments.write_file import quiet
from tools.errors import ConfigError


def by(version, name):
    made = credited(name)
    trajectories = [
        replace(each, turns=tuple(replace(turn, weight_version=version) for turn in each.turns))
        for each in made.group.trajectories
    ]
    return replace(made, group=replace(made.group, trajectories=tuple(trajectories)))


def meet(versions, group: TrajectoryGroup):
    versions.note(group.trajectories[0].turns[0])


@pytest.fixture
def versions():
    return WeightVersions(AgentEnvConfig(max_staleness=1))


async def test_rows_that_became_too_old_while_they_waited_are_not_sent_and_said(api, outbox, versions):
    async with delivering(api.url, outbox, weights=versions) as delivery:
        for name in "abc":
            meet(versions, by(name, name).group)
            await put(delivery, by(name, name))
        await blocking(api.start_trainer, batch_size=4)
        await until(delivery, lambda: delivery.tally.posts == 2)
        taken = [groups_of(await blocking(api.take_batch)) for _ in range(2)]
    assert sorted(taken) == [["b"], ["c"]]
    assert (delivery.tally.withheld, delivery.waiting) == (4, 0)
    told = "group a: 4 rows are not trained, stale: 2 newer versions of the weights since its oldest turn"
    assert any(line.startswith(told) for line in delivery.lines)


async def test_an_old_rollouts_young_turns_are_not_sent_either(api, outbox, versions):
    """A rollout counts by its oldest turn, also where each turn is a post of its own."""
    made = by("c", "a")
    old, *fresh = made.group.trajectories
    turns = [replace(old.turns[0], weight_version="a"), replace(old.turns[0], index=1, weight_version="c")]
    old = replace(old, turns=tuple(turns), rewards=replace(old.rewards, turns=(0.0, 0.0)))
    made = replace(
        made,
        group=replace(made.group, trajectories=(old, *fresh)),
        advantages=((1.0, 1.0), *made.advantages[1:]),
    )
    shape = Shape(group_size=4, view="turn_rows", divisor=1)
    async with delivering(api.url, outbox, shape, weights=versions) as delivery:
        await put(delivery, made)
        for name in "abc":
            meet(versions, by(name, name).group)
        await blocking(api.start_trainer, batch_size=3)
        await until(delivery, lambda: delivery.tally.posts == 3)
    assert delivery.tally.withheld == 2


async def test_rows_of_a_group_that_has_begun_to_arrive_go_on(trained, outbox, versions, monkeypatch):
    shape = Shape(group_size=4, view="turn_rows", divisor=1)
    meet(versions, by("a", "a").group)
    async with delivering(trained.url, outbox, shape, weights=versions) as delivery:
        kind = type(delivery._sender)
        send = kind.send

        async def and_the_weights_change(self, post, env_id):
            sent = await send(self, post, env_id)
            for name in "bcd":
                meet(versions, by(name, name).group)
            return sent

        monkeypatch.setattr(kind, "send", and_the_weights_change)
        await put(delivery, by("a", "a"))
        await until(delivery, lambda: delivery.tally.posts == 4)
    assert delivery.tally.withheld == 0


async def test_what_an_earlier_run_left_keeps_the_ages_it_had(api, outbox, versions):
    """Killed, and started again: three versions are no one age."""
    async with delivering(api.url, outbox, weights=versions) as delivery:
        for name in "abc":
            meet(versions, by(name, name).group)
            await put(delivery, by(name, name))
    async with delivering(api.url, outbox, weights=WeightVersions(AgentEnvConfig(max_staleness=1))) as again:
        await blocking(api.start_trainer, batch_size=4)
        await until(again, lambda: again.tally.posts == 2)
        taken = [groups_of(await blocking(api.take_batch)) for _ in range(2)]
    assert sorted(taken) == [["b"], ["c"]]
    assert again.tally.withheld == 4


async def test_a_trainer_that_goes_back_gets_groups_of_its_old_weights(api, outbox, versions):
    async with delivering(api.url, outbox, weights=versions) as delivery:
        await blocking(api.start_trainer, batch_size=4, starting_step=5)
        await until(delivery, lambda: delivery.online)
        for name in "abc":
            meet(versions, by(name, name).group)
        await blocking(api.get, "/reset_data")
        await blocking(api.start_trainer, batch_size=4, starting_step=3)
        await until(delivery, lambda: delivery.tally.registrations == 2)
        meet(versions, by("a", "a").group)
        await put(delivery, by("a", "a"))
        await until(delivery, lambda: delivery.tally.posts == 1)
    assert delivery.tally.withheld == 0


@pytest.mark.parametrize(("most", "ahead"), [(0, 2), (1, 2), (2, 4), (None, 100)])
async def test_so_many_groups_may_be_ahead_of_the_trainer_as_its_batches_take(api, outbox, most, ahead):
    versions = WeightVersions(AgentEnvConfig(max_staleness=most))
    async with delivering(api.url, outbox, weights=versions) as delivery:
        await blocking(api.start_trainer, batch_size=8)
        await until(delivery, lambda: delivery.online)
        assert [delivery.has_room(in_flight) for in_flight in (ahead - 1, ahead)] == [True, most is None]


async def test_groups_at_the_api_and_in_the_outbox_count_as_ahead_until_the_trainer_takes_them(api, outbox):
    versions = WeightVersions(AgentEnvConfig(max_staleness=0))
    async with delivering(api.url, outbox, weights=versions) as delivery:
        await blocking(api.start_trainer, batch_size=8)
        for name in "ab":
            await put(delivery, by("v1", name))
        await until(delivery, lambda: delivery.tally.posts == 2)
        assert not delivery.has_room(0)
        assert await blocking(api.take_batch)
        await until(delivery, lambda: delivery.has_room(0))


async def test_batches_that_were_formed_and_not_handed_out_yet_are_ahead_of_the_trainer(api, outbox):
    versions = WeightVersions(AgentEnvConfig(max_staleness=3))
    async with delivering(api.url, outbox, weights=versions, max_batches_waiting=3) as delivery:
        await blocking(api.start_trainer, batch_size=8)
        for name in "abcd":
            await put(delivery, by("v1", name))
        await until(delivery, lambda: delivery.tally.posts == 4)
        for formed, has_room in ((0, True), (1, False)):
            delivery._registration.formed = formed
            assert (delivery.has_room(0), delivery._may_send()) == (has_room, has_room)


async def test_too_few_posts_for_a_batch_leave_room_whatever_groups_had_before(api, outbox):
    """What waits is counted as it is: by a mean that is too high the trainer would wait for ever."""
    versions = WeightVersions(AgentEnvConfig(max_staleness=1))
    shape = Shape(group_size=4, view="turn_rows", divisor=1)
    async with delivering(api.url, outbox, shape, weights=versions) as delivery:
        await blocking(api.start_trainer, batch_size=8)
        delivery._groups_put, delivery._posts_put = 1, 40
        await put(delivery, by("v1", "a"))
        await until(delivery, lambda: delivery.tally.posts == 4)
        delivery._registration.formed = 3  # may be too many: nothing tells when a batch was handed out
        assert delivery.has_room(0)


async def test_serve_records_counts_and_does_not_send_what_is_stale(trained, tmp_path):
    record = tmp_path / "record.jsonl"

    class Ending(Chat):
        def next_items(self, history):
            return [] if len(history) or history.in_flight else ["a"]

    env = played_by(
        *"aaaaab",
        cls=Ending,
        max_staleness=0,
        credit_view="turn_rows",
        rollout_server_url=trained.url,
        data_path_to_save_groups=str(record),
    )
    console = quiet()
    assert (
        await asyncio.wait_for(serve(env, console, options=RunOptions(outbox=tmp_path / "o.sqlite")), 60) == 0
    )
    (group,) = read_groups(record)
    assert (group.status, group.group.weight_versions) == ("no_credit", ("a", "b"))
    shown = console.file.getvalue()
    assert "stale groups 1" in shown
    assert "posts 0," in shown


async def test_serve_ends_at_once_where_nobody_says_versions(trained, tmp_path):
    env = played_by(
        None,
        max_staleness=0,
        credit_view="turn_rows",
        rollout_server_url=trained.url,
    )
    with pytest.raises(ConfigError, match="no completion names one"):
        await asyncio.wait_for(serve(env, quiet(), options=RunOptions(outbox=tmp_path / "o.sqlite")), 60)


@pytest.mark.parametrize("most", [0, 1, 2])
async def test_a_trainer_that_changes_the_weights_at_each_step_gets_all_of_its_batches(api, tmp_path, most):
    class Stepping(Versioned):
        version = "step-0"

        async def complete(self, request):
            return replace(await super().complete(request), weight_version=self.version)

    fields = {"max_staleness": most, "credit_view": "token_advantages", "rollout_server_url": api.url}
    config = AgentEnvConfig(group_size=2, max_concurrent_rollouts=4, **fields)
    env = Chat(config, policy=Stepping("unused"))
    await blocking(api.start_trainer, batch_size=4)
    console = quiet()
    serving = asyncio.create_task(serve(env, console, options=RunOptions(outbox=tmp_path / "o.sqlite")))
    try:
        for step in range(1, 6):
            while (batch := await blocking(api.take_batch)) is None:
                assert not serving.done(), console.file.getvalue()
            assert sum(len(group["scores"]) for group in batch) == 4
            env.policy.version = f"step-{step}"
    finally:
        serving.cancel()
        await asyncio.wait({serving})
