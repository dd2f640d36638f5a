"""`evaluate` in a run's folder: a record like any, taken up again, never written over."""

import json
from contextlib import contextmanager, nullcontext
from itertools import count

import pytest

from environments.record.origin import OtherRunError
from environments.record.recorder import read_groups
from environments.rollout.items.tasks import GroupTask
from environments.run import open_run, tracking
from environments.run.evaluation_run import evaluate
from environments.run.group_source import score_eval
from environments.run.open_run import RunOptions
from environments.run.process_run import process
from environments.run.run_list import list_runs
from tests.environments.counted_items import Counted, counted, shown_console
from tests.environments.talking import Talking, made
from tools.errors import RecordError, SandboxError


def evaluating(folder, cls=Counted, **fields):
    fields.setdefault("eval_rollouts", 2)
    return counted(cls, data_dir_to_save_evals=str(folder), **fields)


def groups(folder):
    return list(read_groups(folder / "record.jsonl"))


def metrics(folder):
    return json.loads((folder / "metrics.json").read_text())


class Flaky(Counted):
    """Both rollouts of one item are lost, and of another one of them, whichever begins first."""

    lost = ("i3",)
    of_i4 = count()

    def prepare(self, item, sandbox, ctx):
        if item["id"] in self.lost or (item["id"] == "i4" and next(self.of_i4) % 2 == 0):
            raise SandboxError("gone")


async def test_its_record_is_one_of_an_evaluation_and_has_the_verdicts_and_no_credit(tmp_path):
    assert await evaluate(evaluating(tmp_path), shown_console()) == 0
    recorded = groups(tmp_path)
    assert {each.group.is_evaluation for each in recorded} == {True}
    assert all(t.passed == (t.score == 1.0) for each in recorded for t in each.group.trajectories)
    assert {(each.status, each.reason) for each in recorded} == {("no_credit", "an evaluation")}
    (run,) = list_runs(tmp_path)
    assert run.pass_at_1 == metrics(tmp_path)["results"]["all"]["eval/pass@1"]


async def test_what_is_recorded_is_not_rolled_out_again_and_numbers_are_of_all_starts(tmp_path):
    await evaluate(evaluating(tmp_path, max_items=4), shown_console())
    assert await evaluate(evaluating(tmp_path), shown_console()) == 0
    assert (metrics(tmp_path)["planned"], metrics(tmp_path)["tried"]) == (10, 10)
    assert len((tmp_path / "samples.jsonl").read_text().splitlines()) == 20
    before, lines = metrics(tmp_path), (tmp_path / "record.jsonl").read_bytes()
    console = shown_console()
    assert await evaluate(evaluating(tmp_path), console) == 0
    assert (tmp_path / "record.jsonl").read_bytes() == lines
    assert metrics(tmp_path)["results"]["all"]["eval/pass@1"] == before["results"]["all"]["eval/pass@1"]
    assert list_runs(tmp_path)[0].pass_at_1 == before["results"]["all"]["eval/pass@1"]
    assert "all 10 groups are already in" in console.file.getvalue()


async def test_another_evaluation_and_a_run_of_training_are_refused_by_what_differs(tmp_path):
    await evaluate(evaluating(tmp_path), shown_console())
    for fields, says in (
        ({"eval_rollouts": 3}, "eval_rollouts was 2, is 3"),
        ({"pass_score": 0.5}, "pass_score was 1.0, is 0.5"),
        ({"scripted_skill": 0.1}, "policy was"),
        ({"max_turns": 3}, "max_turns was"),
    ):
        with pytest.raises(OtherRunError, match=says):
            await evaluate(evaluating(tmp_path, **fields), shown_console())
    training = counted(data_path_to_save_groups=str(tmp_path / "record.jsonl"))
    with pytest.raises(OtherRunError, match="evaluation is gone"):
        await process(training, shown_console())
    # The group size of training does not count.
    assert await evaluate(evaluating(tmp_path, group_size=8), shown_console()) == 0


async def test_fresh_puts_the_former_evaluation_aside(tmp_path):
    folder = tmp_path / "eval"
    await evaluate(evaluating(folder), shown_console())
    assert (
        await evaluate(evaluating(folder, eval_rollouts=3), shown_console(), options=RunOptions(fresh=True))
        == 0
    )
    assert len(groups(tmp_path / "eval.1")[0].group.trajectories) == 2


async def test_files_of_an_evaluation_without_a_record_are_not_written_over(tmp_path):
    (tmp_path / "metrics.json").write_text("{}")
    with pytest.raises(RecordError, match=r"has metrics\.json of an evaluation without a record"):
        await evaluate(evaluating(tmp_path), shown_console())
    assert (tmp_path / "metrics.json").read_text() == "{}"


async def test_lost_rollouts_are_a_lower_bound(tmp_path):
    fields = {"scripted_skill": 1.0, "max_concurrent_rollouts": 1, "max_failed_groups": 0}
    assert await evaluate(evaluating(tmp_path, Flaky, **fields), shown_console()) == 0
    numbers = metrics(tmp_path)
    of_all = numbers["results"]["all"]
    assert (numbers["planned"], numbers["tried"], numbers["lost_items"], numbers["lost_rollouts"]) == (
        (10, 10, 1, 3)
    )
    assert (of_all["eval/pass@1"], of_all["eval/pass@1_at_least"]) == (1.0, pytest.approx(0.85))


async def test_a_lost_item_is_tried_once_more(tmp_path):
    fields = {"max_failed_groups": 0, "scripted_skill": 1.0}
    Flaky.lost = ("i3",)
    await evaluate(evaluating(tmp_path, Flaky, **fields), shown_console())
    Flaky.lost = ()
    accepting = RunOptions(accept=True)
    try:
        assert await evaluate(evaluating(tmp_path, Flaky, **fields), shown_console(), options=accepting) == 0
    finally:
        Flaky.lost = ("i3",)
    assert metrics(tmp_path)["lost_items"] == 0


async def test_charts_get_the_numbers_of_metrics_json_once(tmp_path, monkeypatch):
    steps = []

    class Charts:
        name = "charts"

        def log(self, numbers, histograms, samples):
            steps.append((numbers, histograms, samples))

    @contextmanager
    def charts(env, observers):
        yield tracking.Tracker([Charts()], observers)

    monkeypatch.setattr(open_run, "open_charts", charts)
    await evaluate(evaluating(tmp_path), shown_console())
    ((numbers, histograms, samples),) = steps
    assert numbers == metrics(tmp_path)["results"]["all"]
    assert len(histograms["histogram/score"]) == 20
    assert not [name for name in histograms if "advantage" in name]
    assert len(samples) == 10


async def test_what_it_changes_in_the_item_reaches_no_sibling():
    class Greedy(Talking):
        def passed(self, item, trajectory):
            return item.pop("answer") == "4"

    env, item = made(Greedy), {"id": "one", "answer": "4"}
    task = GroupTask(item=item, item_id="one")
    group = await score_eval(env, task, await env.rollout_group(task, 2), nullcontext)
    verdicts = tuple(trajectory.passed for trajectory in group.trajectories)
    assert (verdicts, item) == ((True, True), {"id": "one", "answer": "4"})
