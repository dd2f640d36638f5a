"""Isolated machines in which an agent's tool calls run.

Importing this package is cheap: a backend is loaded when its first sandbox is opened.
"""

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Unpack, cast

from tools.errors import AgentCausedError, ConfigError, IsolationError, SandboxCreateError
from tools.plain_text import did_you_mean
from tools.sandbox.archive import clean_path
from tools.sandbox.base import (
    ExecResult,
    Layer,
    LimitOverrides,
    Sandbox,
    SandboxBackend,
    SandboxEntry,
    SandboxLimits,
    SandboxRecord,
    SandboxSpec,
    check_lent,
)

__all__ = [
    "BACKENDS",
    "INVENTORIES",
    "ExecResult",
    "Opening",
    "Sandbox",
    "SandboxBackend",
    "SandboxEntry",
    "SandboxLimits",
    "SandboxRecord",
    "SandboxSpec",
    "find_backend",
    "lent_folder",
    "list_sandboxes",
    "open_sandbox",
    "package_versions",
    "prepare_sandboxes",
    "reap_sandboxes",
]

INVENTORIES: Mapping[str, str] = {
    "local": "tools.sandbox.local.backend",
    "docker": "tools.sandbox.docker.orphans",
}
"""Modules with `entries` and `reap`, by backend."""
BACKENDS: Mapping[str, str] = {
    "local": "tools.sandbox.local.backend:open_local",
    "docker": "tools.sandbox.docker.backend:open_docker",
}
"""Our backends; others come from the entry point group `turnwise.sandboxes`."""


_ENTRY_POINTS = "turnwise.sandboxes"
_loaded: dict[str, SandboxBackend] = {}
"""Reading package metadata takes 10 ms, and descriptors that a busy host may lack."""


def open_sandbox(
    backend: str = "local",
    *,
    limits: SandboxLimits | None = None,
    allow_unsafe: bool = False,
    image: str | None = None,
    whole: bool = False,
    **overrides: Unpack[LimitOverrides],
) -> "Opening":
    """Return one sandbox for one rollout, opened with `async with`; nothing of it remains.

    Args:
        backend: `local`, `docker`, or a name registered in `turnwise.sandboxes`.
        limits: of the sandbox.
        allow_unsafe: accept weaker isolation; the record lists the gaps.
        image: of a container; other backends refuse it.
        whole: see `SandboxSpec.whole`.
        overrides: single limits by name, such as `memory_mb=512`.

    Raises:
        ConfigError: if the backend does not exist, limits contradict each other, or folders or packages are
            not available.
        IsolationError: if the machine cannot isolate, and `allow_unsafe` is not set.
        SandboxCreateError: if it does not start.
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
    """A sandbox that can be opened once, with `async with`."""

    _backend: str
    _opener: SandboxBackend
    _limits: SandboxLimits
    _options: dict[str, Any]
    _layers: tuple[Layer, ...] = ()
    _opened: AsyncExitStack = field(default_factory=AsyncExitStack, init=False)

    def beginning_with(self, *layers: Layer) -> "Opening":
        options = dict(self._options)
        for layer in layers:
            options |= layer.options
        return replace(self, _options=options, _layers=(*self._layers, *layers))

    def for_verifier(self, files: Mapping[str, bytes]) -> "Opening":
        """Return a copy for a verification, in which these files cannot be changed, removed or replaced.

        They are at their paths in the workspace and below `$VERIFIER`. `HOME` is empty and read-only.

        Raises:
            IsolationError: if the backend cannot protect them.
            OSError: if a path is invalid.
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
        except AgentCausedError:  # a second try shows whether the agent's files are the cause
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
            except OSError as error:  # a hook would blame the agent
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
    """Pull or build the image of a backend's sandboxes; `progress` gets lines of text from time to time.

    Raises:
        ConfigError: if the image is not available.
        IsolationError: if no engine answers.
    """
    if backend == "docker":
        await importlib.import_module("tools.sandbox.docker.backend").prepare_image(image, progress=progress)


async def list_sandboxes(backend: str) -> Sequence[SandboxEntry]:
    """Return a backend's visible sandboxes, or raise IsolationError."""
    return await importlib.import_module(INVENTORIES[backend]).entries() if backend in INVENTORIES else []


async def reap_sandboxes(backend: str) -> Sequence[SandboxEntry]:
    """Remove sandboxes of owners that provably ended, and return them; raises as `list_sandboxes`."""
    return await importlib.import_module(INVENTORIES[backend]).reap() if backend in INVENTORIES else []


def package_versions(backend: str, packages: tuple[str, ...]) -> Mapping[str, str]:
    """Install packages unless cached; return version and digest of each, dependencies included.

    Raises:
        ConfigError: if they are not available, or the backend is not `local`.
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
    """Return the host folder in which every sandbox can read a file, or None."""
    if backend != "local":
        return None
    return importlib.import_module("tools.sandbox.local.rootfs").find_readable_folder(path)


def find_backend(name: str) -> SandboxBackend:
    """Load a backend's opener; raise ConfigError if that fails."""
    if name in BACKENDS:
        module, _, attribute = BACKENDS[name].partition(":")
        return getattr(importlib.import_module(module), attribute)
    if name not in _loaded:
        # Imported here: package metadata takes longer to load than this package.
        entries = importlib.import_module("importlib.metadata").entry_points(group=_ENTRY_POINTS)
        registered = {entry.name: entry for entry in entries}
        if name not in registered:
            known = sorted({*BACKENDS, *registered})
            raise ConfigError(
                f"no sandbox backend {name!r}{did_you_mean(name, known)}; choose one of {known}, or install "
                f"a package that registers it in the entry point group {_ENTRY_POINTS!r}"
            )
        entry = registered[name]
        try:
            opener = entry.load()
        except (ImportError, AttributeError) as error:
            raise ConfigError(
                f"the sandbox backend {name!r} cannot be loaded from {entry.value}: {error}"
            ) from error
        if not callable(opener):
            raise ConfigError(
                f"the sandbox backend {name!r} is {entry.value}, which is a {type(opener).__name__}; "
                f"it has to be a callable like `open(limits, *, allow_unsafe=False, image=None)`"
            )
        _loaded[name] = cast(SandboxBackend, opener)
    return _loaded[name]
