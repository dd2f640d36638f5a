"""The life of an environment: opened with its items once everything is checked, and always closed."""

import asyncio
import gc
import logging
import os
import resource
import sys
from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from threading import Lock
from typing import Any

from environments.config import AgentEnvConfig
from environments.policy.base import CheckedPolicy
from environments.policy.second_models import ROLES, SCRIPTED, SecondModel
from environments.rollout.boundary import (
    FailureKinds,
    Slots,
    cut_traceback,
    reason_of,
    traceback_of,
    unwrap_user_error,
)
from environments.rollout.containment.hook_calls import HookCalls, InFlight, require_finished
from environments.rollout.containment.hook_threads import HookThreads
from environments.rollout.context import condenser_facts
from environments.rollout.hooks import Hooks, Item, pins_thread, refuse_no_listener, writes
from environments.rollout.items.item_json import item_ids
from environments.rollout.items.items import check_items
from environments.rollout.items.tasks import (
    IN_ORDER,
    GroupTask,
    ItemOrder,
    RunHistory,
    indices_of_share,
    item_weights,
    next_ids,
    plan,
    plan_for_ever,
)
from environments.rollout.lifecycle.opened_files import OpenedFiles
from environments.rollout.lifecycle.parts import Parts
from environments.rollout.lifecycle.sandboxes import ItemImages, Snapshots
from environments.rollout.lifecycle.weight_versions import WeightVersions
from tools.errors import ConfigError, RunError, SandboxError, ServerAway, TimeLimitExceeded, UsageError
from tools.plain_text import one_line
from tools.sandbox.base import Sandbox, SandboxSpec, Snapshot
from tools.sandbox.layers import take_snapshot
from tools.toolsets import select_toolsets

_EVERY_S = 60.0
_MANY_OBJECTS = 400_000
_GROWTH_BYTES = 4 << 30
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.25, 15.0
_NEVER = 1 << 30


_USUAL_THRESHOLDS: list[int] = []
_THRESHOLD_LOCK = Lock()


@asynccontextmanager
async def rare_full_collections() -> AsyncGenerator[None]:
    """Run full garbage collections once a minute at most, unless the collector is off.

    With 4,000 rollouts in flight (`tests/benchmarks/bench_in_flight.py`) the event loop is 0.1 s late
    instead of 1.0 s, and a call costs 1.1 ms of CPU instead of 1.8. The last environment that closes
    restores the threshold.
    """
    if not gc.isenabled():
        yield
        return
    with _THRESHOLD_LOCK:
        young, middle, old = gc.get_threshold()
        _USUAL_THRESHOLDS.append(old)
        gc.set_threshold(young, middle, _NEVER)
    collecting = asyncio.create_task(_collect_now_and_then())
    try:
        yield
    finally:
        collecting.cancel()
        with _THRESHOLD_LOCK:
            young, middle, old = gc.get_threshold()
            usual = _USUAL_THRESHOLDS[0] if len(_USUAL_THRESHOLDS) == 1 else _NEVER
            _USUAL_THRESHOLDS.pop()
            if old == _NEVER:  # nobody else has set it
                gc.set_threshold(young, middle, usual)


async def _collect_now_and_then() -> None:
    memory = _peak_memory()
    while True:
        await asyncio.sleep(_EVERY_S)
        # With 4,000 rollouts in flight a pass takes 0.9 s: collect then only if cycles may fill the memory.
        if len(gc.get_objects(generation=2)) < _MANY_OBJECTS or _peak_memory() > memory + _GROWTH_BYTES:
            gc.collect()
            memory = _peak_memory()


def _peak_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


logger = logging.getLogger(__name__)

Notify = Callable[[str], None]
SandboxOpener = Callable[[], AbstractAsyncContextManager[Sandbox]]


class Lifecycle:
    """Opens and closes an environment, for `async with env`, `process`, `evaluate` and `serve`."""

    new_hook_calls: Callable[..., HookCalls] = HookCalls
    """Replaced by `check`, which traces calls."""

    def __init__(self, env: Hooks, parts: Parts, open_sandbox: SandboxOpener) -> None:
        self.env, self.parts, self._open_sandbox = env, parts, open_sandbox
        self.sandboxes = parts.sandboxes
        self.toolset = parts.toolset
        self._images = ItemImages(self.sandboxes.prepare)
        self._snapshots = Snapshots(self._prepare_snapshot)
        self.opened_files = OpenedFiles()
        self.weight_versions = WeightVersions(self.config)
        self.failure_kinds = FailureKinds()
        self.slots = Slots(parts.max_rollouts)
        self.item_ids: Sequence[str] = ()
        self._items: Sequence[Item] | None = None
        self._known_ids: Collection[str] = ()
        self._order = IN_ORDER
        self._is_open = self._waits = self.is_evaluation = False
        self.hook_threads = HookThreads()

    @property
    def config(self) -> AgentEnvConfig:
        return self.env.config

    @asynccontextmanager
    async def opened(self, *, evaluation: bool, waits: bool, notify: Notify) -> AsyncGenerator[None]:
        if not evaluation:
            self.weight_versions.refuse_without(self.parts.policy)
        opened = self.loaded(evaluation=evaluation)
        async with opened, rare_full_collections(), self.parts.mcp.connect(notify) as listed:
            self.toolset = select_toolsets(self.env.tools, self.config.enabled_toolsets, listed)
            try:
                self._waits, self.is_evaluation = waits, evaluation
                yield
            finally:
                self.toolset = self.parts.toolset
                await self._images.aclose()

    @asynccontextmanager
    async def loaded(self, *, evaluation: bool) -> AsyncGenerator[None]:
        env, parts = self.env, self.parts
        if self._is_open:
            raise ConfigError(f"environment {env.name!r} is open already; make another one")
        self._is_open = True
        async with AsyncExitStack() as closing:
            closing.callback(self._close)
            for served in (parts.served, parts.second_models, parts.reference):
                if served is not None:
                    closing.push_async_callback(served.aclose)
            if parts.warm_starts is not None:
                await closing.enter_async_context(parts.warm_starts)
            closing.push_async_callback(self._snapshots.aclose)
            # One thread for both: `def teardown` can close what `def setup` opened.
            calls = closing.enter_context(self.hook_calls(InFlight(item_id="", sibling=0), own_thread=True))
            with self.opened_files.watch():
                await self._hook(calls, "setup", env.setup)
                closing.push_async_exit(partial(self._tear_down, calls))
                name = "load_eval_items" if evaluation else "load_items"
                items = await self._hook(calls, name, getattr(env, name))
                # Reading the items may run user code.
                keep = partial(self._keep_items, items, evaluation=evaluation)
                await self._hook(calls, f"the items of {name}", keep)
            if not evaluation:
                self._refuse_unread_dataset()
            yield

    def _refuse_unread_dataset(self) -> None:
        """Raise ConfigError if `load_items` reads another source; reads by C libraries are not seen."""
        path = self.config.dataset_path
        read = {os.path.realpath(each) for each in self.opened_files.read}
        if path and path.endswith((".jsonl", ".json")) and os.path.realpath(path) not in read:
            raise ConfigError(
                f"environment {self.env.name!r} did not read --env.dataset_path {path}: its own load_items "
                f"gives the items; leave the setting out, or read `self.config.dataset_path` there"
            )

    def hook_calls(self, in_flight: InFlight, *, own_thread: bool | None = None) -> HookCalls:
        return self.new_hook_calls(
            in_flight,
            self.hook_threads,
            hook_timeout_s=self.config.hook_timeout_s,
            own_thread=pins_thread(self.env) if own_thread is None else own_thread,
            is_profiled=self.config.profile,
        )

    async def _hook(
        self, calls: HookCalls, name: str, function: Callable[[], Any], limit_s: float | None = None
    ) -> Any:
        """Return a hook's result outside of rollouts, mostly without a limit, since it may load a model."""
        try:
            given = await calls.run(function, doing=name, limit_s=limit_s, setting="hook_timeout_s")
            return require_finished(given, name)
        except (UsageError, RunError):
            raise
        except Exception as error:  # noqa: BLE001  # raised again, with whose code it is
            cause = cut_traceback(unwrap_user_error(error))
            raise RunError(f"environment {self.env.name!r}: {name} broke: {reason_of(cause)}") from cause

    def _keep_items(self, items: Any, *, evaluation: bool) -> None:
        config = self.config
        kept = check_items(items, config.max_items, self.env.required_fields, env=self.env.name)
        ids = item_ids(kept)
        if config.eval_share:
            left = indices_of_share(ids, config.eval_share, evaluation=evaluation)
            kept, ids = [kept[index] for index in left], [ids[index] for index in left]
        field = None if evaluation else config.weight_field
        weights = None if field is None else item_weights(kept, field)
        self._order = ItemOrder(seed=config.seed, shuffle=config.shuffle, weights=weights)
        self._items, self.item_ids, self._known_ids = kept, ids, dict.fromkeys(ids)

    def replace_items(self, kept: Mapping[str, Item]) -> None:
        self._items, self.item_ids, self._known_ids = list(kept.values()), list(kept), dict(kept)

    def _close(self) -> None:
        self._is_open, self._items = False, None

    async def _tear_down(self, calls: HookCalls, _: object, error: BaseException | None, __: object) -> None:
        try:
            await self._hook(calls, "teardown", self.env.teardown, self.config.hook_timeout_s)
        except Exception as second:
            if error is None:
                raise
            # The first error is the one to act on.
            logger.error("%s, as well\n%s", second, traceback_of(second.__cause__ or second))

    @property
    def items(self) -> Sequence[Item]:
        if self._items is None:
            raise ConfigError(f"environment {self.env.name!r} has no items yet; open it, `async with env: …`")
        return self._items

    def tasks(self) -> list[GroupTask]:
        return plan(self.items, self.item_ids, self.config.total_steps, self._order)

    def tasks_for_ever(self, first: int) -> Iterator[GroupTask]:
        return plan_for_ever(self.items, self.item_ids, first, self._order)

    async def next_ids(self, calls: HookCalls, history: RunHistory) -> list[str]:
        limit_s = self.config.hook_timeout_s
        given = await self._hook(calls, "next_items", partial(self.env.next_items, history), limit_s)
        # Reading the result may run user code.
        read = partial(next_ids, given, self._known_ids, env=self.env.name)
        return await self._hook(calls, "the ids of next_items", read, limit_s)

    def refuse_abandoned(self) -> None:
        self.hook_threads.refuse_more(self.env.name)

    def refuse_rollouts_before_setup(self) -> None:
        if self._items is None and writes(self.env, "setup"):
            raise ConfigError(
                f"environment {self.env.name!r} is not set up yet; open it, `async with env: …`"
            )

    def facts(self) -> dict[str, str]:
        return {
            "sandbox": self.sandboxes.kind,
            "verify_sandbox": self.sandboxes.verifier_kind,
            **self.sandboxes.package_facts(),
            **dict.fromkeys(self.roles_by_script(), SCRIPTED),
            **condenser_facts(self.parts.condensers),
        }

    async def preflight(self, notify: Notify) -> None:
        self.sandboxes.warn_of_lent_files()
        if not writes(self.env, "sandbox_for"):
            await self.sandboxes.prepare_packages(None, notify)
            await self.sandboxes.prepare(self.config.sandbox_image, notify)
            async with self._open_sandbox() as sandbox:
                self.sandboxes.note_isolation(sandbox)
                await refuse_no_listener(self.env, sandbox)
        else:
            await self._check_item_sandboxes(notify)
        await (self._servers_back(notify) if self._waits else self.check_policy())
        for line in () if self.parts.served is None else self.parts.served.found:
            notify(line)
        for server in self.parts.second_servers:
            if (name := self.parts.second_models.name_of(server.section)) != server.model_name:
                notify(f"the {server.section} is {one_line(name)}, the only model of its server")
        for role in () if self.parts.policy is None else self.roles_by_script():
            notify(f"the {role} is scripted (scripted_{role}): --{role}.base_url names a model server")

    @property
    def text_only_servers(self) -> tuple[str, ...]:
        return () if self.parts.served is None else self.parts.served.text_only

    async def _servers_back(self, notify: Notify) -> None:
        wait_s = _FIRST_WAIT_S
        while True:
            try:
                return await self.check_policy()
            except ServerAway as error:
                if wait_s == _FIRST_WAIT_S:
                    notify(f"{error}; waiting for it")
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    async def check_policy(self) -> None:
        await self.parts.second_models.check()
        if self.parts.reference is not None:
            await self.parts.reference.check()
        if isinstance(self.parts.policy, CheckedPolicy):
            with self.hook_calls(InFlight(item_id="", sibling=0)) as calls:
                await self._hook(calls, "the policy's check", self.parts.policy.check)

    def roles_by_script(self) -> list[str]:
        return [
            role
            for role in ROLES
            if role not in self.parts.second_models.roles and writes(self.env, f"scripted_{role}")
        ]

    def second_model(self, role: str, task: GroupTask, calls: HookCalls) -> SecondModel:
        script = getattr(self.env, f"scripted_{role}")
        models = self.parts.second_models
        asked = models.model_for(role, script, task.item, calls.hook, lambda: calls.hook_name)
        asked.group = (task.item_id, task.epoch)
        calls.asked[role] = asked.calls
        return asked

    def sandbox_openers(
        self, spec: SandboxSpec | None, snapshot: Snapshot | None = None
    ) -> tuple[SandboxOpener, SandboxOpener]:
        opener = self._open_sandbox if spec is None else partial(self.sandboxes.open, spec, snapshot)
        if self.sandboxes.are_opened:
            return opener, opener
        return opener, partial(self.sandboxes.open_for_verification, spec, snapshot)

    async def snapshot(
        self, spec: SandboxSpec | None, item: Item, calls: HookCalls, opened: AsyncExitStack
    ) -> Snapshot | None:
        """Return the prepared state of a spec, which is kept until `opened` closes."""
        if spec is None or spec.prepared is None:
            return None
        entered = partial(opened.enter_async_context, self._snapshots.of(spec, item))
        return await calls.run(entered, doing="prepare_sandbox")

    async def _prepare_snapshot(self, spec: SandboxSpec, item: Item) -> Snapshot:
        with self.hook_calls(InFlight(item_id=spec.prepared or "", sibling=0)) as calls:
            async with calls.sandbox(partial(self.sandboxes.open_for_verification, spec)) as sandbox:
                await calls.hook("prepare_sandbox", self.env.prepare_sandbox, item, sandbox)
                return await take_snapshot(sandbox)

    async def sandbox_spec(self, item: Item, calls: HookCalls) -> SandboxSpec | None:
        if not writes(self.env, "sandbox_for"):
            return None
        spec = self._check_spec(await calls.hook("sandbox_for", self.env.sandbox_for, item))
        image = self.sandboxes.image_of(spec)
        await calls.run(
            partial(self._images.ready, image), doing=f"the image, {image or 'that of its backend'}"
        )
        return spec

    def _check_spec(self, given: Any) -> SandboxSpec | None:
        return self.sandboxes.check_spec(given, prepares=writes(self.env, "prepare_sandbox"))

    async def _check_item_sandboxes(self, notify: Notify) -> None:
        """Count the items' images, and open one sandbox of the first image that can be had."""
        specs = await self._item_specs(notify)
        if not self.sandboxes.are_opened or not specs:
            return
        self._images = ItemImages(partial(self.sandboxes.prepare, notify=notify), specs)
        if len(specs) > 1:
            notify(f"{len(specs)} images, each made ready a little before a rollout needs it")
        reason: object = ""
        for image, spec in specs.items():
            try:
                await self._images.ready(image)
                async with self.sandbox_openers(spec)[0]() as sandbox:
                    self.sandboxes.note_isolation(sandbox)
                    await refuse_no_listener(self.env, sandbox)
                    return
            except (SandboxError, ConfigError) as error:
                reason = error
                notify(str(error))
        raise ConfigError(
            f"no sandbox that sandbox_for asks for can be opened, the last because of: {reason}"
        )

    async def _item_specs(self, notify: Notify) -> dict[str | None, SandboxSpec | None]:
        """Return the spec of each image's first item, in order; an item with a broken hook is skipped."""
        specs = dict[str | None, SandboxSpec | None]()
        with self.hook_calls(InFlight(item_id="", sibling=0)) as calls:
            for task in self.tasks():
                hook = partial(self.env.sandbox_for, task.for_rollout().item)
                try:
                    given = await self._hook(calls, "sandbox_for", hook, self.config.hook_timeout_s)
                except RunError as error:
                    if isinstance(error.__cause__, TimeLimitExceeded):
                        raise  # else every item would wait as long
                    continue  # its rollouts report it
                spec = self._check_spec(given)
                await self.sandboxes.prepare_packages(spec, notify)
                specs.setdefault(self.sandboxes.image_of(spec), spec)
        return specs
