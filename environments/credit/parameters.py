"""What an estimator's parameters are, read from its signature: kind, default, bounds, meaning."""

import difflib
import inspect
import math
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tools.errors import CreditError

Kind = Literal["number", "integer", "flag", "choice", "per_turn"]
Value = float | int | bool | str


@dataclass(frozen=True, slots=True)
class Param:
    """Describes a parameter inside its annotation: `gamma: Annotated[float, Param("…", low=0, high=1)]`."""

    description: str
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter of an estimator, as data for the configuration and for people."""

    name: str
    kind: Kind
    """`per_turn`: a float per turn, given in code only, never by a setting."""
    default: Value | None
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    description: str = ""

    @property
    def possible(self) -> str:
        """The possible values, for a message or a table."""
        if self.kind == "choice":
            return " · ".join(self.choices)
        if self.kind == "flag":
            return "true · false"
        if self.kind == "per_turn":
            return "one float per turn"
        if self.low is None and self.high is None:
            return f"any {self.kind}"
        if self.high is None:
            return f"{self.kind} ≥ {self.low:g}"
        if self.low is None:
            return f"{self.kind} ≤ {self.high:g}"
        return f"{self.kind} {self.low:g} … {self.high:g}"

    def check(self, value: object, estimator: str) -> None:
        """Refuse a value of the wrong kind or out of bounds.

        Raises:
            CreditError: names the estimator, the parameter and what is possible.
        """
        if not self._fits(value):
            raise CreditError(f"{estimator}: {self.name} is {value!r}; possible: {self.possible}")

    def read(self, value: Value, estimator: str) -> Value:
        """A setting's value: text is parsed, and a whole number is the number that a record compares with.

        Raises:
            CreditError: it is no possible value.
        """
        if isinstance(value, str):
            return self.parse(value, estimator)
        self.check(value, estimator)
        return float(value) if self.kind == "number" else value

    def parse(self, text: str, estimator: str) -> Value:
        """The value that a command line wrote as text.

        Raises:
            CreditError: the text is no possible value.
        """
        value: object = text
        if self.kind == "flag":
            value = {"true": True, "false": False}.get(text.lower(), text)
        elif self.kind in ("number", "integer"):
            value = _number(text, whole=self.kind == "integer")
        self.check(value, estimator)
        return typing.cast("Value", value)

    def _fits(self, value: object) -> bool:
        if self.kind == "choice":
            return value in self.choices
        if self.kind == "flag":
            return isinstance(value, bool)
        if self.kind == "per_turn":
            return True  # its shape depends on the group: the estimator checks it
        if isinstance(value, bool) or not isinstance(value, int if self.kind == "integer" else int | float):
            return False
        low = -math.inf if self.low is None else self.low
        high = math.inf if self.high is None else self.high
        return math.isfinite(value) and low <= value <= high


def parameters_of(function: Callable[..., Any]) -> tuple[Parameter, ...]:
    """The keyword-only parameters of an estimator.

    Raises:
        CreditError: a parameter without a default, or of a type that no setting can carry.
    """
    hints = typing.get_type_hints(function, include_extras=True)
    return tuple(
        _parameter(function, parameter, hints.get(parameter.name))
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    )


def unknown(what: str, name: str, known: Iterable[str]) -> CreditError:
    """The error for a name that does not exist: what exists, and the nearest one."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f" did you mean {near[0]!r}?" if near else ""
    return CreditError(f"no {what} {name!r};{hint} there are: {', '.join(names) or 'none'}")


def check_all(estimator: str, known: Mapping[str, Parameter], given: Mapping[str, object]) -> None:
    """Refuse parameters that do not exist or do not fit."""
    for name, value in given.items():
        if name not in known:
            raise unknown(f"parameter of {estimator} named", name, known)
        known[name].check(value, estimator)


def _parameter(function: Callable[..., Any], parameter: inspect.Parameter, hint: Any) -> Parameter:
    if parameter.default is inspect.Parameter.empty:
        raise CreditError(f"estimator {function.__name__}: parameter {parameter.name!r} needs a default")
    annotation, notes = hint, Param("")
    if typing.get_origin(hint) is typing.Annotated:
        annotation = typing.get_args(hint)[0]
        notes = next((note for note in typing.get_args(hint)[1:] if isinstance(note, Param)), notes)
    kind, choices = _kind(annotation, f"estimator {function.__name__}: parameter {parameter.name!r}")
    return Parameter(
        name=parameter.name,
        kind=kind,
        default=parameter.default,
        low=notes.low,
        high=notes.high,
        choices=choices,
        description=notes.description,
    )


def _kind(annotation: Any, where: str) -> tuple[Kind, tuple[str, ...]]:
    simple: dict[Any, Kind] = {float: "number", int: "integer", bool: "flag"}
    if annotation in simple:
        return simple[annotation], ()
    if typing.get_origin(annotation) is Literal:
        return "choice", tuple(str(choice) for choice in typing.get_args(annotation))
    if annotation == PerTurn:
        return "per_turn", ()
    raise CreditError(
        f"{where} must be annotated float, int, bool, Literal[…] or PerTurn, not {annotation!r}"
    )


def _number(text: str, *, whole: bool) -> object:
    try:
        return int(text) if whole else float(text)
    except ValueError:
        return text


PerTurn = typing.Sequence[typing.Sequence[float]] | None
"""One float per turn and trajectory, or nothing."""
