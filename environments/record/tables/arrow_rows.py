"""The tables of a record: which columns they have, and the rows that a group has in them.

The type of a column, and what it holds of a value, both come from the type annotation.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from types import NoneType, UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

import orjson
import pyarrow

from environments.trajectory import (
    IGNORED,
    CreditedGroup,
    Kept,
    Message,
    Rewards,
    TokenRow,
    Trajectory,
    TrajectoryGroup,
    Turn,
)
from environments.wire.credited_rows import mask_of, spread, trained_span

# Only partly typed.
arrow: Any = pyarrow

Encode = Callable[[Any], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """What a column is, and how it is filled."""

    type: Any
    """Arrow's."""
    encode: Encode | None = None
    """A value as Arrow takes it; `None`: as it is."""

    def of(self, value: Any) -> Any:
        """A value as Arrow takes it; `None` stays."""
        return value if value is None or self.encode is None else self.encode(value)


_SCALARS: Mapping[Any, Any] = {
    str: arrow.string(),
    int: arrow.int64(),
    float: arrow.float64(),
    bool: arrow.bool_(),
}


def column_of(hint: Any) -> Column:
    """The column of values with this annotation.

    A mapping is a list of `name` and `value`, what may be anything is the text of its JSON, and a part of a
    context has `start` and `end`, or a `message`.

    Raises:
        TypeError: it has none.
    """
    if hint in _SCALARS:
        return Column(type=_SCALARS[hint])
    if hint is Any:
        return Column(type=arrow.string(), encode=json_text)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal or _is_enum(hint):
        return Column(type=arrow.string(), encode=str)
    if origin in (UnionType, Union):
        return _of_union(arguments)
    if origin in (tuple, Sequence):
        return list_of(column_of(arguments[0]))
    if origin is Mapping:
        return _of_mapping(arguments[1])
    if is_dataclass(hint):
        return struct_of(fields_of(cast(type, hint)))
    raise TypeError(f"no column for {hint!r}")


def fields_of(values: type, *, without: tuple[str, ...] = ()) -> dict[str, Column]:
    """The columns of a dataclass's fields, but for some."""
    hints = get_type_hints(values)
    return {each.name: column_of(hints[each.name]) for each in fields(values) if each.name not in without}


def struct_of(columns: Mapping[str, Column]) -> Column:
    """A column of objects that have these attributes."""

    def encode(value: Any) -> dict[str, Any]:
        return {name: column.of(getattr(value, name)) for name, column in columns.items()}

    return Column(type=struct_type(columns), encode=encode)


def struct_type(columns: Mapping[str, Column]) -> Any:
    """Arrow's type of these columns as one."""
    return arrow.struct([(name, column.type) for name, column in columns.items()])


def list_of(each: Column) -> Column:
    """A column of lists."""

    def encode(values: Iterable[Any]) -> list[Any]:
        return [each.of(value) for value in values]

    return Column(type=arrow.list_(each.type), encode=None if each.encode is None else encode)


def json_text(value: Any) -> str:
    """A value as JSON."""
    return orjson.dumps(value).decode()


def entries(value: Any) -> list[dict[str, Any]]:
    """A JSON value as `name` and `value`, which is JSON; what is no mapping is one entry without a name."""
    named: Mapping[Any, Any] = (
        cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {None: value}
    )
    return [{"name": name, "value": json_text(each)} for name, each in named.items()]


ENTRIES = Column(
    type=arrow.list_(arrow.struct([("name", arrow.string()), ("value", arrow.string())])), encode=entries
)


def _is_enum(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, StrEnum)


def _of_union(arguments: tuple[Any, ...]) -> Column:
    kinds = [each for each in arguments if each is not NoneType]
    if set(kinds) == {Kept, Message}:
        return _part_of_context()
    if len(kinds) > 1:
        raise TypeError(f"no column for any of {kinds}")
    return column_of(kinds[0])


def _of_mapping(hint: Any) -> Column:
    value = column_of(hint)

    def encode(mapping: Mapping[str, Any]) -> list[dict[str, Any]]:
        # `None` in an open mapping is JSON's, not a value that is missing.
        of = value.of if hint is not Any else json_text
        return [{"name": name, "value": of(each)} for name, each in mapping.items()]

    return Column(
        type=arrow.list_(arrow.struct([("name", arrow.string()), ("value", value.type)])), encode=encode
    )


def _part_of_context() -> Column:
    kept, message = fields_of(Kept), column_of(Message)

    def encode(part: Kept | Message) -> dict[str, Any]:
        if isinstance(part, Kept):
            return {"start": part.start, "end": part.end}
        return {"message": message.of(part)}

    return Column(type=struct_type({**kept, "message": message}), encode=encode)


Per = Literal["group", "rollout", "turn"]
"""What a row is."""

Row = dict[str, Any]

_NUMBER, _NUMBERS = column_of(float), column_of(tuple[float, ...])
_INTEGER, _INTEGERS = column_of(int), column_of(tuple[int, ...])
_PARTS = column_of(Mapping[str, float])

_GROUP = fields_of(TrajectoryGroup, without=("item", "trajectories"))
_CREDIT = fields_of(CreditedGroup, without=("group", "advantages", "estimator_params"))
_OPEN = {"item": ENTRIES, "estimator_params": ENTRIES}

_ROLLOUT = fields_of(Trajectory, without=("item_id", "turns", "rows", "rewards", "contents"))
_REWARDS = {
    "score": _NUMBER,
    "outcome": _NUMBER,
    "outcome_parts": _PARTS,
    "outcome_raw_parts": _PARTS,
    "group_reward": _NUMBER,
    "turn_rewards": _NUMBERS,
}
_NO_REWARDS = dict.fromkeys(_REWARDS)

_MESSAGE = fields_of(Message, without=("role", "content", "tool_call_id"))
_TURN = fields_of(Turn, without=("index", "message"))
_TURN_COLUMNS = {
    "turn": _INTEGER,
    "text": column_of(str),
    **_MESSAGE,
    **_TURN,
    "reward": _NUMBER,
    "parts": _PARTS,
    "raw_parts": _PARTS,
    "advantage": _NUMBER,
    "tokens": _INTEGERS,
    "masks": _INTEGERS,
    "logprobs": _NUMBERS,
}
_ROW_COLUMNS = {**fields_of(TokenRow), "masks": _INTEGERS, "advantages": _NUMBERS}
_ROLLOUT_COLUMNS = {
    **_ROLLOUT,
    **_REWARDS,
    "turns": list_of(Column(type=struct_type(_TURN_COLUMNS))),
    "rows": list_of(Column(type=struct_type(_ROW_COLUMNS))),
}
_GROUP_COLUMNS = {
    **_GROUP,
    **_OPEN,
    **_CREDIT,
    "rollouts": list_of(Column(type=struct_type(_ROLLOUT_COLUMNS))),
}

_GROUP_IDS = ("env", "group_id", "item_id", "epoch", "fingerprint", "status", "policy", "estimator")
_ROLLOUT_IDS = ("sibling", "seed", "stop_reason", "exact", "score", "outcome")
_SHARED: Mapping[Per, tuple[str, ...]] = {"group": (), "rollout": (*_GROUP_IDS, *_OPEN), "turn": _GROUP_IDS}
"""What of its group a row has."""

_COLUMNS: Mapping[Per, Mapping[str, Column]] = {
    "group": _GROUP_COLUMNS,
    "rollout": {name: _GROUP_COLUMNS[name] for name in _SHARED["rollout"]} | _ROLLOUT_COLUMNS,
    "turn": {name: _GROUP_COLUMNS[name] for name in _SHARED["turn"]}
    | {name: _ROLLOUT_COLUMNS[name] for name in _ROLLOUT_IDS}
    | _TURN_COLUMNS,
}


def schema_of(per: Per) -> Any:
    """Arrow's schema of a table."""
    return arrow.schema([(name, column.type) for name, column in _COLUMNS[per].items()])


def rows_of_group(credited: CreditedGroup, per: Per) -> Iterator[Row]:
    """A group's rows, with every column of the table."""
    group = _filled(_GROUP, credited.group) | _filled(_CREDIT, credited)
    group["item"] = ENTRIES.of(credited.group.item)
    group["estimator_params"] = ENTRIES.of(credited.estimator_params)
    siblings = zip(credited.group.trajectories, credited.advantages, strict=True)
    if per == "group":
        yield group | {"rollouts": [_rollout(*each) for each in siblings]}
        return
    shared = {name: group[name] for name in _SHARED[per]}
    for trajectory, advantages in siblings:
        if per == "rollout":
            yield shared | _rollout(trajectory, advantages)
            continue
        own = _filled(_ROLLOUT, trajectory) | _rewards(trajectory.rewards)
        of_all_turns = shared | {name: own[name] for name in _ROLLOUT_IDS}
        for turn in _turns(trajectory, advantages):
            yield of_all_turns | turn


def _filled(columns: Mapping[str, Column], value: Any) -> Row:
    return {name: column.of(getattr(value, name)) for name, column in columns.items()}


def _rollout(trajectory: Trajectory, advantages: Sequence[float]) -> Row:
    return (
        _filled(_ROLLOUT, trajectory)
        | _rewards(trajectory.rewards)
        | {"turns": _turns(trajectory, advantages), "rows": _rows(trajectory, advantages)}
    )


def _rewards(rewards: Rewards | None) -> Row:
    if rewards is None:
        return _NO_REWARDS
    return {
        "score": rewards.score,
        "outcome": rewards.outcome,
        "outcome_parts": _PARTS.of(rewards.outcome_components),
        "outcome_raw_parts": _PARTS.of(rewards.outcome_raw),
        "group_reward": rewards.group,
        "turn_rewards": rewards.turns,
    }


def _turns(trajectory: Trajectory, advantages: Sequence[float]) -> list[Row]:
    rewards = trajectory.rewards
    values, parts, raw = (
        (None, None, None) if rewards is None else (rewards.turns, rewards.turn_components, rewards.turn_raw)
    )
    return [
        _filled(_MESSAGE, turn.message)
        | _filled(_TURN, turn)
        | _sampled(trajectory.rows, turn)
        | {
            "turn": turn.index,
            "text": turn.message.content,
            "reward": values[index] if values else None,
            "parts": _PARTS.of(parts[index]) if parts else None,
            "raw_parts": _PARTS.of(raw[index]) if raw else None,
            "advantage": advantages[index],
        }
        for index, turn in enumerate(trajectory.turns)
    ]


def _sampled(rows: Sequence[TokenRow], turn: Turn) -> Row:
    """The tokens of a turn; none where no rows were recorded."""
    if not rows:
        return {"tokens": (), "masks": (), "logprobs": None}
    row, start, end = rows[turn.span.row], turn.span.start, turn.span.end
    tokens = row.token_ids[start:end]
    return {
        "tokens": tokens,
        "masks": tokens if turn.trained else (IGNORED,) * len(tokens),
        "logprobs": None if row.logprobs is None else row.logprobs[start:end],
    }


def _rows(trajectory: Trajectory, advantages: Sequence[float]) -> list[Row]:
    of_row: defaultdict[int, list[Turn]] = defaultdict(list)
    for turn in trajectory.turns:
        of_row[turn.span.row].append(turn)
    shown: list[Row] = []
    for index, row in enumerate(trajectory.rows):
        spans = [trained_span(turn) for turn in of_row[index]]
        credit = [advantages[turn.index] for turn in of_row[index]]
        shown.append(
            {
                "token_ids": row.token_ids,
                "logprobs": row.logprobs,
                "masks": mask_of(row.token_ids, spans),
                "advantages": spread(len(row.token_ids), spans, credit),
            }
        )
    return shown
