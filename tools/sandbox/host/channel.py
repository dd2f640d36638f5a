"""The host's connection to a supervisor, with one request at a time."""

import asyncio
import logging
import socket
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Self, cast

from tools.errors import AgentCausedError, SandboxUnavailable
from tools.sandbox.host.silence import Counters, limit_hit
from tools.sandbox.inside import messages
from tools.waiting import or_undo, to_the_end

_GRACE_S = 15.0
"""Time beyond a command's own limit before silence counts."""
_TRICKLE_S = 150.0
"""Limit for a late answer in pieces."""
_ANSWER_BYTES = 2048


class Channel(asyncio.Protocol):
    """Requests to one supervisor; each layer here slows down every command."""

    def __init__(
        self,
        take: Callable[[bytes], bytes] = bytes,
        counters: Callable[[], Counters] = dict[str, float],
        wake: Callable[[], bool] = bool,
    ) -> None:
        """Create an unconnected channel; `over` connects one.

        `take` extracts message bytes; `counters` and `wake` run in threads. `wake` resumes a stopped
        supervisor and returns whether it was stopped.
        """
        self._take, self._counters, self._wake = take, counters, wake
        self._loop = asyncio.get_running_loop()
        self._turn = asyncio.Lock()
        self._inbox = messages.Inbox()
        self._waiting: asyncio.Future[messages.Reply] | None = None
        self._is_answered = False
        self._heard_at = 0.0
        self.broken: str | None = None
        """Why the channel can no longer be used; None while it can."""
        self._transport: asyncio.Transport | None = None
        self.reason = ""
        self.verdict: AgentCausedError | SandboxUnavailable | None = None

    @classmethod
    async def over(cls, sock: socket.socket, *of: Any, **more: Any) -> Self:
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        _, channel = await loop.create_connection(lambda: cls(*of, **more), sock=sock)
        return channel

    async def request(self, request: messages.Request) -> messages.Reply:
        """Send a request and wait for its answer; a cancellation first kills the command.

        Raises:
            SandboxUnavailable: if the sandbox is closed, died or does not answer.
            AgentCausedError: if it does not answer and its counters show that the agent exhausted a limit.
        """
        async with self._turn:
            if self.broken is not None:
                raise self.verdict or SandboxUnavailable(self.broken)
            answer = self._expect()
            self._write(request)
            deadline = self._loop.call_later(request.timeout_s, self._begin_judging, answer)
            try:
                return await answer
            except asyncio.CancelledError:
                if answer.cancelled() and not self._is_answered:
                    # Kill the command and wait for its answer, which the next request would receive.
                    killed = self._expect()
                    self._write(messages.Cancel())
                    await to_the_end(self._judge(killed))
                    if not killed.cancelled():
                        killed.exception()
                raise
            finally:
                deadline.cancel()

    async def listen(self) -> socket.socket:
        """Return a socket that listens on the supervisor's loopback; the caller closes it."""
        async with self._turn:
            return await or_undo(self._receive_listener(), partial(asyncio.to_thread, socket.socket.close))

    def close(self, reason: str) -> None:
        self._break(reason)
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._heard_at = self._loop.time()
        self._inbox.add(self._take(data))
        while (message := self._inbox.next()) is not None:
            if isinstance(message, messages.Died):
                self.reason = message.reason
                self._break(f"the sandbox died: {message.reason}")
            elif isinstance(message, (messages.Done, messages.Refused)) and self._waiting is not None:
                self._is_answered = True
                if not self._waiting.done():
                    self._waiting.set_result(message)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._break("the sandbox died")

    async def _receive_listener(self) -> socket.socket:
        if self.broken is not None or self._transport is None:
            raise SandboxUnavailable(self.broken or "the sandbox is not connected")
        # The transport would drop the descriptor.
        self._transport.pause_reading()
        ours, readable = self._transport.get_extra_info("socket").dup(), asyncio.Event()
        self._loop.add_reader(ours, readable.set)
        try:
            self._write(messages.Listen())
            await asyncio.wait_for(readable.wait(), _GRACE_S)
            answer, passed, _, _ = socket.recv_fds(ours, _ANSWER_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
        except (OSError, TimeoutError) as error:
            self.close("the sandbox does not answer")
            raise SandboxUnavailable("the sandbox does not answer") from error
        finally:
            self._loop.remove_reader(ours)
            ours.close()
            self._transport.resume_reading()
        if not passed:
            reason = messages.decode(answer[messages.HEADER_BYTES :]) if answer else "it died"
            raise SandboxUnavailable(f"the sandbox passes no socket: {reason}")
        return socket.socket(fileno=passed[0])

    def _expect(self) -> "asyncio.Future[messages.Reply]":
        self._is_answered = False
        self._waiting = self._loop.create_future()
        return self._waiting

    def _write(self, message: messages.Message) -> None:
        if self._transport is not None:
            self._transport.write(messages.encode(message))

    def _begin_judging(self, answer: "asyncio.Future[messages.Reply]") -> None:
        # The event loop keeps only a weak reference.
        self._judging = self._loop.create_task(self._judge(answer))

    async def _judge(self, answer: "asyncio.Future[messages.Reply]") -> None:
        """Wait for a late answer, or close the channel and find the cause of the silence."""
        reason, hit, stopped_again = "the sandbox does not answer", None, False
        try:
            await self._wait_for_silence(answer)
            if answer.done():
                return
            began, before = self._loop.time(), await asyncio.to_thread(self._counters)
            await self._wait_for_silence(answer)
            if not answer.done():
                after = await asyncio.to_thread(self._counters)
                hit = limit_hit(before, after, self._loop.time() - began)
            if hit is None and not answer.done() and await asyncio.to_thread(self._wake):
                # A process outside may have stopped it once; the second stop comes from inside.
                await asyncio.wait({answer}, timeout=_GRACE_S)
                stopped_again = not answer.done() and await asyncio.to_thread(self._wake)
        finally:
            if not answer.done():
                if hit is not None:
                    reason += f", and the agent is at a limit that was set for it ({hit})"
                    self.verdict = AgentCausedError(reason, cause="sandbox_lost")
                elif not stopped_again:
                    self.verdict = SandboxUnavailable(reason)
                self.close(reason)

    async def _wait_for_silence(self, answer: "asyncio.Future[messages.Reply]") -> None:
        """Wait for the answer, for silence of half the grace period, or for the trickle limit."""
        began = self._loop.time()
        while not answer.done():
            due = min(max(began, self._heard_at) + _GRACE_S / 2, began + _TRICKLE_S)
            left_s = due - self._loop.time()
            if left_s <= 0:
                return
            await asyncio.wait({answer}, timeout=left_s)

    def _break(self, reason: str) -> None:
        self.broken = self.broken or reason
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(self.verdict or SandboxUnavailable(self.broken))


_LOG = logging.getLogger(__name__)
_MESSAGE = b"every process of the sandbox was killed\n"


class RecoveringChannel:
    """A channel that survives its supervisor; `supervise` starts another."""

    def __init__(self, channel: Channel, supervise: Callable[[], Awaitable[Channel]]) -> None:
        self._channel = channel
        self._supervise = supervise
        self._turn = asyncio.Lock()
        self._closed = False

    async def request(self, request: messages.Request) -> messages.Reply:
        """Send a request and wait for its answer.

        Raises:
            SandboxUnavailable: if the sandbox is closed or the backend is gone.
            AgentCausedError: if the agent exhausted a limit, or no other supervisor starts.
        """
        async with self._turn:
            if self._channel.broken:
                await self._replace()
            started = time.monotonic()
            try:
                return await self._channel.request(request)
            except SandboxUnavailable:
                await self._replace()
            if isinstance(request, messages.OWN_REQUESTS):
                # Unlike commands, these can be repeated.
                try:
                    return await self._channel.request(request)
                except SandboxUnavailable:
                    # This raises if the backend is gone.
                    await self._replace()
            spent_s = time.monotonic() - started
            return messages.Done(
                exit_code=137,
                stdout=b"",
                stderr=_MESSAGE,
                stdout_total=0,
                stderr_total=len(_MESSAGE),
                timed_out=spent_s >= request.timeout_s,
                oom_killed=False,
                shell_restarted=True,
                duration_s=spent_s,
            )

    def close(self, reason: str) -> None:
        self._closed = True
        self._channel.close(reason)

    async def _replace(self) -> None:
        if self._closed:
            raise SandboxUnavailable("the sandbox is closed")
        if self._channel.verdict is not None:
            raise self._channel.verdict
        if self._channel.reason:
            _LOG.warning("a supervisor broke and is replaced: %s", self._channel.reason)
        self._channel.close("the supervisor is replaced")
        self._channel = await self._supervise()
        if self._closed:
            self.close("the sandbox is closed")
