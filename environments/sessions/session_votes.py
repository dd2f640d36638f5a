"""Votes and outcomes, where logs have them, as rewards: what nobody gave is `None`, and never 0."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from environments.trajectory import LARGEST_REWARD

_UP = frozenset({"up", "upvote", "thumbs_up"})
_DOWN = frozenset({"down", "downvote", "thumbs_down"})


class SessionError(Exception):
    """Something of a logged session cannot be taken; the text says where in it, and what is possible."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Where votes and outcomes stand, and what a vote in words is worth."""

    vote_fields: tuple[str, ...] = ("vote", "reward")
    """Of a message, one of them; `a.b` is field `b` of the object in `a`."""
    outcome_field: str = "outcome"
    """Of the session, likewise."""
    upvote: float = 1.0
    downvote: float = -1.0

    def vote(self, message: Mapping[str, Any], where: str) -> float | None:
        """What a message was rated.

        Raises:
            SessionError: several fields say it, or it is no vote.
        """
        given = {name: value for name in self.vote_fields if (value := _at(message, name)) is not None}
        if len(given) > 1:
            raise SessionError(f"{where} has {' and '.join(given)}; a message has one vote")
        for name, value in given.items():
            return self._vote(value, f"{where}.{name}")
        return None

    def outcome(self, session: Mapping[str, Any]) -> float | None:
        """What the session came to.

        Raises:
            SessionError: it is neither a number nor true or false.
        """
        value = _at(session, self.outcome_field)
        if value is None:
            return None
        return number(value, self.outcome_field, "give a number, true (1), false (0) or null (not known)")

    def _vote(self, value: Any, where: str) -> float:
        if value is True or (isinstance(value, str) and value in _UP):
            return self.upvote
        if value is False or (isinstance(value, str) and value in _DOWN):
            return self.downvote
        return number(value, where, 'give a number, true, false, "up", "down" or null (nobody voted)')


def number(value: Any, where: str, possible: str) -> float:
    """A number of JSON that credit can be computed from.

    Raises:
        SessionError: it is none.
    """
    if not isinstance(value, int | float):
        raise SessionError(f"{where} is {value!r:.100}; {possible}")
    try:
        given = float(value)
    except OverflowError:
        given = math.inf
    if not abs(given) <= LARGEST_REWARD:
        raise SessionError(f"{where} is {value!r:.100}; numbers up to {LARGEST_REWARD:g} are possible")
    return given


def _at(fields: Mapping[str, Any], path: str) -> Any:
    """The value at `a.b`; `None` where there is none."""
    value: Any = fields
    for name in path.split("."):
        if not isinstance(value, Mapping):
            return None
        value = cast("Mapping[str, Any]", value).get(name)
    return value
