"""Every turn of a credited group with what the model saw before it and what the turn was worth."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from environments.credit.acts import acts_alone
from environments.credit.scored import Scored, read
from environments.text_exports.template_messages import TemplateMessages
from environments.trajectory import CreditedGroup, Trajectory, Turn
from tools.calls import ToolSpec

NO_TOOLS = "groups have no tools recorded"


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
    """Every turn, in the order of trajectories and turns; what is to be said of them is counted in `notes`.

    Raises:
        CreditError: rewards that are missing, or no numbers.
        ValueError: somebody else than the assistant speaks in a turn.
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
    """Per trajectory and turn the return by the recorded `gamma` and `outcome_weight`, 1 where there is none.

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
    """Whether tools were called that nobody recorded."""
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
    returns: list[float | None] = []
    known = scored.outcome is not None
    for value, reward in zip(reversed(scored.returns(gamma, weight)), reversed(scored.turns), strict=True):
        known = known or reward is not None
        returns.append(value if known else None)
    return returns[::-1]


def _at_all_turns(acts: Sequence[float | None], trajectory: Trajectory) -> list[float | None]:
    """A summary has the return of the act that follows."""
    following = iter((*acts, None))
    spread: list[float | None] = []
    value = next(following)
    for turn in trajectory.turns:
        spread.append(value)
        if turn.kind == "act":
            value = next(following)
    return spread
