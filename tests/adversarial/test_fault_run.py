"""Runs of `process` against a model server of faults: they end, records are whole, no tool errs."""

import asyncio
import json
import os
import random
from collections import Counter
from dataclasses import replace

import pytest

from environments.policy.rendering.chatml import EMBEDDED_TOKENIZER_DIR
from environments.record.recorder import read_groups
from environments.trajectory import StopReason
from tests.adversarial import faulted_env
from tests.adversarial.body_faults import SECRET
from tests.adversarial.fault_kinds import LOST, READ, RETRIED
from tests.adversarial.faulty_server import FAULTS, Plan, faulty
from tests.adversarial.message_faults import POISON
from tests.environments.serve.loopback import TURNWISE
from tests.tables import cases

SEED = 7
GROUP_SIZE = 4
COMPLETIONS = 1_500
"""With `--soak`."""
GROUPS = {"chat": {True: 240, False: 120}, "completions": {True: 240, False: 80}}
"""Soak or not."""
LONGEST_HOLD_S = 0.5
"""Of CPU: 0.1 seen, which a busy machine doubles. A bomb that is read whole takes many seconds."""
MOST_MB = 2_000
"""Some answers of 64 MB at once."""


class Plans:
    """A fault for every other call, each kind as often as any other, those that take long less often."""

    def __init__(self, wire, soak):
        self._faults = kinds_on(wire, soak)
        self._drawn = random.Random(SEED)
        self._deck = []
        self._decks = 0

    def __call__(self, key, wire):
        drawn = random.Random(key)
        if drawn.random() < 0.5:
            return Plan(done=drawn.random() < 0.25)
        fault = self._next()
        if fault.once_exact is not None:
            fault = replace(fault, expected=fault.once_exact, runs=0)
        return Plan(fault=fault, tries=1 if fault.expected == RETRIED and drawn.random() < 0.8 else 99)

    def _next(self):
        if not self._deck:
            self._deck = [fault for fault in self._faults if self._decks % 5 == 0 or not takes_long(fault)]
            self._drawn.shuffle(self._deck)
            self._decks += 1
        return self._deck.pop()


def kinds_on(wire, soak):
    """The faults that a run meets."""
    others = {"chat": "tokens", "completions": "chat"}
    # What is said at the place of a message says nothing beside token ids.
    faults = [fault for fault in FAULTS.values() if fault.wire != others[wire]]
    return faults if soak else [fault for fault in faults if not takes_long(fault)]


def takes_long(fault):
    return fault.heavy or fault.stalls


class Run:
    """What is left of a run."""

    def __init__(self, server, folder, code, output, errors):
        self.code, self.output, self.errors = code, output.decode(), errors.decode()
        self.calls = list(server.calls.values())
        self.connections, self.in_flight = len(server.open), server.in_flight
        assert code == 0, self.errors[-3000:]
        self.report = json.loads((folder / "report.json").read_text())
        self.record = folder / "record.jsonl"
        self.groups = list(read_groups(self.record))


async def run(folder, wire, soak):
    settings = {
        "env.group_size": GROUP_SIZE,
        "env.total_steps": GROUPS[wire][soak],
        "env.max_concurrent_rollouts": 64,
        "env.max_failed_groups": 0,
        "env.max_turns": 6,
        "env.request_timeout_s": 15,
        "openai.model_name": "m",
    }
    if wire != "chat":
        settings |= {"env.tokenizer_name": EMBEDDED_TOKENIZER_DIR, "openai.family": "chatml"}
        settings |= {"openai.server_type": "vllm_generate" if wire == "generate" else "vllm"}
    async with faulty(Plans(wire, soak)) as server:
        command = [TURNWISE, "process", f"{faulted_env.__file__}:Faulted", "--out", folder / "record.jsonl"]
        for name, value in (settings | {"openai.base_url": server.url}).items():
            command += [f"--{name}", str(value)]
        process = await asyncio.create_subprocess_exec(
            *command,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=os.environ | {faulted_env.REPORT: str(folder / "report.json")},
        )
        try:
            output, errors = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
        (folder / "stderr").write_bytes(errors)
        await asyncio.wait_for(server.left(), 10)
        ended = Run(server, folder, process.returncode, output, errors)
    ended.wire = wire
    return ended


def the_process_ends_by_itself_with_0(ended, soak):
    assert ended.code == 0, ended.errors[-3000:]


def every_kind_was_played(ended, soak):
    played = {call.plan.fault.name for call in ended.calls if call.plan.fault is not None}
    assert played == {fault.name for fault in kinds_on(ended.wire, soak)}
    assert len(ended.calls) >= (COMPLETIONS if soak else 2 * len(played))


def every_planned_group_is_recorded_once(ended, soak):
    counts = Counter((each.group.item_id, each.group.epoch) for each in ended.groups)
    assert len(counts) == len(ended.groups) == GROUPS[ended.wire][soak]
    assert all(len(each.group.trajectories) + len(each.group.failures) == GROUP_SIZE for each in ended.groups)


def rows_of_the_record_are_what_a_trainer_takes(ended, soak):
    for credited in ended.groups:
        for trajectory in credited.group.trajectories:
            for turn in trajectory.turns:
                row = trajectory.rows[turn.span.row]
                assert 0 <= turn.span.start < turn.span.end <= len(row.token_ids)


def tools_ran_as_often_as_sound_answers_asked_for(ended, soak):
    assert Counter(ended.report["noted"]) == Counter(expected_tokens(ended))


def expected_tokens(ended):
    return [
        call.token
        for call in ended.calls
        if not call.plan.done
        and (
            call.plan.fault is None
            or (call.plan.fault.expected == READ and call.plan.fault.runs)
            or (call.plan.fault.expected == RETRIED and call.requests > call.plan.tries)
        )
    ]


def no_tool_ran_by_mistake(ended, soak):
    assert [token for token in ended.report["noted"] if token.startswith(POISON)] == []


def exactly_the_lost_calls_cost_a_rollout(ended, soak):
    lost = [
        call
        for call in ended.calls
        if (fault := call.plan.fault) is not None
        and (fault.expected == LOST or (fault.expected == RETRIED and call.plan.tries > 1))
    ]
    failures = [failure for each in ended.groups for failure in each.group.failures]
    reasons = Counter(failure.stop_reason for failure in failures)
    assert reasons[StopReason.POLICY_ERROR] == len(lost)
    others = {failure.error for failure in failures if failure.stop_reason != StopReason.POLICY_ERROR}
    assert all(
        error.startswith("RolloutError: no turn was finished: context_overflow") for error in others
    ), others


def reasons_are_a_line_without_credentials(ended, soak):
    for credited in ended.groups:
        for failure in credited.group.failures:
            assert failure.error.isprintable()
            assert len(failure.error) < 1500
    assert SECRET not in ended.record.read_text() + ended.output + ended.errors


def nothing_is_said_that_people_cannot_use(ended, soak):
    for each in ("Traceback", "never retrieved", "Unclosed", "\x1b[2J", "\u202e"):
        assert each not in ended.output + ended.errors


def the_event_loop_was_never_held(ended, soak):
    assert ended.report["longest_s"] < LONGEST_HOLD_S


def memory_is_bounded(ended, soak):
    assert ended.report["peak_mb"] < MOST_MB


def no_connection_outlives_the_run(ended, soak):
    assert (ended.connections, ended.in_flight) == (0, 0)


CLAIMS = (
    the_process_ends_by_itself_with_0,
    every_kind_was_played,
    every_planned_group_is_recorded_once,
    rows_of_the_record_are_what_a_trainer_takes,
    tools_ran_as_often_as_sound_answers_asked_for,
    no_tool_ran_by_mistake,
    exactly_the_lost_calls_cost_a_rollout,
    reasons_are_a_line_without_credentials,
    nothing_is_said_that_people_cannot_use,
    the_event_loop_was_never_held,
    memory_is_bounded,
    no_connection_outlives_the_run,
)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("wire", GROUPS)
def test_a_run_against_a_server_of_faults(wire, tmp_path, soak):
    ended = asyncio.run(run(tmp_path, wire, soak))

    @cases("claim", CLAIMS)
    def check(claim):
        claim(ended, soak)

    check()
