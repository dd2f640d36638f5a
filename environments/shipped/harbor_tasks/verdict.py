"""The verdict of a task's tests in a fresh machine, with tools of the clean image."""

import asyncio
import io
import json
import math
import posixpath
import re
import shlex
import tarfile
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from environments.rewards.reward_checks import check_reward, check_text
from environments.rewards.verdict.frame import NoVerdict, fresh_machine
from environments.shipped.harbor_tasks.file_filter import FileFilter, is_below
from environments.shipped.harbor_tasks.task_folder import HarborTask, files_below
from environments.shipped.harbor_tasks.terminal_bench import parse_tests
from tools.errors import RewardError, SandboxUnavailable
from tools.sandbox import Opening
from tools.sandbox.base import Sandbox
from tools.sandbox.layers import changed_files, changed_paths, changes, place, plain_files, take

TESTS, LOGS, SOLUTION = "/tests", "/logs/verifier", "/solution"
_PUBLISHED = "/logs/artifacts"
"""Harbor copies it to a verifier in a separate machine even if it is not declared."""
_MOST_BYTES = 1 << 20
_MOST_CHANGED = 128 << 20
_MOST_EXCLUDED = 1000
_LINKS_AT_ONCE, _LONGEST_PATH = 1000, 4097
_NOT_OF_TASK = re.compile(r"/(dev|logs|proc|run|solution|sys|tests|verifier)(/|$)|.*/__pycache__(/|$)")
"""Paths that no task needs from the agent, so that no report names them."""
_NEVER_A_LINK = re.compile(r"/(home|root|tmp|var)(/(cache|lib|tmp))?$|/home/[^/]+$")
"""Folders that are copied in part: a link in their place could lead elsewhere."""
_SCRATCH = re.compile(r"/(var/)?tmp/")
"""Folders for temporary files of the tests, to which an agent's link could lead."""
_LINKING, _BETWEEN_WORDS = re.compile(r"\bln\b|link"), re.compile(r"[\s\"'`();,]+")
_CLEAN = """printf '%s\\0' "$PATH"
find / -xdev '(' -name pyvenv.cfg -o -name objects -o -name refs ')' -print0
find /var/lib /var/cache -mindepth 1 -maxdepth 1 -user root -print0"""
_FOLLOW = """
import os, sys
for path in sys.stdin.buffer.read().split(b"\\0"):
    found = os.path.realpath(path) if os.path.exists(path) else b""
    sys.stdout.buffer.write(found + b"\\0")
"""
_AS_USER = (
    "import os, pwd, sys; user = sys.argv[1]; "
    "found = pwd.getpwuid(int(user)) if user.isdigit() else pwd.getpwnam(user); "
    "os.initgroups(found.pw_name, found.pw_gid); os.setgid(found.pw_gid); os.setuid(found.pw_uid); "
    "os.environ['HOME'] = found.pw_dir; os.execvp(sys.argv[2], sys.argv[2:])"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    rewards: Mapping[str, float] | None
    left_out: Sequence[str]
    last_words: str
    exit_code: int = 1


async def reach_verdict(task: HarborTask, agent: Sandbox, opening: Opening, *, limit_s: float) -> Verdict:
    """Run the tests in a fresh machine that gets only files of the agent.

    If the tests run the agent's code, it has their rights and can write the reward itself.
    """
    places = () if task.verifier_images else task.tests
    files = {path: file for place in places for path, file in files_below(place).items()}
    held = {f"{TESTS}/{path}": each.data for path, each in files.items()}
    limit = asyncio.timeout(limit_s)
    async with AsyncExitStack() as opened:
        try:
            async with limit:
                with fresh_machine():
                    fresh = await opened.enter_async_context(opening.for_verifier(held))
                left_out = await _bring(task, agent, fresh)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise SandboxUnavailable(f"no machine with the agent's files within {limit_s:g} s") from error
        logs = LOGS if task.has_image else f"/tmp{LOGS}"  # `/logs` links to it
        workdir = (task.has_image and task.table.environment.workdir) or fresh.workdir
        made = f"rm -rf {logs}; mkdir -p {logs} {shlex.quote(workdir)}; chmod 777 {logs}"
        try:
            with fresh_machine():
                await fresh.exec(["sh", "-c", made], cwd="/")
                result = await fresh.exec(
                    _command(task, held.get(f"{TESTS}/{task.script}", b"")),
                    cwd=workdir,
                    env={**task.table.environment.env, **task.table.verifier.env},
                    timeout_s=min(task.table.verifier.timeout_sec, limit_s),
                    max_output_bytes=_MOST_BYTES,
                )
                words = result.stderr.decode("utf-8", "replace") + "\n"
                async with fresh.paused():
                    rewards = None if result.timed_out else await _rewards(fresh, task, words + result.text())
        except NoVerdict as error:  # caused by the agent's code or by the tests; a control decides
            return Verdict(rewards=None, left_out=left_out, last_words=str(error))
    last_words = "they ran out of their time" if result.timed_out else words[-300:]
    return Verdict(rewards=rewards, left_out=left_out, last_words=last_words, exit_code=result.exit_code)


async def put_folder(sandbox: Sandbox, folder: Path, at: str) -> None:
    files = await asyncio.to_thread(files_below, folder)
    placed = {place(f"{at}/{path}", sandbox.workdir): file for path, file in files.items()}
    await plain_files(placed).put_into(sandbox)


async def _bring(task: HarborTask, agent: Sandbox, fresh: Sandbox) -> list[str]:
    with fresh_machine():
        listed = await fresh.exec(["sh", "-c", _CLEAN], max_output_bytes=_MOST_BYTES << 3)
    search_path, *marks = listed.text().split("\0")
    declared = [
        posixpath.normpath(posixpath.join(agent.workdir, each))
        for each in task.table.artifact_paths + (_PUBLISHED,) * task.table.is_separate
    ]
    allowed = FileFilter(
        declared=declared,
        workdir=posixpath.join(agent.workdir, task.table.environment.workdir or ""),
        search_path=search_path.split(":"),
        image=frozenset(marks),
        solution=await asyncio.to_thread(_read_solution, task),
    )
    if task.verifier_images or not task.has_image:
        room = min(agent.record.limits.disk_mb << 20, _MOST_CHANGED)
        taken = await take(agent, declared or (".",), max_bytes=room)
        places = {path: posixpath.join(agent.workdir, path) for path in taken}
        allowed = replace(allowed, changed=places.values())
        left_out = {path for path, at in places.items() if not allowed.has(at)}
        kept = {path: file for path, file in taken.items() if path not in left_out}
        with fresh_machine():
            await plain_files(kept, by_agent=True).put_into(fresh)
        return sorted(left_out)
    changed = await changed_paths(agent)
    allowed = replace(allowed, changed=changed)
    left_out = await asyncio.to_thread(
        lambda: {path for path in changed if not allowed.has(path) and not allowed.has_below(path)}
    )
    highest = sorted(path for path in left_out if posixpath.dirname(path) not in left_out)
    archive = await changed_files(agent, exclude=highest[:_MOST_EXCLUDED], max_bytes=_MOST_CHANGED)
    # The archive still has files beyond the limit of exclusions, and files made meanwhile.
    chosen, links = await asyncio.to_thread(_choose_members, archive, allowed)
    with fresh_machine():
        await changes(chosen).put_into(fresh)
        left_out |= await _remove_links_out(fresh, links, allowed)
    # The engine does not give files whose names are not UTF-8.
    left_out |= {path for path in changed if "\ufffd" in path and path[1:].encode() not in archive}
    around = set(map(posixpath.dirname, left_out))
    return [] if declared else sorted(each for each in left_out - around if not _NOT_OF_TASK.match(each))


def _choose_members(archive: bytes, allowed: FileFilter) -> tuple[bytes, dict[str, str]]:
    kept, links, contents = io.BytesIO(), dict[str, str](), set[str]()
    with (
        tarfile.open(fileobj=io.BytesIO(archive)) as source,
        tarfile.open(fileobj=kept, mode="w") as target,
    ):
        allowed = replace(allowed, changed=[f"/{name}" for name in source.getnames()])
        for member in source:
            path = f"/{member.name}"
            is_chosen = allowed.has(path) or (member.isdir() and allowed.has_below(path))
            if member.issym():
                around = any(is_below(each, path) for each in allowed.programs) or _NEVER_A_LINK.match(path)
                is_chosen = is_chosen and not around
                links |= {path: member.linkname} if is_chosen else {}
            elif member.isreg() and is_chosen:
                contents.add(member.name)
            elif not member.isdir():  # a hard link may lead to a symbolic link
                is_pipe = member.isfifo() and posixpath.basename(path) in allowed.solution
                is_chosen = is_chosen and (is_pipe or (member.islnk() and member.linkname in contents))
            if is_chosen:
                target.addfile(member, source.extractfile(member) if member.isreg() else None)
    return kept.getvalue(), links


async def _remove_links_out(fresh: Sandbox, links: Mapping[str, str], allowed: FileFilter) -> set[str]:
    """Remove links that the machine resolves to other files than the agent's.

    A link that the task's solution makes may lead to the clean image.
    """
    lines = filter(_LINKING.search, allowed.solution.splitlines())
    made = {word for line in lines for word in _BETWEEN_WORDS.split(line)}
    removed, paths = list[str](), list(links)
    for first in range(0, len(paths), _LINKS_AT_ONCE):
        batch = paths[first : first + _LINKS_AT_ONCE]
        followed = await _feed(fresh, ["python3", "-I", "-S", "-c", _FOLLOW], batch)
        for path, target in zip(batch, followed.split("\0")[:-1], strict=True):
            is_scratch = _SCRATCH.match(target) and not is_below(target, allowed.workdir)
            is_inside = allowed.has(target) and not is_scratch
            if not target or _NOT_OF_TASK.match(target) or not (is_inside or links[path] in made):
                removed.append(path)
    if removed:
        await _feed(fresh, ["xargs", "-0", "rm", "-f", "--"], removed)
    return set(removed)


async def _feed(fresh: Sandbox, argv: Sequence[str], paths: Sequence[str]) -> str:
    stdin = "\0".join(paths).encode("utf-8", "surrogateescape")
    done = await fresh.exec(argv, stdin=stdin, cwd="/", max_output_bytes=2 * _LINKS_AT_ONCE * _LONGEST_PATH)
    if done.exit_code:
        raise SandboxUnavailable(f"links cannot be followed: {done.stderr[-300:].decode('utf-8', 'replace')}")
    return done.stdout.decode("utf-8", "surrogateescape")


def _read_solution(task: HarborTask) -> str:
    folder = task.solution
    paths = [path for path in (folder, *sorted(folder.rglob("*"))) if path.is_file()]
    small = [path for path in paths if path.stat().st_size <= _MOST_BYTES]
    names = (path.relative_to(folder).as_posix() for path in paths)
    return "\n".join([task.solve or "", *names, *(path.read_text("utf-8", "replace") for path in small)])


def _command(task: HarborTask, script: bytes) -> list[str]:
    """Return the interpreter of the script's `#!` line, or bash, and the script, which is not executable."""
    first = script.partition(b"\n")[0].decode("utf-8", "replace").strip()
    words = first[2:].split(None, 1) if first.startswith("#!") else []
    argv = [*(words or ["bash"]), f"{TESTS}/{task.script}"]
    user = task.table.verifier.user
    return argv if user in (None, "root", 0) else ["python3", "-I", "-c", _AS_USER, str(user), *argv]


async def _rewards(fresh: Sandbox, task: HarborTask, output: str) -> dict[str, float] | None:
    if task.parser is not None:
        passed = parse_tests(task.parser, output)
        return None if passed is None else {"reward": passed}
    for name in ("reward.json", "reward.txt"):
        with suppress(OSError, ValueError, TypeError, OverflowError, RecursionError, RewardError):
            data = await fresh.read_file(f"{LOGS}/{name}", max_bytes=_MOST_BYTES)
            found: Any = json.loads(data) if name.endswith("json") else float(data)
            rewards = cast("dict[str, Any]", found) if isinstance(found, dict) else {"reward": found}
            numbers = {check_text(key, name): float(value) for key, value in rewards.items()}
            is_finite = all(type(each) in (int, float) and math.isfinite(each) for each in rewards.values())
            if numbers and is_finite:
                check_reward(numbers.get("reward", math.fsum(numbers.values())), name)
                return numbers
    return None
