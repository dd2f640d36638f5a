"""Delivery against the real trajectory API: nothing is lost, whatever stops."""

import asyncio
import json
import socket

import pytest

from environments.serve.delivery import ApiLostError
from environments.wire.payloads import Part, compress
from environments.wire.training_rows import columns_of
from environments.wire.views import token_advantages
from tests.environments.serve.delivered import (
    blocking,
    credited,
    delivering,
    delivery_at,
    groups_of,
    put,
    until,
)
from tools.errors import ConfigError


async def test_what_is_put_arrives_as_it_was_computed(trained, outbox):
    async with delivering(trained.url, outbox) as delivery:
        await put(delivery, credited("a"))
        await until(delivery, lambda: delivery.tally.posts == 1)
        batch = await blocking(trained.take_batch)
    expected = columns_of(token_advantages(credited("a")))
    assert {name: batch[0][name] for name in expected} == expected


async def test_it_waits_for_a_trainer_and_says_so(api, outbox):
    async with delivering(api.url, outbox) as delivery:
        await put(delivery, credited("a"))
        await until(delivery, lambda: bool(delivery.lines))
        assert "waiting for the trainer to start" in delivery.lines[0]
        await blocking(api.start_trainer)
        await until(delivery, lambda: delivery.tally.posts == 1)


async def test_what_a_trainer_took_is_never_sent_again(api, outbox):
    api.start_trainer()
    async with delivering(api.url, outbox) as delivery:
        for name in "ab":
            await put(delivery, credited(name))
            posts = len("ab"[: "ab".index(name) + 1])
            await until(delivery, lambda posts=posts: delivery.tally.posts == posts)
            await blocking(api.take_batch)
            await delivery.changed()
            await delivery.changed()
        await until(delivery, lambda: delivery.unconfirmed == 1)
        await blocking(api.kill)
        await until(delivery, lambda: not delivery.online)
        await blocking(api.start)
        await blocking(api.start_trainer)
        await until(delivery, lambda: delivery.tally.posts == 3)
        assert groups_of(await blocking(api.take_batch)) == ["b"]


async def test_a_restarted_environment_sends_nothing_twice_to_the_same_api(trained, outbox):
    async with delivering(trained.url, outbox) as first:
        await put(first, credited("a"))
        await until(first, lambda: first.tally.posts == 1)
    async with delivering(trained.url, outbox) as second:
        await put(second, credited("b"))
        await until(second, lambda: second.tally.posts == 1)
        assert second.tally.repeated == 0
    assert trained.get("/status")["queue_size"] == 2


async def test_rows_are_not_sent_under_a_number_that_another_environment_took(api, outbox):
    api.start_trainer()
    async with delivering(api.url, outbox) as delivery:
        await until(delivery, lambda: delivery.online)
        await blocking(api.kill)
        await until(delivery, lambda: not delivery.online)
        await blocking(api.start)
        await blocking(api.start_trainer)
        other = await blocking(api.register_env, "other", 2)
        await put(delivery, credited("a"))
        await until(delivery, lambda: delivery.tally.posts == 1)
        batch = await blocking(api.take_batch)
        # Whoever registered first has number 0; the rows bear our own.
        assert batch[0]["env_id"] != other["env_id"]


async def test_a_refused_post_goes_to_the_file_of_rejected_ones_and_the_next_one_is_sent(trained, outbox):
    bad = compress(columns_of(token_advantages(credited("bad"))) | {"scores": [[1.0]]})
    outbox.put("bad", [Part(body=bad, longest_row=2)])
    async with delivering(trained.url, outbox) as delivery:
        await put(delivery, credited("good"))
        await until(delivery, lambda: delivery.tally.posts + delivery.tally.rejected == 2)
        assert (delivery.tally.posts, delivery.tally.rejected) == (1, 1)
    line = json.loads(outbox.rejected_path.read_text())
    assert (line["group_id"], line["post"]["scores"]) == ("bad", [[1.0]])
    assert "answered 422" in line["reason"]
    assert any("rejected for good" in each for each in delivery.lines)


async def test_a_batch_size_that_groups_never_add_up_to_is_an_error_at_the_start(api, outbox):
    api.start_trainer(batch_size=6)
    async with delivery_at(api.url, outbox) as delivery:
        with pytest.raises(ConfigError, match=r"batches of 6 rows.*\[1, 2, 3, 6\]"):
            await delivery.run()


async def test_patience_ends_and_the_groups_are_kept(outbox):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        async with delivery_at(url, outbox, patience_s=0.5) as delivery:
            await put(delivery, credited("a"))
            with pytest.raises(ApiLostError, match="1 groups wait in"):
                await delivery.run()
    assert outbox.waiting_groups() == 1


async def test_something_else_at_the_url_is_one_clear_error(outbox):
    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with delivery_at(url, outbox) as delivery:
            with pytest.raises(ConfigError, match="/info answered 404: 'no'; start one with `run-api`"):
                await delivery.run()


async def test_the_end_sends_no_more_than_may_wait_at_the_api_and_signs_off(trained, outbox):
    async with delivering(trained.url, outbox, max_batches_waiting=1) as delivery:
        for name in "abc":
            await put(delivery, credited(name))
        await until(delivery, lambda: delivery.tally.posts == 1)
        await delivery.flush(30)
        assert delivery.waiting == 2
    assert trained.get("/status")["queue_size"] == 1
    trained.register_env("other")
    assert trained.get("/status-env", {"env_id": 1})["env_weight"] == 1.0


async def test_an_end_that_sends_all_waits_for_the_trainer_and_keeps_the_bound(trained, outbox):
    async with delivering(trained.url, outbox, max_batches_waiting=1) as delivery:
        for name in "abc":
            await put(delivery, credited(name))
        flushing = asyncio.create_task(delivery.flush(None))
        taken, queued = [], []
        while len(taken) < 3:
            if queue_size := trained.get("/status")["queue_size"]:
                queued.append(queue_size)
                taken += await blocking(trained.take_batch)
            else:
                await asyncio.sleep(0)
        await flushing
    assert sorted(groups_of(taken)) == ["a", "b", "c"]
    assert queued == [1, 1, 1]
