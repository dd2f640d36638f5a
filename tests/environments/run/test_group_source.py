"""Sources of groups, what a run counts by of each, groups lost in a row, and the driver that records them."""

import asyncio
import json
import os
import signal
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest

from environments.record.recorder import Recorder, read_groups
from environments.rollout.items.tasks import GroupTask
from environments.run import group_source, process_run
from environments.run.group_source import (
    FinishedGroups,
    Finishing,
    Lessons,
    OwnEvaluations,
    OwnGroups,
    Streak,
    finish_group,
    note_of,
    withhold_stale,
)
from environments.run.open_run import OpenRecord, OpenRun
from environments.run.process_run import PlannedTasks, roll_out
from environments.run.progress import Progress
from environments.run.worker_pool import StoppedError, run_groups
from environments.testing import group_of
from environments.trajectory import CreditedGroup, Failure
from environments.wire.payloads import Shape, pack
from tests.environments.chat.chat_env import TASK, chat
from tests.environments.chat.versioned import played_by
from tests.environments.record.any_group import all_withheld
from tests.environments.record.recorded import credited
from tests.environments.write_file import quiet

FINISHING = Finishing(fingerprint="f")


class Ended:
    """Groups that have ended already."""

    def __init__(self):
        self.asked = []

    async def run(self, task, size=None):
        self.asked.append(task)
        return CreditedGroup(
            group=group_of([[1.0], [0.0]]), advantages=((0.5,), (-0.5,)), policy="p", estimator="turn_return"
        )


async def test_a_group_that_is_serialised_when_a_signal_comes_is_handed_over_once(monkeypatch):
    serialise, source, done = group_source.serialise, Ended(), []
    loop, stopping = asyncio.get_running_loop(), asyncio.Event()

    def interrupted(credited, **more):
        os.kill(os.getpid(), signal.SIGINT)
        asyncio.run_coroutine_threadsafe(stopping.wait(), loop).result(10)
        return serialise(credited, **more)

    async def on_done(task, finished):
        done.append((task, json.loads(finished.line.content)["status"]))

    monkeypatch.setattr(group_source, "serialise", interrupted)
    groups = FinishedGroups(source, FINISHING)
    running = asyncio.ensure_future(run_groups([1, 2, 3], groups.run, on_done, max_in_flight=1))
    while signal.getsignal(signal.SIGINT) is not signal.SIG_DFL:  # noqa: ASYNC110 - nothing else tells
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    stopping.set()
    assert await running == 128 + signal.SIGINT
    assert (source.asked, done) == ([1], [(1, "ok")])


WHOLE = credited(group_of([[1.0], [0.0]]))
POSTED = Finishing(fingerprint="f", shape=Shape(group_size=2))
EXACT = replace(POSTED, exact_only=True)


def test_posts_are_of_groups_to_be_trained_on_and_of_rows_that_the_trainer_takes():
    assert finish_group(WHOLE, POSTED).package == pack(WHOLE, POSTED.shape)
    assert finish_group(replace(WHOLE, status="no_credit"), POSTED).package is None
    long = credited(group_of([[1.0], [0.0]], lengths=[[9], [1]]))
    done = finish_group(long, POSTED, max_row_tokens=4)
    assert (done.package, done.package.too_long) == (pack(long, replace(POSTED.shape, max_row_tokens=4)), 1)


def test_a_group_that_no_post_can_hold_is_failed():
    done = finish_group(replace(WHOLE, advantages=((float("inf"),), (0.0,))), replace(POSTED, has_line=False))
    assert (done.package, done.note.past.status, done.line) == (None, "failed", None)
    assert "finite" in done.malformed


def test_rollouts_without_exact_tokens_are_in_no_post_and_the_note_has_what_they_lacked():
    first, second = WHOLE.group.trajectories
    group = replace(WHOLE.group, trajectories=(first, replace(second, exact=False)))
    done = finish_group(replace(WHOLE, group=group), EXACT, credited)
    assert (done.note.lacking, done.note.past.scores, done.note.past.lost) == (("token ids",), (1.0,), 1)
    assert done.package == pack(credited(replace(group, trajectories=(first,))), POSTED.shape)
    assert finish_group(WHOLE, EXACT, credited).note.lacking == ()
    assert finish_group(replace(WHOLE, status="no_credit"), EXACT).note.lacking is None


async def test_the_line_of_a_stale_group_is_as_if_it_had_never_had_credit_with_its_artefacts_and_no_posts():
    async with played_by("a", max_staleness=0) as env:
        made = await env.run_group(TASK)
        done = finish_group(made, replace(POSTED, is_charted=True))
        done = replace(done, line=replace(done.line, artefacts=b"contents"))
        assert await withhold_stale(env, POSTED, done) is done
        env.lifecycle.weight_versions.merge(["b"])
        old = await withhold_stale(env, replace(POSTED, is_charted=True), done)
        stale = finish_group(env.withhold_stale(made), FINISHING)
        stale = replace(stale, line=replace(stale.line, artefacts=b"contents"))
    assert (done.package is None, old.package, old.line, old.note.past) == (
        False,
        None,
        stale.line,
        stale.note.past,
    )
    assert (old.note.shown is not None, old.note.cause.kind) == (True, "too old")


def test_a_group_lacks_its_image_only_if_that_lost_every_rollout():
    of_image, other = (lost(*error).group.failures[0] for error in (["ImageUnavailable"], []))
    for failures, expected in (((of_image, of_image), True), ((of_image, other), False), ((), False)):
        assert note_of(lost(failures=failures)).lacks_image == expected


@pytest.mark.parametrize("source", [OwnGroups, OwnEvaluations])
async def test_a_task_whose_siblings_are_all_there_is_finished_without_a_rollout(source):
    failures = lost().group.failures
    async with chat() as env:
        env.rollout = None
        done = await FinishedGroups(source(env, nullcontext), POSTED).run(
            replace(TASK, rolled_out=failures), 2
        )
    assert (done.note.past.lost, json.loads(done.line.content)["status"], done.package) == (2, "failed", None)


def lost(error_class="ValueError", **fields):
    """A group without a rollout."""
    failure = Failure(
        sibling=0, stop_reason=None, error=f"{error_class}: x", traceback="", turns=0, error_class=error_class
    )
    failures = (replace(failure, sibling=1, error="first"), failure)
    return credited(replace(group_of([]), **{"failures": failures, **fields}), status="failed")


def test_a_note_says_why_nothing_of_a_group_can_be_compared():
    assert note_of(WHOLE).loss is None
    assert note_of(lost()).loss == "ValueError: x"
    assert note_of(lost(error="score_group broke")).loss == "score_group broke"
    assert note_of(replace(lost(failures=()), reason="no time")).loss == "no time"


def test_groups_lost_in_a_row_are_counted_until_one_works_and_images_do_not_count():
    streak = Streak(3)
    for credited_group, length in ((lost(), 1), (lost("ImageUnavailable"), 1), (WHOLE, 0), (lost(), 1)):
        streak.add(note_of(credited_group))
        assert streak.length == length
    streak.add(note_of(lost()))
    with pytest.raises(StoppedError, match=r"3 groups in a row were lost whole, .* ValueError: x"):
        streak.add(note_of(lost()))


def refused(siblings="1, 3", group=WHOLE.group):
    """A group that was refused because of some of its siblings."""
    reason = f"no outcome beside siblings with one: siblings {siblings}; missing_outcome says what counts"
    return replace(WHOLE, group=group, status="failed", reason=reason)


def test_groups_that_are_refused_alike_are_too_many_while_none_can_be_learned_from():
    tied, alone = replace(WHOLE, status="no_credit"), refused(group=group_of([[1.0]]))
    judged = replace(WHOLE, status="no_credit", group=replace(WHOLE.group, is_evaluation=True))
    said = []
    lessons = Lessons(said.append)
    # A group of one is not compared, that of an evaluation not trained on, and other causes are others.
    for each in (refused("1"), alone, alone, tied, judged, lost(), refused("0, 2")):
        lessons.add(note_of(each))
    with pytest.raises(StoppedError, match=r"alike, and none .* with one; give every sibling one,"):
        lessons.add(note_of(refused("3")))
    (line,) = said
    assert line.startswith("nothing to learn from in 3 groups: 1 broken (ValueError), 1 no credit (")
    for lessons in (Lessons(said.append, has_credit=True), Lessons(said.append)):
        for each in (WHOLE, *[refused()] * 4):
            lessons.add(note_of(each))
    assert said == [line]


def test_a_run_says_once_that_most_of_its_turns_are_not_trained():
    def masked(*trained):
        (trajectory,) = group_of([[1.0] * len(trained)]).trajectories
        turns = tuple(
            replace(turn, trained=each) for turn, each in zip(trajectory.turns, trained, strict=True)
        )
        group = replace(WHOLE.group, trajectories=(replace(trajectory, turns=turns),))
        return note_of(replace(WHOLE, group=group, advantages=((0.0,) * len(trained),)))

    said = []
    lessons = Lessons(said.append)
    evaluated = replace(WHOLE, status="no_credit", group=replace(WHOLE.group, is_evaluation=True))
    for note in (masked(True), masked(False, False), note_of(evaluated), masked(False), masked(False)):
        lessons.add(note)
    assert [line.partition(":")[0] for line in said] == ["3 of 4 turns of the first 3 groups are not trained"]


class Given:
    """A source whose groups are made here."""

    at_once = 1

    def __init__(self, made):
        self.made, self.alone = made, []

    async def first(self, task):
        self.alone.append(task.item_id)
        return group_of([[1.0]])

    async def run(self, task):
        assert len(task.rolled_out) == (task.item_id in self.alone)
        group = replace(self.made, group=replace(self.made.group, item_id=task.item_id))
        return finish_group(group, FINISHING)


async def driven(path, made, noted=(), **options):
    """The exit code, the source, and what was shown."""
    console, source = quiet(), Given(made)
    env = chat()
    env.config = env.config.model_copy(update={"max_failed_groups": 0} | options)
    tasks = [GroupTask(item=number, item_id=str(number)) for number in range(6)]
    with Recorder(path) as recorder:
        run = OpenRun(
            env=env,
            origin=None,
            record=OpenRecord(recorder=recorder, folder=None, resumed=False, say=print),
            source=source,
            finishing=FINISHING,
            is_evaluation=False,
            progress=Progress(console),
            watchdog=SimpleNamespace(arm=nullcontext),
            tracker=SimpleNamespace(add=lambda note: noted and noted[0](note)),
        )
        code = await roll_out(run, PlannedTasks(tasks, recorder))
    return code, source, console.file.getvalue()


async def test_a_driver_records_every_group_once_and_passes_over_those_that_are_recorded(tmp_path):
    path, noted = tmp_path / "r.jsonl", []
    code, source, _ = await driven(path, WHOLE, [noted.append])
    assert (code, source.alone, len(noted)) == (0, ["0"], 6)
    assert [each.group.item_id for each in read_groups(path)] == list("012345")
    code, source, shown = await driven(path, WHOLE)
    assert (code, source.alone) == (0, [])
    assert "nothing to roll out: all 6" in shown


async def test_a_group_is_recorded_as_it_is_when_its_age_was_judged(tmp_path, monkeypatch):
    stale = replace(WHOLE, status="no_credit", group=all_withheld(WHOLE.group, "too old"))

    async def withhold_stale(env, finishing, done):
        old = replace(stale, group=replace(stale.group, item_id=done.note.past.item_id))
        return finish_group(old, FINISHING)

    monkeypatch.setattr(process_run, "withhold_stale", withhold_stale)
    assert (await driven(tmp_path / "r.jsonl", WHOLE))[0] == 0
    assert {each.group.stale for each in read_groups(tmp_path / "r.jsonl")} == {"too old"}
