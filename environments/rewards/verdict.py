"""A judge's verdict, read from its text: the one JSON object in it that fits."""

import json
import math
import re
from collections.abc import Iterator
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, Field, ValidationError

from environments.second_models.text_model import without_reasoning
from environments.trajectory import LARGEST_REWARD

VerdictT = TypeVar("VerdictT", bound=BaseModel)

_OBJECT = re.compile(r"""\{\s*(?:["}]|['“]\w+['”]\s*:)""")
"""How an object begins, one in other quotes included; `{the answer}` and LaTeX do not."""
_MOST_OBJECTS = 100


class ScoreVerdict(BaseModel):
    """What is read where the author gives no schema of their own."""

    score: Annotated[float, Field(strict=True, ge=-LARGEST_REWARD, le=LARGEST_REWARD)]


class UnreadableError(ValueError):
    """No verdict can be read; the text says why, for the judge."""


def read_verdict(text: str, schema: type[VerdictT]) -> VerdictT:
    """The verdict in an answer, which may stand in a fence and have text around it.

    Text that looks like an object and is no JSON makes the whole answer unreadable: a judge that quotes
    `{"score": 1}` of what it judges, within a verdict that is broken, has not given that score.

    Raises:
        UnreadableError: there is none, or there are several that differ.
    """
    fitting: list[VerdictT] = []
    problem = "there is no JSON object in it"
    for number, found in enumerate(_objects(without_reasoning(text))):
        if number == _MOST_OBJECTS:
            raise UnreadableError(f"there are more than {_MOST_OBJECTS} objects in it")
        try:
            verdict = schema.model_validate(found)
        except (ValidationError, OverflowError, RecursionError) as error:
            problem = _first_problem(error)
            continue
        if verdict not in fitting:
            fitting.append(verdict)
    if len(fitting) > 1:
        raise UnreadableError("there are several verdicts in it, and they differ")
    if not fitting:
        raise UnreadableError(problem)
    return fitting[0]


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """The outermost JSON objects of a text."""
    position = 0
    while (begins := _OBJECT.search(text, position)) is not None:
        try:
            found, position = _DECODER.raw_decode(text, begins.start())
        except (ValueError, RecursionError) as error:
            raise UnreadableError(f"there is an object in it that is no JSON ({_short(error)})") from None
        yield found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a name stands in it twice")
    return fields


def _finite(number: str) -> float:
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"{number[:40]} is no finite number")
    return value


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_float=_finite, parse_constant=_finite)


def _first_problem(error: ValidationError | OverflowError | RecursionError) -> str:
    if not isinstance(error, ValidationError):
        return f"a value in it is not possible ({_short(error)})"
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    where = ".".join(map(str, first["loc"]))
    return f"{where}: {first['msg']}"[:300] if where else first["msg"][:300]


def _short(error: Exception) -> str:
    return "nested too deep" if isinstance(error, RecursionError) else str(error)[:100]
