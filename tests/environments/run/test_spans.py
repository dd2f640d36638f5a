"""Groups as OpenTelemetry spans: a trace per rollout, rewards and advantages at their turns."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from environments.credit import credited
from environments.record.recorder import read_groups
from environments.run import tracking
from environments.run.group_source import Finishing, finish_group
from environments.run.spans import configured_tracer, trace_group
from environments.run.tracking import MOST_WARNINGS, Observers, Traces
from environments.testing import group_of
from environments.trajectory import Failure, StopReason
from tests.environments.record.any_group import all_withheld
from tools.calls import ToolResult

INSTRUMENT = Path(sys.executable).parent / "opentelemetry-instrument"


def spans(group, name=""):
    """The spans of a credited group whose names begin so, in the order they began."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace_group(group, provider.get_tracer("test"))
    found = sorted(exporter.get_finished_spans(), key=lambda each: (each.start_time, bool(each.parent)))
    return [each for each in found if each.name.startswith(name)]


def timed_group():
    """Two rollouts: of one, the first turn calls a tool that fails; its times are known."""
    group = group_of([[1.0, None], [0.0]])
    called = ToolResult(call_id="c", name="look", content="", error="tool_error", duration_s=0.5)
    first, *rest = group.trajectories[0].turns
    turns = (replace(first, tool_results=(called,), model_s=2.0, sampling={"temperature": 0.7}), *rest)
    one = replace(group.trajectories[0], turns=turns, wall_s=10.0)
    return replace(group, trajectories=(one, *group.trajectories[1:]))


GROUP = credited(timed_group(), "turn_return", policy="m")


def test_a_rollout_is_a_trace_of_its_own_with_turns_and_tool_calls_as_long_as_they_took():
    roots = spans(GROUP, "invoke_agent")
    assert [each.parent for each in roots] == [None, None]
    assert len({each.context.trace_id for each in roots}) == 2
    root, *inside = spans(GROUP)[:4]
    assert [each.name for each in inside] == ["chat m", "execute_tool look", "chat m"]
    assert {each.parent.span_id for each in inside} == {root.context.span_id}
    starts = [(each.start_time - root.start_time) / 1e9 for each in inside]
    assert (root.end_time - root.start_time) / 1e9 == 10.0
    assert starts == [0.0, 2.0, 2.5]


def test_a_turn_has_its_reward_if_it_has_one_and_names_of_the_conventions_for_generative_ai():
    first, second = (each.attributes for each in spans(GROUP, "chat")[:2])
    assert (first["turnwise.reward"], first["turnwise.advantage"]) == (1.0, GROUP.advantages[0][0])
    assert "turnwise.reward" not in second
    assert second["turnwise.advantage"] == GROUP.advantages[0][1]
    root, chat, tool = (each.attributes for each in spans(GROUP)[:3])
    assert [each["gen_ai.operation.name"] for each in (root, chat, tool)] == [
        "invoke_agent",
        "chat",
        "execute_tool",
    ]
    span = GROUP.group.trajectories[0].turns[0].span
    assert chat["gen_ai.usage.output_tokens"] == span.end - span.start
    assert chat["gen_ai.usage.input_tokens"] == span.start
    assert chat["gen_ai.request.temperature"] == 0.7
    assert (tool["gen_ai.tool.name"], tool["error.type"]) == ("look", "tool_error")


@pytest.mark.parametrize(
    "group",
    [replace(GROUP.group, is_evaluation=True), all_withheld(GROUP.group, "too old")],
    ids=["evaluation", "stale"],
)
def test_a_group_that_is_not_trained_on_has_no_advantages(group):
    of_none = replace(GROUP, group=group)
    assert not [each for each in spans(of_none) if "turnwise.advantage" in each.attributes]


def test_a_dropped_rollout_is_a_trace_with_its_error_and_no_score():
    failure = Failure(
        sibling=2,
        stop_reason=StopReason.POLICY_ERROR,
        error="PolicyError: gone",
        traceback="",
        turns=0,
        error_class="PolicyError",
    )
    (dropped,) = spans(replace(GROUP, group=replace(GROUP.group, failures=(failure,))), "invoke_agent")[2:]
    assert (dropped.status.is_ok, dropped.attributes["error.type"]) == (False, "PolicyError")
    assert "turnwise.score" not in dropped.attributes


def test_a_tracer_that_breaks_costs_no_group_and_is_named_a_few_times(monkeypatch, caplog):
    broken = SimpleNamespace(start_span=lambda *_, **__: 1 / 0)
    monkeypatch.setattr(tracking, "configured_tracer", lambda: broken)
    observers, done = Observers(), finish_group(GROUP, Finishing(fingerprint=None))
    traces = Traces(observers)
    for _ in range(2 * MOST_WARNINGS):
        traces.add(done)
    observers.end()
    assert caplog.messages == ["traces: ZeroDivisionError: division by zero"] * MOST_WARNINGS


def test_without_a_provider_nothing_is_traced():
    assert configured_tracer() is None


def test_a_run_under_opentelemetrys_own_command_traces_every_rollout(tmp_path):
    out = tmp_path / "r.jsonl"
    command = [str(INSTRUMENT), sys.executable, "-m", "turnwise", "process", "terminal_tasks"]
    command += ["--env.total_steps", "2", "--env.group_size", "2", "--out", str(out)]
    exporters = {f"OTEL_{kind}_EXPORTER": "none" for kind in ("METRICS", "LOGS")}
    # All at the end: what is written every few seconds would have lines of the run in its midst.
    exporters |= {"OTEL_TRACES_EXPORTER": "console", "OTEL_BSP_SCHEDULE_DELAY": "600000"}
    environment = {**os.environ, **exporters}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    found = [json.loads(each) for each in re.findall(r"^{$.*?^}$", done.stdout, re.DOTALL | re.MULTILINE)]
    turns = [turn for group in read_groups(out) for each in group.group.trajectories for turn in each.turns]
    assert len(turns) > 4
    assert sum(each["name"].startswith("invoke_agent") for each in found) == 4
    assert sum(each["name"].startswith("chat") for each in found) == len(turns)
