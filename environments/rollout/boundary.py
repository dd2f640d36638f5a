"""The error boundary of a group's rollouts: what breaks in one of them drops it, and nothing else."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TypeVar

from environments.rollout.failures import failure_of, let_go
from environments.trajectory import Failure, JudgeCall

T = TypeVar("T")

_LOG = logging.getLogger(__name__)


class Boundary:
    """Made in the task that waits for the rollouts, which are tasks that catch what they can themselves."""

    def __init__(self, what: str) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._what = what
        self._waiting = task
        self._cancelled_before = task.cancelling()

    def failure_of(
        self,
        error: BaseException,
        sibling: int,
        *,
        turns: int,
        asked: Mapping[str, Sequence[JudgeCall]] = MappingProxyType({}),
    ) -> Failure:
        """The failure of a rollout; what is none is raised again: a cancellation from outside, or an end."""
        if isinstance(error, KeyboardInterrupt | GeneratorExit):
            raise error  # out of our own code: that of an environment comes as a `UserCodeBroke`
        if isinstance(error, asyncio.CancelledError) and self._waiting.cancelling() > self._cancelled_before:
            raise error
        failure = failure_of(error, sibling=sibling, turns=turns)
        let_go(error)
        _LOG.warning("%s, rollout %d dropped: %s", self._what, sibling, " ".join(failure.error.split()))
        return replace(
            failure,
            judge_calls=tuple(asked.get("judge", ())),
            user_calls=tuple(asked.get("user", ())),
            summariser_calls=tuple(asked.get("summariser", ())),
        )

    def result(self, rollout: "asyncio.Task[T | Failure]", sibling: int) -> T | Failure:
        """What came of a rollout that has ended; code that got hold of its task may have cancelled it."""
        if rollout.cancelled():
            return self.failure_of(asyncio.CancelledError("its task was cancelled"), sibling, turns=0)
        return rollout.result()
