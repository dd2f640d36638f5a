"""Delivery of groups to the trainer without loss: outbox, trajectory API, and recovery when either stops."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, replace
from itertools import chain
from time import monotonic
from typing import Self

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_exponential, wait_random

from environments.rollout.lifecycle.weight_versions import WeightVersions
from environments.run.group_source import FinishedGroup
from environments.serve.outbox import Outbox, OutboxThread, Post
from environments.serve.registration import Registration
from environments.serve.trajectory_api import ApiState, ApiUnavailableError, PostRefusedError, TrajectoryApi
from environments.wire.padding import is_longer_than
from environments.wire.payloads import part_without, post_body
from tools.errors import TurnwiseError

POLL_S = 0.5
"""Longest time between a look at the API and a post: the API cannot restart faster."""
_FIRST_POLL_S = 0.05
BACKOFF = wait_exponential(multiplier=0.2, max=15.0) + wait_random(0, 0.5)
_LONGEST_RETRY_AFTER_S = 30.0
_SIGN_OFF_S = 2.0


class Acknowledgements:
    """Tracks posts from the API's queue into a batch and to the trainer.

    The API acknowledges a post when it is in its memory, which is lost when the API dies, and never reports
    what a trainer received. But batches are formed from the oldest groups first, and new ones only after all
    earlier batches were fetched (`tests/environments/serve/test_atropos_facts.py`). So a post that left the
    queue is in a batch, and once the step increases after that, the batch was fetched.

    With shares of a batch, "oldest first" holds only within one registration: see `former`.
    """

    def __init__(self) -> None:
        self.former = 0
        """Posts under an earlier registration that may still be queued."""
        self._queued: deque[int] = deque()
        self._batched: deque[tuple[int, int]] = deque()

    def add(self, posts: Iterable[int]) -> None:
        self._queued.extend(posts)

    def advance(self, *, step: int, queued: int) -> list[int]:
        """Update with the API's step and queue length, read together; return the newly acknowledged posts."""
        acknowledged: list[int] = []
        while self._batched and self._batched[0][1] < step:
            acknowledged.append(self._batched.popleft()[0])
        # Only our newest `queued` posts can still be in the queue.
        while len(self._queued) > queued:
            self._batched.append((self._queued.popleft(), step))
            self.former = max(0, self.former - 1)
        return acknowledged

    def mark_former(self) -> None:
        self.former = len(self._queued)

    @property
    def queued(self) -> int:
        return len(self._queued)

    def clear(self) -> None:
        self.former = 0
        self._queued.clear()
        self._batched.clear()

    def __len__(self) -> int:
        return len(self._queued) + len(self._batched)


@dataclass(slots=True, kw_only=True)
class Tally:
    posts: int = 0
    rejected: int = 0
    too_long: int = 0
    repeated: int = 0
    registrations: int = 0
    withheld: int = 0


@dataclass(frozen=True, slots=True)
class Sender:
    in_outbox: OutboxThread
    api: TrajectoryApi
    registration: Registration
    _: KW_ONLY
    tally: Tally
    say: Callable[[str], None]
    weights: WeightVersions | None

    async def send(self, post: Post, env_id: int) -> bool:
        """Send a post and return whether the API has it now.

        Raises ApiUnavailableError if it may or may not have arrived; it then waits behind the others.
        """
        if await self._withhold(post) or (fitting := await self._fitting(post)) is None:
            return False
        try:
            answer = await self.api.post_rows(post_body(fitting.part.body, env_id))
        except PostRefusedError as error:
            reason = str(error)
            await self.in_outbox(lambda outbox: outbox.reject(fitting, reason))
            self.reject(f"group {post.group_id}: {reason}")
            return False
        except ApiUnavailableError as error:
            await self.in_outbox(lambda outbox: outbox.postpone(fitting))
            if fitting.tries + 1 in (10, 100, 1000):
                self.say(f"group {post.group_id} was not taken {fitting.tries + 1} times: {error}")
            raise
        if answer == "buffered":
            # Our number belongs to another environment: register again, then send again.
            self.registration.drop()
            return False
        await self.in_outbox(lambda outbox: outbox.mark_sent(fitting))
        self.tally.posts += 1
        return True

    def reject(self, what: str) -> None:
        self.tally.rejected += 1
        self.say(f"rejected for good, see {self.in_outbox.outbox.rejected_path}: {what}")

    def too_long(self, where: str, rows: int) -> None:
        self.tally.too_long += rows
        self.say(f"{where}: {rows} rows are too long for the trainer; left out")

    async def _withhold(self, post: Post) -> bool:
        weights = self.weights
        if weights is None or weights.max_staleness is None:
            return False
        versions = await self.in_outbox(lambda outbox: outbox.unsent_versions(post))
        if (reason := weights.too_old([*chain.from_iterable(versions.values())])) is None:
            return False
        left = {sibling: each for sibling, each in versions.items() if weights.too_old(each) is None}
        rows = await self.in_outbox(lambda outbox: outbox.withhold(post.group_id, left))
        self.tally.withheld += rows
        self.say(f"group {post.group_id}: {rows} rows are not trained, {reason}")
        return True

    async def _fitting(self, post: Post) -> Post | None:
        limit = self.registration.shape.max_row_tokens
        if limit is None or post.part.longest_row <= limit:
            return post
        part, too_long = await self.in_outbox(lambda _: part_without(post.part, is_longer_than(limit)))
        self.too_long(f"group {post.group_id}", too_long)
        if part is None:
            await self.in_outbox(lambda outbox: outbox.remove([post.id]))
            return None
        await self.in_outbox(lambda outbox: outbox.replace(post.id, part))
        return replace(post, part=part)


class ApiLostError(TurnwiseError):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryRules:
    max_batches_waiting: int = 3
    patience_s: float | None = None
    """Longest absence of the API or its trainer; `None`: no limit."""
    weights: WeightVersions | None = None


class Delivery:
    def __init__(
        self,
        in_outbox: OutboxThread,
        api: TrajectoryApi,
        registration: Registration,
        *,
        rules: DeliveryRules = DeliveryRules(),  # frozen
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        outbox = in_outbox.outbox
        self.tally = Tally()
        self.waiting = outbox.waiting_groups()
        self.online = False
        if rules.weights is not None:
            rules.weights.restore(outbox.weight_versions())
        self._sender = Sender(in_outbox, api, registration, tally=self.tally, say=say, weights=rules.weights)
        self.path = outbox.path
        self._in_outbox, self._api, self._registration = in_outbox, api, registration
        self._rules, self._say = rules, say
        self._acknowledgements = Acknowledgements()
        self._acknowledgements.add(outbox.sent_posts())
        self._sent_since_look = 0
        self._groups_put = self._posts_put = 0
        self._waiting_posts = outbox.waiting_posts()
        self._pause_s = _FIRST_POLL_S
        self._wake = asyncio.Event()
        self._changed = asyncio.Event()
        self._flushing = False
        self._trouble: str | None = None

    @property
    def state(self) -> ApiState | None:
        return self._registration.state

    @property
    def num_steps(self) -> int:
        return -1 if self._registration.answer is None else self._registration.answer.num_steps

    @property
    def unconfirmed(self) -> int:
        return len(self._acknowledgements)

    @property
    def max_row_tokens(self) -> int | None:
        return self._registration.shape.max_row_tokens

    async def put(self, done: FinishedGroup, *, number: int | None = None) -> None:
        """Add a group: it will be delivered, or is among the rejected if it has no posts.

        Its task of the plan, `number`, is finished in the same transaction.
        """
        note, package = done.note, done.package
        if package is None:
            past, reason = note.past, done.malformed or "it has no posts"
            self._sender.reject(f"a group of item {past.item_id} is malformed: {reason}")
            await self._in_outbox(
                lambda outbox: outbox.note_rejected(
                    note.group_id, reason, item_id=past.item_id, epoch=past.epoch
                )
            )
            if number is not None:
                await self.finish(number)
            return
        if package.too_long:
            self._sender.too_long(f"item {note.past.item_id}", package.too_long)
        seen_versions = () if self._rules.weights is None else self._rules.weights.seen
        await self._in_outbox(
            lambda outbox: outbox.put(
                note.group_id,
                package.parts,
                number=number,
                versions=note.versions,
                seen_versions=seen_versions,
            )
        )
        self._groups_put, self._posts_put = self._groups_put + 1, self._posts_put + len(package.parts)
        await self._recount()
        self._wake.set()

    async def finish(self, number: int) -> None:
        await self._in_outbox(lambda outbox: outbox.finish(number))

    async def progress(self) -> tuple[int, frozenset[int]]:
        return await self._in_outbox(lambda outbox: (outbox.first_unfinished(), outbox.finished_tasks()))

    async def has_delivered(self) -> bool:
        return await self._in_outbox(lambda outbox: outbox.fact("met") is not None)

    async def changed(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    async def run(self) -> None:
        """Deliver until cancelled, or until `flush` was called and no group waits.

        Raises ApiLostError after `patience_s`, with every group kept; ConfigError if there is no trajectory
        API, or its batches cannot be filled with our groups.
        """
        while not (self._flushing and self.waiting == 0):
            retrying = AsyncRetrying(
                retry=retry_if_exception_type(ApiUnavailableError),
                wait=_wait_s,
                before_sleep=self._handle_loss,
            )
            await retrying(self._step)

    async def flush(self, grace_s: float | None) -> None:
        """Send what the API may have by now, or everything without `grace_s`, then sign off.

        Other groups stay in the outbox: at the API they would grow old out of our reach.
        """
        self._flushing = True
        self._wake.set()
        try:
            async with asyncio.timeout(grace_s):
                while self.waiting and (grace_s is None or (self.online and self._may_send())):
                    await self.changed()
        except TimeoutError:
            self._say(f"{self.waiting} groups could not be sent within {grace_s:g} s")
        try:
            async with asyncio.timeout(_SIGN_OFF_S):
                await self._registration.sign_off()
        except (TimeoutError, ApiUnavailableError) as error:
            self._say(f"could not sign off at the API: {str(error) or 'no time left'}")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._api.close()
        self._in_outbox.close()

    async def _step(self) -> None:
        looked_at = monotonic()
        if not await self._registration.look() and not await self._register():
            self._away("waiting for the trainer to start")
            await asyncio.sleep(POLL_S)
            return
        answer, state = self._registration.answer, self._registration.state
        assert answer is not None
        assert state is not None
        if state.shares and self._acknowledgements.former:
            # Batches are no longer formed oldest first, so the posts that left are unknown.
            self._registration.send_again()
            return
        self._sent_since_look, self._trouble, self.online = 0, None, True
        if certain := self._acknowledgements.advance(step=state.step, queued=state.queued):
            await self._in_outbox(lambda outbox: outbox.remove(certain))
        self._changed.set()
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
        self._pause_s = _FIRST_POLL_S if sent else min(2 * self._pause_s, POLL_S)
        if self._registration.still_holds() and not (self.waiting and self._may_send()):
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pause_s):
                    await self._wake.wait()

    async def _register(self) -> bool:
        before, weights = self._registration.state, self._rules.weights
        lost = await self._registration.register()
        if lost is None:
            return False
        now = self._registration.state
        assert now is not None
        if weights is not None and before is not None and now.step < before.step:
            weights.note_restart()
        if lost:
            self._acknowledgements.clear()
            self.tally.repeated += lost
            await self._recount()
        self._acknowledgements.mark_former()
        self.tally.registrations += 1
        assert self._registration.answer is not None
        self._say(
            f"registered at {self._api.url} as environment {self._registration.answer.env_id}: batches of "
            f"{now.batch_size} rows, {self._registration.shape.rows_per_post} per post, "
            f"view {self._registration.shape.view}"
        )
        return True

    def _may_send(self) -> bool:
        state = self._registration.state
        if state is None or state.batch_size <= 0:
            return False
        rows = self._registration.shape.rows_per_post
        # One batch of ours may always wait: groups of others may never fill a batch.
        if (self._own_groups(state) + self._sent_since_look) * rows < state.batch_size:
            return True
        waiting = state.queued * rows if state.waiting_rows is None else state.waiting_rows
        bound = (self._rules.max_batches_waiting - self._registration.formed) * state.batch_size
        return waiting + self._sent_since_look * rows < bound

    def has_room(self, in_flight: int) -> bool:
        """Whether another group would be fresh enough for `max_staleness` when the trainer reaches it.

        That many batches, but at least one, may precede it: in flight, in the outbox and at the API. Source:
        "AReaL" (arXiv 2505.24298), equation 3, while a step is in progress.
        """
        state, weights = self._registration.state, self._rules.weights
        if weights is None or weights.max_staleness is None or state is None or state.batch_size <= 0:
            return True
        shape = self._registration.shape
        first_guess = shape.group_size // shape.rows_per_post
        posts_of_group = self._posts_put / self._groups_put if self._groups_put else first_guess
        # Without posts of a former registration, which may be gone.
        own = self._own_groups(state) if state.own_groups is None else state.own_groups
        sent = own + self._sent_since_look
        posts = in_flight * posts_of_group + self._waiting_posts + sent
        # At least one: formed batches may have been fetched by now.
        batches = max(1, weights.max_staleness - self._registration.formed)
        return posts * shape.rows_per_post < batches * state.batch_size

    def _own_groups(self, state: ApiState) -> int:
        if state.own_groups is None:
            return min(self._acknowledgements.queued, state.queued)
        return state.own_groups + max(0, min(self._acknowledgements.former, state.queued - state.own_groups))

    def _handle_loss(self, attempt: RetryCallState) -> None:
        error = attempt.outcome and attempt.outcome.exception()
        if not (isinstance(error, ApiUnavailableError) and error.not_taken):
            # The API may have been replaced meanwhile.
            self._registration.drop()
        self._away(str(error))

    def _away(self, trouble: str) -> None:
        self.online = False
        self._changed.set()
        if trouble != self._trouble:
            self._trouble = trouble
            self._say(f"{trouble}; groups are kept in {self.path}")
        patience_s = self._rules.patience_s
        if patience_s is not None and monotonic() - self._registration.seen_at > patience_s:
            raise ApiLostError(
                f"{trouble}, for more than {patience_s:g} s; {self.waiting} groups wait in {self.path}"
            )

    async def _recount(self) -> None:
        self.waiting, self._waiting_posts = await self._in_outbox(
            lambda outbox: (outbox.waiting_groups(), outbox.waiting_posts())
        )
        self._changed.set()


def _wait_s(attempt: RetryCallState) -> float:
    error = attempt.outcome and attempt.outcome.exception()
    retry_after_s = error.retry_after_s if isinstance(error, ApiUnavailableError) else 0.0
    return max(BACKOFF(attempt), min(retry_after_s, _LONGEST_RETRY_AFTER_S))
