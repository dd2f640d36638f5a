"""What is away for all rollouts: no new one starts, the cause is said, and then the run goes on."""

import io
from itertools import count

import pytest
from rich.console import Console

from environments.record.recorder import read_groups
from environments.run import group_source, process_run
from environments.run.group_source import MAX_OUTAGES
from environments.run.process_run import FAILED, process
from environments.trajectory import CreditedGroup
from tests.environments.chat.chat_env import Chat, chat
from tests.environments.write_file import quiet
from tools.errors import SandboxUnavailable

AT_ONCE = 4


class Engine:
    """An engine whose sandboxes fail from one rollout on, until it is mended."""

    def __init__(self, fails_from):
        self.fails_from = fails_from
        self.started = self.lost = 0

    def begin(self):
        self.started += 1
        if self.fails_from is not None and self.started >= self.fails_from:
            self.lost += 1
            raise SandboxUnavailable(f"the engine answers no more (container {self.started:08x})")


def env_with(engine, path, *, fails_alone=False, **fields):
    class OnAnEngine(Chat):
        async def load_items(self):
            return [{"id": f"{number:02}", "word": "red"} for number in range(30)]

        async def prepare(self, item, sandbox):
            engine.begin()

    return chat(
        OnAnEngine,
        data_path_to_save_groups=str(path),
        group_size=2,
        max_concurrent_rollouts=AT_ONCE,
        max_items=None,
        **fields,
    )


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    for module in (group_source, process_run):
        monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(group_source, "LONGEST_PAUSE_S", 0.01)


class Screen(io.StringIO):
    """Mends an engine when it is said for the n-th time that it is away."""

    def __init__(self, engine, after):
        super().__init__()
        self.engine, self.after, self.seen = engine, after, []

    def write(self, text):
        if "were lost to SandboxUnavailable: the engine answers no more" in text:
            self.seen.append(self.engine.started)
            if len(self.seen) == self.after:
                self.engine.fails_from = None
        return super().write(text)


async def test_an_outage_holds_new_rollouts_is_said_and_the_run_goes_on_after_it(tmp_path):
    engine = Engine(fails_from=10)
    screen = Screen(engine, after=3)
    env = env_with(engine, tmp_path / "r.jsonl")
    assert await process(env, Console(file=screen, width=200)) == 0
    # Nine lost rollouts, and those in flight then; after that one group at a time.
    assert engine.lost <= MAX_OUTAGES + 1 + 2 * AT_ONCE + 2 * 3
    statuses = [each.status for each in read_groups(tmp_path / "r.jsonl")]
    assert len(statuses) == 30
    assert statuses.count("failed") <= engine.lost
    assert "same command tries them once more" in screen.getvalue()


async def test_an_outage_that_stays_ends_the_run_with_work_left(tmp_path):
    engine, console = Engine(fails_from=10), quiet()
    assert await process(env_with(engine, tmp_path / "r.jsonl", max_failed_groups=8), console) == FAILED
    shown = " ".join(console.file.getvalue().split())
    assert "of the last" in shown
    assert "rollouts were lost to SandboxUnavailable" in shown
    assert "groups to go; the same command goes on from here" in shown
    assert engine.started < 60
    engine.fails_from = None
    assert await process(env_with(engine, tmp_path / "r.jsonl"), quiet()) == 0
    finished = {each.group.item_id for each in read_groups(tmp_path / "r.jsonl") if each.status != "failed"}
    assert len(finished) == 30


async def test_errors_of_an_author_are_no_outage_and_are_counted_by_their_place(tmp_path):
    class Broken(Chat):
        numbers = count()

        async def compute_outcome(self, item, trajectory, ctx):
            if next(self.numbers) % 2:
                raise ValueError("a bug")
            return 1.0

    console = quiet()
    env = chat(Broken, data_path_to_save_groups=str(tmp_path / "r.jsonl"), group_size=8)
    await process(env, console)
    shown = console.file.getvalue()
    assert "were lost to" not in shown
    assert "in compute_outcome dropped 50% of all rollouts, and not at random: fix it" in shown


def test_of_the_latest_rollouts_one_class_of_errors_counts():
    streak = group_source.Streak()

    def add(*lost):
        note = group_source.note_of(CreditedGroup(**EMPTY))
        streak.add(group_source.replace(note, outages=lost, loss=None))

    add(*["SandboxError: a"] * MAX_OUTAGES, *["PolicyError: b"] * MAX_OUTAGES)
    assert streak.outage is None
    add("PolicyError: c")
    assert streak.outage == "9 of the last 17 rollouts were lost to PolicyError: c"
    add(*[None] * 40)
    assert streak.outage is None


EMPTY = {
    "group": group_source.TrajectoryGroup(trajectories=()),
    "advantages": (),
    "policy": "p",
    "estimator": "grpo",
}
