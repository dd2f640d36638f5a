"""Lifecycles of sandboxes that end at random moments: cancelled, killed, or together with their host process.

    python -m tests.tools.sandbox.chaos --target JSON --lifecycles 1000 --seed 7

It is a program, because it adopts what killed host processes leave behind, and so sees all of it.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import time
from asyncio.subprocess import PIPE
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tests.tools.sandbox.leftovers import leftovers, settled
from tools.errors import SandboxError
from tools.sandbox.check import Target
from tools.sandbox.conformance.checks import host_status, marker, sleeper
from tools.sandbox.conformance.hosts import descendants
from tools.sandbox.inside.kernel import adopt_orphans
from tools.sandbox.local.fork_server import fork_server

ENDS = (
    "leave", "raise", "cancel the opening", "cancel a command", "cancel the closing", "kill the supervisor",
    "kill all from inside",
)  # fmt: skip
OF_TIER_B = "kill the fork server"
"""The process that sandboxes of this tier are forked from."""
PHASES = {"cancel the opening": "open", "cancel a command": "exec", "cancel the closing": "close"}
IN_KILLED_HOSTS = 0.2
"""Share of the lifecycles that end because their whole process is killed."""
_AT_ONCE = 8
_MOST_IN_ONE_HOST = 12
_STAY = 1
"""Processes at most that stay: what sandboxes of tier B are forked from."""
_FOR_EVER_S = 600.0
_SETTLE_S = 30.0


@dataclass(kw_only=True)
class Course:
    """How far one lifecycle has come."""

    reached: dict[str, asyncio.Event] = field(
        default_factory=lambda: {phase: asyncio.Event() for phase in PHASES.values()}
    )
    times: dict[str, float] = field(default_factory=dict[str, float])

    def reach(self, phase: str) -> None:
        """Say that a phase begins."""
        self.times[phase] = time.monotonic()
        self.reached[phase].set()


async def ordeal(target: Target, count: int, seed: int, *, leak: bool = False) -> dict[str, Any]:
    """Run lifecycles to their random ends; how they ended and what was there before and after.

    Args:
        target: which sandboxes.
        count: of lifecycles, those in killed host processes included.
        seed: of all choices.
        leak: whether killed hosts leave a process behind on purpose, to show that it is seen.
    """
    draw = random.Random(seed)
    pace = await rehearse(target)
    # What ends a little later than its sandbox would count as there.
    rest = replace(await leftovers(target), processes=_STAY, groups=0, directories=0, containers=0)
    before = await settled(target, rest, within_s=_SETTLE_S)
    in_hosts = round(count * IN_KILLED_HOSTS)
    ends = [draw.choice(possible_ends(target)) for _ in range(count - in_hosts)]
    moments = [draw.random() for _ in ends]
    slots = asyncio.Semaphore(_AT_ONCE)

    async def one(end: str, moment: float) -> None:
        async with slots:
            await lifecycle(target, end, moment, pace)

    hosts = asyncio.create_task(kill_hosts(target, in_hosts, draw, leak))
    await asyncio.gather(*(one(end, moment) for end, moment in zip(ends, moments, strict=True)))
    owners = await hosts
    # Whatever is kept for later sandboxes and was killed is there again.
    await rehearse(target)
    if leak:
        rest = replace(before, processes=before.processes + len(owners))
        await settled(target, rest, owners, within_s=_SETTLE_S)
        after = await leftovers(target, owners)
    else:
        after = await settled(target, before, owners, within_s=_SETTLE_S)
    return {
        "ended": {end: ends.count(end) for end in possible_ends(target)},
        "killed_hosts": len(owners),
        "in_killed_hosts": in_hosts,
        "before": asdict(before),
        "after": asdict(after),
    }


def possible_ends(target: Target) -> tuple[str, ...]:
    """How a lifecycle of this kind can end."""
    return (*ENDS, OF_TIER_B) if target.options.get("tier") == "B" else ENDS


async def run(target: Target, count: int, *, seed: int, leak: bool = False) -> dict[str, Any]:
    """The ordeal in a program of its own.

    Raises:
        RuntimeError: something came out of a lifecycle that is no part of it.
    """
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.tools.sandbox.chaos", "--target", target.to_json(), "--lifecycles",
        str(count), "--seed", str(seed), *(["--leak"] if leak else []), stdout=PIPE, stderr=PIPE,
    )  # fmt: skip
    out, err = await program.communicate()
    if program.returncode:
        raise RuntimeError(err.decode("utf-8", "replace")[-4000:])
    return json.loads(out)


async def rehearse(target: Target) -> dict[str, float]:
    """Seconds that each phase takes when several run at once."""
    courses = [Course() for _ in range(_AT_ONCE)]
    mark = marker()

    async def one(course: Course) -> float:
        await session(target, "leave", mark, course)
        return time.monotonic()

    ends = await asyncio.gather(*(one(course) for course in courses))
    spans = [
        (course.times["exec"] - course.times["open"], course.times["close"] - course.times["exec"],
         end - course.times["close"])
        for course, end in zip(courses, ends, strict=True)
    ]  # fmt: skip
    return {
        phase: max(column) for phase, column in zip(PHASES.values(), zip(*spans, strict=True), strict=True)
    }


async def lifecycle(target: Target, end: str, moment: float, pace: dict[str, float]) -> None:
    """One lifecycle; what it is cancelled or killed for is not an error, anything else is."""
    course = Course()
    task = asyncio.create_task(session(target, end, marker(), course))
    phase = PHASES.get(end)
    if phase is not None:
        reached = asyncio.create_task(course.reached[phase].wait())
        await asyncio.wait({task, reached}, return_when=asyncio.FIRST_COMPLETED)
        reached.cancel()
        await asyncio.sleep(moment * pace[phase])
        task.cancel()
    try:
        await task
    except (asyncio.CancelledError, SandboxError, ZeroDivisionError):
        return


async def session(target: Target, end: str, mark: str, course: Course) -> None:
    """What a rollout does, up to its end."""
    course.reach("open")
    async with target.open() as sandbox:
        await sandbox.shell(f"sleep {mark} & setsid sleep {mark} & cd /tmp")
        course.reach("exec")
        if end == "kill the supervisor":
            # A daemon's parent is whoever adopts it: the supervisor.
            os.kill(int(host_status(await sleeper(sandbox, marker()), "PPid")), signal.SIGKILL)
            await sandbox.exec("true")
        elif end == "kill all from inside":
            await sandbox.exec("kill -9 -1")
            await sandbox.shell("true")
        elif end == OF_TIER_B:
            os.kill(fork_server().pid, signal.SIGKILL)
            await sandbox.exec("true")
        elif end == "cancel a command":
            await sandbox.exec(f"trap '' TERM; sleep {mark}", timeout_s=_FOR_EVER_S)
        elif end == "raise":
            raise ZeroDivisionError
        else:
            await sandbox.exec("echo done")
        course.reach("close")


async def kill_hosts(target: Target, count: int, draw: random.Random, leak: bool) -> list[int]:
    """Kill host processes in the middle of lifecycles until so many have begun in them; their ids."""
    pids: list[int] = []
    while count > 0:
        begun = min(count, draw.randint(1, _MOST_IN_ONE_HOST))
        host = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.tools.sandbox.chaos", "--target", target.to_json(), "--seed",
            str(draw.randrange(1 << 30)), "--host", *(["--leak"] if leak else []), stdout=PIPE,
        )  # fmt: skip
        assert host.stdout is not None
        await host.stdout.readexactly(begun)
        await asyncio.sleep(draw.random() * 0.1)
        host.kill()
        await host.wait()
        pids.append(host.pid)
        count -= begun
    return pids


async def host(target: Target, seed: int, leak: bool) -> None:
    """Run lifecycles until killed; a dot for each that begins."""
    if leak:
        os.posix_spawn(
            "/bin/sleep", ["sleep", "600"], {}, setsid=True, file_actions=[(os.POSIX_SPAWN_CLOSE, 1)]
        )
    draw = random.Random(seed)
    pace = dict.fromkeys(PHASES.values(), 0.1)

    async def one_after_the_other() -> None:
        while True:
            os.write(1, b".")
            await lifecycle(target, draw.choice(possible_ends(target)), draw.random(), pace)

    await asyncio.gather(*(one_after_the_other() for _ in range(_AT_ONCE)))


async def main() -> None:
    """Run as the options say."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--target", type=Target.from_json, default=Target(), help="as `Target.to_json` writes it"
    )
    parser.add_argument("--lifecycles", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--leak", action="store_true", help="leave a process behind with each killed host")
    parser.add_argument("--host", action="store_true", help="be a host that is going to be killed")
    options = parser.parse_args()
    if options.host:
        await host(options.target, options.seed, options.leak)
    else:
        adopt_orphans()
        told = await ordeal(options.target, options.lifecycles, options.seed, leak=options.leak)
        for pid in descendants(os.getpid()):
            os.kill(pid, signal.SIGKILL)
        json.dump(told, sys.stdout)


if __name__ == "__main__":
    asyncio.run(main())
