"""`credit --rewards` of rewards that take files out of the sandbox: they come from beside the record."""

import zipfile

import pytest

from environments.record.recorder import artefacts_of, read_contents, read_groups, with_contents
from environments.rewards.reward_context import AgentFiles
from environments.run.open_run import RunOptions
from environments.run.process_run import process
from environments.run.rescore_run import rescore
from environments.shipped.code_debug import CodeDebugEnv
from environments.shipped.terminal_tasks import TerminalTasksEnv
from environments.trajectory import Artefact, Trajectory
from environments.turn_level_reward import TurnLevelRewardMixin
from tests.environments.keeping_env import Keeping, keeping, recorded, rescored, rewards
from tests.environments.write_file import quiet
from tools.errors import ConfigError
from tools.sandbox.archive import unpack
from tools.sandbox.base import NoSandbox, SandboxSpec


@pytest.fixture
def path(tmp_path):
    return tmp_path / "r.jsonl"


def shipped(cls, seed, path=None, **settings):
    out = {} if path is None else {"data_path_to_save_groups": str(path)}
    own = {"max_items": 2, "group_size": 4, "seed": seed, "max_turns": 8}
    return cls(cls.env_config_cls(**own, **out, **settings), ())


def by_item(path):
    return sorted(rewards(sorted(read_groups(path), key=lambda each: each.group.item_id)), key=repr)


@pytest.mark.parametrize("skill", [0.2, 0.6, 1.0])
@pytest.mark.parametrize("cls", [CodeDebugEnv, TerminalTasksEnv], ids=lambda cls: cls.name)
async def test_a_shipped_environment_gives_the_rewards_of_its_rollouts(path, cls, skill):
    seed = int(10 * skill)
    await process(shipped(cls, seed, path, scripted_skill=skill), quiet())
    await rescore(shipped(cls, seed), path, read_contents(path), path.with_suffix(".new"), quiet())
    assert by_item(path.with_suffix(".new")) == by_item(path)


async def test_files_folders_links_errors_and_what_was_made_are_as_they_were_in_each_turn(path):
    was = await recorded(path)
    assert rewards(await rescored(path)) == rewards(was)
    sizes = {parts["size"] for t in was[0].group.trajectories for parts in t.rewards.turn_components}
    assert sizes == {-2.0, -1.0, 4.0, 8.0}


class Later(Keeping):
    async def compute_outcome(self, item, trajectory, ctx):
        return float(len(await ctx.artefact("pkg/other")))


class Larger(Keeping):
    most = 300

    async def compute_outcome(self, item, trajectory, ctx):
        try:
            return float(len(await ctx.artefact("random", max_bytes=self.most)))
        except OSError:
            return 0.0


class Small(Larger):
    most = 200


@pytest.mark.parametrize(
    ("cls", "settings", "now", "words"),
    [
        (
            Keeping,
            {},
            Later,
            "compute_outcome takes 'pkg/other' after the last turn, which its rollout did not take",
        ),
        (Keeping, {"artefacts_mb": 0}, Keeping, "score_turn takes 'pkg' in turn 1, which .* did not keep"),
        (Small, {"keep": ()}, Larger, "'random' after the last turn, which had more than 200 bytes"),
    ],
)
async def test_what_was_not_kept_is_refused_by_hook_and_name(path, cls, settings, now, words):
    keep = settings.pop("keep", cls.keep)
    await recorded(path, type(cls.__name__, (cls,), {"keep": keep}), **settings)
    with pytest.raises(ConfigError, match=f"cannot be rescored: .*{words}"):
        await rescored(path, now)
    assert not path.with_name(f"{path.name}.new").exists()
    assert not artefacts_of(path.with_name(f"{path.name}.new")).exists()


class Large(Keeping):
    async def compute_outcome(self, item, trajectory, ctx):
        await ctx.sandbox.exec("head -c 1100000 /dev/urandom >large")
        return float(len(await ctx.artefact("large")))


class ReadsLarge(Keeping):
    async def compute_outcome(self, item, trajectory, ctx):
        return float(len(await ctx.artefact("large")))


async def test_what_does_not_fit_is_named_in_the_record_with_its_size_and_refused(path):
    (group,) = await recorded(path, Large, artefacts_mb=1)
    left_out = [each for t in group.group.trajectories for each in t.artefacts if each.path == "large"]
    assert [(each.digest, each.size) for each in left_out] == 3 * [(None, 1_100_000)]
    with pytest.raises(
        ConfigError, match=r"'large' after the last turn, which did not fit .* 1,100,000 bytes"
    ):
        await rescored(path, ReadsLarge)


async def test_siblings_with_equal_files_share_one_content(path):
    (group,) = await recorded(path)
    named = {each.digest for t in group.group.trajectories for each in t.artefacts if each.digest}
    (file,) = (path.parent / "r.jsonl.artefacts").iterdir()
    kept = zipfile.ZipFile(file).namelist()
    assert sorted(kept) == sorted(named)
    assert len(named) < sum(each.digest is not None for t in group.group.trajectories for each in t.artefacts)


async def test_keep_takes_folders_at_the_end_without_bytecode(path):
    (group,) = await recorded(path)
    whole = with_contents(group, path).group.trajectories
    folders = [
        (each, t.contents[each.digest])
        for t in whole
        for each in t.artefacts
        if each.path == "pkg" and each.turn is None and each.digest
    ]
    assert folders
    assert {name for _, data in folders for name in unpack(data)} <= {"a", "b"}


async def test_a_run_that_starts_over_removes_what_was_kept_of_the_former_one(path):
    await recorded(path)
    before = set(artefacts_of(path).iterdir())
    await process(keeping(path), quiet(), options=RunOptions(fresh=True))
    assert len(before) == 1 == len(set(artefacts_of(path).iterdir()) - before)
    assert not before & set(artefacts_of(path).iterdir())


class Built(Keeping):
    """Its spec, a build, and a verification without artefacts count."""

    def sandbox_for(self, item):
        return SandboxSpec(disk_mb=40)

    async def compute_outcome(self, item, trajectory, ctx):
        disk = await ctx.verify(command="df -k . | tail -n 1")
        built = await ctx.verify(
            build="cat pkg/* | wc -c >size", artefacts=["pkg"], outputs=["size"], command="cat size"
        )
        return float(disk.text().split()[1]) + int(built.text())


async def test_builds_and_the_sandboxes_of_an_item_are_as_of_its_rollout(path):
    was = await recorded(path, Built)
    assert {t.rewards.outcome // 1024 for t in was[0].group.trajectories} == {40}
    assert rewards(await rescored(path, Built)) == rewards(was)


class Uncaught(Keeping):
    """What the agent did to `out` is its doing: the floor."""

    score_turn = TurnLevelRewardMixin.score_turn

    async def compute_outcome(self, item, trajectory, ctx):
        return float(len(await ctx.artefact("out")))


async def test_a_file_that_the_agent_made_unreadable_is_the_floor_again(path):
    was = await recorded(path, Uncaught)
    assert {t.agent_caused.cause for t in was[0].group.trajectories} == {"unreadable_files"}
    assert rewards(await rescored(path, Uncaught)) == rewards(was)


def test_turns_of_threads_get_their_index_from_the_order_of_their_requests():
    files = AgentFiles(NoSandbox(), 100)
    for files.turn, path in enumerate("ab"):
        files._keep(Artefact(path=path), b"1")
    kept = files.add_to(Trajectory(item_id="i", turns=(), rows=()), [7, 3])
    assert [(each.path, each.turn) for each in kept.artefacts] == [("a", 1), ("b", 0)]
