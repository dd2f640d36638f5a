"""Credited groups as OpenTelemetry spans, with its attribute names for generative AI and `turnwise.*`."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from time import time_ns
from typing import TYPE_CHECKING, Any

from environments.trajectory import CreditedGroup, Failure, Trajectory

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer


def configured_tracer() -> "Tracer | None":
    """Return the tracer if `opentelemetry-instrument` set up this process, else None."""
    if "opentelemetry.trace" not in sys.modules:
        return None
    from opentelemetry import trace  # noqa: PLC0415

    provider = trace.get_tracer_provider()
    return None if isinstance(provider, trace.ProxyTracerProvider) else provider.get_tracer("turnwise")


def trace_group(credited: CreditedGroup, tracer: "Tracer") -> None:
    """Make a trace of each rollout: `invoke_agent`, in it a `chat` per turn and an `execute_tool` per call.

    Durations are measured, start times are not: a trace ends now, calls follow each other from its start,
    hooks come last. Unknown values are left out, as are advantages of a group that is not trained on. A
    dropped rollout is a trace with an error.
    """
    from opentelemetry.context import Context  # noqa: PLC0415
    from opentelemetry.trace import SpanKind, StatusCode, set_span_in_context  # noqa: PLC0415

    group, now = credited.group, time_ns()
    for index, rollout in enumerate((*group.trajectories, *group.failures)):
        lost = isinstance(rollout, Failure)
        wall_s = (rollout.profile and rollout.profile.wall_s) or 0.0 if lost else rollout.wall_s
        at = now - round(wall_s * 1e9)
        rewards = None if isinstance(rollout, Failure) else rollout.rewards
        facts: Mapping[str, Any] = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": group.env,
            "gen_ai.request.model": credited.policy,
            "error.type": rollout.error_class if isinstance(rollout, Failure) else None,
            "turnwise.group_id": group.group_id,
            "turnwise.item_id": group.item_id,
            "turnwise.sibling": rollout.sibling,
            "turnwise.status": credited.status,
            "turnwise.estimator": credited.estimator,
            "turnwise.stop_reason": rollout.stop_reason and rollout.stop_reason.value,
            "turnwise.score": rewards and rewards.score,
            "turnwise.outcome": rewards and rewards.outcome,
        }
        attributes = _without_none(facts)
        root = tracer.start_span(f"invoke_agent {group.env}", Context(), attributes=attributes, start_time=at)
        if lost:
            root.set_status(StatusCode.ERROR, rollout.error)
        within = set_span_in_context(root, Context())
        for name, facts, seconds in () if lost else _calls(credited, rollout, credited.advantages[index]):
            kind = SpanKind.CLIENT if name.startswith("chat ") else SpanKind.INTERNAL
            span = tracer.start_span(name, within, kind, _without_none(facts), start_time=at)
            span.set_status(StatusCode.ERROR if facts.get("error.type") else StatusCode.UNSET)
            at += round(seconds * 1e9)
            span.end(at)
        root.end(max(at, now))


def _calls(
    credited: CreditedGroup, trajectory: Trajectory, advantages: Sequence[float]
) -> Iterator[tuple[str, Mapping[str, Any], float]]:
    """Yield name, attributes and seconds of each model call, each followed by the tool calls of its turn."""
    rewards = (trajectory.rewards and trajectory.rewards.turns) or (None,) * len(trajectory.turns)
    trains = credited.status != "failed" and not credited.group.is_evaluation
    for turn, reward, advantage in zip(trajectory.turns, rewards, advantages, strict=True):
        numbers = [each for each in turn.sampling.items() if isinstance(each[1], int | float)]
        facts: dict[str, Any] = {f"gen_ai.request.{name}": value for name, value in numbers}
        yield f"chat {credited.policy}", facts | {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": credited.policy,
            "gen_ai.response.finish_reasons": (turn.finish_reason,),
            "gen_ai.usage.input_tokens": turn.prompt_tokens,
            "gen_ai.usage.output_tokens": turn.sampled_tokens,
            "turnwise.turn": turn.index,
            "turnwise.kind": turn.kind,
            "turnwise.weight_version": turn.weight_version,
            "turnwise.reward": reward,
            "turnwise.advantage": advantage if trains and turn.trained else None,
        }, turn.model_s  # fmt: skip
        for result in turn.tool_results:
            facts = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": result.name}
            facts |= {"gen_ai.tool.call.id": result.call_id, "error.type": result.error}
            yield f"execute_tool {result.name}", facts, result.duration_s


def _without_none(facts: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: value for name, value in facts.items() if value is not None}
