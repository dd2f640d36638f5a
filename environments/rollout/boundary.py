"""The error boundary of a group's rollouts: an error in one of them drops it and nothing else."""

import asyncio
import linecache
import logging
import re
import traceback
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, cast

from environments.rollout.containment import hook_calls
from environments.trajectory import AgentCaused, Failure, JudgeCall, StopReason
from tools.errors import (
    AgentCause,
    AgentCausedError,
    GroupRefused,
    PolicyError,
    RewardError,
    SandboxError,
    TurnwiseError,
    UsageError,
    UserCodeBroke,
)
from tools.extras import LIBRARIES, OWN_FOLDERS
from tools.plain_text import without_credentials
from tools.sandbox.base import SandboxFileError

_ERROR_CHARS = 1_500
_TRACEBACK_CHARS = 20_000
_NAME_CHARS = 200
_MOST_KINDS = 1_000
_OF_OTHERS = re.compile("|".join(map(re.escape, (*OWN_FOLDERS, *LIBRARIES, "<string>"))) + "|.*-packages/")
_WITHOUT_TRACEBACK = RewardError, UsageError
_HINTS = {
    "coroutine": "; is `await` missing, as in `(await ctx.sandbox.exec(...)).exit_code` in an `async def` "
    "hook?",
    "'Turn' object": "; what the model wrote is turn.message.content, its calls are turn.message.tool_calls",
    "'Trajectory' object": "; what the model wrote is trajectory.turns[-1].message.content",
}
"""What to write, by the words of an error."""
_SHOWN_KEYS = 20


def failure_of(error: BaseException, *, sibling: int, turns: int) -> Failure:
    error = unwrap_user_error(error)
    return Failure(
        sibling=sibling,
        stop_reason=_stop_reason(error),
        error=reason_of(error),
        traceback=traceback_of(error),
        turns=turns,
        error_class=_name(error),
        where=_where(error),
        refuses_group=isinstance(error, GroupRefused),
    )


def blame_agent(error: Exception) -> AgentCaused:
    """Return what the agent broke; raise the error again if it is not the agent's fault.

    Sandbox files that a hook cannot read or write as intended are the agent's fault, too.
    """
    raised = _all_raised(error)
    causes: list[AgentCause | None] = [_cause_of(each) for each in raised]
    if causes[0] is None or None in causes:  # an error of the environment is among them
        raise error
    broken = AgentCaused(cause=causes[0], error=reason_of(raised[0]))
    drop_tracebacks(error)
    return broken


def _all_raised(error: BaseException) -> list[BaseException]:
    raised = unwrap_user_error(error)
    if not isinstance(raised, BaseExceptionGroup):
        return [raised]
    several = cast("list[BaseException]", BaseExceptionGroup.__dict__["exceptions"].__get__(raised))
    return [each for part in several for each in _all_raised(part)]


def _cause_of(raised: BaseException) -> AgentCause | None:
    if isinstance(raised, SandboxFileError):
        return "unreadable_files"
    return raised.cause if isinstance(raised, AgentCausedError) else None


def drop_tracebacks(error: BaseException) -> None:
    """Drop the tracebacks of an error and of its causes.

    A frame that holds the error of its own traceback forms a cycle, which keeps data such as a 64 MB answer
    until a full garbage collection.
    """
    left, seen = [error], set[int]()
    while left:
        each = left.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        BaseException.with_traceback(each, None)
        # Attribute access could run user code.
        before = [BaseException.__dict__[name].__get__(each) for name in ("__cause__", "__context__")]
        if isinstance(each, BaseExceptionGroup):
            before += BaseExceptionGroup.__dict__["exceptions"].__get__(each)
        left += [other for other in cast("list[BaseException | None]", before) if other is not None]


def unwrap_user_error(error: BaseException) -> BaseException:
    """Return the error of the environment's code, without `UserCodeBroke` and groups of one error."""
    raised: BaseException = error.__cause__ or error if isinstance(error, UserCodeBroke) else error
    while isinstance(raised, BaseExceptionGroup):
        # The class may override the attribute.
        several = cast("list[BaseException]", BaseExceptionGroup.__dict__["exceptions"].__get__(raised))
        if len(several) > 1:
            break
        raised = several[0]
    return cast("BaseException", raised)


def cut_traceback(error: BaseException) -> BaseException:
    return BaseException.with_traceback(error, _from_user_code(error.__traceback__))


def reason_of(error: BaseException) -> str:
    message, where = _message(error), _where(error)
    return f"{_name(error)}{message and ': '}{message}{'' if where is None else f' ({where})'}"


def traceback_of(error: BaseException) -> str:
    try:
        trace = _from_user_code(error.__traceback__)
        shown = traceback.TracebackException(type(error), error, trace)
        if isinstance(error, _WITHOUT_TRACEBACK) and error.__cause__ is None:
            # It says what to change; only the user's own lines tell where.
            own = [frame for frame in shown.stack if not frame.filename.startswith(OWN_FOLDERS)]
            shown = traceback.TracebackException(type(error), error, trace if own else None)
            shown.stack = traceback.StackSummary.from_list(own)
        return _shorten("".join(shown.format()), _TRACEBACK_CHARS)
    except BaseException as why:  # noqa: BLE001  # as for the message
        return f"(no traceback: {type(why).__name__})"


def _message(error: BaseException) -> str:
    try:
        message = str(error)
        if isinstance(error, AttributeError | TypeError):
            message += next((hint for words, hint in _HINTS.items() if words in message), "")
        elif isinstance(error, KeyError):
            message += _keys_of_item(error)
        return _shorten(message, _ERROR_CHARS)
    except BaseException as why:  # noqa: BLE001  # `__str__` may be user code
        return f"(no message: {type(why).__name__})"


def _keys_of_item(error: KeyError) -> str:
    """Return the keys of the item if the failing line looked up a key that the item lacks, else nothing."""
    frames = [*traceback.walk_tb(error.__traceback__)]
    if not frames or not error.args:
        return ""
    frame, number = frames[-1]
    given = frame.f_locals.get("item")
    item = cast("dict[Any, Any]", given) if type(given) is dict else {}
    is_named = re.search(r"\bitem\b", linecache.getline(frame.f_code.co_filename, number))
    if not item or not is_named or error.args[0] in item:
        return ""
    names = [f"{name!r:.40}" for name in islice(item, _SHOWN_KEYS)]
    return f"; the item has {', '.join(names)}{', …' if len(item) > _SHOWN_KEYS else ''}"


def _name(error: BaseException) -> str:
    # The class may override the attribute.
    return _shorten(type.__dict__["__name__"].__get__(type(error)), _NAME_CHARS)


def _stop_reason(error: BaseException) -> StopReason | None:
    if isinstance(error, PolicyError):
        return StopReason.POLICY_ERROR
    return StopReason.SANDBOX_LOST if isinstance(error, SandboxError) else None


def _where(error: BaseException) -> str | None:
    frames = traceback.extract_tb(_from_user_code(error.__traceback__))
    if isinstance(error, TurnwiseError) or not frames:
        return None
    # `json.loads` breaks in a library, methods of dataclasses have no file: the line that called them counts.
    home = f"{Path(frames[0].filename).parent}/"
    own = [each for each in frames if each.filename.startswith(home) or not _OF_OTHERS.match(each.filename)]
    frame = (own or frames)[-1]
    return _shorten(f"{Path(frame.filename).name}:{frame.lineno} in {frame.name}", _NAME_CHARS)


def _from_user_code(trace: TracebackType | None) -> TracebackType | None:
    """Skip the frames before the environment's code; without such code keep all."""
    frame, start = trace, trace
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == hook_calls.__file__ and frame.tb_next is not None:
            start = frame.tb_next
        frame = frame.tb_next
    return start


def _shorten(text: str, max_chars: int) -> str:
    if len(text) > 8 * max_chars:
        # Searching 50 MB for credentials takes seconds.
        text = f"{text[: 4 * max_chars]} [...] {text[-4 * max_chars :]}"
    text = without_credentials(text)
    if len(text) > max_chars:
        half = max_chars // 2
        text = f"{text[:half]} [... {len(text) - 2 * half} characters cut ...] {text[-half:]}"
    return text.encode("utf-8", "backslashreplace").decode()


T = TypeVar("T")

_LOG = logging.getLogger(__name__)


class FailureKinds:
    def __init__(self) -> None:
        self._kinds: set[str] = set()

    def level(self, kind: str) -> int:
        if kind in self._kinds or len(self._kinds) == _MOST_KINDS:
            return logging.DEBUG
        self._kinds.add(kind)
        return logging.WARNING


class Boundary:
    def __init__(self, what: str, kinds: FailureKinds) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._what = what
        self._kinds = kinds
        self._waiting = task
        self._cancelled_before = task.cancelling()

    def failure_of(
        self, error: BaseException, sibling: int, *, turns: int, asked: Mapping[str, Sequence[JudgeCall]]
    ) -> Failure:
        """Return the failure of a rollout; re-raise exits and cancellations from outside."""
        if isinstance(error, KeyboardInterrupt | GeneratorExit):
            raise error  # not from the environment, whose exits arrive as `UserCodeBroke`
        if isinstance(error, asyncio.CancelledError) and self._waiting.cancelling() > self._cancelled_before:
            raise error
        failure = failure_of(error, sibling=sibling, turns=turns)
        drop_tracebacks(error)
        reason, level = " ".join(failure.error.split()), self._kinds.level(failure.kind)
        _LOG.log(level, "%s, rollout %d dropped: %s", self._what, sibling, reason)
        return replace(
            failure,
            judge_calls=tuple(asked.get("judge", ())),
            user_calls=tuple(asked.get("user", ())),
            summariser_calls=tuple(asked.get("summariser", ())),
        )

    def result(self, rollout: "asyncio.Task[T | Failure]", sibling: int) -> T | Failure:
        if rollout.cancelled():
            return self.failure_of(
                asyncio.CancelledError("its task was cancelled"), sibling, turns=0, asked={}
            )
        return rollout.result()


class Slots:
    """A semaphore that survives its event loop: a notebook may start a new one for every step."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._loop: asyncio.AbstractEventLoop | None = None
        self._semaphore = asyncio.Semaphore(count)

    @asynccontextmanager
    async def acquire(self) -> AsyncGenerator[None]:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._semaphore = loop, asyncio.Semaphore(self._count)
        async with self._semaphore:
            yield
