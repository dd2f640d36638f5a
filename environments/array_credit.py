"""Credit on plain arrays, for trainers with rollouts of their own: rewards in, advantages of that shape out.

A batch has one row per trajectory. Advantages are computed in float64.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any, TypeVar, cast, get_args

from environments.credit import Term, describe, resolve
from environments.credit.estimator_registry import advantages_of, terms_of
from environments.credit.ledger import TurnLedger, ledger
from environments.testing import Kind, group_of
from environments.trajectory import LARGEST_REWARD, CreditedGroup, Rewards, TrajectoryGroup
from tools.errors import CreditError, UsageError

Rows = Sequence[Sequence[float | None]]
Array = TypeVar("Array")
"""A numpy array or a torch tensor."""

_OF_GROUP = ("anchors", "kinds", "lengths")
"""Options with an entry per turn that are the group's, not the estimator's."""


def turn_advantages(
    turn_rewards: Rows,
    group_ids: Sequence[Any],
    outcomes: Sequence[float | None] | None = None,
    *,
    estimator: str = "turn_return",
    **params: Any,
) -> list[list[float]]:
    """One advantage per turn, `[row][turn]`, of a batch of trajectories.

    A row without turns is compared with nothing. For `mt_grpo`, every turn but a row's last one ran a tool.

    Args:
        turn_rewards: `[row][turn]`; `None`: not scored, which is not 0.
        group_ids: one per row; rows of equal ids answer the same prompt, and need not be neighbours.
        outcomes: one per row, of the whole trajectory; all of a group have one, or none.
        estimator: a name of `turnwise credit`.
        params: the estimator's, and `preset`; `anchors` (`[row][turn]`, states that `gigpo` compares),
            `kinds` (`[row][turn]`, `act` or `summary`) and `lengths` (`[row][turn]`, tokens, 1 when not
            given, of which `opo` and `reinforce_pp` take means).

    Raises:
        CreditError: what is wrong, by row and turn, each counted from 0.
    """
    advantages: list[list[float]] = [[] for _ in turn_rewards]
    for rows, credited in _credited(turn_rewards, group_ids, outcomes, estimator, params):
        for row, values in zip(rows, credited.advantages, strict=True):
            advantages[row] = [*values]
    return advantages


def turn_ledger(
    turn_rewards: Rows,
    group_ids: Sequence[Any],
    outcomes: Sequence[float | None] | None = None,
    *,
    estimator: str = "turn_return",
    **params: Any,
) -> list[list[TurnLedger]]:
    """How each advantage of `turn_advantages` came about, `[row][turn]`; siblings are named by their rows.

    Raises:
        CreditError: as for `turn_advantages`.
    """
    entries: list[list[TurnLedger]] = [[] for _ in turn_rewards]
    for rows, credited in _credited(turn_rewards, group_ids, outcomes, estimator, params):
        for row, values in zip(rows, ledger(credited), strict=True):
            entries[row] = values
    return entries


def token_advantages(
    token_level_rewards: Array,
    response_mask: Any,
    group_ids: Sequence[Any],
    *,
    turn_ids: Any = None,
    estimator: str = "turn_return",
    **params: Any,
) -> Array:
    """An advantage per token, `[row, token]`: that of its turn where the mask is 1, 0 elsewhere.

    A turn's reward is the sum on its tokens, where 0 is scored and NaN on its last token is not scored. What
    stands between two turns, or after the last one, belongs to the turn before it. **Without `turn_ids` a
    turn is a run of the mask: two turns with no token between them are one.** A row without turns, such as
    padding, is compared with nothing.

    Args:
        token_level_rewards: `[row, token]`, floats; numpy or torch.
        response_mask: `[row, token]`, 1 where the policy sampled a token that is trained, else 0.
        group_ids: one per row, see `turn_advantages`.
        turn_ids: `[row, token]`, the turn of each token, 0, 1, 2, … in a row, and -1 off turns. Turns whose
            mask is 0 are not trained, and still count in what is compared.
        estimator: a name of `turnwise credit`.
        params: see `turn_advantages`; `outcomes`, too.

    Returns:
        Of the kind, dtype and device of `token_level_rewards`.

    Raises:
        CreditError: what is wrong, by row and token or turn, each counted from 0.
    """
    np: Any = import_module("numpy")
    rewards = _array(token_level_rewards, "token_level_rewards", "float64")
    mask = _array(response_mask, "response_mask", None, rewards.shape)
    trained = mask == 1
    _refuse(~trained & (mask != 0), mask, "response_mask", "give 1 where a token is trained, else 0")
    if turn_ids is None:
        begins = trained & ~np.pad(trained, ((0, 0), (1, 0)))[:, :-1]
        turns = np.where(trained, begins.cumsum(axis=1) - 1, -1)
    else:
        turns = _array(turn_ids, "turn_ids", "int64", rewards.shape)
        before = np.maximum.accumulate(np.pad(turns, ((0, 0), (1, 0)), constant_values=-1), axis=1)[:, :-1]
        is_next = (turns == before) | (turns == before + 1) | (turns == -1)
        _refuse(~is_next, turns, "turn_ids", "number the turns of a row 0, 1, 2, …, and give -1 off turns")
        _refuse(trained & (turns < 0), turns, "turn_ids", "a token that is trained has a turn")
    params = {"lengths": _lengths(turns, trained), **params}
    of_turns = turn_advantages(_turn_rewards(rewards, turns), group_ids, estimator=estimator, **params)
    padded = np.zeros((len(of_turns), max(map(len, of_turns), default=0) + 1))
    for row, values in enumerate(of_turns):
        padded[row, : len(values)] = values
    advantages = np.where(trained, np.take_along_axis(padded, turns, axis=1), 0.0)
    return _like(token_level_rewards, advantages)


# --- turns ---------------------------------------------------------------------------------------------


def _credited(
    turn_rewards: Rows,
    group_ids: Sequence[Any],
    outcomes: Sequence[float | None] | None,
    estimator: str,
    params: Mapping[str, Any],
) -> list[tuple[list[int], CreditedGroup]]:
    """Each group with the rows that it is made of."""
    of_turns = {name: values for name, values in params.items() if values is not None and name in _OF_GROUP}
    own = {name: value for name, value in params.items() if name not in _OF_GROUP}
    used = resolve(estimator, **own)
    of_turns |= {
        each.name: used.pop(each.name)
        for each in describe(estimator).parameters
        if each.kind == "per_turn" and used[each.name] is not None
    }
    ids, outcomes = _listed(group_ids), None if outcomes is None else _listed(outcomes)
    shape = [len(row) for row in turn_rewards]
    for name, values in (("group_ids", ids), ("outcomes", outcomes), *of_turns.items()):
        if values is not None and len(values) != len(shape):
            raise CreditError(f"{name} has {len(values)} entries for {len(shape)} rows")
    for name, values in of_turns.items():
        if wrong := [row for row, turns in enumerate(shape) if len(values[row]) != turns]:
            row = wrong[0]
            raise CreditError(
                f"{name}[{row}] has {len(values[row])} entries for the {shape[row]} turns of row {row}"
            )
    _check_numbers(turn_rewards, outcomes)
    done: list[tuple[list[int], CreditedGroup]] = []
    every: list[list[Term]] = []
    for group_id, rows in _rows_of(ids, shape).items():
        picked = {name: [values[row] for row in rows] for name, values in of_turns.items()}
        values = {name: value for name, value in picked.items() if name not in _OF_GROUP}
        of_group = _outcomes(outcomes, rows, group_id)
        try:
            group = _group(rows, [turn_rewards[row] for row in rows], of_group, picked)
            every.append(terms_of(estimator, group, **used, **cast("Any", values)))
        except UsageError as error:
            raise CreditError(
                f"group {group_id!r}, whose trajectories 0, 1, … are the rows {rows}: {error}"
            ) from None
        named = {**used, **values}
        bare = CreditedGroup(
            group=group, advantages=(), policy="", estimator=estimator, estimator_params=named
        )
        done.append((rows, bare))
    compared = describe(estimator).of_step(every, [each.group for _, each in done], used)
    return [
        (rows, replace(each, advantages=tuple(map(tuple, advantages_of(estimator, terms, each.group)))))
        for (rows, each), terms in zip(done, compared, strict=True)
    ]


def _listed(values: Any) -> list[Any]:
    """Of an array or a sequence, whose entries may be arrays of one number."""
    given = values.tolist() if hasattr(values, "tolist") else [*values]
    return [each.item() if hasattr(each, "item") else each for each in given]


def _rows_of(ids: Sequence[Any], shape: Sequence[int]) -> dict[Any, list[int]]:
    """The rows of each group that have turns."""
    groups: dict[Any, list[int]] = {}
    for row, group_id in enumerate(ids):
        if not isinstance(group_id, Hashable) or group_id != group_id:  # NaN
            raise CreditError(f"group_ids[{row}] is {group_id!r:.100}; rows of one group have equal ids")
        if shape[row]:
            groups.setdefault(group_id, []).append(row)
    return groups


def _check_numbers(turn_rewards: Rows, outcomes: Sequence[float | None] | None) -> None:
    named = [
        (f"turn_rewards[{row}][{turn}]", value)
        for row, values in enumerate(turn_rewards)
        for turn, value in enumerate(values)
    ]
    for name, value in [*named, *((f"outcomes[{row}]", value) for row, value in enumerate(outcomes or ()))]:
        try:
            size = 0.0 if value is None else abs(float(value))
        except (TypeError, ValueError, OverflowError):
            size = math.inf
        if not size <= LARGEST_REWARD:
            raise CreditError(
                f"{name} is {value!r:.100}; give a number up to {LARGEST_REWARD:g}, or None if not scored"
            )


def _outcomes(
    outcomes: Sequence[float | None] | None, rows: Sequence[int], group_id: Any
) -> list[float] | None:
    of_group = [None if outcomes is None else outcomes[row] for row in rows]
    missing = [row for row, outcome in zip(rows, of_group, strict=True) if outcome is None]
    if 0 < len(missing) < len(rows):
        raise CreditError(
            f"outcomes[{missing[0]}] is None, and other rows of group {group_id!r} have an outcome; give all "
            f"one, or leave the row out"
        )
    return None if missing else [float(cast("float", outcome)) for outcome in of_group]


def _group(
    rows: Sequence[int],
    turn_rewards: Rows,
    outcomes: Sequence[float | None] | None,
    picked: Mapping[str, Any],
) -> TrajectoryGroup:
    of_group = {name: values for name, values in picked.items() if name in _OF_GROUP}
    for row, kinds in zip(rows, of_group.get("kinds", ()), strict=False):
        if wrong := set(kinds).difference(get_args(Kind)):
            raise CreditError(f"kinds[{row}] has {wrong.pop()!r}; choose one of {get_args(Kind)}")
    as_floats = [[None if value is None else float(value) for value in values] for values in turn_rewards]
    group = group_of(as_floats, outcomes=outcomes, **of_group)
    named = [
        # Without outcomes, what was not scored has the score 0.
        replace(each, sibling=row, rewards=replace(cast("Rewards", each.rewards), score=each.score or 0.0))
        for row, each in zip(rows, group.trajectories, strict=True)
    ]
    return replace(group, trajectories=tuple(named))


# --- arrays --------------------------------------------------------------------------------------------


def _turn_rewards(rewards: Any, turns: Any) -> list[list[float | None]]:
    """`[row][turn]`: the sum from a turn's first token to the next turn's; `None`: not scored."""
    if not rewards.size:
        return [[] for _ in rewards]
    np: Any = import_module("numpy")
    name, counts = "token_level_rewards", turns.max(axis=1, initial=-1) + 1
    rows, tokens = np.nonzero(turns >= 0)
    last = np.zeros((len(turns), counts.max(initial=1)), dtype=int)
    last[rows, turns[rows, tokens]] = tokens  # of equal places the last one stays
    is_last = np.zeros(turns.shape, dtype=bool)
    is_last[rows, last[rows, turns[rows, tokens]]] = True
    unscored = np.isnan(rewards)
    _refuse(unscored & ~is_last, rewards, name, "NaN is allowed only on a turn's last token")
    _refuse(np.isinf(rewards), rewards, name, "rewards are finite")
    known, owners = np.where(unscored, 0.0, rewards), np.maximum.accumulate(turns, axis=1)
    _refuse((owners < 0) & (known != 0), rewards, name, "it belongs to no turn, since none has begun")
    sums, owned = np.zeros(last.shape), np.nonzero(owners >= 0)
    np.add.at(sums, (owned[0], owners[owned]), known[owned])
    has_others = np.take_along_axis(sums, owners, axis=1) != 0
    _refuse(unscored & has_others, rewards, name, "other tokens of its turn have a reward")
    values = np.where(np.take_along_axis(unscored, last, axis=1), None, sums)
    return [row[:count].tolist() for row, count in zip(values, counts, strict=True)]


def _lengths(turns: Any, trained: Any) -> list[list[int]]:
    """`[row][turn]`: tokens that are trained."""
    np: Any = import_module("numpy")
    counts = turns.max(axis=1, initial=-1) + 1
    lengths = np.zeros((len(turns), counts.max(initial=1)), dtype=int)
    rows, tokens = np.nonzero(trained)
    np.add.at(lengths, (rows, turns[rows, tokens]), 1)
    return [row[:count].tolist() for row, count in zip(lengths, counts, strict=True)]


def _is_tensor(given: Any) -> bool:
    return hasattr(given, "new_tensor")


def _array(given: Any, name: str, dtype: str | None, shape: tuple[int, ...] | None = None) -> Any:
    """The values as a numpy array of two dimensions."""
    np: Any = import_module("numpy")
    is_rewards = shape is None
    if is_rewards and not _is_tensor(given) and not isinstance(given, np.ndarray):
        raise CreditError(f"{name} is a {type(given).__name__}; give a numpy array or a torch tensor")
    if _is_tensor(given):
        is_float = given.is_floating_point()
        array = given.detach().cpu()  # first: not every device has float64
        array = (array.double() if is_float else array).numpy()
    else:
        array = np.asarray(given)
        is_float = np.issubdtype(array.dtype, np.floating)
    if is_rewards and not is_float:
        raise CreditError(f"{name} has dtype {given.dtype}; it must be floating point, as advantages are")
    if array.ndim != 2 or array.shape != (shape or array.shape):
        wanted = "two dimensions, [row, token]" if is_rewards else f"the shape {shape} of token_level_rewards"
        raise CreditError(f"{name} has the shape {array.shape}; give {wanted}")
    converted = array if dtype is None else array.astype(dtype, copy=False)
    if dtype == "int64":
        _refuse(converted != array, array, name, "give whole numbers")
    return converted


def _refuse(wrong: Any, values: Any, name: str, possible: str) -> None:
    """Raises CreditError with the first place that is `wrong`."""
    if wrong.any():
        row, token = divmod(int(wrong.argmax()), wrong.shape[1])
        raise CreditError(f"{name}[{row}, {token}] is {values[row, token]}: {possible}")


def _like(given: Array, advantages: Any) -> Array:
    """The advantages in the kind, dtype and device of what was given."""
    np, like = cast("Any", import_module("numpy")), cast("Any", given)
    with np.errstate(over="ignore"):  # it is refused below
        result = like.new_tensor(advantages) if _is_tensor(like) else advantages.astype(like.dtype)
    if not math.isfinite(float(abs(result).max()) if advantages.size else 0.0):
        raise CreditError(
            f"an advantage of {abs(advantages).max():g} is too large for {like.dtype}; scale the rewards"
        )
    return result
