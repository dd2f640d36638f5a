"""The sandboxes of an environment's rollouts, with their images and prepared snapshots."""

import asyncio
import logging
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from contextvars import Context
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from environments.config import AgentEnvConfig
from environments.rollout.hooks import Item
from tools.errors import ConfigError, ImageUnavailable
from tools.registry import Toolset
from tools.sandbox import lent_folder, open_sandbox, package_versions, prepare_sandboxes
from tools.sandbox.base import NONE, NoSandbox, Sandbox, SandboxLimits, SandboxSpec, Snapshot
from tools.waiting import to_the_end

_LOG = logging.getLogger(__name__)
_DEFAULT = "local"
_OF_WHOLE = "docker"


class Sandboxes:
    def __init__(
        self,
        config: AgentEnvConfig,
        chosen: str | None,
        env: type,
        read_only: tuple[str, ...] = (),
        packages: tuple[str, ...] = (),
    ) -> None:
        if chosen is not None and not isinstance(chosen, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # user code
            raise ConfigError(
                f"{env.__name__}.sandbox is a name, such as 'local' or {NONE!r}, got {chosen!r:.100}"
            )
        self._config, self._env = config, env
        self._limits = SandboxLimits(
            memory_mb=config.sandbox_memory_mb,
            network=config.sandbox_network,
            read_only=read_only,
            packages=packages,
        )
        self._versions: dict[tuple[str, ...], Mapping[str, str]] = {}
        self.tier = ""
        """Backend and tier of the first sandbox, on which all workers of a run agree."""
        self.kind = config.sandbox or chosen or _DEFAULT
        self.verifier_kind = config.verify_sandbox or (_DEFAULT if self.kind == NONE else self.kind)
        if self.verifier_kind == NONE:
            raise ConfigError(f"--env.verify_sandbox {NONE} would verify nothing; choose local or docker")
        if self.kind not in (NONE, self.verifier_kind):
            raise ConfigError(
                f"--env.verify_sandbox {self.verifier_kind} is for --env.sandbox {NONE}: with {self.kind} "
                f"a verification is in a fresh sandbox of the same kind; leave it out"
            )

    @property
    def are_opened(self) -> bool:
        return self.kind != NONE

    def open(
        self, spec: SandboxSpec | None = None, snapshot: Snapshot | None = None
    ) -> AbstractAsyncContextManager[Sandbox]:
        if not self.are_opened:
            return nullcontext(cast("Sandbox", NoSandbox()))
        return self.open_for_verification(spec, snapshot)

    def open_for_verification(
        self, spec: SandboxSpec | None = None, snapshot: Snapshot | None = None
    ) -> AbstractAsyncContextManager[Sandbox]:
        """Open a fresh sandbox for `ctx.verify`, even if rollouts have none."""
        is_whole = spec is not None and spec.whole
        opening = open_sandbox(
            _OF_WHOLE if is_whole else self.verifier_kind,
            limits=self._limits_of(spec),
            allow_unsafe=self._config.allow_unsafe_sandbox,
            image=self.image_of(spec),
            whole=is_whole,
        )
        return opening if snapshot is None else opening.beginning_with(snapshot)

    async def prepare(self, image: str | None, notify: Callable[[str], None] = _LOG.info) -> None:
        """Make an image ready for rollouts; images for verification alone wait for their first use."""
        if self.are_opened:
            # Beside local sandboxes, only whole machines have images.
            is_whole = self.kind == _DEFAULT and image != self._config.sandbox_image
            await prepare_sandboxes(_OF_WHOLE if is_whole else self.kind, image=image, progress=notify)

    async def prepare_packages(self, spec: SandboxSpec | None, notify: Callable[[str], None]) -> None:
        packages = self._limits_of(spec).packages
        if packages and packages not in self._versions:
            notify(f"packages for the sandboxes: {', '.join(packages)}")
            resolving = asyncio.to_thread(package_versions, self.verifier_kind, packages)
            self._versions[packages] = await resolving

    def package_facts(self) -> dict[str, str]:
        own = self._limits.packages
        if own and own not in self._versions:
            self._versions[own] = package_versions(self.verifier_kind, own)
        found: dict[str, set[str]] = {}
        for versions in self._versions.values():
            for name, version in versions.items():
                found.setdefault(f"package {name}", set()).add(version)
        return {name: ", ".join(sorted(versions)) for name, versions in found.items()}

    def note_isolation(self, sandbox: Sandbox) -> None:
        """Record the tier of a run's first sandbox, and warn of bounds it lacks."""
        if not self.are_opened:
            return
        record = sandbox.record
        self.tier = f"{record.backend} {record.tier}"
        if "memory_mb_per_process" in record.enforced:
            _LOG.warning(
                "no control group bounds the sandboxes here: memory is bounded for each process (%d MB), not "
                "for all together, and a sandbox that falls silent is dropped, since nothing tells whether "
                "its agent silenced it; run as root, or in a delegated control group",
                record.limits.memory_mb,
            )

    def _limits_of(self, spec: SandboxSpec | None) -> SandboxLimits:
        return self._limits if spec is None else spec.limits(self._limits)

    def image_of(self, spec: SandboxSpec | None) -> str | None:
        return spec.image if spec and spec.image is not None else self._config.sandbox_image

    def check_spec(self, given: Any, *, prepares: bool) -> SandboxSpec | None:
        where = f"environment {self._env.__name__}: sandbox_for"
        if given is not None and not isinstance(given, SandboxSpec):
            raise ConfigError(f"{where} gave {given!r:.100}; give a turnwise.SandboxSpec, or None")
        is_whole = given is not None and given.whole
        if is_whole and self._config.sandbox not in (None, _OF_WHOLE):
            raise ConfigError(
                f"{where} asks for a whole machine, not for {self.kind!r}; choose --env.sandbox docker"
            )
        if given is not None and given.image is not None and not is_whole and self.verifier_kind == _DEFAULT:
            raise ConfigError(
                f"{where} names the image {given.image!r}, and {_DEFAULT!r} sandboxes have none; choose "
                f"--env.{'sandbox' if self.are_opened else 'verify_sandbox'} docker"
            )
        if given is not None and given.prepared is not None and not prepares:
            raise ConfigError(f"{where} gave prepared={given.prepared!r:.100}; write prepare_sandbox, too")
        return given

    def refuse_tools_in(self, toolset: Toolset) -> None:
        names = [tool.name for tool in toolset.tools if tool.needs_sandbox]
        if names and not self.are_opened:
            raise ConfigError(
                f"{self._env.__name__} has no sandbox (`sandbox` is {NONE!r}), and these tools act in one: "
                f"{', '.join(names)}; choose --env.sandbox {_DEFAULT}, or take them out "
                f"(`tools`, --env.enabled_toolsets)"
            )

    def warn_of_lent_files(self) -> None:
        """Warn if every sandbox can read the environment's files, which may include hidden tests."""
        if not self.are_opened:
            return
        # A class that was typed in has no file.
        module = getattr(sys.modules.get(self._env.__module__), "__file__", None)
        for what, path in (("code", module), ("dataset", self._config.dataset_path)):
            if path is not None and (folder := lent_folder(self.kind, Path(path))):
                _LOG.warning(
                    "the environment's %s lies below %s, which every sandbox can read, %s: agents can find "
                    "their hidden tests there; move it",
                    what, folder, path,
                )  # fmt: skip


_AHEAD = 2
"""Images made ready before they are needed: all those of a dataset may exceed the disk."""
_AT_ONCE = 4
_KEPT = 4
"""Unused snapshots: those of a whole dataset may exceed the disk."""

Image = str | None
K = TypeVar("K")
V = TypeVar("V")


class _Preparations(Generic[K, V]):
    """Shares one preparation per key among rollouts; after a failure the next one tries again."""

    def __init__(self, prepare: Callable[..., Awaitable[V]]) -> None:
        self._prepare = prepare
        self._tasks: dict[K, asyncio.Task[V]] = {}
        self._slots = asyncio.Semaphore(_AT_ONCE)

    def _begin(self, key: K, *args: Any) -> "asyncio.Task[V]":
        if key not in self._tasks:
            # Without the context of the rollout that asks first, which it may outlive.
            task = asyncio.get_running_loop().create_task(self._run(key, *args), context=Context())
            self._tasks[key] = task
            task.add_done_callback(partial(self._forget_failed, key))
        return self._tasks[key]

    async def _run(self, *args: Any) -> V:
        async with self._slots:
            return await self._prepare(*args)

    def _forget_failed(self, key: K, task: "asyncio.Task[V]") -> None:
        if (task.cancelled() or task.exception() is not None) and self._tasks.get(key) is task:
            del self._tasks[key]

    async def aclose(self) -> None:
        left = [task for task in self._tasks.values() if not task.done()]
        for task in left:
            task.cancel()
        if left:
            await to_the_end(asyncio.wait(left))


class ItemImages(_Preparations[Image, None]):
    """Images of items; `order` has them in the order in which rollouts need them."""

    def __init__(self, prepare: Callable[[Image], Awaitable[None]], order: Iterable[Image] = ()) -> None:
        super().__init__(prepare)
        self._distinct = list(dict.fromkeys(order))

    async def ready(self, image: Image) -> None:
        preparation = self._begin(image)
        after = self._distinct.index(image) + 1 if image in self._distinct else len(self._distinct)
        for later in self._distinct[after : after + _AHEAD]:
            self._begin(later)
        try:
            await asyncio.shield(preparation)
        except ConfigError as error:
            raise ImageUnavailable(f"the image of this item cannot be had: {error}") from None


class Snapshots(_Preparations[SandboxSpec, Snapshot]):
    """Snapshots by spec, the last used last; `make` prepares a sandbox with the first item that needs it."""

    def __init__(self, make: Callable[[SandboxSpec, Item], Awaitable[Snapshot]]) -> None:
        super().__init__(make)
        self._users = Counter[SandboxSpec]()

    @asynccontextmanager
    async def of(self, spec: SandboxSpec, item: Item) -> AsyncGenerator[Snapshot]:
        making = self._tasks[spec] = self._tasks.pop(spec, None) or self._begin(spec, item)
        self._users[spec] += 1
        try:
            yield await asyncio.shield(making)
        finally:
            self._users[spec] -= 1
            if not self._users[spec]:
                del self._users[spec]
            await to_the_end(self._drop_unused())

    async def aclose(self) -> None:
        await super().aclose()
        await to_the_end(self._drop_unused(left=0))

    async def _drop_unused(self, left: int = _KEPT) -> None:
        done = [spec for spec, task in self._tasks.items() if not self._users[spec] and task.done()]
        for task in [self._tasks.pop(spec) for spec in done[: max(0, len(done) - left)]]:
            await task.result().discard()
