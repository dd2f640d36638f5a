"""Files that the installed verifiers writes, imported: our own traces, and a graph that it made."""

import importlib
import json
import os

import pytest

from environments.record.recorder import read_groups
from environments.wire.credited_rows import credited_rows
from tests.environments.record.sessions.logs import run
from tests.environments.trainers.groups import GROUPS, every_group

if not os.environ.get("TURNWISE_REQUIRE_VERIFIERS"):
    pytest.importorskip("verifiers", reason="needs verifiers")
adapter = importlib.import_module("environments.trainers.verifiers_traces")
episode = importlib.import_module("verifiers.v1.episode")
graph = importlib.import_module("verifiers.v1.graph")
store = importlib.import_module("verifiers.v1.utils.trace_store")
trace = importlib.import_module("verifiers.v1.trace")
types = importlib.import_module("verifiers.v1.types")


def imported(file):
    done = run(file)
    assert done.exit_code in (0, None), done.output
    return list(read_groups(file.parent / "record.jsonl"))


def saved(folder, traces):
    """Traces in the file of a run, as verifiers' own code saves each."""
    for each in traces:
        store.write_episode(folder, episode.Episode(task=each.task, traces=[each], ok=each.ok))
    return folder / store.TRACES_FILE


def rows(credited):
    """What is trained of each row: ids, labels and advantages, up to the last turn."""
    ends = [(row, row.turns[-1].span.end) for row in credited_rows(credited)]
    return [(row.tokens[:end], row.mask[:end], row.advantages[:end]) for row, end in ends]


@every_group
def test_a_rollout_of_ours_comes_back_with_its_rewards_tokens_and_advantages(tmp_path, credited):
    (back,) = imported(saved(tmp_path, adapter.traces(credited)))
    assert rows(back) == rows(credited)
    pairs = list(zip(back.group.trajectories, credited.group.trajectories, strict=True))
    assert all(new.exact for new, _ in pairs)
    assert [new.score for new, _ in pairs] == [old.score for _, old in pairs]
    assert [(new.rewards.turns, new.rewards.outcome) for new, _ in pairs] == [
        (old.rewards.turns, old.rewards.outcome) for _, old in pairs
    ]


def test_log_probabilities_are_those_of_the_file_to_its_four_decimals(tmp_path):
    credited = GROUPS["condensed context"]
    (back,) = imported(saved(tmp_path, adapter.traces(credited)))
    for new, old in zip(credited_rows(back), credited_rows(credited), strict=True):
        assert new.logprobs == pytest.approx(old.logprobs[: len(new.logprobs)], abs=5e-5)


def test_a_record_of_one_trace_a_line_is_read_like_its_run(tmp_path):
    traces = adapter.traces(GROUPS["unequal lengths"])
    bare = tmp_path / "bare.jsonl"
    bare.write_text("".join(json.dumps(each.to_record()) + "\n" for each in traces))
    (alone,) = imported(bare)
    (tmp_path / "run").mkdir()
    (of_run,) = imported(saved(tmp_path / "run", traces))
    assert (alone.advantages, alone.group.trajectories) == (of_run.advantages, of_run.group.trajectories)


def test_a_graph_that_verifiers_made_of_model_calls_comes_as_its_branches(tmp_path):
    user, made = types.UserMessage(content="go"), adapter.traces(GROUPS["unequal lengths"])[0]
    made = made.model_copy(update={"nodes": [], "info": {}})

    def call(prompt, prompt_ids, spans, ids, **said):
        tokens = types.TurnTokens(
            prompt_ids=prompt_ids,
            message_spans=spans,
            completion_ids=ids,
            completion_logprobs=[-0.5] * len(ids),
        )
        message = types.AssistantMessage(**said)
        response = types.Response(
            id="r", created=0, model="m", message=message, finish_reason="stop", tokens=tokens
        )
        graph.prepare_turn(made, prompt).commit(response)
        return message

    looked = call(
        [user],
        [1, 2, 3],
        [(0, 2)],
        [10, 11],
        tool_calls=[types.ToolCall(id="c", name="look", arguments="{}")],
    )
    seen = types.ToolMessage(tool_call_id="c", content="seen")
    call([user, looked, seen], [1, 2, 3, 10, 11, 4, 5], [(0, 2), (3, 5), (5, 6)], [12], content="done")
    call([user, types.UserMessage(content="short")], [1, 2, 6, 7], [(0, 2), (2, 3)], [13], content="again")
    (group,) = imported(saved(tmp_path, [made]))
    (only,) = group.group.trajectories
    assert [list(row.token_ids) for row in only.rows] == [branch.token_ids for branch in made.branches]
    assert [each.content for each in only.turns[0].tool_results] == ["seen"]
    assert [each.content for each in only.thread_until(2)] == ["go", "short", "again"]
