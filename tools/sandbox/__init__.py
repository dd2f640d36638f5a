"""Sandboxes: isolated machines in which an agent's tool calls run.

Light on purpose: importing `tools.sandbox.base`, which the values of a rollout are typed with, runs this too.
A backend is loaded when its first sandbox is opened.
"""

import importlib
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Unpack

from tools.sandbox.base import (
    ExecResult,
    LimitOverrides,
    Sandbox,
    SandboxBackend,
    SandboxLimits,
    SandboxRecord,
)

__all__ = [
    "BACKENDS",
    "ExecResult",
    "Sandbox",
    "SandboxBackend",
    "SandboxLimits",
    "SandboxRecord",
    "find_backend",
    "open_sandbox",
    "prepare_sandboxes",
]

BACKENDS: Mapping[str, str] = {
    "local": "tools.sandbox.local.backend:open_local",
    "docker": "tools.sandbox.docker.backend:open_docker",
}
"""Our own; others come from the entry point group `turnwise.sandboxes`."""


_PREPARED_BY: Mapping[str, str] = {"docker": "tools.sandbox.docker.backend:prepare_image"}


def open_sandbox(
    backend: str = "local",
    *,
    limits: SandboxLimits | None = None,
    allow_unsafe: bool = False,
    image: str | None = None,
    **overrides: Unpack[LimitOverrides],
) -> AbstractAsyncContextManager[Sandbox]:
    """One sandbox for one rollout, used with `async with`; afterwards nothing of it is left.

    Args:
        backend: `local`, `docker`, or a name that another package registers as `turnwise.sandboxes`.
        limits: what the sandbox may use.
        allow_unsafe: accept weaker isolation where this machine gives no better; the record says so.
        image: what a container is made from; backends without images refuse one.
        overrides: single limits by name, such as `memory_mb=512`; they win over `limits`.

    Raises:
        ConfigError: there is no such backend, or the limits contradict each other.
        IsolationError: the machine cannot isolate, and `allow_unsafe` is not set.
        SandboxCreateError: it could not be started.
    """
    opener = find_backend(backend)
    return opener(replace(limits or SandboxLimits(), **overrides), allow_unsafe=allow_unsafe, image=image)


async def prepare_sandboxes(
    backend: str, *, image: str | None = None, progress: Callable[[str], None]
) -> None:
    """Do now what the first sandbox of a backend would have to wait for: pull or build its image.

    Args:
        backend: as for `open_sandbox`; one that has nothing to prepare is ready.
        image: as for `open_sandbox`.
        progress: takes a line for a person at the start, at the end and now and then between them.

    Raises:
        ConfigError: the image cannot be had.
        IsolationError: no engine answers.
    """
    if backend in _PREPARED_BY:
        module, _, attribute = _PREPARED_BY[backend].partition(":")
        await getattr(importlib.import_module(module), attribute)(image, progress=progress)


def find_backend(name: str) -> SandboxBackend:
    """The opener of a backend, loaded now.

    Raises:
        ConfigError: nobody has such a backend, or its code cannot be loaded.
    """
    if name not in BACKENDS:
        # Reading installed packages' metadata costs more than all of this package.
        return importlib.import_module("tools.sandbox.host.entry_points").find(name, BACKENDS)
    module, _, attribute = BACKENDS[name].partition(":")
    return getattr(importlib.import_module(module), attribute)
