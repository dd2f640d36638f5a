"""Workers as actors of Ray, on this machine or on a cluster: the one module that imports it.

An actor is no more than the supervisor of a worker's process (`WorkerProcess`): Ray places it, says when its
node is gone, and carries messages.
"""

import asyncio
import logging
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import threading
import warnings
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

from environments.run.workers.dispatch import NoRoomError, Worker
from environments.run.workers.worker_process import Beat, Death, WorkerProcess, WorkerStart
from tools.errors import ConfigError, RunError, TurnwiseError
from tools.extras import needs_extra
from tools.waiting import to_the_end

with needs_extra("ray", "--workers"):
    ray: Any = import_module("ray")
if not hasattr(ray, "remote"):
    raise ConfigError(f"{ray.__file__} hides the package ray, which workers need: rename it")
inside: Any = import_module("ray._private.worker")
ray_constants: Any = import_module("ray._private.ray_constants")
exceptions: Any = ray.exceptions
groups: Any = import_module("ray.util.placement_group")
strategies: Any = import_module("ray.util.scheduling_strategies")
OBJECT_STORE_BYTES = 256 << 20
"""Of a local Ray, for groups on their way to the driver."""
_CLEAN = """
trap ended=1 TERM
while [ -z "$ended" ] && kill -0 "$1" 2>/dev/null; do sleep 1 & wait "$!"; done
[ -n "$ended" ] || for each in /proc/[0-9]*; do
  case "$(cat "$each/comm" 2>/dev/null)" in ray*|gcs_server) ;; *) continue;; esac
  case "$(ls -l "$each/fd" 2>/dev/null)" in *" $0/"*) kill -9 "${each#/proc/}";; esac
done
rm -rf -- "$0"
"""
"""Waits for the end of the driver, even by SIGKILL; then ends what of Ray would outlive it: processes of its
that have files open in its folder."""
T = TypeVar("T")
_OWN = asyncio.Lock()
"""Held while this process has a Ray of its own."""
_TOKEN = "RAY_AUTH_TOKEN_PATH"
_ROOM_S = 10.0
_CONNECT_S = 10.0
_GONE_S = 20.0
"""A third of what Ray waits for its head before it ends this process."""
_KILL_S = 5.0
_SHORT = 40
"""Characters of a folder below which the names of Ray's sockets fit."""
_GONE: tuple[type[Exception], ...] = (
    exceptions.RayActorError,
    exceptions.NodeDiedError,
    exceptions.ObjectLostError,
    exceptions.WorkerCrashedError,
    exceptions.OutOfMemoryError,
)


class RayEngine:
    supervisor: type = WorkerProcess
    """Of what each actor is."""

    def __init__(self, *, asked: Mapping[str, float], at_once: int) -> None:
        self._asked = dict(asked)
        self._head: str = ray.get_runtime_context().gcs_address
        self._seen_at = monotonic()
        self.is_gone = False
        """Whether the cluster cannot be reached for so long that Ray would soon end this process."""
        self._options: dict[str, Any] = {
            "num_cpus": asked["CPU"],
            "memory": asked.get("memory"),
            "resources": {name: each for name, each in asked.items() if name not in ("CPU", "memory")},
            "max_restarts": 0,
            # Beats, cancellations and the end come beside the groups.
            "max_concurrency": 2 * at_once + 16,
        }

    async def start(self, start: WorkerStart) -> Worker:
        """Start one.

        Raises NoRoomError if the cluster has no room for it.
        """
        return await _in_thread(partial(self._placed, start))

    def _placed(self, start: WorkerStart) -> "_RayWorker":
        # Resources are reserved before a process starts, which may take long and is no lack of room.
        placement = groups.placement_group([self._asked])
        try:
            if not placement.wait(_ROOM_S):
                self._refuse_without_room()
            strategy = strategies.PlacementGroupSchedulingStrategy(placement)
            actor = ray.remote(self.supervisor).options(scheduling_strategy=strategy, **self._options)
            return _RayWorker(actor.remote(start), placement, self)
        except BaseException:
            groups.remove_placement_group(placement)
            raise

    async def check(self) -> None:
        if await _in_thread(partial(_is_there, self._head)):
            self._seen_at = monotonic()
        elif monotonic() - self._seen_at > _GONE_S:
            self.is_gone = True
            raise RunError(
                f"the Ray cluster has not been there for {_GONE_S:g} s; the same command goes on with "
                f"another one, or without"
            )

    def _refuse_without_room(self) -> None:
        free, there = ray.available_resources(), ray.cluster_resources()
        # Enough in all may be too little on each node.
        lacking = [name for name, amount in self._asked.items() if free.get(name, 0) < amount] or self._asked
        has = _in_words({each: there.get(each, 0) for each in lacking})
        left = _in_words({each: free.get(each, 0) for each in lacking})
        raise NoRoomError(
            f"no room for a worker: each asks for {_in_words(self._asked)}; the cluster has {has}, and "
            f"{left} free"
        )


class _RayWorker:
    """The handle of an actor; where that is gone, its death is the answer."""

    def __init__(self, actor: Any, placement: Any, engine: RayEngine) -> None:
        self._actor, self._placement, self._engine = actor, placement, engine

    async def open(self) -> bytes | Death:
        return await self._call("open")

    async def ask(self, request: bytes, number: int) -> bytes | Death:
        return await self._call("ask", request, number)

    async def cancel(self, number: int) -> object:
        return await self._call("cancel", number)

    async def beat(self) -> Beat | Death:
        return await self._call("beat")

    async def close(self, limit_s: float) -> bytes | Death:
        return await self._call("close", limit_s)

    async def kill(self, why: str) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_KILL_S):  # it takes its files away
                await self._call("kill", why)
        self._end()

    def _end(self) -> None:
        threading.Thread(target=self._remove, daemon=True).start()

    def _remove(self) -> None:
        with suppress(*_GONE):
            ray.kill(self._actor)
        groups.remove_placement_group(self._placement)

    async def _call(self, method: str, *arguments: object) -> Any:
        if self._engine.is_gone:
            return Death(cause="the cluster is gone", with_supervisor=True)
        try:
            return await getattr(self._actor, method).remote(*arguments)
        except exceptions.ActorUnavailableError:
            # It may go on, and would come back: what it had in flight runs elsewhere by then.
            self._end()
            return Death(cause="its node cannot be reached", with_supervisor=True)
        except _GONE as error:
            self._end()
            return Death(cause=_cause(error), with_supervisor=True)
        except exceptions.RayTaskError as error:
            raise error.cause from None


def _cause(error: Exception) -> str:
    """Why an actor is gone, of Ray's pages on it."""
    text = str(error)
    if isinstance(error, exceptions.OutOfMemoryError) or "memory monitor" in text or "OutOfMemory" in text:
        return "Ray ended it as its node was short of memory (--worker-memory bounds a worker)"
    if "node has died" in text or "node died" in text.lower() or isinstance(error, exceptions.NodeDiedError):
        return "its node is gone"
    if "ModuleNotFoundError" in text or "ImportError" in text:
        return "its node has no Turnwise, or another one: " + text.strip().rpartition("\n")[2]
    return "its process was killed"


def _in_words(resources: Mapping[str, float]) -> str:
    return ", ".join(
        f"{amount / 2**30:.1f} GiB of memory" if name == "memory" else f"{amount:g} {name}"
        for name, amount in resources.items()
    )


def cluster_resources() -> dict[str, float]:
    return ray.cluster_resources()


@asynccontextmanager
async def connected(address: str | None, *, local: Mapping[str, float]) -> AsyncGenerator[bool]:
    """Ray, as long as it is entered: a cluster's, or without an address our own with `local` resources.

    Where this program uses Ray already, that one is taken, and left as it is. Gives whether it is our own:
    then workers are where this process is.

    Raises ConfigError if there is no cluster at the address, or it runs another Ray or Python; RunError if
    our own does not start in time.
    """
    if _OWN.locked():
        raise ConfigError(
            "this program has workers on a Ray of their own already: call ray.init() before the first, then "
            "all use that one"
        )
    if ray.is_initialized():
        yield False
        return
    if address is not None:
        await asyncio.to_thread(_refuse_deaf, address)
    own = nullcontext({"address": address}) if address is not None else _own_ray(local)
    where = "no Ray can be started here" if address is None else f"--ray {address} cannot be used"
    async with _OWN:
        with _quiet(), own as options:
            job = ray.job_config.JobConfig()
            job._py_driver_sys_path = _NoPaths()
            init = partial(ray.init, job_config=job, log_to_driver=False, configure_logging=False, **options)
            try:
                # In a thread, as Ray takes over the signals of the main one; to its end, or half stays.
                error_class = RunError if address is None else ConfigError
                await to_the_end(asyncio.to_thread(_init, init, where, error_class))
                yield address is None
            finally:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_CONNECT_S):
                        await _in_thread(ray.shutdown)


async def _in_thread(function: Callable[[], T]) -> T:
    """What a call of Ray's gives, in a thread that nothing waits for at the end of the process.

    Without its head, a cluster answers nothing for a minute.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        result = asyncio.Future[T](loop=loop)
        try:
            result.set_result(function())
        except Exception as error:  # noqa: BLE001  # raised where it is awaited
            result.set_exception(error)
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(_hand_over, result, ended)

    threading.Thread(target=run, daemon=True).start()
    return await ended


def _hand_over(result: "asyncio.Future[T]", to: "asyncio.Future[T]") -> None:
    error = result.exception()
    if to.done():  # nobody waits any more
        return
    if error is None:
        to.set_result(result.result())
    else:
        to.set_exception(error)


def _is_there(head: str) -> bool:
    host, _, port = head.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()
    except OSError:
        return False
    return True


def _init(init: Callable[[], object], where: str, error_class: type[TurnwiseError]) -> None:
    try:
        init()
    except BaseException as error:  # noqa: BLE001  # Ray exits where its processes start too late
        why = " ".join(str(error).split())[:400] or type(error).__name__
        raise error_class(f"{where}: {why}; the same command tries again") from None


class _NoPaths(list[str]):
    """In the place of folders that Ray puts first on its processes' path, where a `tools.py` hides ours."""

    def extend(self, _: Iterable[str]) -> None:
        """Takes none."""


def _refuse_deaf(address: str) -> None:
    """Ray itself would try for minutes."""
    host, colon, port = address.rpartition(":")
    if address == "auto":
        return
    if not (colon and host and port.isdecimal()):
        raise ConfigError(f"--ray {address}: give auto, or HOST:PORT such as 10.0.0.1:6379")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(f"no Ray cluster at --ray {address}: {error}") from error


@contextmanager
def _own_ray(resources: Mapping[str, float]) -> Generator[dict[str, Any]]:
    """The arguments of a Ray on loopback, in a folder that goes with it."""
    cpus, others = resources["CPU"], {name: each for name, each in resources.items() if name != "CPU"}
    scratch = tempfile.gettempdir()
    folder = tempfile.mkdtemp(prefix="turnwise-ray-", dir=scratch if len(scratch) < _SHORT else "/tmp")
    # Ray would write one into the home directory, and leave it there.
    token = Path(folder, "token")
    token.write_text(secrets.token_hex(32))
    before = os.environ.get(_TOKEN)
    os.environ.setdefault(_TOKEN, str(token))
    command = ["/bin/sh", "-c", _CLEAN, folder, str(os.getpid())]
    cleaner = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    clusters, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False  # loopback alone
    try:
        yield {
            "address": "local",
            "num_cpus": cpus,
            "resources": others,
            "object_store_memory": OBJECT_STORE_BYTES,
            "include_dashboard": False,
            "_temp_dir": folder,
        }
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = clusters
        if before is None:
            os.environ.pop(_TOKEN, None)
        cleaner.terminate()
        cleaner.wait()
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _quiet() -> Generator[None]:
    """Without lines of Ray's: what is wrong is told in our words."""
    log, listen = logging.getLogger("ray"), inside.listen_error_messages
    level = log.level
    log.setLevel(logging.CRITICAL)
    inside.listen_error_messages = _nothing
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=FutureWarning, module="ray")
            yield
    finally:
        log.setLevel(level)
        inside.listen_error_messages = listen


def _nothing(*_: object) -> None:
    """In the place of what shows Ray's messages."""
