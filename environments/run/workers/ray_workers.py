"""Workers as actors of Ray, on this machine or on a cluster; no other module imports Ray.

An actor only supervises a worker process (`WorkerProcess`): Ray places it, reports a lost node and carries
messages. Ray reports neither exit code nor signal of an actor's process.
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
from concurrent.futures import Future
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
_CLEAN = """
trap ended=1 TERM
while [ -z "$ended" ] && kill -0 "$1" 2>/dev/null; do sleep 1 & wait "$!"; done
[ -n "$ended" ] || for each in /proc/[0-9]*; do
  case "$(cat "$each/comm" 2>/dev/null)" in ray*|gcs_server) ;; *) continue;; esac
  case "$(ls -l "$each/fd" 2>/dev/null)" in *" $0/"*) kill -9 "${each#/proc/}";; esac
done
rm -rf -- "$0"
"""
"""Waits for the driver's end, even by SIGKILL, then kills Ray's processes that have files open in its
folder."""
T = TypeVar("T")
_OWN = asyncio.Lock()
_TOKEN = "RAY_AUTH_TOKEN_PATH"
_ROOM_S = 10.0
_CONNECT_S = 10.0
_GONE_S = 20.0
"""Ray ends this process after three times as long without its head node."""
_KILL_S = 5.0
_SHORT = 40
"""Longest temporary folder, in characters, that leaves room for the names of Ray's sockets."""
_GONE: tuple[type[Exception], ...] = (
    exceptions.RayActorError,
    exceptions.NodeDiedError,
    exceptions.ObjectLostError,
    exceptions.WorkerCrashedError,
    exceptions.OutOfMemoryError,
)


class RayEngine:
    supervisor: type = WorkerProcess

    def __init__(self, *, resources: Mapping[str, float], at_once: int) -> None:
        self._resources = dict(resources)
        self._head: str = ray.get_runtime_context().gcs_address
        self._seen_at = monotonic()
        self.is_gone = False
        """Whether the cluster has been unreachable for so long that Ray would soon end this process."""
        self._options: dict[str, Any] = {
            "num_cpus": resources["CPU"],
            "memory": resources.get("memory"),
            "resources": {name: each for name, each in resources.items() if name not in ("CPU", "memory")},
            "max_restarts": 0,
            # Room for beats, cancellations and the close request.
            "max_concurrency": 2 * at_once + 16,
        }

    async def start(self, start: WorkerStart) -> Worker:
        return await _in_thread(partial(self._place, start))

    def _place(self, start: WorkerStart) -> "_RayWorker":
        # Reserve resources first: a slow start of the process is no lack of room.
        placement = groups.placement_group([self._resources])
        try:
            if not placement.wait(_ROOM_S):
                free, there = ray.available_resources(), ray.cluster_resources()
                # The cluster may have enough in total, but no node on its own.
                lacking = [name for name, amount in self._resources.items() if free.get(name, 0) < amount]
                lacking = lacking or list(self._resources)
                has = _in_words({each: there.get(each, 0) for each in lacking})
                left = _in_words({each: free.get(each, 0) for each in lacking})
                raise NoRoomError(
                    f"no room for a worker: each asks for {_in_words(self._resources)}; the cluster has "
                    f"{has}, and {left} free"
                )
            strategy = strategies.PlacementGroupSchedulingStrategy(placement)
            actor = ray.remote(self.supervisor).options(scheduling_strategy=strategy, **self._options)
            return _RayWorker(actor.remote(start), placement, self)
        except BaseException:
            groups.remove_placement_group(placement)
            raise

    async def check(self) -> None:
        try:
            await _in_thread(partial(_open_connection, self._head))
            self._seen_at = monotonic()
        except OSError:
            if monotonic() - self._seen_at > _GONE_S:
                self.is_gone = True
                raise RunError(
                    f"the Ray cluster has not been there for {_GONE_S:g} s; the same command goes on with "
                    f"another one, or without"
                ) from None


class _RayWorker:
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
            async with asyncio.timeout(_KILL_S):  # the supervisor removes its files
                await self._call("kill", why)
        self._end()

    def _end(self) -> None:
        def remove() -> None:
            with suppress(*_GONE):
                ray.kill(self._actor)
            groups.remove_placement_group(self._placement)

        threading.Thread(target=remove, daemon=True).start()

    async def _call(self, method: str, *arguments: object) -> Any:
        if self._engine.is_gone:
            return Death(cause="the cluster is gone", with_supervisor=True)
        try:
            return await getattr(self._actor, method).remote(*arguments)
        except exceptions.ActorUnavailableError:
            # The actor may come back, but its groups run elsewhere by then.
            self._end()
            return Death(cause="its node cannot be reached", with_supervisor=True)
        except _GONE as error:
            self._end()
            return Death(cause=_cause(error), with_supervisor=True)
        except exceptions.RayTaskError as error:
            raise error.cause from None


def _cause(error: Exception) -> str:
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


cluster_resources: Callable[[], dict[str, float]] = ray.cluster_resources


@asynccontextmanager
async def connect(address: str | None, *, local: Mapping[str, float]) -> AsyncGenerator[bool]:
    """Connect to Ray and yield whether it is our own, so that workers share this machine.

    Without an address, start Ray with `local` resources; a Ray that this program uses already is used instead
    and not shut down. Raises ConfigError if the cluster is unusable, RunError if our own Ray starts too late.
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
        await asyncio.to_thread(refuse_unreachable, address)
    own = nullcontext({"address": address}) if address is not None else _own_ray(local)
    where = "no Ray can be started here" if address is None else f"--ray {address} cannot be used"
    async with _OWN:
        with _quiet(), own as options:
            job = ray.job_config.JobConfig()
            job._py_driver_sys_path = _NoPaths()
            init = partial(ray.init, job_config=job, log_to_driver=False, configure_logging=False, **options)
            try:
                # In a thread: Ray takes over the main thread's signals. Not cancelled: half of it would stay.
                error_class = RunError if address is None else ConfigError
                await to_the_end(asyncio.to_thread(_init, init, where, error_class))
                yield address is None
            finally:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_CONNECT_S):
                        await _in_thread(ray.shutdown)


async def _in_thread(function: Callable[[], T]) -> T:
    """Call a function in a daemon thread, since a cluster without its head answers nothing for a minute."""
    result = Future[T]()
    result.set_running_or_notify_cancel()  # a caller that is cancelled does not cancel the call

    def run() -> None:
        try:
            result.set_result(function())
        except Exception as error:  # noqa: BLE001  # raised where it is awaited
            result.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return await asyncio.wrap_future(result)


def _open_connection(address: str) -> None:
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()


def _init(init: Callable[[], object], where: str, error_class: type[TurnwiseError]) -> None:
    try:
        init()
    except BaseException as error:  # noqa: BLE001  # Ray exits if its processes start too late
        why = " ".join(str(error).split())[:400] or type(error).__name__
        raise error_class(f"{where}: {why}; the same command tries again") from None


class _NoPaths(list[str]):
    """Ignores the folders that Ray puts first on `sys.path`, where a `tools.py` would hide ours."""

    def extend(self, _: Iterable[str]) -> None: ...


def refuse_unreachable(address: str) -> None:
    """Raise ConfigError if no cluster listens; Ray itself would try for minutes."""
    host, colon, port = address.rpartition(":")
    if address == "auto":
        return
    if not (colon and host and port.isdecimal()):
        raise ConfigError(f"--ray {address}: give auto, or HOST:PORT such as 10.0.0.1:6379")
    try:
        _open_connection(address)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"no Ray cluster at --ray {address}: {error}") from error


@contextmanager
def _own_ray(resources: Mapping[str, float]) -> Generator[dict[str, Any]]:
    cpus, others = resources["CPU"], {name: each for name, each in resources.items() if name != "CPU"}
    scratch = tempfile.gettempdir()
    folder = tempfile.mkdtemp(prefix="turnwise-ray-", dir=scratch if len(scratch) < _SHORT else "/tmp")
    # Without one, Ray writes a token into the home directory and leaves it there.
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
    log, listen = logging.getLogger("ray"), inside.listen_error_messages
    level = log.level
    log.setLevel(logging.CRITICAL)
    inside.listen_error_messages = _do_nothing
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=FutureWarning, module="ray")
            yield
    finally:
        log.setLevel(level)
        inside.listen_error_messages = listen


def _do_nothing(*_: object) -> None:
    pass
