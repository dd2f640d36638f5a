"""A worker: a process that opens an environment and rolls out groups on request."""

import asyncio
import ctypes
import faulthandler
import os
import pickle
import signal
import socket
import struct
import sys
import threading
import traceback
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import cast

from environments.base_env import AgentEnv
from environments.rollout.boundary import traceback_of
from environments.rollout.items.item_json import item_hash
from environments.rollout.items.tasks import GroupTask
from environments.rollout.lifecycle.hook_checks import SharedState
from environments.rollout.lifecycle.opened_files import OpenedFiles
from environments.run.experiment import origin_of, take_paths
from environments.run.group_source import source_in_process
from environments.run.progress import RolloutsInFlight
from environments.run.watchdog import Watchdog
from environments.run.worker_pool import run_whole
from environments.run.workers.env_spec import EnvSpec, WorkerJob, versions_of
from environments.run.workers.worker_process import (
    CANCEL,
    HEAD,
    NEWS,
    Answer,
    Beat,
    BlockedLoop,
    Refusal,
    Request,
    WorkerFacts,
    pack_message,
)
from tools.errors import ConfigError, RunError, TurnwiseError, UsageError
from tools.sandbox import reap_sandboxes

_PARENT_DEATH_SIGNAL = 1


def main(fd: int, parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        return
    faulthandler.enable(all_threads=False)
    channel = Channel(socket.socket(fileno=fd))
    number, content = channel.next()
    try:
        spec: EnvSpec = pickle.loads(content)  # our own code, run by the same user
        env, job = spec.load(sys.argv[1])
    except BaseException as error:  # noqa: BLE001  # of the environment's code
        channel.send(number, refusal_of(error))
        return
    run_whole(RolloutWorker(channel, env, job, sys.argv[1]).work(number))


class Channel:
    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._one_at_a_time = connection, threading.Lock()
        self._reader = connection.makefile("rb")

    def send(self, number: int, value: object) -> None:
        content = pack_message(number, value)
        with self._one_at_a_time, suppress(OSError):  # `next` exits without a supervisor
            self._connection.sendall(content)

    def next(self) -> tuple[int, bytes]:
        """Return the next message. Without a supervisor the process exits."""
        try:
            head = self._reader.read(HEAD.size)
            number, size = HEAD.unpack(head)
            return number, self._reader.read(size)
        except (OSError, struct.error):  # reset, or ended before a whole message
            os._exit(1)


class RolloutWorker:
    def __init__(self, channel: Channel, env: AgentEnv, job: WorkerJob, root: str) -> None:
        self._channel, self._env, self._job = channel, env, job
        self._watched = RolloutsInFlight()
        self._source = source_in_process(
            env, self._watched.watch, job.finishing, evaluation=job.is_evaluation
        )
        self._lines: list[str] = []
        self._root, self._opened = root, OpenedFiles(in_hooks=True)
        self._sent_versions, self._one_at_a_time = set[str](), threading.Lock()
        self._running: dict[int, asyncio.Task[None]] = {}

    async def work(self, number: int) -> None:
        """Open the environment, reply to request `number`, and work until the request to close."""
        env, job = self._env, self._job
        self._close = asyncio.get_running_loop().create_future()
        try:
            async with AsyncExitStack() as closing:
                watchdog = Watchdog(
                    type(env),
                    self._lines.append,
                    ends_after_s=env.config.hook_block_s,
                    on_tick=self._beat,
                    what="worker",
                )
                closing.enter_context(watchdog.watch())
                sandboxes = env.lifecycle.sandboxes
                for backend in {sandboxes.kind, sandboxes.verifier_kind}:
                    with suppress(UsageError):  # leftovers of a killed worker
                        await reap_sandboxes(backend)
                opened = env.opened(evaluation=job.is_evaluation, waits=job.waits, notify=self._lines.append)
                await closing.enter_async_context(opened)
                self._shared = SharedState(env)
                self._items = dict(zip(env.item_ids, env.items, strict=True))
                there = {name: Path(self._root + path) for name, path in job.files.items()}
                files = {name: path for name, path in there.items() if path.is_file()}
                facts = origin_of(env, evaluation=job.is_evaluation, more_files=files).facts()
                packages, tier = versions_of(job.packages), sandboxes.tier
                self._channel.send(number, WorkerFacts(facts=facts, packages=packages, tier=tier))
                watchdog.on_end = lambda rollout, failure: self._channel.send(
                    NEWS, BlockedLoop(item_id=rollout.item_id, epoch=rollout.epoch, failure=failure)
                )
                closing.enter_context(watchdog.arm())
                closing.enter_context(self._opened.watch())
                loop = asyncio.get_running_loop()
                threading.Thread(
                    target=self._read, args=[loop], name="turnwise-requests", daemon=True
                ).start()
                number = await self._close
                for task in self._running.values():
                    task.cancel()
                await asyncio.wait(self._running.values()) if self._running else None
                if shared := self._shared.warning():
                    self._lines.append(shared)
        except Exception as error:  # noqa: BLE001  # of the environment's code
            answer = refusal_of(error)
        else:
            answer = None
        self._beat(None)  # the last lines of output
        self._channel.send(number, answer)

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            number, content = self._channel.next()
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._handle, number, pickle.loads(content))

    def _handle(self, number: int, request: "Request | int") -> None:
        if isinstance(request, int):
            assert number == CANCEL
            if (task := self._running.get(request)) is not None:
                task.cancel()
        elif request.what == "close":
            self._close.set_result(number)
        else:
            task = self._running[number] = asyncio.create_task(self._answer(number, request))
            task.add_done_callback(lambda _: self._running.pop(number))

    async def _answer(self, number: int, request: Request) -> None:
        try:
            item = self._items.get(request.item_id)
            if item is None or item_hash(item) != request.item_hash:
                raise ConfigError(
                    f"item {request.item_id!r} is another one in a worker than where the run is planned: "
                    f"load_items has to give equal items in every process"
                )
            task = GroupTask(
                item=item, item_id=request.item_id, epoch=request.epoch, rolled_out=request.rolled_out
            )
            if request.what == "first":
                value = await self._source.first(task)
            else:
                value = await self._source.run(task, request.size, max_row_tokens=request.max_row_tokens)
            self._shared.look()
            answer = Answer(
                value=value,
                new_versions=self._take_new_versions(),
                read=self._driver_paths(self._opened.read),
                written=self._driver_paths(self._opened.written),
            )
        except asyncio.CancelledError:
            answer = None
        except Exception as error:  # noqa: BLE001  # sent to the driver
            answer = refusal_of(error)
        await asyncio.to_thread(self._channel.send, number, answer)

    def _driver_paths(self, paths: dict[str, None]) -> tuple[str, ...]:
        return tuple(each.removeprefix(self._root) for each in take_paths(paths))

    def _beat(self, _: str | None) -> None:
        lines = tuple(self._lines)
        del self._lines[: len(lines)]
        beat = Beat(in_flight=self._watched.now(), new_versions=self._take_new_versions(), lines=lines)
        self._channel.send(NEWS, beat)

    def _take_new_versions(self) -> tuple[str, ...]:
        """Return each version once: a repeated name would mean that the trainer restarted."""
        with self._one_at_a_time:
            versions = self._env.lifecycle.weight_versions.seen
            new = tuple(each for each in versions if each not in self._sent_versions)
            self._sent_versions.update(new)
        return new


def refusal_of(error: BaseException) -> Refusal:
    if isinstance(error, BaseExceptionGroup):
        return refusal_of(cast("BaseExceptionGroup[BaseException]", error).exceptions[0])
    cause = error.__cause__
    key = error if isinstance(error, KeyError) else cause
    if not isinstance(error, TurnwiseError):
        text, trace = f"{type(error).__name__}: {error}", "".join(traceback.format_exception(error))
    else:
        text = str(error)
        trace = traceback_of(cause) if isinstance(error, RunError) and cause is not None else ""
    return Refusal(
        text=text,
        is_usage=isinstance(error, UsageError),
        trace=trace,
        missing_key=str(key.args[0]) if isinstance(key, KeyError) and key.args else "",
    )
