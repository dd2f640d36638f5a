"""The verdict: a task's tests in a fresh machine, over the agent's files, by tools of the clean image."""

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

from environments.rewards.reward_checks import bounded_reward, checked_text
from environments.rewards.verdict.frame import NoVerdict, fresh_machine
from environments.shipped.harbor_tasks.task_folder import HarborTask, files_below
from environments.shipped.harbor_tasks.what_comes import WhatComes, is_below
from tools.errors import RewardError, SandboxUnavailable
from tools.sandbox import Opening
from tools.sandbox.base import Sandbox
from tools.sandbox.layers import changed_files, changed_paths, changes, place, plain_files, take

TESTS, LOGS, SOLUTION = "/tests", "/logs/verifier", "/solution"
_PUBLISHED = "/logs/artifacts"
"""What Harbor gives to a verifier with a machine of its own, declared or not."""
_MOST_BYTES = 1 << 20
"""Largest reward file that is read, and largest solution file whose text is searched."""
_MOST_CHANGED = 128 << 20
"""Bytes of what an agent changed: they pass through the memory of this process."""
_MOST_EXCLUDED = 1000
"""Paths that the engine is told to leave out; it compares each with each change."""
_LINKS_AT_ONCE, _LONGEST_PATH = 1000, 4097
_NOT_OF_TASK = re.compile(r"/(dev|logs|proc|run|solution|sys|tests|verifier)(/|$)|.*/__pycache__(/|$)")
"""What no task needs of the agent, so that nobody has to know that it was left out."""
_NEVER_A_LINK = re.compile(r"/(home|root|tmp|var)(/(cache|lib|tmp))?$|/home/[^/]+$")
"""Folders of which a part does not come: a link in their place would bring another one."""
_SCRATCH = re.compile(r"/(var/)?tmp/")
"""Where tests write files of their own, to which a link of the agent's would lead."""
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
    """What a task's tests said."""

    rewards: Mapping[str, float] | None
    """By name; `None`: no verdict, since they wrote none that can be read, or ran out of their time."""
    left_out: Sequence[str]
    """Paths that the agent changed and the tests did not get to see."""
    last_words: str
    """The end of what the tests wrote to stderr, or how their machine broke."""
    exit_code: int = 1
    """Of the tests."""


async def verdict(task: HarborTask, agent: Sandbox, opening: Opening, *, limit_s: float) -> Verdict:
    """Run the tests in a fresh machine, to which nothing of the agent's comes but files.

    Code of the agent's that the tests run has their rights there, and can write the reward itself.

    Raises:
        AgentCausedError: the agent's files cannot be judged.
        NoVerdict: a limit of the fresh machine was hit before the tests began.
        SandboxError: one of the machines broke, or was not ready within the limit, which the tests have anew.
    """
    files = {} if task.verifier_images else files_below(task.folder / "tests")
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
        logs = LOGS if task.has_image else f"/tmp{LOGS}"  # to which a link leads
        workdir = (task.has_image and task.table.environment.workdir) or fresh.workdir
        made = f"rm -rf {logs}; mkdir -p {logs} {shlex.quote(workdir)}; chmod 777 {logs}"
        try:
            with fresh_machine():
                await fresh.exec(["sh", "-c", made], cwd="/")
                result = await fresh.exec(
                    _command(task, held.get(f"{TESTS}/test.sh", b"")),
                    cwd=workdir,
                    env={**task.table.environment.env, **task.table.verifier.env},
                    timeout_s=min(task.table.verifier.timeout_sec, limit_s),
                )
                async with fresh.paused():
                    rewards = None if result.timed_out else await _rewards(fresh)
        except NoVerdict as error:  # by what the tests run, or by the tests: a control shows which
            return Verdict(rewards=None, left_out=left_out, last_words=str(error))
    words = b"they ran out of their time" if result.timed_out else result.stderr[-300:]
    last_words = words.decode("utf-8", "replace")
    return Verdict(rewards=rewards, left_out=left_out, last_words=last_words, exit_code=result.exit_code)


async def put_folder(sandbox: Sandbox, folder: Path, at: str) -> None:
    """Write a folder of a task's into a sandbox."""
    files = await asyncio.to_thread(files_below, folder)
    placed = {place(f"{at}/{path}", sandbox.workdir): file for path, file in files.items()}
    await plain_files(placed).put_into(sandbox)


async def _bring(task: HarborTask, agent: Sandbox, fresh: Sandbox) -> list[str]:
    """Copy what the tests are to see of the agent's files; return the changes that they are not to see."""
    with fresh_machine():
        listed = await fresh.exec(["sh", "-c", _CLEAN], max_output_bytes=_MOST_BYTES << 3)
    search_path, *marks = listed.text().split("\0")
    declared = [
        posixpath.normpath(posixpath.join(agent.workdir, each))
        for each in task.table.artifact_paths + (_PUBLISHED,) * task.table.is_separate
    ]
    comes = WhatComes(
        declared=declared,
        workdir=posixpath.join(agent.workdir, task.table.environment.workdir or ""),
        search_path=search_path.split(":"),
        image=frozenset(marks),
        solution=await asyncio.to_thread(_text_of, task.folder / "solution"),
    )
    if task.verifier_images or not task.has_image:
        room = min(agent.record.limits.disk_mb << 20, _MOST_CHANGED)
        taken = await take(agent, declared or (".",), max_bytes=room)
        places = {path: posixpath.join(agent.workdir, path) for path in taken}
        comes = replace(comes, changed=places.values())
        left_out = {path for path, at in places.items() if not comes.has(at)}
        kept = {path: file for path, file in taken.items() if path not in left_out}
        with fresh_machine():
            await plain_files(kept, by_agent=True).put_into(fresh)
        return sorted(left_out)
    changed = await changed_paths(agent)
    comes = replace(comes, changed=changed)
    left_out = await asyncio.to_thread(
        lambda: {path for path in changed if not comes.has(path) and not comes.has_below(path)}
    )
    highest = sorted(path for path in left_out if posixpath.dirname(path) not in left_out)
    archive = await changed_files(agent, exclude=highest[:_MOST_EXCLUDED], max_bytes=_MOST_CHANGED)
    # What is of many names is in there still, and what its programs made meanwhile.
    chosen, links = await asyncio.to_thread(_chosen, archive, comes)
    with fresh_machine():
        await changes(chosen).put_into(fresh)
        left_out |= await _remove_links_out(fresh, links, comes)
    around = set(map(posixpath.dirname, left_out))
    return [] if declared else sorted(each for each in left_out - around if not _NOT_OF_TASK.match(each))


def _chosen(archive: bytes, comes: WhatComes) -> tuple[bytes, dict[str, str]]:
    """Return an archive of the members that come, and the links among them with what they say."""
    kept, links, contents = io.BytesIO(), dict[str, str](), set[str]()
    with (
        tarfile.open(fileobj=io.BytesIO(archive)) as source,
        tarfile.open(fileobj=kept, mode="w") as target,
    ):
        comes = replace(comes, changed=[f"/{name}" for name in source.getnames()])
        for member in source:
            path = f"/{member.name}"
            is_chosen = comes.has(path) or (member.isdir() and comes.has_below(path))
            if member.issym():
                around = any(is_below(each, path) for each in comes.programs) or _NEVER_A_LINK.match(path)
                is_chosen = is_chosen and not around
                links |= {path: member.linkname} if is_chosen else {}
            elif member.isreg() and is_chosen:
                contents.add(member.name)
            elif not member.isdir():  # a hard link may be one to a link
                is_pipe = member.isfifo() and posixpath.basename(path) in comes.solution
                is_chosen = is_chosen and (is_pipe or (member.islnk() and member.linkname in contents))
            if is_chosen:
                target.addfile(member, source.extractfile(member) if member.isreg() else None)
    return kept.getvalue(), links


async def _remove_links_out(fresh: Sandbox, links: Mapping[str, str], comes: WhatComes) -> set[str]:
    """Remove links whose target did not come, as the machine follows them; return their paths.

    One that the task's own solution makes may lead to the clean image.
    """
    lines = filter(_LINKING.search, comes.solution.splitlines())
    made = {word for line in lines for word in _BETWEEN_WORDS.split(line)}
    removed, paths = list[str](), list(links)
    for first in range(0, len(paths), _LINKS_AT_ONCE):
        batch = paths[first : first + _LINKS_AT_ONCE]
        followed = await _feed(fresh, ["python3", "-I", "-S", "-c", _FOLLOW], batch)
        for path, target in zip(batch, followed.split("\0")[:-1], strict=True):
            is_scratch = _SCRATCH.match(target) and not is_below(target, comes.workdir)
            is_inside = comes.has(target) and not is_scratch
            if not target or _NOT_OF_TASK.match(target) or not (is_inside or links[path] in made):
                removed.append(path)
    if removed:
        await _feed(fresh, ["xargs", "-0", "rm", "-f", "--"], removed)
    return set(removed)


async def _feed(fresh: Sandbox, argv: Sequence[str], paths: Sequence[str]) -> str:
    given, most_bytes = (
        "\0".join(paths).encode("utf-8", "surrogateescape"),
        2 * _LINKS_AT_ONCE * _LONGEST_PATH,
    )
    done = await fresh.exec(argv, stdin=given, cwd="/", max_output_bytes=most_bytes)
    if done.exit_code:
        raise SandboxUnavailable(f"links cannot be followed: {done.stderr[-300:].decode('utf-8', 'replace')}")
    return done.stdout.decode("utf-8", "surrogateescape")


def _text_of(folder: Path) -> str:
    """The text of the small files in a folder, and their names."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    small = [path for path in paths if path.stat().st_size <= _MOST_BYTES]
    names = (path.relative_to(folder).as_posix() for path in paths)
    return "\n".join([*names, *(path.read_text("utf-8", "replace") for path in small)])


def _command(task: HarborTask, script: bytes) -> list[str]:
    """The script by its first line, since nothing but root's may be executable."""
    first = script.partition(b"\n")[0].decode("utf-8", "replace").strip()
    argv = [*(shlex.split(first[2:]) if first.startswith("#!") else ["bash"]), f"{TESTS}/test.sh"]
    user = task.table.verifier.user
    return argv if user in (None, "root", 0) else ["python3", "-I", "-c", _AS_USER, str(user), *argv]


async def _rewards(fresh: Sandbox) -> dict[str, float] | None:
    """What the tests wrote: `reward.json`, or else `reward.txt`; `None` where neither has numbers."""
    for name in ("reward.json", "reward.txt"):
        with suppress(OSError, ValueError, TypeError, OverflowError, RecursionError, RewardError):
            data = await fresh.read_file(f"{LOGS}/{name}", max_bytes=_MOST_BYTES)
            found: Any = json.loads(data) if name.endswith("json") else float(data)
            rewards = cast("dict[str, Any]", found) if isinstance(found, dict) else {"reward": found}
            numbers = {checked_text(key, name): float(value) for key, value in rewards.items()}
            is_finite = all(type(each) in (int, float) and math.isfinite(each) for each in rewards.values())
            if numbers and is_finite:
                bounded_reward(numbers.get("reward", math.fsum(numbers.values())), name)
                return numbers
    return None
