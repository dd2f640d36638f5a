"""The loop of a recorded agent: its requests become turns, scored as soon as their results are known."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack
from contextvars import Context, copy_context
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from time import monotonic
from typing import Any, cast

from environments.config import Constraints
from environments.policy.base import CannotEnforceError, CompletionRequest
from environments.policy.rendering.chatml import count_chars
from environments.policy.second_models import SecondModel
from environments.rewards.reward_context import AgentEndpoint, RolloutContext
from environments.rollout.agent_loop import LoopResult
from environments.rollout.agents.command import HookPlayer, HostPlayer, SandboxPlayer
from environments.rollout.agents.conversation import (
    FORK,
    Match,
    Seen,
    Thread,
    advance,
    after_turn,
    match,
    new_thread,
    opening_key,
    read_history,
    with_answers,
    with_contexts,
    write_demand,
)
from environments.rollout.agents.dialects import (
    MAX_IGNORED,
    AgentRequest,
    Refused,
    Reply,
    to_agent_message,
    tools_of,
)
from environments.rollout.agents.endpoint import Connection, EndpointServer, redact
from environments.rollout.boundary import reason_of, traceback_of, unwrap_user_error
from environments.rollout.model_calls import ModelCalls, Stopped
from environments.rollout.prompt_tokens import PromptTokens, TokenEstimate
from environments.trajectory import ENFORCED, AgentCaused, AgentRun, Message, StopReason, Turn, TurnClock
from tools.calls import ToolSpec
from tools.errors import AgentCausedError, PolicyError, RequestsRefused, RolloutError, SandboxError
from tools.plain_text import REDACTED

_LEAVE_S = 2.0
"""Grace period between the refusal of a request and the end of the agent."""
_MAX_KEPT_BYTES = 64 << 20
"""Text of all requests of a rollout, without repetitions."""
_REQUEST_BYTES = 4 << 10
_IGNORED = "ignored "
_REQUESTED, _HANDED_OUT, _SCORED = range(3)
_TIMEOUT_REASON = "the agent did not exit when its time was up"
_NOTHING_CAME = "no request reached the endpoint; does the agent's client have its base URL (ctx.endpoint)?"
_WHY_OVER = {
    StopReason.ENDED: "the environment has ended it",
    StopReason.MAX_TURNS: "its turns are used up",
    StopReason.TOKEN_BUDGET: "its tokens are used up",
    StopReason.TIME_BUDGET: "its time is up",
}


@dataclass(slots=True, kw_only=True, eq=False)
class _PendingCall:
    request: AgentRequest
    found: Match
    rewritten: str | None
    connection: Connection
    sampling: "asyncio.Task[None]" = field(init=False)
    index: int = -1
    anchor: str | None = None
    turn: Turn | None = None
    reply: Reply | None = None

    @property
    def is_in_flight(self) -> bool:
        if not self.sampling.done():
            return True
        return self.reply is None and self.connection.is_open and not _has_failed(self.sampling)


@dataclass(slots=True, kw_only=True)
class RecordedLoop:
    """One rollout of a recorded agent, with the interface of `AgentLoop`."""

    player: HookPlayer | HostPlayer | SandboxPlayer
    server: EndpointServer
    calls: ModelCalls
    context: RolloutContext
    anchor: Callable[[], str | None]
    prompt: tuple[Message, ...]
    """The environment's prompt, or else that of the agent's first request."""
    others: dict[str, SecondModel]
    estimate: TokenEstimate
    hidden: Sequence[str] = ()
    constraints: Constraints = "ask"
    stop_reason: StopReason | None = field(default=None, init=False)
    agent: AgentRun | None = field(default=None, init=False)
    models: Sequence[str] = field(init=False)
    secrets: Sequence[bytes] = field(default=(), init=False)
    _threads: list[Thread] = field(default_factory=list[Thread], init=False)
    _last: dict[int, _PendingCall] = field(default_factory=dict[int, _PendingCall], init=False)
    _queue: "asyncio.Queue[tuple[Turn, asyncio.Future[None]] | None]" = field(init=False)
    _over: asyncio.Event = field(init=False)
    """Set when a request was refused because the rollout is over."""
    _sampling: "set[asyncio.Task[None]]" = field(default_factory=set["asyncio.Task[None]"], init=False)
    _lost: Exception | None = field(default=None, init=False)
    _overflow: str | None = field(default=None, init=False)
    _context: Context = field(init=False)
    _prompt_key: str | None = field(init=False)
    _first_tools: tuple[ToolSpec, ...] = field(default=(), init=False)
    _tools: tuple[Sequence[object], tuple[ToolSpec, ...]] = field(default=((), ()), init=False)
    _seen: dict[int, Seen] = field(default_factory=dict[int, Seen], init=False)
    _ticks: int = field(default=0, init=False)
    _clocks: dict[int, list[int]] = field(default_factory=dict[int, list[int]], init=False)
    _handed_at: dict[int, float] = field(default_factory=dict[int, float], init=False)
    _unscored: list[Turn] = field(default_factory=list[Turn], init=False)
    """Turns of requests that the agent abandoned, and at the end those not scored yet."""
    _admitted: int = field(default=0, init=False)
    """Number of requests with a completion, or one in progress."""
    _kept_bytes: int = field(default=0, init=False)
    _refused: str = field(default="", init=False)
    _counts: Counter[str] = field(default_factory=Counter[str], init=False)

    def __post_init__(self) -> None:
        self._queue, self._over = asyncio.Queue(), asyncio.Event()
        self._context = copy_context()
        self._prompt_key = opening_key(self.prompt) if self.prompt else None
        self.models = (self.calls.policy.name, *self.others)

    # Interface of a loop.

    def break_off(self, caused: AgentCaused) -> list[Turn]:
        is_lost = caused.cause == "sandbox_lost"
        self.stop_reason = StopReason.SANDBOX_LOST if is_lost else StopReason.AGENT_CAUSED
        return self._collect_unscored()

    def result(self, turns: Sequence[Turn], scores: list[Any]) -> LoopResult:
        """Return the finished rollout, its turns in the order of their requests.

        The order of their ends would depend on the lengths of completions. Overlapping turns have clocks.
        """
        if not self._handed_at:
            raise RolloutError("the agent's sandbox was lost before it received a completion")
        acts = [turn.index for turn in turns if turn.kind == "act"]
        given = dict(zip(acts, scores, strict=False))
        ordered = sorted(turns, key=lambda turn: turn.index)
        ordered = with_contexts(ordered, [self._seen[turn.index] for turn in ordered], self.prompt)
        clocks = [
            TurnClock(
                requested=requested,
                handed_out=handed_out or None,
                scored=scored or self._ticks + 1,
                unfinished_before=turn.index - index,
            )
            for index, turn in enumerate(ordered)
            for requested, handed_out, scored in [self._clocks[turn.index]]
        ]
        overlap = any(one.scored > two.requested for one, two in pairwise(clocks))
        overlap = overlap or clocks[-1].unfinished_before > 0
        return LoopResult(
            prompt=self.prompt,
            turns=[
                replace(turn, index=index, clock=clocks[index]) if overlap else turn
                for index, turn in enumerate(ordered)
            ],
            scores=[given.get(index) for index in sorted(acts)] if scores else [],
            tools=self._first_tools,
            rows=self.calls.rows,
            stop_reason=self.stop_reason or StopReason.COMPLETED,
            exact=self.calls.exact,
            agent=self.agent and replace(self.agent, counts=dict(sorted((+self._counts).items()))),
            other_calls=tuple(call for model in self.others.values() for call in model.calls),
        )

    async def turns(self) -> AsyncGenerator[Turn]:
        async with AsyncExitStack() as closing:
            sock = await self.player.listener()
            _, endpoint = await closing.enter_async_context(
                self.server.rollout(self._with_key, self.calls.policy.name, sock)
            )
            self.context.agent_endpoint = endpoint
            agent = asyncio.create_task(self._run(endpoint))
            agent.add_done_callback(lambda _: self._queue.put_nowait(None))
            closing.push_async_callback(_cancel, self._sampling)
            closing.push_async_callback(_cancel, {agent})
            while (entry := await self._queue.get()) is not None:
                turn, scored = entry
                yield self._show_to_hooks(turn)
                self._tick(turn.index, _SCORED)
                if not scored.done():
                    scored.set_result(None)
            error = await agent
        self._conclude(error)
        left = self._collect_unscored()
        while left:
            turn = left.pop(0)
            yield self._show_to_hooks(turn)
            if turn.kind == "act":
                self._tick(turn.index, _SCORED)

    # The agent.

    async def _run(self, endpoint: AgentEndpoint) -> BaseException | None:
        started = monotonic()
        playing = asyncio.create_task(self.player.run(endpoint))
        over = asyncio.create_task(self._over.wait())
        hangs = False
        try:
            limits = {playing, over}
            left_s = max(0.0, self.calls.deadline - monotonic())
            await asyncio.wait(limits, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            if not playing.done():
                if not over.done():
                    self.calls.stop(StopReason.TIME_BUDGET)
                await asyncio.wait({playing}, timeout=_LEAVE_S)
            hangs = not playing.done() and not over.done()
        finally:
            over.cancel()
            playing.cancel()
            await asyncio.wait({playing})
            # Noted also where something else ended the rollout.
            error = None if playing.cancelled() else playing.exception()
            exit_code = None if playing.cancelled() or error else playing.result()
            problem = "" if error is None else traceback_of(unwrap_user_error(error))
            if exit_code:
                last = self.player.output.decode("utf-8", "replace").rstrip().rpartition("\n")[2]
                problem = f"the command ended with exit code {exit_code}{last and ': '}{last:.300}"
            if hangs:
                problem = f"{_TIMEOUT_REASON} (--env.rollout_timeout_s), nor within {_LEAVE_S:g} s of it"
            self.agent = AgentRun(
                error=redact(problem.encode(), self.secrets).decode(),
                exit_code=exit_code,
                output=redact(self.player.output, self.secrets).decode("utf-8", "replace"),
                wall_s=monotonic() - started,
            )
        return error

    def _conclude(self, error: BaseException | None) -> None:
        assert self.agent is not None
        if isinstance(error, AgentCausedError | SandboxError):
            raise error
        if self._lost is not None:
            raise self._lost
        if not self._handed_at:
            raise self._failure_without_completion(error, self.agent)
        if self.calls.stopped is not None and not self.agent.error.startswith(_TIMEOUT_REASON):
            self.stop_reason = self.calls.stopped
        elif self.context.end_reason is not None:
            self.stop_reason = StopReason.ENDED
        elif self._overflow is not None:
            self.stop_reason = StopReason.CONTEXT_OVERFLOW
        else:
            self.stop_reason = StopReason.AGENT_ERROR if self.agent.error else StopReason.COMPLETED
        if self.stop_reason is not StopReason.AGENT_ERROR:  # it stopped at our refusal
            self.agent = replace(self.agent, error="")

    def _failure_without_completion(self, error: BaseException | None, agent: AgentRun) -> BaseException:
        texts = (agent.error,) if agent.exit_code else (agent.error, agent.output)
        last = [text.strip().rpartition("\n")[2] for text in texts]
        why = "; ".join(filter(None, [self._refused or _NOTHING_CAME, *last]))
        problem = f"the agent ended without a completion of the model: {why}"
        shown = None if REDACTED in agent.error else error
        if self._refused and not self._over.is_set():
            refused = RequestsRefused(problem)
            refused.__cause__ = shown
            return refused
        if shown is not None and not self._refused:
            shown.add_note(_NOTHING_CAME)
        return shown or RolloutError(problem)

    # The endpoint.

    def _with_key(self, key: str) -> "RecordedLoop":
        hidden = [key, *self.hidden]
        hidden += [
            json.dumps(each, ensure_ascii=escapes)[1:-1] for each in hidden for escapes in (True, False)
        ]
        self.secrets = sorted({each.encode() for each in hidden}, key=len, reverse=True)
        return self

    def note_refusal(self, problem: str) -> None:
        if self.agent is not None:
            return  # the agent has ended
        self._counts["refused"] += 1
        count = self._counts["refused"]
        which = "a request was refused" if count == 1 else f"{count} requests were refused, the last"
        self._refused = f"{which} with {problem}"

    async def ask(self, request: AgentRequest, connection: Connection) -> Reply:
        """Return the completion of a request; a retry gets the existing one."""
        if request.model in self.others:
            return await self._other(request, self.others[request.model])
        asked = self._find_retried(request, connection)
        if asked is None:
            asked = self._begin(request, connection)
        else:
            self._counts["retries"] += 1
            asked.connection = connection
        try:
            await asyncio.shield(asked.sampling)
            if not connection.is_open:
                raise ConnectionResetError
            if self.agent is not None:
                raise self._refusal()
            return self._hand_out(asked)
        except asyncio.CancelledError:
            if asked.sampling.cancelled():
                raise self._refusal() from None
            raise

    async def count_tokens(self, request: AgentRequest) -> int:
        """Return the tokens of a prompt, or an estimate if the policy cannot count them."""
        if self.agent is not None:
            raise self._refusal()
        prompt = CompletionRequest(
            messages=tuple(read_history(request).messages()),
            tools=self._specs(request),
            max_row_tokens=self.calls.budget.max_row_tokens,
        )
        count = PromptTokens(self.calls.policy, self.estimate, self.calls.calls)
        try:
            return (await count.of(prompt)).tokens
        except Exception as error:  # noqa: BLE001  # a policy may raise anything
            problem = f"the prompt could not be counted: {reason_of(error)}"
            raise Refused(problem, status=503, kind="api_error", code="policy_error") from None

    def _find_retried(self, request: AgentRequest, connection: Connection) -> _PendingCall | None:
        same = [asked for asked in self._last.values() if asked.request.body == request.body]
        failed = [asked for asked in same if asked.sampling.done() and _has_failed(asked.sampling)]
        usable = [asked for asked in same if asked not in failed]
        for asked in usable:
            if not asked.connection.is_delivered and not asked.connection.is_open:
                return asked
        return usable[0] if connection.is_retry and usable and not failed else None

    def _begin(self, request: AgentRequest, connection: Connection) -> _PendingCall:
        tools, is_first = self._specs(request), not self._last
        demand = self._read_demand(request)
        for number, asked in self._last.items():
            self._threads[number].is_busy = asked.is_in_flight
        history = read_history(request, self._threads)
        if history.parsed[-1][-1].role == "assistant":
            problem = "the last message has role assistant; add a user or tool message"
            raise Refused(problem, param=request.names[-1])
        found = match(self._threads, history)
        if found is None:
            self._keep(len(request.body))
            found = new_thread(self._threads, history, self.calls, self._prompt_key)
        else:
            longer = len(request.body) - len(self._last[found.thread.number].request.body)
            self._keep(max(longer, count_chars(found.messages[found.common :])))
        for name in request.ignored:
            others = sum(each.startswith(_IGNORED) for each in self._counts)
            is_listed = _IGNORED + name in self._counts or others < MAX_IGNORED - 1
            self._counts[_IGNORED + (name if is_listed else "others")] += 1
        thread = found.thread
        if thread.number == len(self._threads):
            self._threads.append(thread)
            thread.tools = tools
        self._counts["asked"] += bool(demand)
        self._counts["normalised"] += found.is_reserialised
        thread.is_rewritten |= not found.goes_on or tools != thread.tools
        thread.tools, thread.has_tools = tools, thread.has_tools or bool(tools)
        self._give_up(self._last.get(thread.number))
        self._first_tools = self._first_tools or tools  # the first request may ask for a title
        turn, thread.open_turn = thread.open_turn, None
        if turn is not None:
            waited = monotonic() - self._handed_at[turn.index]
            turn = with_answers(turn, after_turn(thread, found), waited)
        rewritten = FORK if thread.is_rewritten else None
        asked = _PendingCall(request=request, found=found, rewritten=rewritten, connection=connection)
        advance(thread, found, demand)
        if is_first:
            self.prompt = self.context.messages = tuple(thread.seen)
            if isinstance(self.player, HostPlayer):
                self.player.note_first_request()
        self._last[thread.number] = asked
        loop = asyncio.get_running_loop()
        asked.sampling = loop.create_task(self._sample(asked, turn), context=self._context.copy())
        self._sampling.add(asked.sampling)
        asked.sampling.add_done_callback(self._sampling.discard)
        return asked

    def _read_demand(self, request: AgentRequest) -> str:
        """Return what a request demands of its completion as text for the prompt, unless it is enforced."""
        constraint = request.constraint
        if constraint is None:
            return ""
        if self.constraints == "refuse" and constraint.fields:
            problem = f"{constraint.fields[0]} is refused here (--openai.constraints); leave it out"
            raise Refused(problem, param=constraint.fields[0])
        if self.constraints == "enforce":
            constraint = replace(constraint, schema=None, tool=None)
        return write_demand(constraint, has_tools=bool(request.tools))

    def _give_up(self, asked: _PendingCall | None) -> None:
        """Keep a completion that was never returned as an undelivered turn."""
        if asked is not None and asked.turn is not None and asked.reply is None:
            self._unscored.append(replace(asked.turn, kind="undelivered"))
            self._counts["undelivered"] += 1
            self._tick(asked.turn.index, _SCORED)
            asked.turn, asked.found.thread.is_rewritten = None, True

    def _keep(self, size: int) -> None:
        if self._kept_bytes + size > _MAX_KEPT_BYTES:
            problem = f"the requests of this rollout are longer than {_MAX_KEPT_BYTES >> 20} MiB together"
            raise Refused(problem, status=413)
        self._kept_bytes += size + _REQUEST_BYTES

    def _specs(self, request: AgentRequest) -> tuple[ToolSpec, ...]:
        if request.tools != self._tools[0]:
            self._tools = request.tools, tools_of(request)
        return self._tools[1]

    async def _sample(self, asked: _PendingCall, before: Turn | None) -> None:
        """Wait until the previous turn is scored, then sample the answer to the agent's request.

        Raises:
            Refused: if there is no answer.
        """
        if before is not None:
            scored = asyncio.get_running_loop().create_future()
            self._queue.put_nowait((before, scored))
            await asyncio.wait({scored}, timeout=max(0.0, self.calls.deadline - monotonic()))
            if not scored.done():  # the agent still waits for its completion
                self.calls.stop(StopReason.TIME_BUDGET)
        thread, prompt = asked.found.thread, self._admit(asked)
        started, completion = monotonic(), None
        try:
            completion = await self.calls.complete(prompt)
        except asyncio.CancelledError:
            self._counts["cut off"] += 1
            raise
        except Stopped:
            self._counts["cut off"] += self.calls.stopped is StopReason.TIME_BUDGET
            raise self._refusal() from None
        except CannotEnforceError as error:
            problem = f"{error}; --openai.constraints ask writes it into the prompt"
            raise Refused(problem, param=prompt.constraint and prompt.constraint.fields[0]) from None
        except Exception as error:  # noqa: BLE001  # raised again when the agent has ended
            self._lost = error
            is_policy = isinstance(error, PolicyError)
            raise Refused(
                f"the policy gave no completion: {reason_of(error)}",
                status=503 if is_policy else 500, kind="api_error", code="policy_error",
            ) from None  # fmt: skip
        finally:
            if completion is None:
                self._admitted -= 1
                if asked.index == len(self._clocks) - 1:  # no request has been counted after it
                    del self._clocks[asked.index]
        assert completion is not None
        self._lost = self._overflow = None
        sampled = self.calls.join(completion, prompt, rewritten=asked.rewritten, thread=thread.rows)
        self._seen[asked.index] = (thread.seen, len(thread.seen))
        enforced = {} if prompt.constraint is None else {ENFORCED: asdict(prompt.constraint)}
        self._counts["enforced"] += len(enforced)
        asked.turn = replace(
            sampled.turn,
            sampling={**sampled.turn.sampling, **enforced},
            index=asked.index,
            thread=thread.number,
            without_tools=not thread.has_tools,
            anchor=asked.anchor,
            model_s=monotonic() - started,
        )

    def _admit(self, asked: _PendingCall) -> CompletionRequest:
        if self.context.end_reason is not None:
            self.calls.stop(StopReason.ENDED)
        elif self._admitted >= self.calls.budget.max_turns:
            self.calls.stop(StopReason.MAX_TURNS)
        if self.calls.stopped is not None:
            raise self._refusal()
        asked.index, self._admitted = len(self._clocks), self._admitted + 1
        asked.anchor = self.anchor()
        self._clocks[asked.index] = [0, 0, 0]
        self._tick(asked.index, _REQUESTED)
        thread = asked.found.thread
        prompt = self.calls.request(
            tuple(thread.seen),
            position=thread.position,
            goes_on=asked.rewritten is None,
            thread=thread.rows,
        )
        constraint = asked.request.constraint
        limit = min(prompt.max_tokens, asked.request.max_tokens or prompt.max_tokens)
        return replace(
            prompt,
            tools=thread.tools,
            seed=thread.seed,
            max_tokens=limit,
            stops=asked.request.stops,
            constraint=constraint
            if self.constraints == "enforce" and constraint and constraint.fields
            else None,
        )

    def _refusal(self) -> Refused:
        reason = self.calls.stopped
        if reason is StopReason.CONTEXT_OVERFLOW:
            self._overflow = self.calls.stopped_by or "the row has no more room (--env.max_token_length)"
            self.calls.go_on()
            problem = f"prompt is too long: it exceeds the model's maximum context length; {self._overflow}"
            return Refused(problem, param="messages", code="context_length_exceeded")
        self._over.set()
        why = _WHY_OVER.get(cast("StopReason", reason), "its agent has ended")
        return Refused(f"this rollout is over: {why}", code="rollout_over")

    def _hand_out(self, asked: _PendingCall) -> Reply:
        if asked.reply is not None:
            return asked.reply
        assert asked.turn is not None
        thread, turn = asked.found.thread, asked.turn
        message, stopped_by = to_agent_message(turn.message, asked.request.stops)
        is_whole = message.tool_calls or (turn.finish_reason == "length" and stopped_by is None)
        thread.seen.append(turn.message)
        thread.written.append(message)
        thread.open_turn, thread.is_rewritten = turn, False
        self._handed_at[turn.index] = monotonic()
        self._tick(turn.index, _HANDED_OUT)
        asked.reply = Reply(
            id=f"turn-{thread.seed}-{thread.position}",
            model=asked.request.model or self.calls.policy.name,
            message=message,
            finish_reason=turn.finish_reason if is_whole else "stop",
            stopped_by=stopped_by,
            prompt_tokens=turn.prompt_tokens,
            completion_tokens=turn.sampled_tokens,
            created=int(time.time()),
        )
        return asked.reply

    async def _other(self, request: AgentRequest, model: SecondModel) -> Reply:
        demanded = request.constraint.fields if request.constraint else ()
        for name in ("tools",) if request.tools else demanded:
            problem = f"the model {request.model!r} answers with free text alone; leave {name} out"
            raise Refused(problem, param=name)
        self._keep(len(request.body))
        messages = read_history(request).messages()
        try:
            answer = await model.ask(messages, seed=self.calls.seed)
            self._lost = None
        except Exception as error:  # noqa: BLE001  # raised again when the agent has ended
            self._lost = error
            raise Refused(f"{request.model}: {reason_of(error)}", status=503, kind="api_error") from None
        used = answer.usage
        text = Message(role="assistant", content=answer.text or "")
        message, stopped_by = to_agent_message(text, request.stops)
        return Reply(
            id=f"other-{len(model.calls)}", model=request.model, finish_reason="stop",
            created=int(time.time()), message=message, stopped_by=stopped_by,
            prompt_tokens=used.get("prompt_tokens", 0), completion_tokens=used.get("completion_tokens", 0),
        )  # fmt: skip

    # Turns.

    def _show_to_hooks(self, turn: Turn) -> Turn:
        if turn.kind == "act":
            messages, count = self._seen[turn.index]
            self.context.messages = (*messages[:count], *turn.messages)
        return turn

    def _collect_unscored(self) -> list[Turn]:
        """Return the turns not scored yet, undelivered ones first."""
        for asked in self._last.values():
            self._give_up(asked)
        while not self._queue.empty():
            if (entry := self._queue.get_nowait()) is not None:
                self._unscored.append(entry[0])
        for thread in self._threads:
            if thread.open_turn is not None:
                self._unscored.append(thread.open_turn)
                thread.open_turn = None
        return self._unscored

    def _tick(self, index: int, event: int) -> None:
        self._ticks += 1
        self._clocks[index][event] = self._ticks


def _has_failed(task: "asyncio.Task[None]") -> bool:
    return task.cancelled() or task.exception() is not None


async def _cancel(tasks: "set[asyncio.Task[None]] | set[asyncio.Task[BaseException | None]]") -> None:
    left = [task for task in tasks if not task.done()]
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left)
