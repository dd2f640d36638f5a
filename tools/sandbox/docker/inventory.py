"""The inventory of containers: those of ours on the engine, from any process."""

from collections.abc import Callable, Sequence

from tools.errors import IsolationError
from tools.sandbox.base import SandboxEntry
from tools.sandbox.docker import orphans
from tools.sandbox.docker.engine import Engine, EngineError, connect
from tools.sandbox.docker.manager import in_thread


async def entries() -> Sequence[SandboxEntry]:
    """Every container of ours on the engine, the oldest first.

    Raises:
        IsolationError: no engine answers.
    """
    return await in_thread(lambda: _ask(orphans.listed))


async def reap() -> Sequence[SandboxEntry]:
    """Remove containers whose owner is provably gone.

    Raises:
        IsolationError: no engine answers.
    """
    return await in_thread(lambda: _ask(orphans.reaped))


def _ask(call: Callable[[Engine], Sequence[SandboxEntry]]) -> Sequence[SandboxEntry]:
    try:
        return call(connect())
    except EngineError as error:
        raise IsolationError(f"the Docker engine does not do it: {error}") from error
