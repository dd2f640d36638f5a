"""Groups to the trainer, none lost: the outbox, the trajectory API, and what happens when either stops."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from types import TracebackType
from typing import Self

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_exponential, wait_random

from environments.lifecycle.weight_versions import WeightVersions
from environments.serve.acknowledgements import Acknowledgements
from environments.serve.api_connection import ApiUnavailableError
from environments.serve.outbox import Outbox
from environments.serve.outbox_thread import OutboxThread
from environments.serve.registration import Registration
from environments.serve.sender import Sender, Tally
from environments.serve.trajectory_api import ApiState, TrajectoryApi
from environments.trajectory import CreditedGroup, TrajectoryGroup
from environments.wire.payloads import pack
from tools.errors import RecordError, TurnwiseError, WireError

POLL_S = 0.5
"""Also the longest time between a look at the API and a post: it cannot restart in less."""
_FIRST_POLL_S = 0.05
BACKOFF = wait_exponential(multiplier=0.2, max=15.0) + wait_random(0, 0.5)
"""Seconds between tries; the random part keeps environments from coming back all at once."""
_LONGEST_RETRY_AFTER_S = 30.0
_SIGN_OFF_S = 2.0


class ApiLostError(TurnwiseError):
    """The API or its trainer was away for longer than the user wants to wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryRules:
    """What is sent, and how long it waits."""

    max_batches_waiting: int = 3
    """Batches that may wait at the API; more wait in the outbox."""
    patience_s: float | None = None
    """How long the API or its trainer may be away; `None`: for ever."""
    weights: WeightVersions | None = None
    """Asked of each group once more before it is sent; `None`: any age is sent."""


class Delivery:
    """Carries groups from the outbox to the API. `put` feeds it, `run` does the work."""

    def __init__(
        self,
        in_outbox: OutboxThread,
        api: TrajectoryApi,
        registration: Registration,
        *,
        rules: DeliveryRules = DeliveryRules(),  # frozen
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Take up an outbox; what an earlier run left in it is sent first.

        Args:
            in_outbox: where groups wait.
            api: where they go.
            registration: the environment's, there.
            rules: what is sent, and how long it waits.
            say: shows a line to the user.
        """
        outbox = in_outbox.outbox
        self.tally = Tally()
        self.waiting = outbox.waiting_groups()
        """Groups with posts that the API does not have."""
        self.online = False
        """Whether the environment is registered and the API answers."""
        if rules.weights is not None:
            rules.weights.restore(outbox.met())
        self._sender = Sender(in_outbox, api, registration, tally=self.tally, say=say, weights=rules.weights)
        self._path = outbox.path
        self._in_outbox = in_outbox
        self._api = api
        self._registration = registration
        self._rules = rules
        self._say = say
        self._acknowledgements = Acknowledgements()
        self._acknowledgements.add(outbox.sent())
        self._sent_since_look = 0
        self._pause_s = _FIRST_POLL_S
        self._wake = asyncio.Event()
        self._changed = asyncio.Event()
        self._flushing = False
        self._trouble: str | None = None

    @property
    def state(self) -> ApiState | None:
        """What the API showed last."""
        return self._registration.state

    @property
    def num_steps(self) -> int:
        """Steps that the trainer means to take; -1 while unknown."""
        return -1 if self._registration.answer is None else self._registration.answer.num_steps

    @property
    def unconfirmed(self) -> int:
        """Posts that the API has and a trainer may not."""
        return len(self._acknowledgements)

    async def put(self, credited: CreditedGroup, *, number: int | None = None) -> str | None:
        """Take a group over: from here on it will be delivered, or is among the rejected.

        Args:
            credited: the group.
            number: of its task in the plan, which is finished in the same step.

        Returns:
            Why it can never be delivered; `None`: it will be.
        """
        group = credited.group
        try:
            package = await self._in_outbox(lambda _: pack(credited, self._registration.shape))
        except RecordError:
            raise
        except Exception as error:  # noqa: BLE001  # whatever a group holds: it is put aside, the next one goes on
            reason = str(error) if isinstance(error, WireError) else f"{type(error).__name__}: {error}"
            await self._put_aside(group, reason)
            if number is not None:
                await self.finish(number)
            return f"no trainer can read it: {reason}"
        if package.too_long:
            self._sender.too_long(f"item {group.item_id}", package.too_long)
        versions, met = group.weight_versions, () if self._rules.weights is None else self._rules.weights.met
        await self._in_outbox(
            lambda outbox: outbox.put(
                group.group_id, package.parts, number=number, versions=versions, met=met
            )
        )
        await self._recount()
        self._wake.set()
        return None

    async def finish(self, number: int) -> None:
        """Remember that a task of the plan is done without a group to deliver."""
        await self._in_outbox(lambda outbox: outbox.finish(number))

    async def progress(self) -> tuple[int, frozenset[int]]:
        """The first task of the plan that is not finished, and the finished ones beyond."""
        return await self._in_outbox(lambda outbox: (outbox.first_unfinished(), outbox.finished()))

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
        while not (self._flushing and self.waiting == 0):
            retrying = AsyncRetrying(
                retry=retry_if_exception_type(ApiUnavailableError), wait=_wait_s, before_sleep=self._lost
            )
            await retrying(self._step)

    async def flush(self, grace_s: float) -> None:
        """Send what waits, however full the API is; then sign off. Takes hardly longer than `grace_s`."""
        self._flushing = True
        self._wake.set()
        try:
            async with asyncio.timeout(grace_s):
                while self.waiting and self.online:
                    await self.changed()
        except TimeoutError:
            self._say(f"{self.waiting} groups could not be sent within {grace_s:g} s")
        try:
            async with asyncio.timeout(_SIGN_OFF_S):
                await self._registration.sign_off()
        except (TimeoutError, ApiUnavailableError) as error:
            self._say(f"could not sign off at the API: {str(error) or 'no time left'}")

    async def close(self) -> None:
        """Release the connection and the thread."""
        await self._api.close()
        self._in_outbox.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _step(self) -> None:
        """Look at the API, send what may be sent, then rest for a moment."""
        looked_at = monotonic()
        if not await self._registration.look() and not await self._register():
            self._away("waiting for the trainer to start")
            await asyncio.sleep(POLL_S)
            return
        answer, state = self._registration.answer, self._registration.state
        assert answer is not None
        assert state is not None
        if state.shares and self._acknowledgements.former:
            # Batches are no longer made oldest first: what left the queue cannot be told.
            self._registration.send_again()
            return
        await self._confirm(state)
        self._wake.clear()
        sent = False
        while self._may_send():
            post = await self._in_outbox(Outbox.next_post)
            if post is None or not self._registration.still_holds() or monotonic() - looked_at >= POLL_S:
                break
            if await self._sender.send(post, answer.env_id):
                self._acknowledgements.add([post.id])
                self._sent_since_look += 1
                sent = True
            await self._recount()
        await self._rest(busy=sent)

    async def _rest(self, *, busy: bool) -> None:
        """Wait for the next look: a trainer at work takes batch after batch, one that stalls takes none."""
        self._pause_s = _FIRST_POLL_S if busy else min(2 * self._pause_s, POLL_S)
        if self._registration.still_holds() and not (self._flushing or (self.waiting and self._may_send())):
            await _wait_for(self._wake, self._pause_s)

    async def _register(self) -> bool:
        before, weights = self._registration.state, self._rules.weights
        lost = await self._registration.register()
        if lost is None:
            return False
        now = self._registration.state
        assert now is not None
        if weights is not None and before is not None and now.step < before.step:
            weights.may_go_back()
        if lost:
            self._acknowledgements.clear()
            self.tally.repeated += lost
            await self._recount()
        self._acknowledgements.register_anew()
        self.tally.registrations += 1
        assert self._registration.answer is not None
        self._say(
            f"registered at {self._api.url} as environment {self._registration.answer.env_id}: batches of "
            f"{now.batch_size} rows, {self._registration.shape.rows_per_post} per post, "
            f"view {self._registration.shape.view}"
        )
        return True

    async def _confirm(self, state: ApiState) -> None:
        """Forget the posts that a trainer has by now."""
        self._sent_since_look = 0
        self._trouble = None
        self.online = True
        certain = self._acknowledgements.advance(step=state.step, queued=state.queued)
        if certain:
            await self._in_outbox(lambda outbox: outbox.remove(certain))
        self._changed.set()

    def _may_send(self) -> bool:
        """Whether one more group of ours may wait at the API."""
        state = self._registration.state
        if state is None or state.batch_size <= 0 or self._flushing:
            return state is not None and state.batch_size > 0
        rows = self._registration.shape.rows_per_post
        # One batch of our own may always wait: what others left there may never become a batch.
        if (self._own_groups(state) + self._sent_since_look) * rows < state.batch_size:
            return True
        waiting = state.queued * rows if state.waiting_rows is None else state.waiting_rows
        bound = (self._rules.max_batches_waiting - self._registration.formed) * state.batch_size
        return waiting + self._sent_since_look * rows < bound

    def _own_groups(self, state: ApiState) -> int:
        if state.own_groups is None:
            return min(self._acknowledgements.queued, state.queued)
        return state.own_groups + max(0, min(self._acknowledgements.former, state.queued - state.own_groups))

    def _lost(self, attempt: RetryCallState) -> None:
        error = None if attempt.outcome is None else attempt.outcome.exception()
        if not (isinstance(error, ApiUnavailableError) and error.not_taken):
            # It may have been replaced meanwhile: ask by registering anew.
            self._registration.drop()
        self._away(str(error))

    def _away(self, trouble: str) -> None:
        self.online = False
        self._changed.set()
        if trouble != self._trouble:
            self._trouble = trouble
            self._say(f"{trouble}; groups are kept in {self._path}")
        patience_s = self._rules.patience_s
        if patience_s is not None and monotonic() - self._registration.seen_at > patience_s:
            raise ApiLostError(
                f"{trouble}, for more than {patience_s:g} s; {self.waiting} groups wait in {self._path}"
            )

    async def _put_aside(self, group: TrajectoryGroup, reason: str) -> None:
        self._sender.reject(f"a group of item {group.item_id} is malformed: {reason}")
        await self._in_outbox(
            lambda outbox: outbox.note_rejected(
                group.group_id, reason, item_id=group.item_id, epoch=group.epoch
            )
        )

    async def _recount(self) -> None:
        self.waiting = await self._in_outbox(Outbox.waiting_groups)
        self._changed.set()


async def _wait_for(event: asyncio.Event, timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        pass


def _wait_s(attempt: RetryCallState) -> float:
    """What the API asked for, within reason, or our own pause where that is longer."""
    error = None if attempt.outcome is None else attempt.outcome.exception()
    asked_s = error.retry_after_s if isinstance(error, ApiUnavailableError) else 0.0
    return max(BACKOFF(attempt), min(asked_s, _LONGEST_RETRY_AFTER_S))
