"""An environment's life: opened with its items once everything is checked, and closed however it ends."""

import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Self

from environments.data.item_ids import item_ids
from environments.data.items import checked_items
from environments.data.tasks import GroupTask, plan
from environments.hooks import Hooks, Item
from environments.policy.base import CheckedPolicy, Policy
from environments.rollout_parts import sandbox_of
from tools.errors import ConfigError
from tools.sandbox import prepare_sandboxes
from tools.sandbox.base import Sandbox

if TYPE_CHECKING:
    from environments.policy.served import ServedPolicy

logger = logging.getLogger(__name__)


class Lifecycle(Hooks):
    """Opening and closing, for `async with env`, for `process`, `evaluate` and `serve` alike."""

    policy: Policy | None
    """Whoever plays; `None`: the scripted agent."""
    _served: "ServedPolicy | None"
    """The model servers whose connections are ours to close."""

    def __init__(self) -> None:
        """Not open yet."""
        self.item_ids: Sequence[str] = ()
        self._items: Sequence[Item] | None = None
        self._is_open = False
        self._opened: AbstractAsyncContextManager[Self] | None = None

    @asynccontextmanager
    async def opened(
        self, *, evaluation: bool = False, notify: Callable[[str], None] = logger.info
    ) -> AsyncGenerator[Self]:
        """The environment with its items loaded and everything checked that a rollout needs.

        Args:
            evaluation: load the evaluation items.
            notify: takes a line for a person when something takes long, such as pulling an image.

        Raises:
            UsageError: no items, no isolation, no image or no model server; or it is open already.
        """
        async with self.loaded(evaluation=evaluation):
            await self.preflight(notify)
            yield self

    @asynccontextmanager
    async def loaded(self, *, evaluation: bool = False) -> AsyncGenerator[Self]:
        """The environment set up, with its items alone: for who rolls nothing out.

        Raises:
            UsageError: no items, or it is open already.
        """
        if self._is_open:
            raise ConfigError(f"environment {self.name!r} is open already; make another one")
        self._is_open = True
        async with AsyncExitStack() as closing:
            closing.callback(self._close)
            if self._served is not None:
                closing.push_async_callback(self._served.aclose)
            await self.setup()
            closing.push_async_exit(self._tear_down)
            items = await (self.load_eval_items() if evaluation else self.load_items())
            self._items = checked_items(items, self.config.max_items, env=self.name)
            self.item_ids = item_ids(self._items)
            yield self

    def _close(self) -> None:
        self._is_open, self._items = False, None

    async def _tear_down(self, _: object, error: BaseException | None, __: object) -> None:
        try:
            await self.teardown()
        except Exception:
            if error is None:
                raise
            # What went wrong first is what people can act on.
            logger.exception("environment %s: teardown failed as well", self.name)

    async def __aenter__(self) -> Self:
        opened = self.opened()
        await opened.__aenter__()
        self._opened = opened
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._opened is not None
        await self._opened.__aexit__(kind, error, trace)

    @property
    def items(self) -> Sequence[Item]:
        """The items, in the order of `item_ids`.

        Raises:
            ConfigError: the environment is not open.
        """
        if self._items is None:
            raise ConfigError(f"environment {self.name!r} has no items yet; open it, `async with env: …`")
        return self._items

    def tasks(self) -> list[GroupTask]:
        """The groups to roll out: every item once, or as many as `total_steps` says.

        Raises:
            ConfigError: the environment is not open.
        """
        return plan(self.items, self.item_ids, self.config.total_steps)

    def refuse_rollouts_before_setup(self) -> None:
        """Raise ConfigError while `setup`, which the class writes, was not called."""
        if self._items is None and type(self).setup is not Hooks.setup:
            raise ConfigError(f"environment {self.name!r} is not set up yet; open it, `async with env: …`")

    async def preflight(self, notify: Callable[[str], None] = logger.info) -> None:
        """Fail now rather than in every rollout: image, isolation, then the policy.

        Raises:
            IsolationError: no sandbox can be made here.
            ConfigError: the image of the sandboxes cannot be had, or a model server does not answer as one.
        """
        await prepare_sandboxes(self.config.sandbox, image=self.config.sandbox_image, progress=notify)
        async with self.open_sandbox():
            pass
        await self.check_policy()

    async def check_policy(self) -> None:
        """Raise ConfigError while a model server cannot be used; buys no completion."""
        if isinstance(self.policy, CheckedPolicy):
            await self.policy.check()

    def open_sandbox(self) -> AbstractAsyncContextManager[Sandbox]:
        """A fresh sandbox as the config asks for."""
        return sandbox_of(self.config)
