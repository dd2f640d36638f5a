"""Rows, their repositories, and what turns and rollouts are worth."""

import shutil
import subprocess
import tarfile

import pytest

from environments.policy.scripted import say
from environments.rollout.items.tasks import GroupTask
from environments.shipped.swe_tasks import SweTasksEnv
from environments.shipped.swe_tasks.env import SweTasksConfig
from environments.shipped.swe_tasks.patches import apply_patch, patch_between, read_folder
from environments.shipped.swe_tasks.repositories import read_tree
from tests.environments.shipped.swe_tasks.small_repository import (
    BUGGY,
    FAILING,
    FILES,
    FIXED,
    dataset,
    played,
    put,
    row,
    sh,
    write,
)
from tests.environments.written_policy import Written
from tools.errors import DatasetError
from turnwise.cli.main import main

HALF = BUGGY.replace("return a - b", "return a + b if a > 0 else 0")


def git(folder, *words):
    own = ("-c", "user.name=a", "-c", "user.email=a@b")
    return subprocess.run(
        ["git", *own, *words], cwd=folder, check=True, capture_output=True, text=True
    ).stdout


def as_folder(tmp_path):
    write(tmp_path / "calc")
    return row("calc")


def as_bare_git(tmp_path):
    """Its newest commit has the fix, the one of the row has not."""
    work = write(tmp_path / "work")
    git(work, "init", "-q")
    git(work, "add", ".")
    git(work, "commit", "-qm", "bug")
    commit = git(work, "rev-parse", "HEAD").strip()
    (work / "calc.py").write_text(FIXED)
    git(work, "commit", "-qam", "fix")
    git(tmp_path, "clone", "-q", "--bare", "work", "calc.git")
    shutil.rmtree(work)
    return row("calc.git", commit)


def as_sdist(tmp_path):
    with tarfile.open(tmp_path / "calc-1.0.tar.gz", "w:gz") as archive:
        archive.add(write(tmp_path / "calc"), "calc-1.0")
    return row("calc-1.0.tar.gz")


@pytest.mark.parametrize(
    "make",
    [
        as_folder,
        pytest.param(as_bare_git, marks=pytest.mark.soak),
        pytest.param(as_sdist, marks=pytest.mark.soak),
    ],
)
async def test_a_repository_is_a_folder_a_git_or_an_archive(make, tmp_path):
    rows = dataset(tmp_path, make(tmp_path))
    fixed = await played(rows, sh("grep -q 'a - b' calc.py && sed -i 's/a - b/a + b/' calc.py"))
    assert fixed.rewards.outcome == 1


async def test_settings_of_a_repositorys_git_run_nothing_here(tmp_path):
    work = write(tmp_path / "work", {"calc.py": BUGGY, ".gitattributes": "* filter=f"})
    git(work, "init", "-q")
    git(work, "add", ".")
    git(work, "commit", "-qm", "bug")
    git(work, "config", "filter.f.smudge", f"touch {tmp_path}/ran; cat")
    assert read_tree(work, "HEAD")["calc.py"].data == BUGGY.encode()
    assert not (tmp_path / "ran").exists()


def test_an_archive_with_paths_out_of_its_folder_is_refused(tmp_path):
    with tarfile.open(tmp_path / "calc.tar", "w") as archive:
        for name in ("../ran", "calc/calc.py"):
            archive.addfile(tarfile.TarInfo(name))
    with pytest.raises(DatasetError, match=r"a path with `\.\.`"):
        read_tree(tmp_path / "calc.tar", None)


async def test_a_turn_is_paid_for_the_tests_that_it_made_pass(tmp_path):
    rows = dataset(tmp_path, as_folder(tmp_path))
    trajectory = await played(
        rows, sh("ls"), put("calc.py", HALF), put("calc.py", BUGGY), put("calc.py", FIXED)
    )
    assert trajectory.rewards.turns == (0, 0.25, -0.25, 0.5, 0)


@pytest.mark.soak
async def test_what_was_not_verified_yet_is_paid_to_the_last_turn(tmp_path):
    rows = dataset(tmp_path, as_folder(tmp_path))
    trajectory = await played(rows, sh("ls"), put("calc.py", FIXED), verify_every=2)
    assert trajectory.rewards.turns == (None, 0.5, 0)


@pytest.mark.soak
async def test_without_verification_turns_are_not_scored(tmp_path):
    rows = dataset(tmp_path, as_folder(tmp_path))
    trajectory = await played(rows, put("calc.py", FIXED), verify_every=0)
    assert (trajectory.rewards.turns, trajectory.rewards.outcome) == ((None, None), 1)


async def test_a_test_that_fails_as_its_mark_expects_passes(tmp_path):
    marked = "import pytest\n\n@pytest.mark.xfail\ndef test_known():\n    assert False\n"
    files = {**FILES, "tests/test_known.py": f"{marked}\ndef test_imperative():\n    pytest.xfail()\n"}
    repo = write(tmp_path / "calc", files)
    for name, outcome in (("test_known", 1), ("test_imperative", 0)):
        fields = {"PASS_TO_PASS": [f"tests/test_known.py::{name}"], "FAIL_TO_PASS": [FAILING[0]] * 2}
        trajectory = await played(dataset(tmp_path, row(repo, **fields)), put("calc.py", FIXED))
        assert (trajectory.rewards.turns, trajectory.rewards.outcome) == ((0.5, 0), outcome)


@pytest.mark.parametrize(
    ("repo", "why"),
    [("gone", "no repository at"), ("~no-such-user/x", "no repository at"), ("x" * 300, "[Errno 36]")],
)
def test_a_row_whose_repository_cannot_be_had_is_refused_by_name(repo, why, tmp_path, capsys):
    write(tmp_path / "calc")
    rows = dataset(tmp_path, row("calc"), row(repo, instance_id="gone-1"))
    assert main(["process", "swe_tasks", "--env.dataset_path", str(rows), "--out", str(tmp_path / "r")]) == 2
    assert f"gone-1: {why}" in capsys.readouterr().err


@pytest.mark.parametrize("tests", ["", "not json", "[]", "[1]", {"a": 1}])
async def test_tests_that_are_no_list_are_refused(tests, tmp_path):
    rows = dataset(tmp_path, {**as_folder(tmp_path), "FAIL_TO_PASS": tests or []})
    with pytest.raises(DatasetError, match="calc-1: FAIL_TO_PASS is"):
        await SweTasksEnv(SweTasksConfig(dataset_path=str(rows))).load_items()


def test_a_patch_turns_one_tree_into_the_other(tmp_path):
    before = read_folder(write(tmp_path / "a", {"kept": "1", "gone": "2", "x": "3", "edited": "no end"}))
    after = read_folder(write(tmp_path / "b", {"kept": "1", "x/y ä": "4", "edited": "other\n", "empty": ""}))
    changed = apply_patch(before, patch_between(before, after))
    assert {path: file for path, file in {**before, **changed}.items() if file} == after


async def of_skill(skill, **settings):
    """The outcomes of the shipped rows."""
    env = SweTasksEnv(SweTasksConfig(scripted_skill=skill, verify_every=0, **settings))
    async with env:
        groups = [
            await env.rollout_group(GroupTask(item=item, item_id=item_id), 1)
            for item, item_id in zip(env.items, env.item_ids, strict=True)
        ]
    return [group.trajectories[0].rewards.outcome for group in groups]


@pytest.mark.soak
async def test_a_skilled_agent_solves_shipped_rows_that_a_clumsy_one_does_not():
    assert sum(await of_skill(1.0)) >= 7
    assert sum(await of_skill(0.0)) <= 2


@pytest.mark.soak
async def test_every_shipped_patch_resolves_its_row():
    async with SweTasksEnv(SweTasksConfig(verify_every=0)) as shipped:
        rows = list(zip(shipped.items, shipped.item_ids, strict=True))
    for item, item_id in rows:
        policy = Written(put("p", item["patch"]), sh("git apply p && rm p"), say("Done."))
        async with SweTasksEnv(SweTasksConfig(verify_every=0), policy=policy) as env:
            group = await env.rollout_group(GroupTask(item=item, item_id=item_id), 1)
            assert group.trajectories[0].rewards.outcome == 1, item_id
