"""Sandboxes: isolated machines in which an agent's tool calls run."""

from contextlib import AbstractAsyncContextManager

from tools.errors import ConfigError
from tools.sandbox.base import ExecResult, Sandbox, SandboxLimits, SandboxRecord
from tools.sandbox.local import open_local

__all__ = ["ExecResult", "Sandbox", "SandboxLimits", "SandboxRecord", "open_sandbox"]


def open_sandbox(
    backend: str = "local", *, limits: SandboxLimits | None = None, allow_unsafe: bool = False
) -> AbstractAsyncContextManager[Sandbox]:
    """One sandbox for one rollout, used with `async with`; afterwards nothing of it is left.

    Raises:
        ConfigError: there is no such backend, or the limits contradict each other.
        IsolationError: the machine cannot isolate, and `allow_unsafe` is not set.
        SandboxCreateError: it could not be started.
    """
    if backend != "local":
        raise ConfigError(f"no sandbox backend {backend!r}; choose one of ['local']")
    return open_local(limits or SandboxLimits(), allow_unsafe=allow_unsafe)
