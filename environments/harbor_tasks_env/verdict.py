"""The verdict: a task's tests in a fresh machine, over the agent's files, by tools of the clean image."""

import asyncio
import io
import json
import math
import posixpath
import re
import shlex
import tarfile
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, cast

from environments.harbor_tasks_env.task_folder import HarborTask, files_below
from tools.sandbox import Opening
from tools.sandbox.base import ExecResult, Sandbox
from tools.sandbox.changes import changed_files, changed_paths, put_changed
from tools.sandbox.host import transfer

TESTS, LOGS, SOLUTION = "/tests", "/logs/verifier", "/solution"
_PUBLISHED = "/logs/artifacts"
"""What Harbor gives to a verifier with a machine of its own, declared or not."""
_MOST_BYTES = 1 << 20
"""Of a file with the reward."""
_MOST_CHANGED = 128 << 20
"""Bytes of what an agent changed: they pass through the memory of this process."""
_MOST_EXCLUDED = 1000
"""Paths that the engine is told to leave out; it compares each with each change."""
_PROGRAMS = re.compile(
    r"/(bin|boot|dev|etc|lib(32|64|x32)?|logs|opt|proc|run|sbin|snap|solution|sys|tests|usr|var/lib/gems|verifier)"
    r"(/|$)"
)
"""Where programs, libraries and shells live."""
_NOT_OF_TASK = re.compile(r"/(dev|logs|proc|run|solution|sys|tests|verifier)(/|$)|.*/__pycache__(/|$)")
"""What no task needs of the agent, so that nobody has to know that it was left out."""
_WORK_AMONG_PROGRAMS = re.compile(r"/(opt|usr/src)/.")
_READ_AT_START = re.compile(r"/(root|home/[^/]+)/\.[^/]|(.*/)?\.git/(hooks|config)(/|$)|.*\.pth$")
_READ_ANYWHERE = frozenset({
    "__pycache__", "site-packages", "dist-packages", "sitecustomize.py", "usercustomize.py", "venv", ".venv",
    "conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini", "setup.cfg",
    "pyproject.toml", "node_modules", ".npmrc", "bunfig.toml", ".cargo", ".gitconfig", "hgrc", ".Rprofile",
    ".rspec", ".bashrc", ".bash_profile", ".profile",
})  # fmt: skip
"""Names of what interpreters, test runners and shells read wherever they find it."""
_OF_GIT = ("config", "config.worktree", "hooks")
"""What git reads in a repository, of any name: `.git` may be a file or a link that leads there."""
_CLEAN = (
    """printf '%s\\0' "$PATH"; find / -xdev '(' -name pyvenv.cfg -o -name objects -o -name refs ')' -print0"""
)
_AS_USER = (
    "import os, pwd, sys; user = sys.argv[1]; "
    "found = pwd.getpwuid(int(user)) if user.isdigit() else pwd.getpwnam(user); "
    "os.initgroups(found.pw_name, found.pw_gid); os.setgid(found.pw_gid); os.setuid(found.pw_uid); "
    "os.environ['HOME'] = found.pw_dir; os.execvp(sys.argv[2], sys.argv[2:])"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a task's tests said."""

    rewards: Mapping[str, float] | None
    """By name; `None`: they wrote none that can be read."""
    left_out: Sequence[str]
    """Paths that the agent changed and the tests did not get to see."""
    result: ExecResult
    """Of the tests."""


async def verdict(task: HarborTask, agent: Sandbox, opening: Opening) -> Verdict:
    """Run the tests; nothing of the agent's but files gets to them.

    Code of the agent's that the tests run has their rights there, and can write the reward itself.

    Args:
        task: with the tests.
        agent: its machine.
        opening: of the fresh one, of the verifier's image.
    """
    files = {} if task.verifier_images else files_below(task.folder / "tests")
    held = {f"{TESTS}/{path}": each.data for path, each in files.items()}
    async with opening.for_verifier(held) as fresh:
        left_out = await _bring(task, agent, fresh)
        logs = LOGS if task.has_image else f"/tmp{LOGS}"  # to which a link leads
        await fresh.exec(["sh", "-c", f"rm -rf {logs}; mkdir -p {logs} && chmod 777 {logs}"])
        result = await fresh.exec(
            _command(task, held.get(f"{TESTS}/test.sh", b"")),
            cwd=task.table.environment.workdir if task.has_image else None,
            env={**task.table.environment.env, **task.table.verifier.env},
            timeout_s=task.table.verifier.timeout_sec,
        )
        async with fresh.paused():
            rewards = None if result.timed_out else await _rewards(fresh)
    return Verdict(rewards=rewards, left_out=left_out, result=result)


def is_of_tools(path: str, search_path: Sequence[str] = (), workdir: str = "/") -> bool:
    """Whether a file decides how others are judged, so that it is that of the clean image.

    Args:
        path: absolute, or below the workspace.
        search_path: folders of programs; with `…/bin` comes all of `…`, unless the agent works there.
        workdir: where the agent works.
    """
    if not _is_read_nowhere(path):
        return True
    for folder in search_path:
        above = posixpath.dirname(folder)
        is_prefix = above != "/" and posixpath.basename(folder) in ("bin", "sbin")
        place = above if is_prefix and not _is_below(workdir, above) else folder
        if place.startswith("/") and _is_below(path, place):
            return True
    works_here = _WORK_AMONG_PROGRAMS.match(workdir) and _is_below(path, workdir)
    return not works_here and _PROGRAMS.match(path) is not None


async def _bring(task: HarborTask, agent: Sandbox, fresh: Sandbox) -> list[str]:
    """Copy what the tests are to see of the agent's files; what of its changes they are not to see.

    Raises:
        AgentCausedError: it is more than a verification takes, or does not fit the clean image.
    """
    search_path, *found = (await fresh.exec(["sh", "-c", _CLEAN])).text().split("\0")
    programs = [posixpath.dirname(each) + "/bin" for each in found if each.endswith("/pyvenv.cfg")]
    programs += search_path.split(":")
    declared = [
        posixpath.normpath(posixpath.join(agent.workdir, each))
        for each in task.table.artifact_paths + (_PUBLISHED,) * task.table.is_separate
    ]

    def rule(changed: Collection[str]) -> Callable[[str], bool]:
        repositories = _repositories([*found, *changed])

        def is_left_out(path: str) -> bool:
            if not declared:
                return _is_of_git(path, repositories) or is_of_tools(path, programs, agent.workdir)
            tops = [each for each in declared if _is_below(path, each)]
            is_seen = any(
                _is_read_nowhere(path[len(each) :]) and not _is_of_git(path, repositories, each)
                for each in tops
            )
            return not is_seen and not any(_is_below(each, path) for each in declared)

        return is_left_out

    if task.verifier_images or not task.has_image:
        room = min(agent.record.limits.disk_mb << 20, _MOST_CHANGED)
        taken = await transfer.take(agent, declared or (".",), max_bytes=room)
        places = {path: posixpath.join(agent.workdir, path) for path in taken}
        is_left_out = rule(places.values())
        left_out = {path for path, place in places.items() if is_left_out(place)}
        await transfer.offer(fresh, {path: taken[path] for path in taken if path not in left_out})
        return sorted(left_out)
    changed = await changed_paths(agent)
    left_out = set(filter(rule(changed), changed))
    highest = sorted(path for path in left_out if posixpath.dirname(path) not in left_out)
    archive = await changed_files(agent, exclude=highest[:_MOST_EXCLUDED], max_bytes=_MOST_CHANGED)
    # What is of many names is in there still, and what its programs made meanwhile.
    await put_changed(fresh, await asyncio.to_thread(_without, archive, rule))
    around = set(map(posixpath.dirname, left_out))
    return [] if declared else sorted(each for each in left_out - around if not _NOT_OF_TASK.match(each))


def _without(archive: bytes, rule: Callable[[Collection[str]], Callable[[str], bool]]) -> bytes:
    kept = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(archive)) as source,
        tarfile.open(fileobj=kept, mode="w") as target,
    ):
        is_left_out = rule([f"/{name}" for name in source.getnames()])
        for member in source:
            leads_out = member.islnk() and is_left_out(f"/{member.linkname}")
            if not leads_out and not is_left_out(f"/{member.name}"):
                target.addfile(member, source.extractfile(member) if member.isreg() else None)
    return kept.getvalue()


def _repositories(paths: Collection[str]) -> set[str]:
    """Folders that git takes for repositories, as these paths show."""
    shown = {"objects": set[str](), "refs": set[str]()}
    for path in paths:
        at = PurePosixPath(path)
        for each in (at, *at.parents):
            if each.name in shown:
                shown[each.name].add(str(each.parent))
    return shown["objects"] & shown["refs"]


def _is_of_git(path: str, repositories: Collection[str], top: str = "") -> bool:
    at = PurePosixPath(path)
    return any(
        each.name in _OF_GIT and str(each.parent) in repositories and len(str(each.parent)) > len(top)
        for each in (at, *at.parents)
    )


def _is_read_nowhere(path: str) -> bool:
    """Whether no tool looks for a file of this name by itself."""
    return not _READ_AT_START.match(path) and _READ_ANYWHERE.isdisjoint(path.split("/"))


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")


def _command(task: HarborTask, script: bytes) -> list[str]:
    """The script by its first line, since nothing but root's may be executable."""
    first = script.partition(b"\n")[0].decode("utf-8", "replace").strip()
    argv = [*(shlex.split(first[2:]) if first.startswith("#!") else ["bash"]), f"{TESTS}/test.sh"]
    user = task.table.verifier.user
    return argv if user in (None, "root", 0) else ["python3", "-I", "-c", _AS_USER, str(user), *argv]


async def _rewards(fresh: Sandbox) -> dict[str, float] | None:
    """What the tests wrote: `reward.json`, or else `reward.txt`; `None` where neither has numbers."""
    for name in ("reward.json", "reward.txt"):
        with suppress(OSError, ValueError, TypeError, RecursionError):
            data = await fresh.read_file(f"{LOGS}/{name}", max_bytes=_MOST_BYTES)
            found: Any = json.loads(data) if name.endswith("json") else float(data)
            rewards = cast("dict[str, Any]", found) if isinstance(found, dict) else {"reward": found}
            numbers = {key: float(value) for key, value in rewards.items() if type(value) in (int, float)}
            if numbers and len(numbers) == len(rewards) and all(map(math.isfinite, numbers.values())):
                return numbers
    return None
