"""Credit on plain arrays, for trainers with their own rollouts: rewards in, advantages of the same shape out.

A batch has one row per trajectory. Advantages are computed in float64.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from importlib import import_module
from itertools import chain, islice, pairwise
from typing import Any, TypeVar, cast

from environments.credit import Term, describe, resolve
from environments.credit.estimator_registry import advantages_of, terms_of
from environments.credit.ledger import TurnLedger, ledger
from environments.trajectory import (
    LARGEST_REWARD,
    CreditedGroup,
    Message,
    Rewards,
    Span,
    Trajectory,
    TrajectoryGroup,
    Turn,
)
from tools.calls import ToolResult
from tools.errors import CreditError, UsageError

Rows = Sequence[Sequence[float | None]]
Array = TypeVar("Array")

_OF_GROUP = ("anchors", "kinds", "lengths", "actions")
_KINDS = ("act", "summary")
_SAID = Message(role="assistant")
_NOTHING: Mapping[str, Any] = {}
_RAN = (ToolResult(call_id="", name="", content=""),)
_BLOCK_TOKENS = 1 << 17
"""Bounds temporary arrays to some megabytes."""
_Turns = tuple[Any, Any, Any, Any]
"""First and last token of each turn, then lengths and turns of runs (from 1; 0: not trained)."""
_Block = tuple[list[list[float | None]], list[list[int]], Any, Any]


def turn_advantages(
    turn_rewards: Rows,
    group_ids: Sequence[Any],
    outcomes: Sequence[float | None] | None = None,
    *,
    estimator: str = "turn_return",
    **params: Any,
) -> list[list[float]]:
    """Return one advantage per turn, `[row][turn]`, for a batch of trajectories.

    A row without turns is compared with nothing. For `mt_grpo`, every turn but a row's last one ran a tool.

    Args:
        turn_rewards: `[row][turn]`; None is not scored, which differs from 0.
        group_ids: one per row; equal ids answer the same prompt, in any order.
        outcomes: one per row, of the whole trajectory; all rows of a group have one, or none has.
        estimator: a name that `turnwise credit` lists.
        params: the estimator's, and `preset`; also, all `[row][turn]`, `anchors` (states that `gigpo`
            compares), `kinds` (`act` or `summary`) and `lengths` (tokens, default 1; weights of `opo` and
            `reinforce_pp`).

    Raises:
        CreditError: if a value is invalid; the message has row and turn, from 0.
    """
    advantages: list[list[float]] = [[] for _ in turn_rewards]
    for rows, credited in _credit_groups(turn_rewards, group_ids, outcomes, estimator, params):
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
    """Return how each advantage of `turn_advantages` was computed, `[row][turn]`, siblings as row numbers."""
    entries: list[list[TurnLedger]] = [[] for _ in turn_rewards]
    for rows, credited in _credit_groups(turn_rewards, group_ids, outcomes, estimator, params):
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
    """Return an advantage per token, `[row, token]`: its turn's where the mask is 1, else 0.

    A turn's reward is the sum over its tokens; NaN on the last one means not scored. Tokens after a turn
    belong to it. **Without `turn_ids` a turn is a run of the mask: two turns with no token between them are
    one.**

    Args:
        token_level_rewards: `[row, token]`, floats; numpy or torch.
        response_mask: `[row, token]`, 1 where a sampled token is trained, else 0.
        group_ids: one per row, see `turn_advantages`.
        turn_ids: `[row, token]`, the turn of each token: 0, 1, 2, … in a row, and -1 outside turns. A turn
            with mask 0 is compared with, and not trained.
        estimator: a name that `turnwise credit` lists.
        params: see `turn_advantages`; `outcomes`, too.

    Returns:
        An array of the type, dtype and device of `token_level_rewards`.

    Raises:
        CreditError: if a value is invalid; the message has row and token or turn, from 0.
    """
    np: Any = import_module("numpy")
    rewards = _matrix(token_level_rewards, "token_level_rewards", None)
    count, width = shape = tuple(rewards.shape)
    mask = _matrix(response_mask, "response_mask", shape)
    turns = None if turn_ids is None else _matrix(turn_ids, "turn_ids", shape)
    height = max(1, _BLOCK_TOKENS // max(1, width))
    firsts = range(0, count, height)
    blocks = [_read_block(first, first + height, rewards, mask, turns) for first in firsts]
    params = {"lengths": [row for _, lengths, *_ in blocks for row in lengths], **params}
    turn_rewards = [row for rows, *_ in blocks for row in rows]
    of_turns = iter(turn_advantages(turn_rewards, group_ids, estimator=estimator, **params))
    given: Any = token_level_rewards
    result: Any = given.new_empty(given.shape) if _is_tensor(given) else np.empty_like(given)
    for first, (rewards_of, _, sizes, owners) in zip(firsts, blocks, strict=True):
        values = np.array([0.0, *chain.from_iterable(islice(of_turns, len(rewards_of)))])[owners]
        with np.errstate(over="ignore"):
            held: Any = given.new_tensor(values) if _is_tensor(given) else values.astype(given.dtype)
        if not math.isfinite(float(abs(held).max()) if values.size else 0.0):
            raise CreditError(
                f"an advantage of {abs(values).max():g} is too large for {given.dtype}; scale the rewards"
            )
        of_tokens = np.repeat(values, sizes).reshape(len(rewards_of), width)
        result[first : first + height] = given.new_tensor(of_tokens) if _is_tensor(given) else of_tokens
    return result


# --- turns ---------------------------------------------------------------------------------------------


def _credit_groups(
    turn_rewards: Rows,
    group_ids: Sequence[Any],
    outcomes: Sequence[float | None] | None,
    estimator: str,
    params: Mapping[str, Any],
) -> list[tuple[list[int], CreditedGroup]]:
    of_turns = {name: values for name, values in params.items() if values is not None and name in _OF_GROUP}
    own = {
        name: value.item() if getattr(value, "ndim", None) == 0 else value
        for name, value in params.items()
        if name not in _OF_GROUP
    }
    used = resolve(estimator, **own)
    of_turns |= {
        each.name: used.pop(each.name)
        for each in describe(estimator).parameters
        if each.kind == "per_turn" and used[each.name] is not None
    }
    ids, outcomes = _to_list(group_ids), None if outcomes is None else _to_list(outcomes)
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
    by_group = _rows_of(ids, shape)
    if by_group and all(len(rows) == 1 for rows in by_group.values()):
        preset = cast("str | None", own.pop("preset", None))
        describe(estimator).refuse_singles(preset, own, "every group of group_ids has one row")
    done: list[tuple[list[int], CreditedGroup]] = []
    every: list[list[Term]] = []
    for group_id, rows in by_group.items():
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


def _to_list(values: Any) -> list[Any]:
    given = values.tolist() if hasattr(values, "tolist") else [*values]
    return [each.item() if hasattr(each, "item") else each for each in given]


def _rows_of(ids: Sequence[Any], shape: Sequence[int]) -> dict[Any, list[int]]:
    groups: dict[Any, list[int]] = {}
    for row, group_id in enumerate(ids):
        if not isinstance(group_id, Hashable) or group_id != group_id:  # NaN
            raise CreditError(f"group_ids[{row}] is {group_id!r:.100}; rows of one group have equal ids")
        if shape[row]:
            groups.setdefault(group_id, []).append(row)
    return groups


def _check_numbers(turn_rewards: Rows, outcomes: Sequence[float | None] | None) -> None:
    of_turns = (
        (value, "turn_rewards[{}][{}]", row, turn)
        for row, values in enumerate(turn_rewards)
        for turn, value in enumerate(values)
    )
    of_rows = ((value, "outcomes[{}]", row, 0) for row, value in enumerate(outcomes or ()))
    for value, name, row, turn in chain(of_turns, of_rows):
        if not (value is None or abs(_read_number(value)) <= LARGEST_REWARD):
            raise CreditError(
                f"{name.format(row, turn)} is {value!r:.100}; give a number up to {LARGEST_REWARD:g}, "
                f"or None if not scored"
            )


def _read_number(value: Any) -> float:
    """Return the value as a float, or NaN if it is not a number."""
    try:
        return math.nan if isinstance(value, str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


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
    anchors, kinds, lengths, actions = (picked.get(name) for name in _OF_GROUP)
    trajectories: list[Trajectory] = []
    for position, (row, given) in enumerate(zip(rows, turn_rewards, strict=True)):
        rewards, last = tuple(None if value is None else float(value) for value in given), len(given) - 1
        outcome = None if outcomes is None else outcomes[position]
        own_kinds: Sequence[Any] = ("act",) * len(given) if kinds is None else kinds[position]
        if wrong := set(own_kinds).difference(_KINDS):
            raise CreditError(f"kinds[{row}] has {wrong.pop()!r}; choose one of {_KINDS}")
        turns = tuple(
            Turn(
                index=index,
                kind=kind,
                message=_SAID if actions is None else _say(actions[position][index]),
                tool_results=_RAN if kind == "act" and index < last else (),
                span=_span(1 if lengths is None else lengths[position][index]),
                anchor=None if anchors is None else anchors[position][index],
                noted=_NOTHING,
                sampling=_NOTHING,
            )
            for index, kind in enumerate(own_kinds)
        )
        if any(kind != "act" and value is not None for kind, value in zip(own_kinds, rewards, strict=True)):
            raise CreditError(f"row {row}: a summary has no reward; give None")
        # An unscored trajectory has the score 0.
        score = math.fsum(value for value in (*rewards, outcome) if value is not None)
        own = Rewards(turns=rewards, outcome=outcome, score=score)
        trajectories.append(Trajectory(item_id="", sibling=row, turns=turns, rows=(), rewards=own))
    return TrajectoryGroup(trajectories=tuple(trajectories))


def _say(action: object) -> Message:
    return Message(role="assistant", content="" if action is None else str(action))


@lru_cache(maxsize=10_000)
def _span(length: int) -> Span:
    if not 0 <= _read_number(length) < math.inf:
        raise CreditError(f"lengths has {length!r:.50}; give the number of each turn's tokens")
    return Span(row=0, start=0, end=length)


# --- arrays --------------------------------------------------------------------------------------------


def _read_block(first: int, end: int, rewards: Any, mask: Any, turn_ids: Any) -> _Block:
    np: Any = import_module("numpy")
    rewards, mask = _rows(rewards, first, end), _rows(mask, first, end)
    trained = mask == 1
    wrong = np.flatnonzero(trained != (mask != 0))
    _refuse(wrong, mask, first, "response_mask", "give 1 where a token is trained, else 0")
    given = None if turn_ids is None else _rows(turn_ids, first, end)
    begins, lasts, sizes, owners = _runs(trained) if given is None else _read_turn_ids(trained, given, first)
    counts = np.bincount(begins // max(1, mask.shape[1]), minlength=len(mask))
    lengths = np.bincount(owners, sizes, minlength=len(begins) + 1)[1:].astype(int).tolist()
    sums, bounds = _sums(rewards, begins, lasts, first), [*pairwise([0, *counts.cumsum().tolist()])]
    return [sums[i:j] for i, j in bounds], [lengths[i:j] for i, j in bounds], sizes, owners


def _runs(trained: Any) -> _Turns:
    np: Any = import_module("numpy")
    padded = np.pad(trained, ((0, 0), (0, 1))).ravel()
    changes = np.flatnonzero(np.concatenate([padded[:1], padded[1:] != padded[:-1]]))
    changes -= changes // (trained.shape[1] + 1)
    owners = np.zeros(len(changes) + 1, dtype=int)
    owners[1::2] = np.arange(1, len(changes) // 2 + 1)
    return changes[::2], changes[1::2] - 1, np.diff(changes, prepend=0, append=trained.size), owners


def _read_turn_ids(trained: Any, given: Any, first: int) -> _Turns:
    np: Any = import_module("numpy")
    turns = given.astype("int64", copy=False)
    refuse = partial(_refuse, values=given, first=first, name="turn_ids")
    refuse(np.flatnonzero(turns != given), possible="give whole numbers")
    reached = np.maximum.accumulate(turns, axis=1)
    before = np.pad(reached, ((0, 0), (1, 0)), constant_values=-1)[:, :-1]
    wrong = np.flatnonzero((turns != before) & (turns != before + 1) & (turns != -1))
    refuse(wrong, possible="number the turns of a row 0, 1, 2, …, and give -1 off turns")
    refuse(np.flatnonzero(trained & (turns < 0)), possible="a token that is trained has a turn")
    begins = (reached > before).ravel()
    numbers, tokens = begins.cumsum(), np.flatnonzero(turns >= 0)
    lasts = np.zeros(begins.sum(), dtype=int)
    lasts[numbers[tokens] - 1] = tokens  # the last assignment wins
    owners = np.where(trained.ravel(), numbers, 0)
    starts = np.flatnonzero(np.diff(owners, prepend=-1))
    return np.flatnonzero(begins), lasts, np.diff(starts, append=owners.size), owners[starts]


def _sums(rewards: Any, begins: Any, lasts: Any, first: int) -> list[float | None]:
    """Return each turn's reward, from its first token to the next turn's; None if not scored."""
    np: Any = import_module("numpy")
    height, width = rewards.shape
    tokens = np.flatnonzero(rewards != 0)  # NaN is not 0 either
    values = rewards.ravel()[tokens].astype("float64")
    # Owner 0: tokens before the first turn of a row.
    numbers = np.concatenate([np.zeros(height, dtype=int), np.arange(1, len(begins) + 1)])
    marks = np.concatenate([np.arange(height) * width, begins])
    order = np.argsort(marks, kind="stable")
    owners = np.repeat(numbers[order], np.diff(np.searchsorted(tokens, marks[order]), append=len(tokens)))
    unscored = np.isnan(values)

    is_early = unscored & (np.concatenate([[-1], lasts])[owners] != tokens)
    refuse = partial(_refuse, values=rewards, first=first, name="token_level_rewards")
    refuse(tokens[is_early], possible="NaN is allowed only on a turn's last token")
    refuse(tokens[np.isinf(values)], possible="rewards are finite")
    refuse(tokens[owners == 0], possible="it belongs to no turn, since none has begun")
    sums = np.bincount(owners[~unscored], values[~unscored], minlength=len(begins) + 1)
    has_others = unscored & (sums[owners] != 0)
    refuse(tokens[has_others], possible="other tokens of its turn have a reward")
    scored: list[float | None] = sums.tolist()
    for turn in owners[unscored].tolist():
        scored[turn] = None
    return scored[1:]


def _is_tensor(given: Any) -> bool:
    return hasattr(given, "new_tensor")


def _matrix(given: Any, name: str, shape: tuple[int, ...] | None) -> Any:
    np: Any = import_module("numpy")
    if shape is None and not _is_tensor(given) and not isinstance(given, np.ndarray):
        raise CreditError(f"{name} is a {type(given).__name__}; give a numpy array or a torch tensor")
    matrix = given.detach() if _is_tensor(given) else np.asarray(given)
    is_float = matrix.is_floating_point() if _is_tensor(given) else np.issubdtype(matrix.dtype, np.floating)
    if shape is None and not is_float:
        raise CreditError(f"{name} has dtype {given.dtype}; it must be floating point, as advantages are")
    found = tuple(matrix.shape)
    if matrix.ndim != 2 or found != (shape or found):
        wanted = f"the shape {shape} of token_level_rewards" if shape else "two dimensions, [row, token]"
        raise CreditError(f"{name} has the shape {found}; give {wanted}")
    return matrix


def _rows(matrix: Any, first: int, end: int) -> Any:
    rows = matrix[first:end]
    if not _is_tensor(rows):
        return rows
    rows = rows.cpu()  # first: not every device has float64
    return (rows.double() if rows.is_floating_point() else rows).numpy()


def _refuse(tokens: Any, values: Any, first: int, name: str, possible: str) -> None:
    if len(tokens):
        row, token = divmod(int(tokens[0]), values.shape[1])
        raise CreditError(f"{name}[{first + row}, {token}] is {values[row, token]}: {possible}")
