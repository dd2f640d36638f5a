"""What a run rolls out next: its plan, or what `next_items` asks for as groups end."""

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from environments.base_env import AgentEnv
from environments.containment.hook_calls import HookCalls
from environments.data.tasks import GroupTask, PastGroup, RunHistory
from environments.hooks import writes
from environments.record.recorder import Recorder, past_groups
from environments.rollout.failures import traceback_of
from tools.errors import RunError, UsageError

GroupKey = tuple[str, int]


class NextTasks(Protocol):
    """Gives tasks in the order they start."""

    total: int
    """Groups of the whole job."""
    done: int
    """Those that an earlier run finished."""
    error: Exception | None
    """Why nothing comes any more, although there is more to do."""

    def __iter__(self) -> Iterator[GroupTask]:
        """Those that are left, as far as they are known."""
        ...

    async def ready(self, *, wait: bool = True) -> None:
        """Wait until the next one is known, or that there is none; unless `wait`, not for groups to end."""
        ...

    def ended(self, past: PastGroup) -> None:
        """Take in what came of one."""
        ...

    def left(self, ended: int) -> int:
        """Groups that are still to do when so many of this run have ended."""
        ...

    def held(self) -> int:
        """Groups of the job that are finished by now."""
        ...


class PlannedTasks:
    """Known from the start."""

    def __init__(self, tasks: Sequence[GroupTask], recorder: Recorder) -> None:
        self.total = len(tasks)
        self._tasks, self._recorder = tasks, recorder
        self._left = [task for task in tasks if not recorder.holds(task.item_id, task.epoch)]
        # Last, and no sign that everything fails, is what an earlier run could not do.
        self._left.sort(key=lambda task: recorder.failed_before(task.item_id, task.epoch))
        self.done = self.total - len(self._left)
        self.error: Exception | None = None

    def __iter__(self) -> Iterator[GroupTask]:
        return iter(self._left)

    async def ready(self, *, wait: bool = True) -> None:
        """They are known."""

    def ended(self, past: PastGroup) -> None:
        """It changes nothing."""

    def left(self, ended: int) -> int:
        """What was planned, without what is done."""
        return self.total - self.done - ended

    def held(self) -> int:
        """Those that the record holds."""
        return sum(self._recorder.holds(task.item_id, task.epoch) for task in self._tasks)


class AskedTasks:
    """Asked of `next_items`, one call at a time, whenever all that it named has started."""

    def __init__(
        self,
        env: AgentEnv,
        calls: HookCalls,
        *,
        most: int,
        past: Iterable[PastGroup] = (),
        say: Callable[[str], None],
    ) -> None:
        """Go on from what came out so far.

        Args:
            env: open; its hook is asked.
            calls: how.
            most: groups of the whole job; -1: without an end.
            past: those of earlier runs.
            say: takes the traceback of a hook that breaks.
        """
        self._env = env
        self._calls = calls
        self._say = say
        self._items = dict(zip(env.item_ids, env.items, strict=True))
        self._past = list(past)
        self._taken = {(each.item_id, each.epoch) for each in self._past if each.status != "failed"}
        self._epochs = defaultdict[str, int](int)
        self._asked = deque[str]()
        self._in_flight: list[GroupKey] = []
        self._ended = asyncio.Event()
        self._asking = asyncio.Lock()
        self._is_over = False
        """Whether nothing is asked for any more."""
        self._started = 0
        self.done = sum(identity in self._items for identity, _ in self._taken)
        self.total = most
        self.error: Exception | None = None

    def __iter__(self) -> Iterator[GroupTask]:
        return self

    def __next__(self) -> GroupTask:
        if not self._asked:
            raise StopIteration
        identity = self._asked.popleft()
        # What was in flight when an earlier run was killed left a gap.
        while (identity, self._epochs[identity]) in self._taken:
            self._epochs[identity] += 1
        task = GroupTask(item=self._items[identity], item_id=identity, epoch=self._epochs[identity])
        self._taken.add((identity, task.epoch))
        self._started += 1
        self._in_flight.append((identity, task.epoch))
        return task

    async def ready(self, *, wait: bool = True) -> None:
        """Ask, where nothing is left of what was asked for; nothing comes after the hook broke."""
        async with self._asking:
            while not self._asked and not self._is_over:
                self._ended.clear()
                history = RunHistory(self._past, [identity for identity, _ in self._in_flight])
                self._asked.extend(await self._next_ids(history))
                if self._asked or self._is_over:
                    return
                # What it was told counts: meanwhile some may have ended.
                if not history.in_flight:
                    self._is_over, self.total = True, self.done + self._started
                elif wait:
                    await self._ended.wait()
                else:
                    return

    def ended(self, past: PastGroup) -> None:
        """Take in what came of one; then the hook may be asked again."""
        if (key := (past.item_id, past.epoch)) in self._in_flight:  # `serve` tries some twice
            self._in_flight.remove(key)
        self._past.append(past)
        self._ended.set()

    def left(self, ended: int) -> int:
        """What may still be asked for; none when the hook said that there is nothing more."""
        return self.total - self.done - ended

    def held(self) -> int:
        """Those that came out so far and did not fail."""
        return len(
            {(g.item_id, g.epoch) for g in self._past if g.status != "failed" and g.item_id in self._items}
        )

    async def _next_ids(self, history: RunHistory) -> Sequence[str]:
        room = None if self.total == -1 else self.total - self.done - self._started
        if room is not None and room <= 0:
            self._is_over = True
            return []
        try:
            return (await self._env.next_ids(self._calls, history))[:room]
        except (RunError, UsageError) as error:
            # Raised when the groups in flight have ended: they are no worse for it.
            self.error, self._is_over = error, True
            if error.__cause__ is not None:
                self._say(traceback_of(error.__cause__).rstrip())
            return []


def next_tasks(
    env: AgentEnv, recorder: Recorder, calls: HookCalls, say: Callable[[str], None]
) -> PlannedTasks | AskedTasks:
    """What `process` rolls out into a record that was begun."""
    if not writes(env, "next_items"):
        return PlannedTasks(env.tasks(), recorder)
    most = len(env.items) if env.config.total_steps == -1 else env.config.total_steps
    return AskedTasks(env, calls, most=most, past=past_groups(recorder.path), say=say)
