"""Sandboxes: isolated machines in which an agent's tool calls run.

Light on purpose: importing `tools.sandbox.base`, which the values of a rollout are typed with, runs this too.
A backend is loaded when its first sandbox is opened.
"""

import importlib
import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Unpack

from tools.errors import AgentCausedError, ConfigError, IsolationError, SandboxCreateError
from tools.sandbox.archive import clean_path
from tools.sandbox.base import (
    ExecResult,
    Layer,
    LimitOverrides,
    Sandbox,
    SandboxBackend,
    SandboxLimits,
    SandboxRecord,
    SandboxSpec,
    check_lent,
)

__all__ = [
    "BACKENDS",
    "ExecResult",
    "Opening",
    "Sandbox",
    "SandboxBackend",
    "SandboxLimits",
    "SandboxRecord",
    "SandboxSpec",
    "find_backend",
    "lent_folder",
    "open_sandbox",
    "package_versions",
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
    whole: bool = False,
    **overrides: Unpack[LimitOverrides],
) -> "Opening":
    """One sandbox for one rollout, used with `async with`; afterwards nothing of it is left.

    Args:
        backend: `local`, `docker`, or a name that another package registers as `turnwise.sandboxes`.
        limits: what the sandbox may use.
        allow_unsafe: accept weaker isolation if this machine has no better; the record lists what is missing.
        image: what a container is made from; backends without images refuse one.
        whole: the agent is root of the container; see `SandboxSpec.whole`.
        overrides: single limits by name, such as `memory_mb=512`; they win over `limits`.

    Raises:
        ConfigError: there is no such backend, the limits contradict each other, a folder of `read_only`
            cannot be lent, or `packages` cannot be had.
        IsolationError: the machine cannot isolate, and `allow_unsafe` is not set.
        SandboxCreateError: it could not be started.
    """
    wanted = replace(limits or SandboxLimits(), **overrides)
    for folder in wanted.read_only:
        check_lent(folder)
    if wanted.packages:
        _refuse_packages(backend)
    options = {"allow_unsafe": allow_unsafe, "image": image}
    opener = find_backend(backend)
    if whole:
        if "whole" not in inspect.signature(opener).parameters:
            raise ConfigError(f"sandbox backend {backend!r} has no whole machines; choose docker")
        options["whole"] = True
    return Opening(backend, opener, wanted, options)


@dataclass(slots=True)
class Opening(AbstractAsyncContextManager[Sandbox]):
    """A sandbox that is still to be opened, with `async with` and once."""

    _backend: str
    _opener: SandboxBackend
    _limits: SandboxLimits
    _options: dict[str, Any]
    _layers: tuple[Layer, ...] = ()
    _opened: AsyncExitStack = field(default_factory=AsyncExitStack, init=False)

    def beginning_with(self, *layers: Layer) -> "Opening":
        """The same with these layers on top of what it has."""
        options = dict(self._options)
        for layer in layers:
            options |= layer.options
        return replace(self, _options=options, _layers=(*self._layers, *layers))

    def for_verifier(self, files: Mapping[str, bytes]) -> "Opening":
        """The same for a verification, in which these files cannot be changed, removed, renamed or replaced.

        They are at their paths, which start at the workspace, and below the folder that the environment's
        `VERIFIER` names. `HOME` is empty and read-only.

        Raises:
            IsolationError: the backend cannot keep them so.
            OSError: a path contains `..` or a NUL byte, or is too long.
        """
        if "verifier_files" not in inspect.signature(self._opener).parameters:
            raise IsolationError(
                f"sandbox backend {self._backend!r} cannot keep a verifier's files from change: its opener "
                "has no `verifier_files`; use 'local' or 'docker' for environments that verify"
            )
        for path in files:
            clean_path(path.removeprefix("/"))
        return self.beginning_with(Layer(options={"verifier_files": files}))

    async def __aenter__(self) -> Sandbox:
        try:
            return await self._enter()
        except (
            AgentCausedError
        ):  # nothing of an agent's ran in there: another one shows whether its files are why
            pass
        try:
            return await self._enter()
        except AgentCausedError as error:
            if any(layer.by_agent for layer in self._layers):
                raise
            raise SandboxCreateError(f"two fresh sandboxes broke: {error}") from error

    async def _enter(self) -> Sandbox:
        async with AsyncExitStack() as opening:
            sandbox = await opening.enter_async_context(self._opener(self._limits, **self._options))
            try:
                for layer in self._layers:
                    await layer.put_into(sandbox)
            except OSError as error:  # not of an agent's files: a hook that meets it would blame the agent
                raise SandboxCreateError(f"what was prepared cannot be copied: {error}") from error
            self._opened = opening.pop_all()
        return sandbox

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._opened.__aexit__(kind, error, trace)


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


def package_versions(backend: str, packages: tuple[str, ...]) -> Mapping[str, str]:
    """Resolve packages now, unless an earlier call or process did; blocks.

    Returns:
        Version and digest of the files by name, those that were required by others included.

    Raises:
        ConfigError: they cannot be had, or the backend's sandboxes bring their own.
    """
    _refuse_packages(backend)
    return importlib.import_module("tools.sandbox.local.packages").versions_of(packages)


def _refuse_packages(backend: str) -> None:
    if backend != "local":
        raise ConfigError(
            f"packages are for 'local' sandboxes, and these are {backend!r}: install them in the image, and "
            "leave `packages` out"
        )


def lent_folder(backend: str, path: Path) -> str | None:
    """The folder of this machine in which every sandbox of a backend can read a file; `None`: none can."""
    if backend != "local":
        return None
    return importlib.import_module("tools.sandbox.local.rootfs").lent_folder_of(path)


def find_backend(name: str) -> SandboxBackend:
    """The opener of a backend, loaded now.

    Raises:
        ConfigError: no such backend, or its code cannot be loaded.
    """
    if name not in BACKENDS:
        # Reading installed packages' metadata costs more than all of this package.
        return importlib.import_module("tools.sandbox.host.entry_points").find(name, BACKENDS)
    module, _, attribute = BACKENDS[name].partition(":")
    return getattr(importlib.import_module(module), attribute)
