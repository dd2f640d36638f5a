"""What `prepare_sandbox` left, for the sandboxes that begin with it: made once, kept while it is of use."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import Context
from dataclasses import dataclass

from environments.rollout.hooks import Item
from tools.sandbox.base import SandboxSpec, Snapshot
from tools.waiting import to_the_end

_AT_ONCE = 4
"""Made side by side."""
_KEPT = 4
"""Without a user: those of a whole dataset may be more than a disk holds."""


@dataclass(slots=True)
class _Kept:
    """One of them; `users`: how many rollouts need it, those that wait for it too."""

    making: "asyncio.Task[Snapshot]"
    users: int = 0


class Snapshots:
    """Rollouts that need the same one wait for one preparation; after it failed, the next one tries again."""

    def __init__(self, make: Callable[[SandboxSpec, Item], Awaitable[Snapshot]]) -> None:
        """Nothing is made yet; `make` prepares a sandbox with the first item that asks for it."""
        self._make = make
        self._kept: dict[SandboxSpec, _Kept] = {}
        """The one that was used last comes last."""
        self._slots = asyncio.Semaphore(_AT_ONCE)

    @asynccontextmanager
    async def of(self, spec: SandboxSpec, item: Item) -> AsyncGenerator[Snapshot]:
        """The one of a spec, which stays meanwhile.

        Raises:
            Exception: what the hook raised, or the sandbox, the same for each that waits.
        """
        kept = self._kept.pop(spec, None) or self._begun(spec, item)
        self._kept[spec] = kept
        kept.users += 1
        try:
            yield await asyncio.shield(kept.making)
        finally:
            kept.users -= 1
            await to_the_end(self._drop_unused())

    async def aclose(self) -> None:
        """End what is being made, and discard everything."""
        for kept in self._kept.values():
            kept.making.cancel()
        if self._kept:
            await to_the_end(asyncio.wait([kept.making for kept in self._kept.values()]))
        await to_the_end(self._drop_unused(left=0))

    def _begun(self, spec: SandboxSpec, item: Item) -> _Kept:
        # In no rollout's context: it may outlive the one that asked first.
        making = asyncio.get_running_loop().create_task(self._made(spec, item), context=Context())
        kept = _Kept(making)
        making.add_done_callback(lambda _: self._forget_failed(spec, kept))
        return kept

    async def _made(self, spec: SandboxSpec, item: Item) -> Snapshot:
        async with self._slots:
            return await self._make(spec, item)

    def _forget_failed(self, spec: SandboxSpec, kept: _Kept) -> None:
        if (kept.making.cancelled() or kept.making.exception()) and self._kept.get(spec) is kept:
            del self._kept[spec]

    async def _drop_unused(self, left: int = _KEPT) -> None:
        done = [spec for spec, kept in self._kept.items() if not kept.users and kept.making.done()]
        dropped = [self._kept.pop(spec) for spec in done[: max(0, len(done) - left)]]
        for kept in dropped:
            await kept.making.result().discard()
