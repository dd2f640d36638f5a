"""Credited groups as OpenTelemetry spans: a trace per rollout, in it the model calls and tool calls.

Names are those of the semantic conventions for generative AI (`gen_ai.*`), ours are `turnwise.*`.
"""

import sys
from collections.abc import Iterator, Mapping
from time import time_ns
from typing import TYPE_CHECKING, Any

from environments.extras import needs_extra
from environments.trajectory import CreditedGroup, Failure, Trajectory, Turn
from tools.calls import ToolResult

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

_SAMPLING = frozenset(
    {"temperature", "top_p", "top_k", "max_tokens", "frequency_penalty", "presence_penalty"}
)
_NS = 1_000_000_000


def configured_tracer() -> "Tracer | None":
    """The tracer of a process that OpenTelemetry was set up in (`opentelemetry-instrument`); else `None`."""
    if "opentelemetry.trace" not in sys.modules:
        return None
    from opentelemetry import trace  # noqa: PLC0415

    provider = trace.get_tracer_provider()
    return None if isinstance(provider, trace.ProxyTracerProvider) else provider.get_tracer("turnwise")


def trace_group(credited: CreditedGroup, tracer: "Tracer") -> None:
    """Make a trace of each rollout: `invoke_agent`, in it a `chat` per turn and an `execute_tool` per call.

    Durations are as measured, but not when each began: a trace ends now, the calls follow each other from
    its start, and what hooks took comes after them. What is `None` is left out, as are the advantages of a
    group that failed or is not trained on. A dropped rollout is a trace with an error.

    Raises:
        ConfigError: the package `opentelemetry-api` is missing.
    """
    with needs_extra("otel", "trace_group"):
        from opentelemetry.context import Context  # noqa: PLC0415
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context  # noqa: PLC0415
    group, now = credited.group, time_ns()
    has_credit = credited.status != "failed" and not (group.is_evaluation or group.stale)
    for trajectory, advantages in zip(group.trajectories, credited.advantages, strict=True):
        at = now - round(trajectory.wall_s * _NS)
        root = tracer.start_span(
            f"invoke_agent {group.env}", Context(), attributes=_rollout(credited, trajectory), start_time=at
        )
        within = set_span_in_context(root, Context())
        for turn, advantage in zip(trajectory.turns, advantages, strict=True):
            credit = advantage if has_credit and turn.trained else None
            for name, attributes, seconds, error in _steps(credited, trajectory, turn, credit):
                kind = SpanKind.CLIENT if name.startswith("chat ") else SpanKind.INTERNAL
                span = tracer.start_span(name, within, kind, _known(attributes), start_time=at)
                if error is not None:
                    span.set_status(Status(StatusCode.ERROR, error))
                at += round(seconds * _NS)
                span.end(at)
        root.end(max(at, now))
    for failure in group.failures:
        seconds = 0.0 if failure.profile is None else failure.profile.wall_s
        span = tracer.start_span(
            f"invoke_agent {group.env}",
            Context(),
            attributes=_rollout(credited, failure),
            start_time=now - round(seconds * _NS),
        )
        span.set_status(Status(StatusCode.ERROR, failure.error))
        span.end(now)


def _rollout(credited: CreditedGroup, of: Trajectory | Failure) -> Mapping[str, Any]:
    group = credited.group
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": group.env,
        "gen_ai.request.model": credited.policy,
        "turnwise.group_id": group.group_id,
        "turnwise.item_id": group.item_id,
        "turnwise.sibling": of.sibling,
        "turnwise.group.status": credited.status,
        "turnwise.group.reason": credited.reason,
        "turnwise.estimator": credited.estimator,
        "turnwise.stop_reason": None if of.stop_reason is None else of.stop_reason.value,
    }
    if isinstance(of, Failure):
        attributes["error.type"] = of.error_class
    else:
        attributes["turnwise.score"] = of.score
        attributes["turnwise.outcome"] = None if of.rewards is None else of.rewards.outcome
        attributes["turnwise.passed"] = of.passed
    return _known(attributes)


_Step = tuple[str, Mapping[str, Any], float, str | None]
"""Of a span: its name, attributes, seconds, and the error that it ended with."""


def _steps(
    credited: CreditedGroup, trajectory: Trajectory, turn: Turn, advantage: float | None
) -> Iterator[_Step]:
    """The model call of a turn, then its tool calls."""
    rewards = None if trajectory.rewards is None else trajectory.rewards.turns
    sampling = {f"gen_ai.request.{name}": turn.sampling[name] for name in _SAMPLING & turn.sampling.keys()}
    chat = {
        **sampling,
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": credited.policy,
        "gen_ai.response.finish_reasons": (turn.finish_reason,),
        "gen_ai.usage.input_tokens": turn.span.start,
        "gen_ai.usage.output_tokens": turn.span.end - turn.span.start,
        "turnwise.turn.index": turn.index,
        "turnwise.turn.kind": turn.kind,
        "turnwise.weight_version": turn.weight_version,
        "turnwise.reward": None if rewards is None else rewards[turn.index],
        "turnwise.advantage": advantage,
    }
    yield f"chat {credited.policy}", chat, turn.model_s, None
    for result in turn.tool_results:
        yield f"execute_tool {result.name}", _tool(result), result.duration_s, result.error


def _tool(result: ToolResult) -> Mapping[str, Any]:
    return {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": result.name,
        "gen_ai.tool.call.id": result.call_id,
        "error.type": result.error,
        "turnwise.exit_code": result.exit_code,
    }


def _known(attributes: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: value for name, value in attributes.items() if value is not None}
