"""The registration against the real API, directly and behind a proxy: every replacement is noticed."""

import gzip
import json

import pytest

from environments.serve.trajectory_api import ApiUnavailableError, TrajectoryApi
from environments.wire.payloads import Shape, pack
from tests.environments.serve.delivered import (
    blocking,
    credited,
    delivering,
    groups_of,
    put,
    registration_at,
    until,
)
from tests.environments.serve.proxy import Proxy


async def some_looks(delivery):
    for _ in range(4):
        await delivery.changed()


async def test_a_reset_that_nobody_saw_is_noticed_by_a_number_that_is_nobodys(trained, outbox):
    async with registration_at(trained.url, outbox) as registration:
        await registration.register()
        assert await registration.look()
        await blocking(trained.get, "/reset_data")
        await blocking(trained.start_trainer)
        assert not await registration.look()


async def test_what_a_reset_lost_within_a_moment_is_sent_again(trained, outbox):
    async with delivering(trained.url, outbox) as delivery:
        await put(delivery, credited("a"))
        await until(delivery, lambda: delivery.tally.posts == 1)
        await blocking(trained.get, "/reset_data")
        await blocking(trained.start_trainer)
        await until(delivery, lambda: delivery.tally.posts == 2)
        assert groups_of(await blocking(trained.take_batch)) == ["a"]


async def test_without_a_weight_the_api_is_not_asked_about_us_since_it_would_divide_by_zero(trained, outbox):
    async with registration_at(trained.url, outbox, weight=-1.0) as registration:
        await registration.register()
        assert await registration.look()
        assert registration.state.own_groups is None


async def test_what_an_api_behind_a_proxy_had_when_it_was_killed_is_sent_again(api, outbox):
    api.start_trainer()
    with Proxy(api.port) as proxy:
        async with delivering(proxy.url, outbox) as delivery:
            await put(delivery, credited("a"))
            await until(delivery, lambda: delivery.tally.posts == 1)
            await blocking(api.kill)
            await until(delivery, lambda: not delivery.online)
            await blocking(api.start)
            await blocking(api.start_trainer)
            await until(delivery, lambda: delivery.tally.posts == 2)
            assert groups_of(await blocking(api.take_batch)) == ["a"]


@pytest.mark.parametrize("answer", [(404, b"no route"), (429, b"slow down"), (503, b""), (200, b"<html>")])
async def test_a_proxy_that_answers_itself_for_a_while_is_waited_out(trained, outbox, answer):
    with Proxy(trained.port) as proxy:
        async with delivering(proxy.url, outbox) as delivery:
            await put(delivery, credited("a"))
            await until(delivery, lambda: delivery.tally.posts == 1)
            proxy.answers["*"] = answer
            await until(delivery, lambda: not delivery.online)
            await put(delivery, credited("b"))
            del proxy.answers["*"]
            await until(delivery, lambda: delivery.tally.posts == 2)
            assert (delivery.tally.repeated, delivery.tally.rejected) == (0, 0)


@pytest.mark.parametrize("status", [200, 302, 401, 404, 408, 429, 502])
async def test_a_post_that_did_not_reach_the_api_is_sent_again(trained, outbox, status):
    with Proxy(trained.port) as proxy:
        # Some page in Latin-1.
        proxy.answers["/scored_data"] = (status, b"<html>d\xe9sol\xe9")
        async with delivering(proxy.url, outbox) as delivery:
            await put(delivery, credited("a"))
            await until(delivery, lambda: any(f"answered {status}" in line for line in delivery.lines))
            del proxy.answers["/scored_data"]
            await until(delivery, lambda: delivery.tally.posts == 1)
            assert delivery.tally.rejected == 0


@pytest.mark.parametrize("status", [400, 413, 422])
async def test_a_post_that_no_api_will_take_is_put_aside_with_the_reason(trained, outbox, status):
    with Proxy(trained.port) as proxy:
        proxy.answers["/scored_data"] = (status, b"never")
        async with delivering(proxy.url, outbox) as delivery:
            await put(delivery, credited("a"))
            await until(delivery, lambda: delivery.tally.rejected == 1)
    line = json.loads(outbox.rejected_path.read_text())
    assert (line["group_id"], line["reason"]) == ("a", f"the API answered {status}: never")


async def test_a_registration_that_nobody_answers_for_does_not_hold_batches_back(trained, outbox):
    # What a kill between the request and its answer leaves: the API knows us, and we do not know it.
    outbox.remember("settled", "no")
    trained.register_env(f"env-{outbox.fact('run_id')}", min_batch_allocation=0.5)
    async with delivering(trained.url, outbox, identity={"min_batch_allocation": 0.5}) as delivery:
        await put(delivery, credited("a"))
        await until(delivery, lambda: delivery.tally.posts == 1)
        assert groups_of(await blocking(trained.take_batch)) == ["a"]


async def test_a_registration_that_cannot_be_taken_back_is_said(trained, outbox):
    outbox.remember("settled", "no")
    trained.register_env("other")
    trained.register_env(f"env-{outbox.fact('run_id')}", min_batch_allocation=0.5)
    async with registration_at(trained.url, outbox, min_batch_allocation=0.5) as registration:
        await registration.register()
        assert "1 earlier registrations of this environment could not be taken back" in registration.lines[0]


async def test_a_trainer_that_takes_shorter_rows_than_rollouts_make_is_told_once(api, outbox):
    api.start_trainer(max_token_len=50)
    async with registration_at(api.url, outbox, max_row_tokens=60) as registration:
        await registration.register()
        await registration.register()
        (line,) = registration.lines
        assert line.startswith("the trainer takes rows of up to 50 tokens, and rollouts may grow to 60")


async def test_a_trainer_that_polls_before_it_registers_is_no_trainer_yet(api, outbox):
    api.start_trainer()
    async with delivering(api.url, outbox) as delivery:
        await until(delivery, lambda: delivery.online)
        await blocking(api.get, "/reset_data")
        # The API takes an environment in now, and whatever is posted blocks it for good.
        await blocking(api.get, "/batch")
        await put(delivery, credited("a"))
        await until(delivery, lambda: not delivery.online)
        await delivery.flush(0.1)
        assert delivery.tally.registrations == 1
    api.start_trainer()
    assert api.get("/info")["batch_size"] == 4


async def test_a_post_never_opens_a_connection_as_it_may_lead_to_another_api(trained):
    client = TrajectoryApi(trained.url)
    with pytest.raises(ApiUnavailableError, match="closed the connection before a post"):
        await client.post_rows(gzip.compress(b"{}"))
    assert (await client.state()).queued == 0
    await client.close()


def rows_of(env_id, size):
    return {"tokens": [[1, 2]] * size, "masks": [[-100, 2]] * size, "scores": [0.5] * size, "env_id": env_id}


async def test_other_environments_rows_count_as_rows_and_not_as_groups_of_ours(api, outbox):
    api.start_trainer(batch_size=4)
    other = api.register_env("other", 2)["env_id"]
    for _ in range(4):
        api.post("/scored_data", rows_of(other, 2))
    async with delivering(api.url, outbox, max_batches_waiting=4) as delivery:
        for name in "abc":
            await put(delivery, credited(name))
        # 8 rows of the other's wait, 16 may: as groups of ours they would be 16.
        await until(delivery, lambda: delivery.tally.posts == 2)
        await some_looks(delivery)
        assert (delivery.tally.posts, delivery.waiting) == (2, 1)


async def test_leftovers_that_never_make_a_batch_do_not_starve_the_trainer(api, outbox):
    api.start_trainer(batch_size=16)
    gone = api.register_env("gone", 4)["env_id"]
    api.post("/scored_data", rows_of(gone, 4))
    async with delivering(api.url, outbox, Shape(group_size=8), max_batches_waiting=1) as delivery:
        for name in "ab":
            await put(delivery, credited(name, rows=8))
        await until(delivery, lambda: delivery.tally.posts == 2)
        assert groups_of(await blocking(api.take_batch)) == ["a", "b"]


async def test_with_a_share_what_the_api_has_under_a_former_number_is_sent_again(api, outbox):
    api.start_trainer(batch_size=8)
    share = {"min_batch_allocation": 0.5}
    async with delivering(api.url, outbox, identity=share) as delivery:
        await put(delivery, credited("a"))
        await until(delivery, lambda: delivery.tally.posts == 1)
    async with delivering(api.url, outbox, identity=share) as delivery:
        await put(delivery, credited("b"))
        await until(delivery, lambda: delivery.tally.posts == 2)
        assert delivery.tally.repeated == 1
        assert await blocking(api.take_batch) is not None


async def test_a_share_that_comes_later_makes_what_a_former_number_had_wait_again(api, outbox):
    api.start_trainer(batch_size=16)
    async with delivering(api.url, outbox) as delivery:
        await put(delivery, credited("a"))
        await until(delivery, lambda: delivery.tally.posts == 1)
    async with delivering(api.url, outbox) as delivery:
        await until(delivery, lambda: delivery.online)
        assert delivery.tally.repeated == 0
        await blocking(api.register_env, "other", 4, min_batch_allocation=0.5)
        await until(delivery, lambda: delivery.tally.repeated == 1)


async def test_batches_that_were_made_and_not_handed_out_count_as_waiting(trained, outbox):
    async with delivering(trained.url, outbox, max_batches_waiting=2) as delivery:
        for name in "abcdef":
            await put(delivery, credited(name))
        await until(delivery, lambda: delivery.tally.posts == 2)
        await blocking(trained.take_batch)
        # Two batches were made of the two groups, and one of them waits: there is room for one more.
        await until(delivery, lambda: delivery.tally.posts == 3)
        await some_looks(delivery)
        assert delivery.tally.posts == 3
        await blocking(trained.take_batch)
        await blocking(trained.take_batch)
        await until(delivery, lambda: delivery.tally.posts == 5)


@pytest.mark.parametrize("path", ["/info", "/status-env", "/status"])
async def test_a_batch_that_is_handed_out_while_the_state_is_read_makes_no_room_for_more(
    path, trained, outbox
):
    with Proxy(trained.port) as proxy:
        async with delivering(proxy.url, outbox, max_batches_waiting=2) as delivery:
            for name in "abcdef":
                await put(delivery, credited(name))
            await until(delivery, lambda: delivery.tally.posts == 2)
            proxy.then[path] = trained.take_batch
            await until(delivery, lambda: delivery.tally.posts == 3)
            await some_looks(delivery)
            assert delivery.tally.posts == 3


async def test_a_turn_that_no_trainer_row_can_hold_is_left_out_and_counted(api, outbox):
    shape = Shape(group_size=4, view="turn_rows")
    outbox.put("a", pack(credited("a", lengths=[[9], [1], [1], [1]]), shape).parts)
    api.start_trainer(max_token_len=3)
    async with delivering(api.url, outbox, shape) as delivery:
        await until(delivery, lambda: delivery.tally.posts == 3 and delivery.waiting == 0)
        assert delivery.tally.too_long == 1


async def test_all_posts_go_over_one_connection(trained, outbox):
    async with delivering(trained.url, outbox, max_batches_waiting=9) as delivery:
        for name in "abcdef":
            await put(delivery, credited(name))
        await until(delivery, lambda: delivery.tally.posts == 6)
        assert delivery.client.connections == 1
