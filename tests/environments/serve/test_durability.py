"""What is on disk when: the order of writes, commits, requests and acknowledgements, call by call."""

import os
from contextlib import contextmanager

import pytest

from environments.serve.delivery import Sender, Tally
from environments.serve.outbox import Outbox
from environments.wire.payloads import Part, Shape, compress, pack
from tests.adversarial.hostile_server import answer, hostile
from tests.adversarial.test_hostile_api import GOOD, INFO, OURS, STATUS
from tests.environments.serve.delivered import credited, delivering, put, registration_at, until

PART = Part(body=compress({"tokens": [[1]], "masks": [[1]], "scores": [0.5]}), longest_row=1)
CALLS = ("open", "write", "fsync", "close")


@pytest.fixture
def calls(monkeypatch):
    """The few calls of `os` that a file's content hangs on, in order."""
    made = []

    def recorded(name):
        real = getattr(os, name)

        def call(*args, **named):
            result = real(*args, **named)
            made.append(name)
            return result

        return call

    for name in CALLS:
        monkeypatch.setattr(os, name, recorded(name))
    return made


@contextmanager
def statements(outbox):
    """What SQLite is asked, in order, by its first two words."""
    seen = []
    outbox._db.set_trace_callback(lambda text: seen.append(" ".join(text.split()[:2])))
    yield seen
    outbox._db.set_trace_callback(None)


# The file of rejected posts.


def test_a_rejected_line_is_synced_before_anything_else_goes_on(outbox, calls):
    outbox.note_rejected("a", "no")
    assert calls == ["open", "write", "fsync", "close"]


def test_a_post_leaves_the_outbox_only_when_its_rejected_line_is_on_disk(outbox, calls):
    outbox.put("a", [PART])
    post = outbox.next_post()
    outbox._db.set_trace_callback(lambda text: calls.append(text.split()[0]))
    outbox.reject(post, "no")
    assert calls.index("fsync") < calls.index("DELETE") < calls.index("COMMIT")


def test_a_rejected_line_that_is_written_in_pieces_is_whole(outbox, monkeypatch):
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:7]))
    outbox.note_rejected("a", "no")
    assert outbox.rejected_path.read_bytes().endswith(b'"reason":"no"}\n')


def test_a_rejected_line_that_cannot_be_synced_keeps_the_post(outbox, monkeypatch):
    outbox.put("a", [PART])

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        outbox.reject(outbox.next_post(), "no")
    assert len(outbox) == 1


def test_a_reason_that_is_no_utf_8_is_written_all_the_same(outbox):
    outbox.note_rejected("a", "no \ud800")
    assert b"no \\\\ud800" in outbox.rejected_path.read_bytes()


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_files_with_rollouts_are_their_owners_alone(tmp_path, umask):
    before = os.umask(umask)
    try:
        with Outbox(tmp_path / "o.sqlite") as outbox:
            outbox.put("a", [PART])
            outbox.note_rejected("a", "no")
            modes = {each.name: each.stat().st_mode & 0o777 for each in tmp_path.iterdir()}
    finally:
        os.umask(before)
    assert modes == dict.fromkeys(("o.sqlite", "o.sqlite-wal", "o.sqlite.rejected.jsonl"), 0o600)


# The outbox.


def test_what_is_committed_is_synced_also_after_a_registration(outbox):
    off = 0
    assert outbox._db.execute("PRAGMA synchronous").fetchone()[0] != off
    outbox.record_registration(3, forgot=False)
    assert outbox._db.execute("PRAGMA synchronous").fetchone()[0] != off


def test_a_group_and_its_place_in_the_plan_get_into_the_file_in_one_step(outbox):
    with statements(outbox) as seen:
        outbox.put("a", [PART], number=0)
    kept = [each for each in seen if each.split()[0] != "SELECT"]
    assert kept[0] == "BEGIN IMMEDIATE"
    assert kept[1:3] == ["INSERT OR", "INSERT OR"]
    assert kept[-1] == "COMMIT"
    assert (kept.count("BEGIN IMMEDIATE"), kept.count("COMMIT")) == (1, 1)


@pytest.mark.parametrize(
    "change",
    [
        lambda outbox: outbox.put("b", [PART], number=0),
        lambda outbox: outbox.finish(0),
        lambda outbox: outbox.remove([1]),
        lambda outbox: outbox.record_registration(3, forgot=True),
    ],
)
def test_a_change_that_breaks_off_leaves_nothing_of_itself(tmp_path, change):
    path = tmp_path / "o.sqlite"
    with Outbox(path) as outbox:
        outbox.put("a", [PART])
        outbox.mark_sent(outbox.next_post())
        before = list(outbox._db.iterdump())
        # As when the process is killed before the last statement.
        real, outbox._db = outbox._db, _BreaksOff(outbox._db)
        with pytest.raises(KeyboardInterrupt):
            change(outbox)
        outbox._db = real
        assert list(real.iterdump()) == before


class _BreaksOff:
    """A connection that breaks off when a transaction is about to be committed."""

    def __init__(self, connection):
        self._connection = connection

    def __getattr__(self, name):
        return getattr(self._connection, name)

    def __enter__(self):
        return self._connection.__enter__()

    def __exit__(self, *_):
        self._connection.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
        raise KeyboardInterrupt


def test_a_registration_outlives_a_power_cut_and_is_one_step(outbox):
    outbox.put("a", [PART])
    outbox.mark_sent(outbox.next_post())
    seen = []
    outbox._db.set_trace_callback(seen.append)
    assert outbox.record_registration(7, forgot=True) == 1
    outbox._db.set_trace_callback(None)
    kept = [" ".join(each.split()[:4]) for each in seen]
    assert kept == [
        "PRAGMA synchronous = FULL",
        "BEGIN IMMEDIATE",
        "UPDATE post SET sent",
        "INSERT OR REPLACE INTO",
        "COMMIT",
        "PRAGMA synchronous = NORMAL",
    ]


# Requests and the outbox.


class Watching:
    """Answers of a hostile server that first look into the outbox."""

    def __init__(self, outbox, look):
        self.outbox, self.look, self.saw = outbox, look, []

    def __call__(self, made):
        async def answering(writer):
            self.saw.append(self.look(self.outbox))
            writer.write(made)
            await writer.drain()

        return answering


async def test_before_a_registration_is_asked_for_the_outbox_says_that_its_end_is_unknown(outbox):
    outbox.remember("settled", "yes")
    watching = Watching(outbox, lambda each: each.fact("settled"))
    async with (
        hostile(GOOD | {"/register-env": watching(GOOD["/register-env"])}) as server,
        registration_at(server.url, outbox) as registration,
    ):
        await registration.register()
    assert (watching.saw, outbox.fact("settled")) == (["no"], "yes")


async def test_the_new_number_is_in_the_outbox_before_the_former_one_is_given_up(outbox):
    outbox.record_registration(1, forgot=False)
    watching = Watching(outbox, lambda each: (each.fact("env_id"), each.fact("settled")))
    async with (
        hostile(GOOD | {"/disconnect-env": watching(GOOD["/disconnect-env"])}) as server,
        registration_at(server.url, outbox) as registration,
    ):
        await registration.register()
        assert b'"env_id": 1' in server.asked[-1][3]
    assert watching.saw == [("2", "no")]


@pytest.mark.parametrize(
    ("settled", "earlier", "again"), [("yes", 1, 0), ("yes", 0, 1), ("no", 1, 1), ("no", 0, 1)]
)
async def test_what_an_api_has_is_sent_again_unless_it_surely_remembers(outbox, settled, earlier, again):
    outbox.put("a", [PART])
    outbox.mark_sent(outbox.next_post())
    outbox.remember("settled", settled)
    registered = {"status": "success", "env_id": 2, "wandb_name": f"env_{earlier}", "num_steps": -1}
    async with (
        hostile(GOOD | {"/register-env": answer(registered)}) as server,
        registration_at(server.url, outbox) as registration,
    ):
        assert await registration.register() == again
    assert outbox.waiting_groups() == again


async def test_a_post_counts_as_sent_only_after_the_answer(outbox):
    watching = Watching(outbox, lambda each: each.sent_posts())
    async with (
        hostile(GOOD | {"/scored_data": watching(GOOD["/scored_data"])}) as server,
        registration_at(server.url, outbox) as registration,
    ):
        await registration.register()
        outbox.put("a", pack(credited("a"), Shape(group_size=4)).parts)
        sender = sender_of(registration)
        assert await sender.send(outbox.next_post(), 2)
    assert (watching.saw, outbox.sent_posts()) == ([[]], [1])


@pytest.mark.parametrize(
    ("path", "replied", "holds"),
    [
        *(("/status", {**STATUS, "current_step": step}, step > 2) for step in (2, 3, 4)),
        *(("/info", {**INFO, "batch_size": size}, size > 0) for size in (-1, 0, 4)),
    ],
)
async def test_a_step_that_fell_or_a_trainer_that_is_gone_ends_a_registration(outbox, path, replied, holds):
    async with hostile(GOOD) as server, registration_at(server.url, outbox) as registration:
        await registration.register()
        server.answers[path] = answer(replied)
        assert await registration.look() is holds


# Limits, exactly at their value.


def sender_of(registration):
    return Sender(
        registration.in_outbox,
        registration.client,
        registration,
        tally=Tally(),
        say=registration.lines.append,
        weights=None,
    )


@pytest.mark.parametrize(("limit", "left_out"), [(9, 1), (10, 0)])
async def test_a_row_as_long_as_the_trainers_limit_is_sent_as_it_is(outbox, limit, left_out):
    group = credited("a", lengths=[[9], [1], [1], [1]])
    info = answer({**INFO, "max_token_len": limit})
    async with (
        hostile(GOOD | {"/info": info}) as server,
        registration_at(server.url, outbox) as registration,
    ):
        await registration.register()
        outbox.put("a", pack(group, Shape(group_size=4)).parts)
        sender = sender_of(registration)
        assert outbox.next_post().part.longest_row == 10
        assert await sender.send(outbox.next_post(), 2)
        assert sender.tally.too_long == left_out


@pytest.mark.parametrize(("own", "queued", "posts"), [(1, 5, 0), (0, 5, 1), (9, 2, 1), (9, 3, 0)])
async def test_as_many_groups_wait_as_make_the_batches_that_may(outbox, own, queued, posts):
    """Batches of one group; three may wait, or one of our own whatever others have there."""
    status = answer({**STATUS, "queue_size": queued})
    ours = answer({**OURS, "self_queue_size": own, "queue_size": queued})
    async with (
        hostile(GOOD | {"/status": status, "/status-env": ours}) as server,
        delivering(server.url, outbox, max_batches_waiting=3) as delivery,
    ):
        for name in "ab":
            await put(delivery, credited(name))
        await until(delivery, lambda: delivery.online and delivery._sent_since_look == 0)
        for _ in range(3):
            await delivery.changed()
        assert bool(delivery.tally.posts) is bool(posts)


@pytest.mark.parametrize(("tries", "said"), [(8, 0), (9, 1), (10, 0), (99, 1), (999, 1)])
async def test_a_post_that_is_not_taken_is_said_now_and_then(outbox, tries, said):
    outbox.put("a", [PART])
    outbox._db.execute("UPDATE post SET tries = ?", (tries,))
    async with (
        hostile(GOOD | {"/scored_data": answer(b"", status=500)}) as server,
        registration_at(server.url, outbox) as registration,
    ):
        await registration.register()
        with pytest.raises(Exception, match="500"):
            await sender_of(registration).send(outbox.next_post(), 2)
        assert len(registration.lines) == said
    assert outbox.next_post().tries == tries + 1
