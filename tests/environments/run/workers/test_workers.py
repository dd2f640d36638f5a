"""Groups that workers roll out: the same record, whatever becomes of a worker."""

import asyncio
import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from environments.config import ServerConfig
from environments.policy.mock_server import MockSettings, mock_app
from environments.policy.rendering.chatml import EMBEDDED, ChatMLRenderer
from environments.policy.scripted import Choice, ScriptedPolicy, say
from environments.record.recorder import read_groups, with_contents
from environments.run.evaluation_run import evaluate
from environments.run.workers import dispatch, env_spec, worker_process
from environments.run.workers.workers import OnWorkers
from tests.environments.policy.test_weights_over_http import update
from tests.environments.run.leftovers import groups_and_folders
from tests.environments.run.workers.supervised import (
    Supervisors,
    content_of,
    groups_in,
    on_supervisors,
    processed,
    working,
)
from tests.environments.run.workers.worked_env import (
    Branched,
    Chosen,
    InAnotherTier,
    InSandboxes,
    Sharing,
    Updated,
    Worked,
    WorkedConfig,
)
from tests.environments.serve.loopback import wait_until
from tests.environments.write_file import quiet
from tests.equipment.running_server import running_server
from tools.errors import ConfigError, IsolationError, RunError
from tools.sandbox.host.ownership import identity

FOLDER = Path(__file__).parent


def worked(path=None, **settings):
    out = {} if path is None else {"data_path_to_save_groups": str(path)}
    return Worked(WorkedConfig(group_size=2, **out, **settings))


async def test_any_number_of_workers_gives_the_same_record(tmp_path):
    alone, *others = (tmp_path / name for name in ("0", "1", "2", "4"))
    assert (await processed(worked(alone)))[0] == 0
    for path in others:
        code, _ = await processed(worked(path), open_source=on_supervisors(int(path.name)))
        assert (code, content_of(path)) == (0, content_of(alone))


async def test_state_on_self_that_rollouts_of_a_worker_share_is_named(tmp_path):
    settings = WorkedConfig(data_path_to_save_groups=str(tmp_path / "r"))
    _, shown = await processed(Sharing(settings), open_source=on_supervisors(1))
    assert "worker 1: rollouts set self.current, which all of them share" in shown


async def test_files_that_workers_keep_are_beside_the_record(tmp_path):
    path = tmp_path / "r"
    env = InSandboxes(WorkedConfig(group_size=2, data_path_to_save_groups=str(path)))
    code, _ = await processed(env, open_source=on_supervisors(2))
    whole = [with_contents(each, path) for each in read_groups(path)]
    kept = [dict(t.contents) for each in whole for t in each.group.trajectories]
    assert (code, kept) == (0, len(kept) * [{hashlib.sha256(b"kept").hexdigest(): b"kept"}])


BRANCHES = {"group_size": 4, "branches": 2, "branch_at": 1}


async def test_a_worker_that_ends_amid_branches_changes_nothing_of_the_record(tmp_path):
    alone, workers = tmp_path / "alone", tmp_path / "workers"
    for path, options in ((alone, {}), (workers, {"open_source": on_supervisors(2)})):
        out = {"data_path_to_save_groups": str(path)}
        env = Branched(WorkedConfig(count=4, data=str(tmp_path / "ended"), **BRANCHES, **out))
        assert (await processed(env, **options))[0] == 0
    assert (tmp_path / "ended").exists()
    assert content_of(workers) == content_of(alone)
    branched = [each.trunk for group in read_groups(workers) for each in group.group.trajectories]
    assert branched == [None, None, 0, 1] * 4


async def test_a_worker_that_isolates_in_another_tier_is_refused(tmp_path):
    fields = {"group_size": 2, "sandbox_network": "full", "data_path_to_save_groups": str(tmp_path / "r")}
    with pytest.raises(IsolationError, match=r"worker 1 .*another tier \(local C\) .*\(local B\)"):
        await processed(InAnotherTier(WorkedConfig(**fields)), open_source=on_supervisors(1))


async def test_an_evaluation_has_the_same_verdicts(tmp_path):
    folders = [tmp_path / name for name in ("alone", "workers")]
    for folder, options in zip(folders, ({}, {"open_source": on_supervisors()}), strict=True):
        env = Worked(WorkedConfig(data_dir_to_save_evals=str(folder), eval_rollouts=3))
        assert await evaluate(env, quiet(), **options) == 0
    alone, record = (folder / "record.jsonl" for folder in folders)
    assert content_of(alone) == content_of(record)
    passed = [each.passed for group in read_groups(record) for each in group.group.trajectories]
    assert set(passed) == {True, False}


async def test_next_items_is_asked_by_the_driver_with_what_came_out(tmp_path):
    paths = [tmp_path / name for name in ("alone", "workers")]
    for path, options in zip(paths, ({}, {"open_source": on_supervisors()}), strict=True):
        config = WorkedConfig(group_size=2, total_steps=6, data_path_to_save_groups=str(path))
        assert (await processed(Chosen(config), **options))[0] == 0
    asked = [[(each.group.item_id, each.group.epoch) for each in read_groups(path)] for path in paths]
    assert asked[0] == asked[1]
    assert len(set(asked[0])) == 6


async def test_the_driver_judges_age_by_the_weights_that_every_worker_met(tmp_path):
    path, one = tmp_path / "r.jsonl", [Choice(probability=1.0, message=say("done"))]
    renderer = ChatMLRenderer.load(EMBEDDED)
    settings = MockSettings(kind="sglang")
    app = mock_app(lambda _: lambda *_: one, skill=1, renderer=renderer, settings=settings)
    async with running_server(app) as url:
        assert await update(url, "1") == 200
        fields = {"data": url.removesuffix("/v1"), "data_path_to_save_groups": str(path)}
        # Few at once, so that no line is written long after its group was judged; and many in all, so that
        # the worker without the trainer is not done before the other has got to it.
        config = WorkedConfig(count=40, group_size=2, max_concurrent_rollouts=4, max_staleness=0, **fields)
        env = Updated(config, [ServerConfig(base_url=url, model_name="scripted")])
        assert (await processed(env, open_source=on_supervisors()))[0] == 0
    groups = list(read_groups(path))
    new = next(index for index, each in enumerate(groups) if "2" in each.group.weight_versions)
    for index, each in enumerate(groups):
        is_old = each.group.weight_versions == ("1",)
        # A few may be written after others that were judged before.
        assert (each.group.stale is not None) >= (is_old and index > new + 4)
        assert is_old or each.group.stale is None or "1" in each.group.weight_versions
    assert {each.group.weight_versions for each in groups} >= {("1",), ("2",)}


POISON = {
    "exit": "WorkerDied: exit code 13; 3 workers ended while it was alone in them",
    "leave": "WorkerDied: exit code 13; 3 workers ended while it was alone in them",
    "crash": "WorkerDied: ended by SIGSEGV; 3 workers ended while it was alone in them",
    "eat": "of memory, and a worker may have 0.4 GiB (--worker-memory); 3 workers ended",
    "block": "BlockedLoop: it blocked the event loop for 1 s (worked_env.py:",
    "hold": "WorkerDied: it gave no sign of life for 2 s: native code holds the interpreter; 3 workers",
}


@pytest.mark.parametrize("does", POISON)
@pytest.mark.parametrize("item", ["0", "7"])
async def test_an_item_that_ends_its_process_costs_itself(does, item, tmp_path, monkeypatch):
    monkeypatch.setattr(worker_process, "_SILENT_S", 1.0)
    path = tmp_path / "r.jsonl"
    env = worked(path, does={item: does}, hook_block_s=1 if does in ("block", "hold") else 60)
    code, shown = await processed(env, open_source=on_supervisors(memory=400 << 20))
    groups = groups_in(path)
    assert (code, len(groups)) == (0, 12)
    assert [each for each, (status, _) in groups.items() if status == "failed"] == [item]
    assert POISON[does] in groups[item][1]
    assert "another one takes its place" in shown


@pytest.mark.parametrize("item", ["0", "2"])
async def test_a_group_with_branches_that_ends_its_process_costs_itself(item, tmp_path):
    path = tmp_path / "r.jsonl"
    env = Worked(WorkedConfig(count=3, does={item: "exit"}, data_path_to_save_groups=str(path), **BRANCHES))
    code, _ = await processed(env, open_source=on_supervisors())
    groups = groups_in(path)
    assert (code, len(groups)) == (0, 3)
    assert [each for each, (status, _) in groups.items() if status == "failed"] == [item]


@pytest.mark.parametrize(("does", "error"), [("cancel", "CancelledError"), ("quit", "SystemExit")])
async def test_a_hook_that_cancels_itself_or_exits_costs_its_rollouts_and_no_worker(does, error, tmp_path):
    path = tmp_path / "r.jsonl"
    code, shown = await processed(worked(path, does={"7": does}), open_source=on_supervisors())
    groups = groups_in(path)
    assert (code, len(groups)) == (0, 12)
    assert [each for each, (status, _) in groups.items() if status == "failed"] == ["7"]
    assert error in groups["7"][1]
    assert "another one takes its place" not in shown


async def test_what_a_killed_worker_left_of_its_sandboxes_is_gone_once_the_next_one_is_open():
    env, supervisors = InSandboxes(WorkedConfig(group_size=2, does={"3": "wait"})), Supervisors()
    async with working(env, 1, supervisors=supervisors) as pool:
        running = asyncio.create_task(pool.run(env.tasks()[3]))
        (slot,) = pool._slots
        while not (await slot.worker.beat()).in_flight.doing["score_turn"]:  # noqa: ASYNC110  # in another process
            await asyncio.sleep(0.05)
        owner = identity(supervisors.workers[0]._process.pid)
        supervisors.workers[0]._process.kill()
        while slot.opened < 2:  # noqa: ASYNC110  # likewise
            await asyncio.sleep(0.05)
        assert groups_and_folders({owner}) == []
        running.cancel()
        await asyncio.wait({running})


async def test_a_group_that_was_beside_it_is_as_ever(tmp_path):
    alone, workers = tmp_path / "alone", tmp_path / "workers"
    await processed(worked(alone))
    await processed(worked(workers, does={"5": "exit", "6": "crash"}), open_source=on_supervisors())
    assert len(set(content_of(alone)) & set(content_of(workers))) == 0  # `does` is of the experiment
    scores = [
        {each.group.item_id: [t.score for t in each.group.trajectories] for each in read_groups(path)}
        for path in (alone, workers)
    ]
    assert {item for item in scores[0] if scores[0][item] != scores[1][item]} == {"5", "6"}


async def test_where_every_group_ends_its_worker_the_run_ends_in_a_line(tmp_path):
    everything = {str(number): "exit" for number in range(12)}
    code, shown = await processed(worked(tmp_path / "r", does=everything), open_source=on_supervisors(1))
    assert code == 1
    assert "stopped: the first rollouts of 3 items failed alike: WorkerDied at its worker" in shown


async def test_workers_that_end_as_they_open_stop_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(dispatch, "_FIRST_PAUSE_S", 0.0)
    with pytest.raises(
        RunError, match=r"^worker 1 ended 5 times, and no group ended meanwhile; .*exit code 13"
    ):
        await processed(worked(tmp_path / "r", opens="exit"), open_source=on_supervisors(1))


async def test_a_worker_whose_setup_hangs_holds_up_no_other_and_not_the_end(tmp_path):
    path = tmp_path / "r.jsonl"
    env = worked(path, opens=f"once {tmp_path / 'lock'}")
    supervisors = Supervisors()
    code, _ = await processed(env, open_source=on_supervisors(2, supervisors=supervisors))
    assert (code, len(groups_in(path))) == (0, 12)
    assert all(each._process.returncode is not None for each in supervisors.workers)


async def test_a_variable_that_only_the_driver_has_is_named_with_what_gives_it(monkeypatch):
    monkeypatch.setenv("WORKED", "1")
    env = worked(opens="variable WORKED")
    monkeypatch.setattr(OnWorkers, "starts", without_variable(OnWorkers.starts, "WORKED"))
    said = []
    with pytest.raises(RunError, match=r"setup broke: KeyError: 'WORKED' .*--worker-env WORKED$"):
        async with working(env, 1, said=said):
            pass
    assert "in setup" in "\n".join(said)


def without_variable(starts, name):
    def made(*args, **options):
        made = starts(*args, **options)
        return [
            replace(each, variables={key: each.variables[key] for key in each.variables if key != name})
            for each in made
        ]

    return made


async def test_another_item_in_a_worker_is_refused_by_name():
    env = worked(opens="other items")
    async with working(env, 1) as pool:
        with pytest.raises(ConfigError, match=r"^worker 1: item '3' is another one in a worker"):
            await pool.run(env.tasks()[3])


async def test_another_experiment_in_a_worker_is_refused_by_what_differs():
    env = worked()
    env.system_prompt = "Only here."
    with pytest.raises(ConfigError, match=r"^worker 1 has another experiment \(system prompt changed\)"):
        async with working(env, 1):
            pass


async def test_another_release_of_a_package_in_a_worker_is_refused_by_name(monkeypatch):
    real = env_spec.versions_of
    monkeypatch.setattr(dispatch, "versions_of", lambda names: {**real(names), "orjson": "0.1"})
    with pytest.raises(ConfigError, match=r"^worker 1 has another experiment \(orjson was 0.1, is 3\."):
        async with working(worked(), 1):
            pass


async def test_a_teardown_that_breaks_in_a_worker_fails_the_run(tmp_path):
    with pytest.raises(
        RunError, match=r"^a worker: environment 'worked': teardown broke: ValueError: no more"
    ):
        await processed(worked(tmp_path / "r", closes="no more"), open_source=on_supervisors(1))
    assert len(groups_in(tmp_path / "r")) == 12


async def test_what_hooks_print_is_shown_with_its_worker():
    env, said = worked(does={"3": "print"}), []
    async with working(env, 1, said=said) as pool:
        await pool.run(env.tasks()[3])
        while "worker 1: item 3 is scored" not in said:
            await asyncio.wait_for(pool._look_at(pool._slots[0]), 10)


async def test_a_cancelled_group_ends_in_its_worker_and_leaves_it_open():
    env = worked(does={"3": "wait"}, max_concurrent_rollouts=2)
    async with working(env, 1) as pool:
        waiting = asyncio.create_task(pool.run(env.tasks()[3]))
        (slot,) = pool._slots
        while (await slot.worker.beat()).in_flight.doing["score_turn"] < 2:  # noqa: ASYNC110  # in another process
            await asyncio.sleep(0.05)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        done = await pool.run(env.tasks()[4])  # no slot is held any more
        assert (len(done.note.past.scores), pool.deaths) == (2, 0)


async def test_a_group_that_ended_is_handed_to_a_caller_that_is_cancelled_meanwhile():
    env = worked()
    async with working(env, 1) as pool:
        (slot,) = pool._slots
        real = slot.worker.ask

        async def ask(*args):
            answer = await real(*args)
            running.cancel()
            await asyncio.sleep(0)
            return answer

        slot.worker.ask = ask
        running = asyncio.create_task(pool.run(env.tasks()[3]))
        assert (await running).note.past.item_id == "3"


async def test_files_that_hooks_read_in_a_worker_are_of_the_record(tmp_path):
    data, path = tmp_path / "known.txt", tmp_path / "out" / "r.jsonl"
    data.write_text("as it was")
    env = Read(WorkedConfig(group_size=2, data_path_to_save_groups=str(path)))
    assert (await processed(env, open_source=on_supervisors()))[0] == 0
    assert b"later data of" in path.read_bytes()


class Read(Worked):
    """Reads a file of the repository in each hook."""

    async def score_turn(self, item, turn, ctx):
        (FOLDER / "worked_data.txt").read_text()
        return await super().score_turn(item, turn, ctx)


async def test_a_worker_ends_with_its_supervisor():
    env = worked(does={"3": "wait"})
    supervisors = Supervisors()
    async with working(env, 1, supervisors=supervisors):
        (supervisor,) = supervisors.workers
        process = supervisor._process  # another one takes its place
        supervisor._writer.close()  # as where it is killed
        await asyncio.to_thread(wait_until, lambda: process.returncode is not None)
    assert process.returncode == 1


def test_limits_are_of_the_run():
    env = worked(max_concurrent_rollouts=7)
    job = env_spec.WorkerJob(config=env.config, servers=(), finishing=None, packages=(), files={})
    parts = [each.config.max_concurrent_rollouts for each in env_spec.shares(job, 3)]
    assert parts == [3, 2, 2]
    with pytest.raises(
        ConfigError, match=r"max_concurrent_rollouts 7 is shared by 8 workers, and some get none"
    ):
        env_spec.shares(job, 8)


def test_a_class_that_no_file_has_is_refused_with_the_form_that_works():
    class Local(Worked):
        pass

    job = env_spec.WorkerJob(config=WorkedConfig(), servers=(), finishing=None, packages=(), files={})
    with pytest.raises(ConfigError, match=r"put it into a file, .* path/to/file.py:Local"):
        env_spec.EnvSpec.of(Local, job)


async def test_a_policy_that_is_an_object_is_refused():
    pytest.importorskip("ray")
    policy = ScriptedPolicy(lambda *_: [], skill=1, renderer=ChatMLRenderer.embedded())
    env = Worked(WorkedConfig(group_size=2), policy=policy)
    opened = OnWorkers(count=1).open(env, None)
    with pytest.raises(ConfigError, match=r"is an object of this process, .*--openai.base_url"):
        async with opened:
            pass


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"count": 0}, "--workers 0: give 1 or more"),
        ({}, "give the number of workers, --workers N, or a cluster"),
        ({"ray": "ray://head:10001"}, "give auto or HOST:PORT, on a node of the cluster"),
        ({"count": 1, "variables": ["NOT_HERE"]}, "--worker-env NOT_HERE: there is no such variable here"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, said):
    with pytest.raises(ConfigError, match=said.replace("(", r"\(")):
        OnWorkers(**options)
