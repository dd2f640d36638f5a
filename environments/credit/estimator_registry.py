"""Estimators by name: registered, described, and called with checked parameters and a checked result."""

import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ParamSpec, cast

from environments.credit.acts import Values, acts_alone, has_summaries, over_all_turns
from environments.credit.parameters import Parameter, Value, check_all, parameters_of, unknown
from environments.credit.presets import PRESETS
from environments.credit.terms import Explanations
from environments.trajectory import TrajectoryGroup
from tools.errors import CreditError

Advantages = list[list[float]]
"""One float per turn, ordered like the group's trajectories and their turns."""

Estimator = Callable[..., Advantages]
P = ParamSpec("P")


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimatorSpec:
    """An estimator as data."""

    name: str
    summary: str
    formula: str
    bias: str
    """How its expected gradient differs from that of the trajectory's return."""
    source: str
    parameters: tuple[Parameter, ...]

    def parameter(self, name: str) -> Parameter:
        """The parameter of that name.

        Raises:
            CreditError: there is none.
        """
        for parameter in self.parameters:
            if parameter.name == name:
                return parameter
        raise unknown(f"parameter of {self.name} named", name, [p.name for p in self.parameters])


_functions: dict[str, Estimator] = {}
_without_peer: dict[str, Callable[..., Sequence[Sequence[bool]]]] = {}
_explained: dict[str, Callable[..., Explanations] | None] = {}
_specs: dict[str, EstimatorSpec] = {}

ESTIMATORS: Mapping[str, Estimator] = MappingProxyType(_functions)
"""Every registered estimator: `ESTIMATORS[name](group, **parameters)`."""


def register_estimator(
    name: str,
    *,
    formula: str = "",
    bias: str = "",
    source: str = "",
    without_peer: Callable[..., Sequence[Sequence[bool]]] | None = None,
    explained: Callable[..., Explanations] | None = None,
) -> Callable[[Callable[P, Advantages]], Callable[P, Advantages]]:
    """Make a function an estimator: it takes a group, and keyword-only parameters with defaults.

    Parameters are described in their annotation, `Annotated[float, Param("discount", low=0, high=1)]`.
    `without_peer` gets the same arguments, and says of each turn whether it keeps its raw return since no
    sibling has a comparable one; `explained` gets them, too, and gives the terms that each advantage is the
    sum of. The returned function checks its parameters before each call and its advantages after it; turns
    that are not trained get 0, whatever it computed.

    Raises:
        CreditError: the name is taken by another function, or a parameter cannot be described.
    """

    def register(function: Callable[P, Advantages]) -> Callable[P, Advantages]:
        known = _functions.get(name)
        if known is not None and _origin(known) != _origin(function):
            raise CreditError(f"an estimator named {name!r} exists: {'.'.join(_origin(known))}")
        spec = EstimatorSpec(
            name=name,
            summary=(inspect.getdoc(function) or "").split("\n")[0],
            formula=formula,
            bias=bias,
            source=source,
            parameters=parameters_of(function),
        )
        by_name = {parameter.name: parameter for parameter in spec.parameters}

        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> Advantages:
            group = args[0]
            if not isinstance(group, TrajectoryGroup):
                raise CreditError(f"{name} takes a TrajectoryGroup, not {type(group).__name__}")
            check_all(name, by_name, kwargs)

            def credit(seen: TrajectoryGroup, values: Values) -> Advantages:
                return _checked_result(name, seen, cast("Any", function)(seen, **{**kwargs, **values}))

            values = {key: kwargs[key] for key, each in by_name.items() if _is_per_turn(each, kwargs)}
            if not has_summaries(group):
                return _of_trained(credit(group, {}), group)
            return _of_trained(over_all_turns(credit, group, cast("Values", values)), group)

        _functions[name] = checked
        if without_peer is not None:
            _without_peer[name] = without_peer
        _explained[name] = explained
        _specs[name] = spec
        return checked

    return register


def estimate(
    name: str, group: TrajectoryGroup, *, preset: str | None = None, **params: object
) -> list[list[float]]:
    """One advantage per turn, ordered like the group and its turns; 0 for a turn that is not trained.

    Args:
        name: a key of `ESTIMATORS`.
        group: siblings with rewards; it is not changed.
        preset: a trainer whose constants to use (`PRESETS`); `params` override it.
        params: the estimator's own parameters.

    Raises:
        CreditError: an unknown estimator, preset or parameter, a value out of bounds, or rewards that
            are missing, NaN or infinite; the message names trajectory and turn.
    """
    merged = {**preset_for(name, preset), **params}
    return ESTIMATORS[name](group, **merged)


def without_peer(
    name: str, group: TrajectoryGroup, *, preset: str | None = None, **params: object
) -> list[list[bool]]:
    """Of each act, whether its advantage is its raw return, since no sibling has a comparable one.

    None is where the estimator compares with nothing on purpose, or gives such turns no credit.

    Raises:
        CreditError: as for `resolve`, or `without_peer` of the estimator says it of other turns.
    """
    acts = acts_alone(group)
    counts = [len(trajectory.turns) for trajectory in acts.trajectories]
    used = resolve(name, preset=preset, **params)
    if name not in _without_peer:
        return [[False] * count for count in counts]
    alone = _without_peer[name](acts, **used)
    if [len(row) for row in alone] != counts:
        raise CreditError(f"without_peer of {name} has to say of each turn whether it has no peer")
    return [[bool(each) for each in row] for row in alone]


def explanations(name: str, group: TrajectoryGroup, params: Mapping[str, Any]) -> Explanations | None:
    """How the estimator comes to each turn's advantage; `None`: it was registered without that.

    Args:
        name: the estimator.
        group: siblings with rewards.
        params: every parameter of it, see `resolve`.

    Raises:
        CreditError: as for `estimate`.
    """
    explained = _explained.get(name)
    if explained is None:
        return None
    used = resolve(name, **params)
    if not has_summaries(group):
        return explained(group, **used)

    def of_acts(seen: TrajectoryGroup, values: Values) -> Explanations:
        return explained(seen, **{**used, **values})

    given = {each.name: used[each.name] for each in describe(name).parameters if _is_per_turn(each, used)}
    return over_all_turns(of_acts, group, cast("Values", given))


def describe(name: str) -> EstimatorSpec:
    """The estimator's formula, parameters, known bias and source.

    Raises:
        CreditError: no such estimator.
    """
    if name not in _specs:
        raise unknown("estimator", name, _specs)
    return _specs[name]


def preset_for(name: str, preset: str | None) -> Mapping[str, Value]:
    """What a preset sets for one estimator.

    Raises:
        CreditError: no such estimator or preset, or a preset that does not cover the estimator.
    """
    describe(name)
    if preset is None:
        return {}
    if preset not in PRESETS:
        raise unknown("estimator preset", preset, PRESETS)
    if name not in PRESETS[preset]:
        raise CreditError(
            f"preset {preset!r} does not cover {name}; it covers {', '.join(sorted(PRESETS[preset]))}"
        )
    return PRESETS[preset][name]


def resolve(name: str, *, preset: str | None = None, **params: object) -> dict[str, object]:
    """Every parameter with the value that a call would use: default, then preset, then `params`.

    Raises:
        CreditError: as for `estimate`.
    """
    spec = describe(name)
    check_all(name, {parameter.name: parameter for parameter in spec.parameters}, params)
    defaults = {parameter.name: parameter.default for parameter in spec.parameters}
    return {**defaults, **preset_for(name, preset), **params}


def read_params(name: str, preset: str | None, settings: Mapping[str, Value]) -> dict[str, Value]:
    """Parameters as settings give them, checked; text, as a command line writes values, is read.

    Raises:
        CreditError: as for `estimate`.
    """
    spec = describe(name)
    params = {key: spec.parameter(key).read(value, name) for key, value in settings.items()}
    resolve(name, preset=preset, **params)
    return params


def _is_per_turn(parameter: Parameter, given: Mapping[str, Any]) -> bool:
    return parameter.kind == "per_turn" and given.get(parameter.name) is not None


def _origin(function: Estimator) -> tuple[str, str]:
    return function.__module__, function.__qualname__


def _checked_result(name: str, group: TrajectoryGroup, advantages: Any) -> Advantages:
    if not isinstance(advantages, Sequence):
        raise CreditError(f"{name} gave {advantages!r:.100}; give one list of advantages per trajectory")
    advantages = cast("Advantages", advantages)
    if len(advantages) != len(group.trajectories):
        raise CreditError(
            f"{name} gave {len(advantages)} lists for a group of {len(group.trajectories)} trajectories"
        )
    for index, (row, trajectory) in enumerate(zip(advantages, group.trajectories, strict=True)):
        if len(row) != len(trajectory.turns):
            raise CreditError(
                f"{name} gave {len(row)} advantages for {len(trajectory.turns)} turns of trajectory {index}"
            )
        if not all(map(math.isfinite, row)):
            turn = next(turn for turn, value in enumerate(row) if not math.isfinite(value))
            raise CreditError(f"{name} gave {row[turn]} to trajectory {index}, turn {turn + 1}")
    return advantages


def _of_trained(advantages: Advantages, group: TrajectoryGroup) -> Advantages:
    return [
        [float(value) if turn.trained else 0.0 for value, turn in zip(row, trajectory.turns, strict=True)]
        for row, trajectory in zip(advantages, group.trajectories, strict=True)
    ]
