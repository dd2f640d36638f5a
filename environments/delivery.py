"""Groups to the trainer, none lost: the outbox, the trajectory API, and what happens when either stops."""

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from time import monotonic
from types import TracebackType
from typing import Self, TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_exponential, wait_random

from environments.link import Link
from environments.outbox import Outbox, Post
from environments.payloads import Shape, pack, post_body
from environments.receipts import Receipts
from environments.trajectory import CreditedGroup
from environments.trajectory_api import (
    ApiState,
    ApiUnavailableError,
    PostRefusedError,
    TrajectoryApi,
)
from tools.errors import ConfigError, RecordError, TurnwiseError, WireError

POLL_S = 0.5
"""Also the longest time between a look at the API and a post: it cannot restart in less."""
LONGEST_WAIT_S = 15.0

Result = TypeVar("Result")


class ApiLostError(TurnwiseError):
    """The API or its trainer was away for longer than the user wants to wait."""


@dataclass(slots=True, kw_only=True)
class Tally:
    """What a delivery did so far; only the delivery changes it."""

    posts: int = 0
    """Posts that the API took."""
    rejected: int = 0
    """Posts and groups that will never be delivered."""
    too_long: int = 0
    """Rows left out because of the trainer's limit."""
    repeated: int = 0
    """Posts sent once more because the API lost its memory."""
    registrations: int = 0


class Delivery:
    """Carries groups from the outbox to the API. `put` feeds it, `run` does the work."""

    def __init__(
        self,
        outbox: Outbox,
        api: TrajectoryApi,
        link: Link,
        *,
        max_batches_waiting: int = 3,
        patience_s: float | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Take up an outbox; what an earlier run left in it is sent first.

        Args:
            outbox: where groups wait.
            api: where they go.
            link: the registration there.
            max_batches_waiting: batches that may wait at the API; more wait in the outbox.
            patience_s: how long the API or its trainer may be away; `None`: for ever.
            say: shows a line to the user.

        Raises:
            ConfigError: the outbox holds posts of another encoding or group size.
        """
        self.tally = Tally()
        self.waiting = outbox.waiting_groups()
        """Groups with posts that the API does not have."""
        self.online = False
        """Whether the environment is registered and the API answers."""
        self._outbox = outbox
        self._api = api
        self._link = link
        self._max_batches_waiting = max_batches_waiting
        self._patience_s = patience_s
        self._say = say
        self._receipts = Receipts()
        self._receipts.sent(outbox.sent())
        self._sent_since_look = 0
        self._wake = asyncio.Event()
        self._changed = asyncio.Event()
        self._flushing = False
        self._trouble: str | None = None
        # One thread for the file and for encoding: neither stops the event loop, and SQLite has one user.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="delivery")
        _refuse_other_shape(outbox, link.shape)

    @property
    def state(self) -> ApiState | None:
        """What the API showed last."""
        return self._link.state

    @property
    def num_steps(self) -> int:
        """Steps that the trainer means to take; -1 while unknown."""
        return -1 if self._link.registration is None else self._link.registration.num_steps

    @property
    def unconfirmed(self) -> int:
        """Posts that the API has and a trainer may not."""
        return len(self._receipts)

    async def put(self, credited: CreditedGroup) -> None:
        """Take a group over: from here on it will be delivered, or is among the rejected with a reason."""
        group = credited.group
        try:
            package = await self._in_thread(partial(pack, credited, self._link.shape))
        except WireError as error:
            self._reject(f"a group of item {group.item_id} is malformed: {error}")
            await self._in_thread(
                partial(
                    self._outbox.note_rejected,
                    group.group_id,
                    str(error),
                    item_id=group.item_id,
                    epoch=group.epoch,
                )
            )
            return
        if package.too_long:
            self.tally.too_long += package.too_long
            self._say(f"item {group.item_id}: {package.too_long} rows are too long for the trainer; left out")
        await self._in_thread(partial(self._outbox.put, group.group_id, package.parts))
        await self._recount()
        self._wake.set()

    async def place(self) -> int:
        """How far the items were gone through, by what `keep_place` was last told; 0 at first."""
        return int(await self._in_thread(partial(self._outbox.fact, "place")) or 0)

    async def keep_place(self, place: int) -> None:
        """Remember how far the items were gone through."""
        await self._in_thread(partial(self._outbox.remember, "place", str(place)))

    async def changed(self) -> None:
        """Wait until groups left the outbox, or the API was looked at or lost."""
        self._changed.clear()
        await self._changed.wait()

    async def run(self) -> None:
        """Deliver until cancelled, or until `flush` was called and nothing waits.

        Raises:
            ApiLostError: `patience_s` is over; every group is kept.
            ConfigError: no trajectory API there, or its batch size cannot be made of our groups.
        """
        backoff = wait_exponential(multiplier=0.2, max=LONGEST_WAIT_S) + wait_random(0, 0.5)
        while not (self._flushing and self.waiting == 0):
            retrying = AsyncRetrying(
                retry=retry_if_exception_type(ApiUnavailableError), wait=backoff, before_sleep=self._lost
            )
            await retrying(self._step)

    async def flush(self, grace_s: float) -> None:
        """Send what waits, however full the API is; then sign off. Takes no longer than `grace_s`."""
        self._flushing = True
        self._wake.set()
        try:
            async with asyncio.timeout(grace_s):
                while self.waiting and self.online:
                    await self.changed()
                if self._link.still_holds() and self._link.registration is not None:
                    await self._api.disconnect(self._link.registration.env_id)
        except (TimeoutError, ApiUnavailableError) as error:
            self._say(f"could not sign off at the API: {str(error) or 'no time left'}")

    async def close(self) -> None:
        """Release the connection and the thread."""
        await self._api.close()
        self._thread.shutdown()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _step(self) -> None:
        """Look at the API, send what may be sent, then rest for a moment."""
        looked_at = monotonic()
        if not await self._link.look() and not await self._register():
            self._away("waiting for the trainer to start")
            await asyncio.sleep(POLL_S)
            return
        assert self._link.registration is not None
        await self._confirm()
        self._wake.clear()
        while self._may_send() and monotonic() - looked_at < POLL_S:
            post = await self._in_thread(self._outbox.next_post)
            if post is None:
                break
            await self._send(post, self._link.registration.env_id)
            if not self._link.still_holds():
                return
        if not (self._flushing or (self.waiting and self._may_send())):
            # With groups waiting, a trainer that takes a batch makes room: look again sooner.
            await _wait_for(self._wake, POLL_S / 10 if self.waiting else POLL_S)

    async def _send(self, post: Post, env_id: int) -> None:
        try:
            answer = await self._api.post_rows(post_body(post.body, env_id))
        except PostRefusedError as error:
            await self._in_thread(partial(self._outbox.reject, post, str(error)))
            self._reject(f"group {post.group_id}: {error}")
        except ApiUnavailableError:
            await self._in_thread(partial(self._outbox.postpone, post))
            raise
        else:
            if answer == "buffered":
                # Our number belongs to an environment with other groups: register anew, send again.
                self._link.drop()
                return
            await self._in_thread(partial(self._outbox.mark_sent, post))
            self._receipts.sent([post.id])
            self.tally.posts += 1
            self._sent_since_look += 1
        await self._recount()

    async def _register(self) -> bool:
        """Register; what an API without memory of us has lost waits to be sent again."""
        # An attempt whose end we never saw may have made the API know our name: then its answer proves
        # nothing, and everything is sent again.
        settled = await self._in_thread(partial(self._outbox.fact, "settled"))
        await self._in_thread(partial(self._outbox.remember, "settled", "no"))
        registration = await self._link.register()
        if registration is None:
            await self._in_thread(partial(self._outbox.remember, "settled", settled or "yes"))
            return False
        if settled == "no" or not registration.known_before:
            self._receipts.forget()
            self.tally.repeated += await self._in_thread(self._outbox.unsend)
            await self._recount()
        former = await self._in_thread(partial(self._outbox.fact, "env_id"))
        await self._in_thread(partial(self._outbox.remember, "env_id", str(registration.env_id)))
        await self._in_thread(partial(self._outbox.remember, "settled", "yes"))
        if registration.known_before and former is not None and settled != "no":
            await self._api.disconnect(int(former))
        self.tally.registrations += 1
        assert self._link.state is not None
        self._say(
            f"registered at {self._api.url} as environment {registration.env_id}: batches of "
            f"{self._link.state.batch_size} rows, {self._link.shape.rows_per_post} per post, "
            f"encoding {self._link.shape.encoding}"
        )
        return True

    async def _confirm(self) -> None:
        """Forget the posts that a trainer has by now."""
        state = self._link.state
        assert state is not None
        self._sent_since_look = 0
        self._trouble = None
        self.online = True
        certain = self._receipts.seen(step=state.step, queued=state.queued)
        if certain:
            await self._in_thread(partial(self._outbox.remove, certain))
        self._changed.set()

    def _may_send(self) -> bool:
        state = self._link.state
        if self._flushing or state is None:
            return state is not None
        rows = (state.queued + self._sent_since_look) * self._link.shape.rows_per_post
        return rows < self._max_batches_waiting * state.batch_size

    def _lost(self, attempt: RetryCallState) -> None:
        self._away(str(None if attempt.outcome is None else attempt.outcome.exception()))

    def _away(self, trouble: str) -> None:
        self.online = False
        self._changed.set()
        if trouble != self._trouble:
            self._trouble = trouble
            self._say(f"{trouble}; groups are kept in {self._outbox.path}")
        if self._patience_s is not None and monotonic() - self._link.seen_at > self._patience_s:
            raise ApiLostError(
                f"{trouble}, for more than {self._patience_s:g} s; "
                f"{self.waiting} groups wait in {self._outbox.path}"
            )

    def _reject(self, what: str) -> None:
        self.tally.rejected += 1
        self._say(f"rejected for good, see {self._outbox.rejected_path}: {what}")

    async def _recount(self) -> None:
        self.waiting = await self._in_thread(self._outbox.waiting_groups)
        self._changed.set()

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except sqlite3.Error as error:
            raise RecordError(f"cannot write the outbox {self._outbox.path}: {error}") from error


def _refuse_other_shape(outbox: Outbox, shape: Shape) -> None:
    named = f"{shape.encoding} in groups of {shape.rows_per_post}"
    before = outbox.fact("shape")
    if before not in (None, named) and len(outbox):
        raise ConfigError(
            f"the outbox {outbox.path} holds posts as {before}, and this run makes {named}; deliver them "
            f"with the former settings, or choose another --env.outbox_path"
        )
    outbox.remember("shape", named)


async def _wait_for(event: asyncio.Event, timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        pass
