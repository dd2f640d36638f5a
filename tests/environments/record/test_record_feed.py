"""`follow`: a record as a feed, each group at least once after what a cursor file acknowledges."""

import asyncio
import os
import shutil
import threading
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import orjson
import pytest
from click.testing import CliRunner

from environments.record import record_feed
from environments.record.group_line import encode_group, with_crc
from environments.record.record_feed import follow
from environments.record.recorder import Recorder
from environments.trajectory import SEVERAL_VERSIONS
from environments.wire.training_rows import MADE_UP
from environments.wire.views import VIEWS
from tests.environments.record.any_group import all_withheld
from tests.environments.record.recorded import TWO, credited
from tests.tables import cases
from tools.errors import RecordError, UsageError
from turnwise.cli.export import command as export


@pytest.fixture
def record(tmp_path):
    return tmp_path / "r.jsonl"


@pytest.fixture
def cursor(tmp_path):
    return tmp_path / "trainer.cursor"


def write(path, *items, fresh=False, **fields):
    path.parent.mkdir(exist_ok=True)
    with Recorder(path, fresh=fresh) as recorder:
        for item in items:
            recorder.append(credited(TWO, item, **fields))


def line(item, **fields):
    return with_crc(encode_group(credited(TWO, item, **fields)))


def name(group):
    return group.credited.group.item_id


async def take(feed, count):
    async with aclosing(feed):
        return [await anext(feed) for _ in range(count)]


class Polls:
    """The waits of a feed, each until a test lets it look again."""

    def __init__(self):
        self.seconds = []
        self._waiting, self._looks = asyncio.Queue(), asyncio.Queue()

    async def sleep(self, seconds):
        self.seconds.append(seconds)
        self._waiting.put_nowait(None)
        await self._looks.get()

    async def one_more(self):
        await asyncio.wait_for(self._waiting.get(), 30)

    def look(self):
        self._looks.put_nowait(None)


@pytest.fixture
def polls(monkeypatch):
    made = Polls()
    monkeypatch.setattr(
        record_feed, "asyncio", SimpleNamespace(sleep=made.sleep, to_thread=asyncio.to_thread)
    )
    return made


@asynccontextmanager
async def waiting_for_next(feed, polls):
    """A task that gets the next group, once the feed has found none."""
    async with aclosing(feed):
        task = asyncio.ensure_future(anext(feed))
        await polls.one_more()
        yield task
        task.cancel()
        await asyncio.wait([task])


async def test_groups_come_in_the_order_they_ended_and_those_that_end_later_follow(record, cursor, polls):
    write(record, "a", "b")
    feed = follow(record, after=cursor, poll_s=7.5)
    assert [name(await anext(feed)) for _ in range(2)] == ["a", "b"]
    async with waiting_for_next(feed, polls) as task:
        write(record, "c")
        polls.look()
        group = await task
    assert group.credited == credited(TWO, "c")
    assert group.row_groups == ()
    assert polls.seconds == [7.5]


async def test_what_was_not_acknowledged_is_given_again_and_nothing_before_it(record, cursor):
    write(record, "a", "b", "c")
    groups = await take(follow(record, after=cursor), 3)
    assert list(map(name, await take(follow(record, after=cursor), 3))) == ["a", "b", "c"]
    groups[1].acknowledge()
    assert list(map(name, await take(follow(record, after=cursor), 1))) == ["c"]
    groups[0].acknowledge()
    assert list(map(name, await take(follow(record, after=cursor), 1))) == ["c"]


async def test_the_cursor_file_names_the_record_the_line_and_where_it_ends(record, cursor):
    write(record, "a", "b")
    first, second = await take(follow(record, after=cursor), 2)
    second.acknowledge()
    known = orjson.loads(cursor.read_bytes())
    assert known == second.cursor.model_dump()
    assert known["offset"] == record.stat().st_size
    assert (known["record"], known["start"]) == (first.cursor.line, first.cursor.offset)
    assert cursor.stat().st_mode & 0o077 == 0


async def test_a_cursor_is_on_disk_before_it_takes_its_name(record, cursor, monkeypatch):
    write(record, "a")
    (group,) = await take(follow(record, after=cursor), 1)
    synced, sync = [], os.fsync

    def fsync(fd):
        synced.append((Path(f"/proc/self/fd/{fd}").readlink(), cursor.exists()))
        sync(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    group.acknowledge()
    (unfinished, before), (folder, after) = synced
    assert (unfinished.suffix, before, folder, after) == (".part", False, cursor.parent, True)


@pytest.mark.parametrize("cut", [1, 300], ids=["its_end_alone", "half_of_it"])
async def test_an_unfinished_last_line_waits_until_it_is_finished(record, cursor, polls, cut):
    whole = line("b")
    record.write_bytes(line("a") + whole[:-cut])
    feed = follow(record, after=cursor)
    await anext(feed)
    async with waiting_for_next(feed, polls) as task:
        polls.look()
        await polls.one_more()
        with record.open("ab") as file:
            file.write(whole[-cut:])
        polls.look()
        assert name(await task) == "b"


async def test_a_torn_line_that_a_resumed_run_cuts_off_is_never_given(record, cursor, polls):
    record.write_bytes(line("a") + line("torn")[:-300])
    feed = follow(record, after=cursor)
    await anext(feed)
    async with waiting_for_next(feed, polls) as task:
        write(record, "b")
        polls.look()
        assert name(await task) == "b"


async def test_parts_of_two_lines_are_not_a_line(record, cursor, polls, monkeypatch):
    """As one look may find them while a resumed run cuts a torn line off."""
    before, after = line("b", epoch=1), line("b", epoch=2)
    record.write_bytes(before[:300])
    looks = []

    class TornFeed(record_feed._Feed):
        def _line(self):
            looks.append(record.write_bytes(after) and super()._line())
            return before[:300] + after[300:] if len(looks) == 1 else looks[-1]

    monkeypatch.setattr(record_feed, "_Feed", TornFeed)
    async with waiting_for_next(follow(record, after=cursor), polls) as task:
        polls.look()
        assert (await task).credited.group.epoch == 2


async def test_a_line_whose_end_a_network_file_system_shows_first_waits(record, cursor, polls, caplog):
    whole = line("a")
    record.write_bytes(whole[:100] + bytes(100) + whole[200:])
    async with waiting_for_next(follow(record, after=cursor), polls) as task:
        assert caplog.messages == [f"{record}: zeros in the line at byte 0; waiting for the rest of it"]
        record.write_bytes(whole)
        os.utime(record, ns=(1, 1))  # as a clock that is coarser than this test need not do
        polls.look()
        assert name(await task) == "a"


async def test_a_record_that_does_not_exist_yet_is_waited_for(tmp_path, cursor, polls, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    async with waiting_for_next(follow("toy/default", after=cursor), polls) as task:
        assert caplog.messages == ["no record at toy/default yet: waiting for it"]
        place = tmp_path / "runs/toy/default"
        place.mkdir(parents=True)
        polls.look()
        await polls.one_more()
        write(place / "record.jsonl")
        polls.look()
        await polls.one_more()
        write(place / "record.jsonl", "a")
        monkeypatch.chdir(place)
        polls.look()
        assert name(await task) == "a"


def started_over(record):
    record.parent.rename(record.parent.with_name("run.1"))
    write(record, "other", "groups", "than", "before")


CHANGES = {
    "started over": (started_over, "is record"),
    "emptied": (lambda record: write(record, fresh=True), "has 0 bytes"),
    "emptied and longer": (lambda record: write(record, *"acd", fresh=True, epoch=5), "is record"),
    "cut short": (lambda record: os.truncate(record, record.stat().st_size - 5), r"has \d+ bytes"),
    "rewritten": (
        lambda record: record.write_bytes(line("a") + line("b", epoch=7) + line("c")),
        "has another line 2",
    ),
    "removed": (os.remove, "is not there"),
}


@pytest.mark.parametrize(("change", "problem"), CHANGES.values(), ids=CHANGES)
async def test_a_record_that_changes_while_it_is_followed_is_refused(
    tmp_path, cursor, polls, change, problem
):
    record = tmp_path / "run/record.jsonl"
    write(record, "a", "b")
    feed = follow(record.parent, after=cursor)
    groups = [await anext(feed) for _ in range(2)]
    async with waiting_for_next(feed, polls) as task:
        change(record)
        polls.look()
        with pytest.raises(RecordError, match=f"^{record} {problem}.*, and {cursor} is of record") as raised:
            await task
    assert f"{groups[0].cursor.record[:12]}, followed to its line 2, byte" in str(raised.value)
    assert "\n" not in str(raised.value)
    assert not cursor.exists()


@pytest.mark.parametrize(("change", "problem"), [CHANGES["started over"], CHANGES["rewritten"]])
async def test_a_record_that_changed_between_two_starts_is_refused(tmp_path, cursor, change, problem):
    record = tmp_path / "run/record.jsonl"
    write(record, "a", "b")
    (await take(follow(record, after=cursor), 2))[-1].acknowledge()
    known = cursor.read_bytes()
    change(record)
    for _ in range(2):
        with pytest.raises(RecordError, match=f"^{record} {problem}.*, and {cursor} is of record"):
            await take(follow(record, after=cursor), 1)
    assert cursor.read_bytes() == known


async def test_a_record_is_the_same_wherever_it_lies(tmp_path, record, cursor):
    write(record, "a", "b")
    (await take(follow(record, after=cursor), 1))[0].acknowledge()
    elsewhere = shutil.copy(record, tmp_path / "elsewhere.jsonl")
    assert list(map(name, await take(follow(elsewhere, after=cursor), 1))) == ["b"]
    # Where `--fresh` puts what was there.
    (tmp_path / "run.1").mkdir()
    record.rename(tmp_path / "run.1/record.jsonl")
    assert list(map(name, await take(follow(tmp_path / "run.1", after=cursor), 1))) == ["b"]


@pytest.mark.parametrize("scaling", [{}, {"score_divisor": 7}], ids=["default", "divisor"])
@pytest.mark.parametrize("view", VIEWS)
async def test_rows_are_those_of_an_export(tmp_path, record, cursor, view, scaling):
    if scaling and view not in ("turn_rows", "prefix_rows"):
        scaling = {}
    write(record, "a", "b")
    options = ["--view", view, "--out", str(tmp_path / "out.jsonl")]
    options += ["--score-divisor", "7"] if scaling else []
    CliRunner().invoke(export, [str(record), *options], catch_exceptions=False)
    groups = await take(follow(record, after=cursor, view=view, **scaling), 2)
    lines = [orjson.loads(each) for each in (tmp_path / "out.jsonl").read_bytes().splitlines()]
    assert [rows for group in groups for rows in group.row_groups] == lines
    assert len(groups[0].row_groups) == len(lines) // 2 > 0


async def test_rows_that_were_made_from_text_are_named_once(record, cursor, caplog):
    inexact = replace(TWO, trajectories=tuple(replace(each, exact=False) for each in TWO.trajectories))
    with Recorder(record) as recorder:
        for item in "abc":
            recorder.append(credited(TWO if item == "a" else inexact, item))
    await take(follow(record, after=cursor, view="token_advantages"), 3)
    assert caplog.messages == [f"{record}, line 2: {MADE_UP}"]


STATUSES = {"a": "failed", "b": "no_credit", "c": "ok", "d": "failed", "e": "ok"}


async def test_with_a_view_what_cannot_be_learned_from_is_left_out_and_counted(record, cursor):
    for item, status in STATUSES.items():
        write(record, item, status=status)
    groups = await take(follow(record, after=cursor, view="token_advantages"), 2)
    assert [(name(group), group.left_out) for group in groups] == [
        ("c", {"failed": 1, "no_credit": 1}),
        ("e", {"failed": 2, "no_credit": 1}),
    ]
    groups[0].acknowledge()
    assert list(map(name, await take(follow(record, after=cursor), 2))) == ["d", "e"]


async def test_without_a_view_every_line_is_given_once_also_of_a_group_that_was_tried_again(record, cursor):
    for item, status in STATUSES.items():
        write(record, item, status=status)
    write(record, "a")
    groups = await take(follow(record, after=cursor), 6)
    assert [(name(group), group.credited.status) for group in groups] == [*STATUSES.items(), ("a", "ok")]


def sampled_by(item, *versions):
    names = iter(versions)
    trajectories = tuple(
        replace(each, turns=tuple(replace(turn, weight_version=next(names)) for turn in each.turns))
        for each in TWO.trajectories
    )
    return credited(replace(TWO, trajectories=trajectories), item)


@cases(
    ("versions", "weights", "reason"),
    [
        ("ccc", "abc", None),
        ("bbc", "abc", None),
        ("acc", "abc", "2 newer versions of the weights since its oldest turn, max_staleness is 1"),
        (("c", f"a{SEVERAL_VERSIONS}c", "c"), "abc", "2 newer versions"),
        ("aaa", "abca", None),
        ("ccd", "abc", "the trainer has not loaded 'd', which sampled some of its turns"),
        ("aaa", "", "the trainer has not loaded 'a', which sampled some of its turns"),
        (("c", None, "c"), "abc", "the version of the weights is unknown in some of its turns"),
    ],
)
async def test_a_rollout_is_as_old_as_the_versions_that_were_loaded_since_its_oldest_turn(
    record, cursor, caplog, versions, weights, reason
):
    caplog.clear()
    with Recorder(record, fresh=True) as recorder:
        recorder.append(sampled_by("a", *versions))
        recorder.append(credited(replace(TWO, trajectories=()), "none", status="failed"))
    (group,) = await take(follow(record, after=cursor, weights=list(weights), max_staleness=1), 1)
    if name(group) == "none":
        assert group.left_out == {"stale": 1}
        assert caplog.messages[0].startswith(f"{record}, line 1, is left out as stale: {reason}")
        return
    ages = [each.stale or "" for each in group.credited.group.trajectories]
    assert [each.startswith(f"stale: {reason}") for each in ages if each] == [True] * (reason is not None)
    assert [any(row) for row in group.credited.advantages] == [not each for each in ages]
    assert caplog.messages == []


async def test_without_a_bound_a_group_that_was_stale_for_the_run_is_given_too(record, cursor):
    with Recorder(record) as recorder:
        recorder.append(replace(credited(TWO, "a"), group=all_withheld(TWO, "stale: x")))
    (group,) = await take(follow(record, after=cursor), 1)
    assert group.credited.group.stale == "stale: x"


@pytest.mark.parametrize("as_function", [False, True], ids=["sequence", "function"])
async def test_weights_are_read_for_each_group_and_a_stale_one_is_acknowledged_with_the_next(
    record, cursor, as_function
):
    with Recorder(record) as recorder:
        for item, version in (("a", "v1"), ("b", "v1"), ("c", "v2")):
            recorder.append(sampled_by(item, *[version] * 3))
    loaded = ["v1"]
    weights = (lambda: tuple(loaded)) if as_function else loaded
    feed = follow(record, after=cursor, weights=weights, max_staleness=0)
    (await anext(feed)).acknowledge()
    loaded.append("v2")
    (last,) = await take(feed, 1)
    assert (name(last), last.left_out) == ("c", {"stale": 1})
    assert list(map(name, await take(follow(record, after=cursor), 2))) == ["b", "c"]
    last.acknowledge()
    assert orjson.loads(cursor.read_bytes())["offset"] == record.stat().st_size


@cases(
    ("arguments", "problem"),
    [
        ({"view": "list_scores"}, r"no view 'list_scores'; choose one of \['binary_masks'"),
        ({"view": "token_advantages", "score_divisor": 3}, "turn_rows and prefix_rows, not token_advantages"),
        ({"max_staleness": 1}, "max_staleness and weights need"),
        ({"weights": ["a"]}, "max_staleness and weights need"),
        ({"weights": "step-1", "max_staleness": 1}, "names of versions"),
    ],
    ids=["view", "divisor", "no_weights", "no_bound", "one_name"],
)
def test_arguments_that_do_not_fit_are_refused_by_the_call_itself(record, cursor, arguments, problem):
    with pytest.raises(UsageError, match=problem):
        follow(record, after=cursor, **arguments)


async def test_a_malformed_line_is_named_and_given_at_no_start(record, cursor):
    record.write_bytes(line("a") + with_crc(b'{"schema": 1}\n') + line("b"))
    for _ in range(2):
        with pytest.raises(RecordError, match=f"^{record}, line 2: not a turnwise.group/2 line"):
            await take(follow(record, after=cursor), 2)


async def test_rows_that_no_trainer_may_get_are_named(record, cursor):
    with Recorder(record) as recorder:
        recorder.append(replace(credited(TWO), advantages=((1e300, 0.0), (0.0,))))
    with pytest.raises(RecordError, match=f"^{record}, line 1: row 0 of 2: advantages are too large"):
        await take(follow(record, after=cursor, view="token_advantages"), 1)


@cases(
    ("content", "problem"),
    [(b"", "Invalid JSON"), (b"{}", "Field required"), (b'{"offset": 0}', "Field required")],
    ids=["empty", "bare", "other"],
)
async def test_what_is_no_cursor_file_is_refused(record, cursor, content, problem):
    write(record, "a")
    cursor.write_bytes(content)
    with pytest.raises(RecordError, match=f"^{cursor} is not a cursor file: {problem}"):
        await take(follow(record, after=cursor), 1)


async def test_a_cursor_file_that_can_never_be_written_is_refused_before_anything_is_given(tmp_path, record):
    write(record, "a")
    with pytest.raises(RecordError, match=f"^no folder for the cursor file {tmp_path}/none/cursor"):
        await take(follow(record, after=tmp_path / "none/cursor"), 1)
    with pytest.raises(RecordError, match=f"^cannot read {tmp_path}: Is a directory"):
        await take(follow(record, after=tmp_path), 1)


async def test_a_record_that_cannot_be_read_is_named(record, cursor):
    record.symlink_to("/proc/self/mem")
    with pytest.raises(RecordError, match=f"^cannot read {record}: Input/output error"):
        await take(follow(record, after=cursor), 1)


async def test_a_feed_that_is_cancelled_while_it_waits_holds_nothing_and_the_next_goes_on(
    record, cursor, polls
):
    write(record, "a", "b")
    feed = follow(record, after=cursor)
    (await anext(feed)).acknowledge()
    await anext(feed)
    async with waiting_for_next(feed, polls) as task:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(StopAsyncIteration):
            await anext(feed)
    assert record not in [each.readlink() for each in Path("/proc/self/fd").iterdir() if each.exists()]
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert list(map(name, await take(follow(record, after=cursor), 1))) == ["b"]


async def test_a_feed_that_is_cancelled_while_it_reads_gives_nothing(record, cursor, monkeypatch):
    write(record, "a")
    reads, goes_on = asyncio.Event(), threading.Event()
    loop, decode = asyncio.get_running_loop(), record_feed.decode_group

    def decode_group(*args):
        loop.call_soon_threadsafe(reads.set)
        goes_on.wait()
        return decode(*args)

    monkeypatch.setattr(record_feed, "decode_group", decode_group)
    task = asyncio.ensure_future(anext(follow(record, after=cursor)))
    await reads.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    goes_on.set()
    assert list(map(name, await take(follow(record, after=cursor), 1))) == ["a"]


async def test_a_record_that_goes_before_its_first_line_was_taken_is_waited_for(
    record, cursor, polls, monkeypatch
):
    write(record, "a")

    class RemovedFeed(record_feed._Feed):
        def _line(self):
            line = super()._line()
            record.unlink(missing_ok=True)
            return line

    monkeypatch.setattr(record_feed, "_Feed", RemovedFeed)
    async with waiting_for_next(follow(record, after=cursor), polls):
        polls.look()
        await polls.one_more()


async def test_a_line_that_repeats_one_before_the_cursor_is_not_given_again(record, cursor):
    write(record, "a", "b")
    (await take(follow(record, after=cursor), 1))[0].acknowledge()
    record.write_bytes(record.read_bytes() + line("a") + line("c"))
    assert list(map(name, await take(follow(record, after=cursor), 2))) == ["b", "c"]
