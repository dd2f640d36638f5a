"""JSON that comes from outside: read here, with bounds on how many values it has and how deep they nest."""

import gc
import json
import math
import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NoReturn

import orjson

MOST = 10_000_000
"""Of one text: 131,072 tokens with logprobs and a `top_logprobs` weigh 9 million, and take 0.1 s to read."""
_WEIGHTS: Final[Mapping[bytes, int]] = {b",": 1, b":": 4, b"[": 3, b"{": 3}
"""What a value takes to make: one more in a list, a name and its value, a list or an object."""
_STEP_BYTES: Final = 1 << 20
_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_MOST_STRINGS: Final = 100_000
_DEEPEST: Final = 200
"""Code that looks through values calls itself for each level; orjson reads 1,024."""
_DEEPEST_WRITTEN: Final = 254
"""Levels that orjson writes."""


class JsonError(ValueError):
    """Text that is no JSON, or more of it than is read; the reason is a line."""

    line: int | None = None
    """Where it is no JSON."""


def check_weight(content: bytes, most: int = MOST) -> None:
    """Raise JsonError before too many values are made: 64 MB of empty lists take 10 s and 2 GB."""
    if not _is_over(content, most):
        return
    # What stands inside strings is no value; where these are too many, it counts.
    if _is_over(_STRING.sub(b"", content, count=_MOST_STRINGS), most):
        raise JsonError("too many values")


def read_json(content: bytes | str, *, most: int = MOST) -> Any:
    """The value of JSON as orjson reads it, for which a long integer is a float.

    Raises:
        JsonError: it is none, or has too many values, or nests them too deep.
    """
    text = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    check_weight(text, most)
    try:
        with collector_paused():
            value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise JsonError(str(error)) from None
    if text.count(b"[") + text.count(b"{") > _DEEPEST:
        # Writing it takes a quarter of reading; a loop over all values takes four times as long.
        nested = value
        for _ in range(_DEEPEST_WRITTEN - _DEEPEST):
            nested = [nested]
        try:
            orjson.dumps(nested)
        except orjson.JSONEncodeError:
            raise JsonError("nested too deeply") from None
    return value


@contextmanager
def collector_paused() -> Generator[None]:
    """Pause the collector, which would look through values that are being read again and again."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def read_exact_json(text: str, *, lenient: bool = False) -> Any:
    """The value of JSON as it is written: long integers stay what they are.

    Args:
        text: JSON.
        lenient: take what Python writes, too: `NaN`, and a name twice in an object.

    Raises:
        JsonError: it is none, has a name twice or a number that is not finite, or nests too deep.
    """
    try:
        value = json.loads(text) if lenient else EXACT_DECODER.decode(text)
    except json.JSONDecodeError as error:
        problem = JsonError(f"{error.msg} at column {error.colno}")
        problem.line = error.lineno
        raise problem from None
    except RecursionError:
        raise JsonError("nested too deeply") from None
    except ValueError as error:
        raise JsonError(str(error).partition(";")[0][:200]) from None
    return _checked_depth(value)


def _is_over(content: bytes, most: int) -> bool:
    weight = 0
    if len(content) * max(_WEIGHTS.values()) <= most:
        return False
    for start in range(0, len(content), _STEP_BYTES):
        end = start + _STEP_BYTES
        weight += sum(each * content.count(sign, start, end) for sign, each in _WEIGHTS.items())
        if weight > most:
            return True
    return False


def _checked_depth(value: Any) -> Any:
    level: list[Any] = [[value]]
    for _ in range(_DEEPEST + 1):
        held: list[Any] = [each.values() if isinstance(each, dict) else each for each in level]
        level = [each for values in held for each in values if isinstance(each, dict | list)]
        if not level:
            return value
    raise JsonError("nested too deeply")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; of two values for a name neither could be said to be the one that was meant."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        twin = next(name for index, name in enumerate(names) if name in names[:index])
        raise ValueError(f"the name {twin!r:.100} stands twice in an object")
    return fields


def _finite(number: str) -> float:
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"the number {number:.40} is too large")
    return value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON number; null is possible")


EXACT_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_unique, parse_float=_finite, parse_constant=_refuse
)
"""Of `read_exact_json`, for JSON that something else follows."""
