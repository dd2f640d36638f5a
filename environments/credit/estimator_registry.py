"""The registry of estimators: descriptions, checked parameters and checked results."""

import contextlib
import functools
import inspect
import math
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal, ParamSpec, cast

from environments.credit.acts import over_all_turns
from environments.credit.branches import has_branches
from environments.credit.scored import read
from environments.credit.terms import Advantages, Pool, Term, add_up, by_turn
from environments.trajectory import CreditedGroup, TrajectoryGroup
from tools.errors import CreditError
from tools.plain_text import did_you_mean

ALONE = "no sibling to compare it with: no advantage"
Kind = Literal["number", "integer", "flag", "choice", "per_turn"]
Value = float | int | bool | str
PerTurn = Sequence[Sequence[float]] | None
Estimator = Callable[..., Advantages]
OverStep = Callable[..., list[list[Term]]]
"""Takes terms of each group, groups and parameters; returns terms of each group."""
P = ParamSpec("P")

_OVER_TOKENS: Mapping[str, Value] = {"weigh": "tokens", "ddof": 1, "eps": 1e-8, "eps_in": "variance"}
_OVER_TRAJECTORIES: Mapping[str, Value] = {
    "weigh": "trajectories", "ddof": 0, "eps": 1e-6, "eps_in": "deviation",
}  # fmt: skip
_RAW: Mapping[str, Value] = {"singleton": "raw"}
_CENTRED: Mapping[str, Value] = {"norm_by_std": False, "singleton": "zero", "zero_variance": "zero"}
_BY_STD: Mapping[str, Value] = {**_CENTRED, "norm_by_std": True, "ddof": 1, "eps": 1e-6}
_BY_POPULATION_STD: Mapping[str, Value] = {**_BY_STD, "ddof": 0}
_ROWS: Mapping[str, Value] = {"episode_stats": "rows", "eps": 1e-6, "singleton": "raw"}
PRESETS: Mapping[str, Mapping[str, Mapping[str, Value]]] = {
    "verl": {
        "grpo": {**_BY_STD, **_RAW},
        "rloo": _RAW,
        "opo": _RAW,
        "passk": {"norm_by_std": True, "ddof": 1, "eps": 1e-6, "singleton": "error"},
        "gpg": _RAW,
        "reinforce_pp": _OVER_TOKENS,
        "reinforce_pp_baseline": {"singleton": "raw", **_OVER_TOKENS},
        "gigpo": {"gamma": 0.95, "step_weight": 1.0, "mode": "mean_norm", **_ROWS},
        **dict.fromkeys(("grpo_multiturn", "hgpo", "igpo", "tree_grpo"), _RAW),
        "gdpo": {"group_eps": 1e-6, "singleton": "raw", **_OVER_TOKENS},
    },
    "verl_agent_rows": {"gigpo": {"step_weight": 0.0, "mode": "mean_std_norm", **_ROWS}},
    "trl": {
        "grpo": {**_BY_STD, "eps": 1e-4},
        "grpo_batch": {"ddof": 1, "eps": 1e-4},
        "gdpo": {"group_eps": 1e-4, **_OVER_TRAJECTORIES, "ddof": 1, "eps": 1e-4},
        "mt_grpo": {"turn_coef": 1.0, "eps": 1e-4, "ddof": 1},
    },
    "rllm": {
        "grpo": {**_BY_POPULATION_STD, **_RAW},
        "rloo": _RAW,
        "rllm_per_step": _RAW,
        "reinforce_pp": _OVER_TRAJECTORIES,
        "reinforce_pp_baseline": {"singleton": "zero", **_OVER_TRAJECTORIES},
    },
    "torchtitan": {"grpo": {**_CENTRED, "ddof": 0, "eps": 1e-6}},
    "tinker": {"grpo": _CENTRED},
    "verifiers": {"grpo": _CENTRED},
    "art": {"grpo": _BY_POPULATION_STD},
    "skyrl": {
        "grpo": {**_BY_STD, **_RAW},
        "rloo": {"singleton": "zero"},
        "reinforce_pp": _OVER_TOKENS,
    },
}
"""Constants of trainers' own estimators: `[preset][estimator][parameter]`. `verl` includes its forks:
verl-agent's GiGPO and HGPO, IGPO, Tree-GRPO; `verl_agent_rows` is verl-agent's GRPO, which counts a rollout
once per turn. `trl` includes MT-GRPO's reference. rLLM's prpo is its `reinforce_pp`."""


WITH_BRANCHES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "turn_return": {"baseline": ("loo_index", "none"), "scale": ("none",)},
    "rloo": {},
}
"""Estimators that can credit branches; for each, the parameters that are limited and their values."""


@dataclass(frozen=True, slots=True)
class Param:
    """Description and bounds of a parameter: `gamma: Annotated[float, Param("…", low=0, high=1)]`."""

    description: str = ""
    low: float = -math.inf
    high: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    name: str
    kind: Kind
    """`per_turn`: `[trajectory][turn]` floats, which only code can give."""
    default: Value | None
    low: float = -math.inf
    high: float = math.inf
    choices: tuple[str, ...] = ()
    description: str = ""

    @property
    def possible(self) -> str:
        match self.kind:
            case "choice":
                return " · ".join(self.choices)
            case "flag":
                return "true · false"
            case "per_turn":
                return "one float per turn"
            case _ if self.high < math.inf:
                return f"{self.kind} {self.low:g} … {self.high:g}"
            case _:
                return f"{self.kind} ≥ {self.low:g}" if self.low > -math.inf else f"any {self.kind}"

    def check(self, value: object, estimator: str) -> None:
        if self.kind == "choice":
            fits = value in self.choices
        elif self.kind == "flag":
            fits = isinstance(value, bool)
        elif self.kind == "per_turn":
            fits = True  # the estimator checks its shape, which depends on the group
        elif isinstance(value, bool) or not isinstance(value, int if self.kind == "integer" else int | float):
            fits = False
        else:
            fits = math.isfinite(value) and self.low <= value <= self.high
        if not fits:
            raise CreditError(f"{estimator}: {self.name} is {value!r}; possible: {self.possible}")

    def read(self, value: Value, estimator: str) -> Value:
        """Return a checked setting; text is parsed, and numbers become floats."""
        if isinstance(value, str) and self.kind == "flag":
            value = {"true": True, "false": False}.get(value.lower(), value)
        elif isinstance(value, str) and self.kind in ("number", "integer"):
            with contextlib.suppress(ValueError):
                value = float(value) if self.kind == "number" else int(value)
        self.check(value, estimator)
        return float(value) if self.kind == "number" else value


SINGLETON = Parameter(
    name="singleton",
    kind="choice",
    default="zero",
    choices=("zero", "raw", "error"),
    description="a group of one trajectory: no advantage, what the formula gives, or an error",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimatorSpec:
    """A registered estimator: formula, bias, source and parameters."""

    name: str
    summary: str
    formula: str
    bias: str
    """Difference between its expected gradient and that of the trajectory's return."""
    source: str
    parameters: tuple[Parameter, ...]
    terms: Callable[..., list[Term]] = field(repr=False)
    """`(group, **parameters)` to the terms that add up to the advantages."""
    over_step: OverStep | None = field(default=None, repr=False)
    """Compares groups of a step, after `terms`."""

    def of_step(
        self, terms: list[list[Term]], groups: Sequence[TrajectoryGroup], params: Mapping[str, object]
    ) -> list[list[Term]]:
        if self.over_step is None:
            return terms
        compared = self.over_step(terms, groups, **_select_params(self.over_step, params))
        return [
            own if self.is_alone(group, params) else new
            for own, new, group in zip(terms, compared, groups, strict=True)
        ]

    def is_alone(self, group: TrajectoryGroup, params: Mapping[str, object]) -> bool:
        """Whether nothing is compared with the group's only trajectory, so that it has no advantage.

        Raises:
            CreditError: if `singleton` is `error`.
        """
        singleton = params.get("singleton", "zero")
        if len(group.trajectories) != 1 or SINGLETON not in self.parameters or singleton == "raw":
            return False
        if singleton == "error":
            raise CreditError("the group has one trajectory; singleton='zero' gives it no advantage")
        return params.get("baseline") != "none"

    def refuse_singles(self, preset: str | None, params: Mapping[str, object], what: str) -> None:
        """Raise CreditError for groups of one, unless `singleton` or `baseline=none` says what they get."""
        given = {**_preset_for(self.name, preset), **params}
        if SINGLETON in self.parameters and given.get("baseline") != "none" and "singleton" not in given:
            raise CreditError(
                f"{what}, and {self.name} compares a trajectory with others of its group: give each item two "
                f"rollouts or more, or set singleton ({SINGLETON.possible}), or a baseline to none"
            )

    def check_branches(self, preset: str | None, params: Mapping[str, object]) -> None:
        """Raise CreditError if groups with branches would be credited with a bias."""
        used, possible = resolve(self.name, preset=preset, **params), WITH_BRANCHES.get(self.name, {})
        wrong = [f" with {name} {used[name]}" for name, may in possible.items() if used[name] not in may]
        if wrong or self.name not in WITH_BRANCHES:
            able = (
                ", ".join([name, *(f"{parameter} {' or '.join(may)}" for parameter, may in needs.items())])
                for name, needs in WITH_BRANCHES.items()
            )
            raise CreditError(
                f"{self.name}{''.join(wrong)} does not credit branches of a rollout; possible: "
                + "; ".join(able)
            )

    def refuse_alone(self) -> None:
        if self.over_step is not None:
            raise CreditError(
                f"{self.name} compares all groups of a training step, and here each is credited by itself: "
                f"roll out with another estimator, and credit the groups of a step with "
                f"turnwise.credit.credited_batch(groups, {self.name!r}) or turn_advantages, or those of a "
                f"record with `turnwise credit RECORD --estimator {self.name}`"
            )

    def parameter(self, name: str) -> Parameter:
        for parameter in self.parameters:
            if parameter.name == name:
                return parameter
        raise _unknown(f"parameter of {self.name} named", name, [p.name for p in self.parameters])

    def check(self, given: Mapping[str, object]) -> None:
        for name, value in given.items():
            self.parameter(name).check(value, self.name)


_GONE = {"progress": "take turn_return, and reward each turn with the difference of its state's value"}
_functions: dict[str, Estimator] = {}
_specs: dict[str, EstimatorSpec] = {}

ESTIMATORS: Mapping[str, Estimator] = MappingProxyType(_functions)
"""Registered estimators: `ESTIMATORS[name](group, **parameters)` returns advantages."""


def register_estimator(
    name: str,
    *,
    formula: str = "",
    bias: str = "",
    source: str = "",
    credits_summaries: bool = True,
    over_step: OverStep | None = None,
) -> Callable[[Callable[P, Sequence[Term] | Advantages]], Callable[P, Advantages]]:
    """Register a function as an estimator: it takes a group, and keyword-only parameters with defaults.

    It returns terms, or advantages `[trajectory][turn]`. Parameters are described in their annotation:
    `Annotated[float, Param("discount", low=0, high=1)]`. The registered function checks parameters and
    result, and returns advantages: 0 for untrained turns, and for a summary what an act in its place would
    get, or 0 without `credits_summaries`. Without a critic's `values` as a parameter it compares
    siblings: it gets the parameter `singleton`, unless it has its own, and a group of one gets no advantage
    unless that is set.
    `over_step` compares all groups of a training step: it takes each group's terms, the groups and
    keyword-only parameters, and returns each group's terms.

    Raises:
        CreditError: if another function has this name, or a parameter cannot be described.
    """

    def register(function: Callable[P, Sequence[Term] | Advantages]) -> Callable[P, Advantages]:
        known, own = (
            each and f"{each.__module__}.{each.__qualname__}" for each in (_functions.get(name), function)
        )
        if known and known != own:
            raise CreditError(f"an estimator named {name!r} exists: {known}")
        parameters = _parameters_of(function)
        if over_step is not None:
            parameters += _parameters_of(over_step)
        per_turn = [parameter.name for parameter in parameters if parameter.kind == "per_turn"]
        has_own = any(parameter.name == SINGLETON.name for parameter in parameters)
        parameters += () if has_own or "values" in per_turn else (SINGLETON,)

        def terms(group: TrajectoryGroup, **params: Any) -> list[Term]:
            spec.check(params)
            check_branches_of(group, name, params)
            if spec.is_alone(group, params):
                scores = Pool.of_trajectories([each.score for each in read(group)])
                return [Term(name="score", values=scores, weight=0.0, note=ALONE)]
            own = _select_params(function, params)

            def of_acts(acts: TrajectoryGroup, values: Mapping[str, Any]) -> list[Term]:
                return _to_terms(name, acts, cast("Any", function)(acts, **{**own, **values}))

            values = {key: params[key] for key in per_turn if params.get(key) is not None}
            if "values" in per_turn and "values" not in values and (recorded := _read_values(group)):
                values["values"] = recorded
            return over_all_turns(of_acts, group, values, credits_summaries=credits_summaries)

        spec = EstimatorSpec(
            name=name,
            summary=(inspect.getdoc(function) or "").split("\n")[0],
            formula=formula,
            bias=bias,
            source=source,
            parameters=parameters,
            terms=terms,
            over_step=over_step,
        )

        @functools.wraps(function)
        def advantages(*args: P.args, **kwargs: P.kwargs) -> Advantages:
            group = args[0]
            if not isinstance(group, TrajectoryGroup):
                raise CreditError(f"{name} takes a TrajectoryGroup, not {type(group).__name__}")
            spec.refuse_alone()
            return advantages_of(name, terms(group, **kwargs), group)

        _functions[name], _specs[name] = advantages, spec
        return advantages

    return register


def estimate(
    name: str, group: TrajectoryGroup, *, preset: str | None = None, **params: object
) -> list[list[float]]:
    """Return advantages, `[trajectory][turn]`; 0 for a turn that is not trained.

    Args:
        name: a key of `ESTIMATORS`.
        group: siblings with rewards.
        preset: a key of `PRESETS`; `params` override its constants.
        params: the estimator's parameters.

    Raises:
        CreditError: if the estimator, preset or a parameter is unknown, a value is out of bounds, or rewards
            are missing, NaN or infinite (names trajectory and turn).
    """
    merged = {**_preset_for(name, preset), **params}
    return ESTIMATORS[name](group, **merged)


def terms_of(name: str, group: TrajectoryGroup, *, preset: str | None = None, **params: object) -> list[Term]:
    """Return the terms of all turns, untrained ones too; `EstimatorSpec.of_step` may have to follow."""
    return describe(name).terms(group, **{**_preset_for(name, preset), **params})


def recorded_terms(done: CreditedGroup) -> list[Term]:
    """Return the terms of a credited group; records made before `singleton` existed kept raw values."""
    spec, params = describe(done.estimator), dict(done.estimator_params)
    if done.estimator == "mt_grpo" and params.pop("segments", "two") != "two":
        raise CreditError("segments=per_turn of mt_grpo is gone")
    if SINGLETON in spec.parameters and done.status != "alone":
        params.setdefault("singleton", "raw")
    return spec.terms(done.group, **params)


def advantages_of(name: str, terms: Sequence[Term], group: TrajectoryGroup) -> Advantages:
    """Return the sums of terms; 0 for a turn that is not trained."""
    try:
        advantages = add_up(terms, [len(trajectory.turns) for trajectory in group.trajectories])
    except IndexError:
        raise _placement_error(name) from None
    for index, row in enumerate(advantages):
        if not all(map(math.isfinite, row)):
            turn = next(turn for turn, value in enumerate(row) if not math.isfinite(value))
            raise CreditError(f"{name} gave {row[turn]} to trajectory {index}, turn {turn + 1}")
    return [
        [float(value) if turn.trained else 0.0 for value, turn in zip(row, trajectory.turns, strict=True)]
        for row, trajectory in zip(advantages, group.trajectories, strict=True)
    ]


def without_peer(terms: Sequence[Term], group: TrajectoryGroup) -> list[list[bool]]:
    """Return, per act, whether no sibling has a comparable value, so that its raw return is trained."""
    raw = [term for term in terms if term.has_no_peer]
    rows = by_turn(raw, [len(trajectory.turns) for trajectory in group.trajectories])
    return [
        [
            turn.trained and bool(of_turn)
            for turn, of_turn in zip(trajectory.turns, row, strict=True)
            if turn.kind == "act"
        ]
        for trajectory, row in zip(group.trajectories, rows, strict=True)
    ]


def check_branches_of(group: TrajectoryGroup, estimator: str, params: Mapping[str, object]) -> None:
    """Raise CreditError if the group has branches that the estimator would credit with a bias."""
    if has_branches(group):
        describe(estimator).check_branches(None, params)


def describe(name: str) -> EstimatorSpec:
    if name in _GONE and name not in _specs:
        raise CreditError(f"the estimator {name!r} is gone: {_GONE[name]}")
    if name not in _specs:
        raise _unknown("estimator", name, _specs)
    return _specs[name]


def resolve(name: str, *, preset: str | None = None, **params: object) -> dict[str, object]:
    """Return every parameter's value in a call: default, then preset, then `params`.

    Raises:
        CreditError: if `estimate` would raise it.
    """
    spec = describe(name)
    spec.check(params)
    defaults = {parameter.name: parameter.default for parameter in spec.parameters}
    return {**defaults, **_preset_for(name, preset), **params}


def read_params(name: str, preset: str | None, settings: Mapping[str, Value]) -> dict[str, Value]:
    """Parse and validate an estimator's parameters; values from settings may be text.

    Raises:
        CreditError: if `estimate` would raise it.
    """
    spec = describe(name)
    params = {key: spec.parameter(key).read(value, name) for key, value in settings.items()}
    resolve(name, preset=preset, **params)
    return params


def _preset_for(name: str, preset: str | None) -> Mapping[str, Value]:
    describe(name)
    if preset is None:
        return {}
    if preset not in PRESETS:
        raise _unknown("estimator preset", preset, PRESETS)
    if name not in PRESETS[preset]:
        raise CreditError(
            f"preset {preset!r} does not cover {name}; it covers {', '.join(sorted(PRESETS[preset]))}"
        )
    return PRESETS[preset][name]


def _unknown(what: str, name: str, known: Iterable[str]) -> CreditError:
    names = sorted(known)
    return CreditError(
        f"no {what} {name!r}{did_you_mean(name, names)}; there are: {', '.join(names) or 'none'}"
    )


def _placement_error(name: str) -> CreditError:
    return CreditError(f"{name} gave a term for a turn that the group does not have")


def _to_terms(name: str, group: TrajectoryGroup, result: Any) -> list[Term]:
    if not isinstance(result, Sequence):
        raise CreditError(f"{name} gave {result!r:.100}; give terms, or one list per trajectory")
    rows = cast("Sequence[Any]", result)
    counts = [len(trajectory.turns) for trajectory in group.trajectories]
    if all(isinstance(each, Term) for each in rows) and (rows or not any(counts)):
        terms = list(cast("Sequence[Term]", rows))
        # A negative index would count from the end.
        if any(index < 0 or (turn or 0) < 0 for term in terms for index, turn in term.values.places):
            raise _placement_error(name)
        return terms
    if len(rows) != len(counts):
        raise CreditError(f"{name} gave {len(rows)} lists for a group of {len(counts)} trajectories")
    for index, (row, count) in enumerate(zip(rows, counts, strict=True)):
        if len(row) != count:
            raise CreditError(f"{name} gave {len(row)} advantages for {count} turns of trajectory {index}")
    return [Term(name="advantage", values=Pool.of_turns([[*map(float, row)] for row in rows]))]


def _read_values(group: TrajectoryGroup) -> list[list[float]] | None:
    turns = [(index, turn) for index, each in enumerate(group.trajectories) for turn in each.turns]
    missing = [(index, turn) for index, turn in turns if turn.value is None]
    if len(missing) == len(turns):
        return None
    if missing:
        index, turn = missing[0]
        raise CreditError(f"trajectory {index}, turn {turn.index + 1} has no value, and other turns have one")
    return [[cast("float", turn.value) for turn in each.turns] for each in group.trajectories]


# --- parameters of a signature -------------------------------------------------------------------------


def _parameters_of(function: Callable[..., Any]) -> tuple[Parameter, ...]:
    hints = typing.get_type_hints(function, include_extras=True)
    described: list[Parameter] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
            continue
        where = f"estimator {function.__name__}: parameter {parameter.name!r}"
        if parameter.default is inspect.Parameter.empty:
            raise CreditError(f"{where} needs a default")
        annotation, notes = hints.get(parameter.name), Param()
        if typing.get_origin(annotation) is typing.Annotated:
            annotation, *given = typing.get_args(annotation)
            notes = next((note for note in given if isinstance(note, Param)), notes)
        kind, choices = _kind(annotation, where)
        bare = Parameter(name=parameter.name, kind=kind, default=parameter.default, choices=choices)
        described.append(replace(bare, **asdict(notes)))
    return tuple(described)


def _select_params(function: Callable[..., Any], params: Mapping[str, Any]) -> dict[str, Any]:
    own = inspect.signature(function).parameters
    return {name: value for name, value in params.items() if name in own}


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
