"""Readers of untrusted JSON, with limits on the number and depth of values."""

import gc
import json
import math
import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NoReturn

import orjson

MOST = 10_000_000
"""Limit per text: 131,072 tokens with logprobs and `top_logprobs` weigh 9 million and take 0.1 s."""
_WEIGHTS: Final[Mapping[bytes, int]] = {b",": 1, b":": 4, b"[": 3, b"{": 3}
"""Weights by memory use."""
_STEP_BYTES: Final = 1 << 20
_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_MOST_STRINGS: Final = 100_000
_DEEPEST: Final = 200
"""Recursive readers need a limit; orjson reads 1,024 levels."""
_DEEPEST_WRITTEN: Final = 254


class JsonError(ValueError):
    """Invalid JSON, or more than a limit allows; the message is one line."""

    line: int | None = None


def check_weight(content: bytes, most: int = MOST) -> None:
    """Raise JsonError before too many values are created: 64 MB of empty lists take 10 s and 2 GB."""
    if not _is_over(content, most):
        return
    if _is_over(_STRING.sub(b"", content, count=_MOST_STRINGS), most):
        raise JsonError("too many values")


def read_json(content: bytes | str, *, most: int = MOST) -> Any:
    """Read JSON with orjson, which turns long integers into floats; JsonError if it is invalid."""
    text = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    check_weight(text, most)
    try:
        with collector_paused():
            value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise JsonError(str(error)) from None
    if text.count(b"[") + text.count(b"{") > _DEEPEST:
        # Writing costs a quarter of reading; a walk over all values costs four times as much.
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
    """Disable the garbage collector, which would scan values under construction repeatedly."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def read_exact_json(text: str, *, lenient: bool = False) -> Any:
    """Read JSON with exact long integers; `lenient` accepts `NaN` and repeated names, as Python writes.

    Raises:
        JsonError: if it is invalid, has a repeated name or an infinite number, or is too deep.
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
    level: list[Any] = [[value]]
    for _ in range(_DEEPEST + 1):
        held: list[Any] = [each.values() if isinstance(each, dict) else each for each in level]
        level = [each for values in held for each in values if isinstance(each, dict | list)]
        if not level:
            return value
    raise JsonError("nested too deeply")


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


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
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
    raise ValueError(f"{constant} is not a JSON number; null is possible")


EXACT_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_unique, parse_float=_finite, parse_constant=_refuse
)
