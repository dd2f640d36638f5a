"""Every turn of a credited group with what the model saw before it and what the turn was worth."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import orjson

from environments.credit.acts import acts_alone
from environments.credit.scored import Scored, read
from environments.trajectory import CreditedGroup, Trajectory, Turn
from environments.wire.credited_rows import RowMessages, Shown
from tools.calls import ToolSpec
from tools.json_input import JsonError, read_exact_json

_SMALLEST, _LARGEST = -(2**63), 2**63 - 1


KEPT_AS_TEXT = "tool calls keep their arguments as text"
_DECIMALS = 10
_DEEPEST = 100
NO_TOOLS = "groups have no tools recorded"


class TemplateMessages:
    """The messages of a trajectory, each made JSON once."""

    def __init__(self, trajectory: Trajectory, notes: Counter[str]) -> None:
        """Read the conversation; remarks on it are counted in `notes`."""
        self._rows = RowMessages(trajectory)
        self._notes = notes
        self._made: dict[int, bytes] = {}
        self._lasting = frozenset(map(id, self._rows.all))

    def until(self, turn: Turn) -> list[bytes]:
        """What the model saw before a turn, and the turn's message."""
        return [self._json(message) for message in self.shown_until(turn)]

    def shown_until(self, turn: Turn) -> list[Shown]:
        """The same as OpenAI has it, arguments verbatim."""
        return self._rows.until(turn, ())

    def _json(self, message: Shown) -> bytes:
        made = self._made.get(id(message))
        if made is None:
            made = orjson.dumps(self._for_templates(message))
            if id(message) in self._lasting:
                self._made[id(message)] = made
        return made

    def _for_templates(self, message: Shown) -> Shown:
        if "tool_calls" not in message:
            return message
        calls: list[Shown] = []
        for call in message["tool_calls"]:
            arguments = read_arguments(call["function"]["arguments"])
            self._notes[KEPT_AS_TEXT] += isinstance(arguments, str)
            calls.append({**call, "function": {**call["function"], "arguments": arguments}})
        return {**message, "tool_calls": calls}


def read_arguments(text: str) -> Mapping[str, Any] | str:
    """The arguments of a call as an object, or the text itself if `datasets` would change it."""
    try:
        value: Any = read_exact_json(text)
    except JsonError:
        return text
    kept = isinstance(value, dict) and _survives(cast("object", value), _DEEPEST)
    return cast("Mapping[str, Any]", value) if kept else text


def _survives(value: object, depth: int) -> bool:
    """Whether the parser of `datasets` reads a JSON value as it was written."""
    if isinstance(value, bool | str | None):
        return True
    if isinstance(value, int):
        return _SMALLEST <= value <= _LARGEST
    if isinstance(value, float):
        return _keeps(value)
    inner = cast(
        "Sequence[object]", value if isinstance(value, list) else [*cast("dict[str, object]", value).values()]
    )
    return depth > 0 and all(_survives(each, depth - 1) for each in inner)


def _keeps(value: float) -> bool:
    """It adds the decimals, times a power of ten, to the whole part, and writes ten of them."""
    whole, point, decimals = repr(abs(value)).partition(".")
    if not point or "e" in decimals or len(decimals) > _DECIMALS:
        return False
    return int(whole) + int(decimals) * float(f"1e-{len(decimals)}") == abs(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledTurn:
    """One turn with its numbers."""

    trajectory: Trajectory
    turn: Turn
    messages: TemplateMessages
    """Of the trajectory."""
    tools: str
    """Those that were offered, as JSON; `null`: none, or unknown."""
    reward: float | None
    to_go: float | None
    """Its return; `None` where nothing is scored from here on."""
    advantage: float


def sampled_turns(credited: CreditedGroup, notes: Counter[str]) -> Iterator[SampledTurn]:
    """Every turn, in the order of trajectories and turns; remarks on them are counted in `notes`.

    Raises:
        CreditError: rewards that are missing, or no numbers.
        ValueError: a turn's message is not the assistant's.
    """
    notes[NO_TOOLS] += lacks_tools(credited)
    trajectories = credited.group.trajectories
    for trajectory, to_go, advantages in zip(
        trajectories, returns_of(credited), credited.advantages, strict=True
    ):
        messages, tools = TemplateMessages(trajectory, notes), tools_json(trajectory.tools)
        rewards = trajectory.rewards and trajectory.rewards.turns
        for turn in trajectory.turns:
            yield SampledTurn(
                trajectory=trajectory,
                turn=turn,
                messages=messages,
                tools=tools,
                reward=rewards[turn.index] if rewards else None,
                to_go=to_go[turn.index],
                advantage=advantages[turn.index],
            )


def returns_of(credited: CreditedGroup) -> list[list[float | None]]:
    """Per trajectory and turn the return by the recorded `gamma` and `outcome_weight`, 1 by default.

    Raises:
        CreditError: rewards that are missing, or no numbers.
    """
    gamma, weight = (_number(credited.estimator_params, name) for name in ("gamma", "outcome_weight"))
    group = credited.group
    return [
        _at_all_turns(_known_returns(scored, gamma, weight), trajectory)
        for scored, trajectory in zip(read(acts_alone(group)), group.trajectories, strict=True)
    ]


def lacks_tools(credited: CreditedGroup) -> bool:
    """Whether tools were called that are not in the record."""
    return any(
        turn.message.tool_calls
        for each in credited.group.trajectories
        if not each.tools
        for turn in each.turns
    )


def tools_json(tools: Sequence[ToolSpec]) -> str:
    """Tools as the JSON text of OpenAI's `tools`, or `null`."""
    return orjson.dumps([tool.to_openai() for tool in tools] or None).decode()


def _number(params: Mapping[str, Any], name: str) -> float:
    value = params.get(name)
    return float(value) if isinstance(value, int | float) else 1.0


def _known_returns(scored: Scored, gamma: float, weight: float) -> list[float | None]:
    """The returns of acts, `None` where what follows was not scored."""
    ones = (None if reward is None else 1.0 for reward in scored.turns)
    counted = replace(scored, turns=tuple(ones), outcome=None if scored.outcome is None else 1.0)
    by_turn = zip(scored.returns(gamma, weight), counted.returns(1.0), strict=True)
    return [value if count else None for value, count in by_turn]


def _at_all_turns(acts: Sequence[float | None], trajectory: Trajectory) -> list[float | None]:
    """A summary has the return of the act that follows."""
    following = iter((*acts, None))
    spread: list[float | None] = []
    value = next(following)
    for turn in trajectory.turns:
        spread.append(value)
        if turn.kind != "summary":
            value = next(following)
    return spread
