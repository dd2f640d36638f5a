"""Traces of verifiers by their JSON alone: nodes become turns and rows, rewards keep their turns."""

import sys
from collections import Counter

import pytest

from environments.record.sessions.logged_session import Scale, SessionError
from environments.record.sessions.verifiers_trace import read_traces
from environments.trajectory import Kept, Span
from tests.environments.record.sessions.logs import imported, run, write
from tests.tables import cases
from tools.errors import DatasetError


def node(role, content, parent=None, ids=(), sampled=0, logprobs=True, **fields):
    """A node; its last `sampled` tokens were sampled."""
    return {
        "parent": parent,
        "message": {"role": role, "content": content},
        "sampled": role == "assistant",
        "token_ids": list(ids),
        "mask": [False] * (len(ids) - sampled) + [True] * sampled,
        "logprobs": [-0.5] * sampled if logprobs else [],
        **fields,
    }


def trace(*nodes, reward=1.0, task="t", **fields):
    rewards = {} if reward is None else {"solved": {"score": reward, "weight": 0.5}}
    return {
        "task": {"data": {"id": task, "prompt": "go"}},
        "nodes": list(nodes),
        "rewards": rewards,
        **fields,
    }


CHAIN = (
    node("user", "go", ids=[1, 2]),
    node("assistant", "look", 0, [3, 10, 11], 2),
    node("user", "and?", 1, [4]),
    node("assistant", "done", 2, [5, 12], 1),
)


def session(*nodes, **fields):
    (read,) = read_traces(trace(*nodes, **fields), Scale())
    return read


def test_a_branch_is_a_row_of_the_tokens_as_they_were_sampled():
    read = session(*CHAIN)
    (row,) = read.rows
    assert row.token_ids == (1, 2, 3, 10, 11, 4, 5, 12)
    assert row.logprobs == (1.0, 1.0, 1.0, -0.5, -0.5, 1.0, 1.0, -0.5)
    assert [turn.span for turn in read.turns] == [Span(row=0, start=3, end=5), Span(row=0, start=7, end=8)]


def test_what_answers_a_turn_is_its_reply():
    assert [[each.content for each in turn.replies] for turn in session(*CHAIN).turns] == [["and?"], []]


def test_a_turn_that_two_branches_share_is_one_turn_of_one_row():
    forked = session(*CHAIN, node("user", "or?", 1, [6]), node("assistant", "no", 4, [7, 13], 1))
    assert [row.token_ids for row in forked.rows] == [
        (1, 2, 3, 10, 11, 4, 5, 12),
        (1, 2, 3, 10, 11, 6, 7, 13),
    ]
    assert [turn.span.row for turn in forked.turns] == [0, 0, 1]
    assert [turn.fork for turn in forked.turns] == [None, None, "agent"]


def test_without_tokens_of_every_turn_rows_are_made_from_the_text(tmp_path):
    bare = trace(
        node("user", "go"), node("assistant", "a", 0), node("user", "b", 0), node("assistant", "c", 2)
    )
    (group,) = imported(tmp_path, bare)
    (only,) = group.group.trajectories
    assert (only.exact, only.rows[0].logprobs, len(only.rows)) == (False, None, 2)


def test_the_reward_of_a_trace_is_the_outcome_by_its_weighted_parts():
    rewards = session(*CHAIN).rewards
    assert (rewards.turns, rewards.outcome, rewards.outcome_components) == (None, 0.5, {"solved": 0.5})


def test_a_trace_that_was_not_scored_has_no_reward_and_not_0():
    rewards = session(*CHAIN, reward=None).rewards
    assert (rewards.outcome, rewards.score) == (None, None)


def test_rewards_of_turns_stand_in_the_info_or_on_their_nodes():
    noted = session(*CHAIN, info={"turn_rewards": [0.25, None]}).rewards
    stamped = session(*CHAIN[:3], {**CHAIN[3], "reward": 2}).rewards
    assert (noted.turns, noted.outcome, noted.score) == ((0.25, None), 0.5, 0.75)
    assert (stamped.turns, stamped.score) == ((None, 2.0), 2.5)


def test_traces_of_a_task_are_a_group_and_of_two_groups_two(tmp_path):
    alike = [trace(*CHAIN, reward=reward, id=f"a{reward}") for reward in (0.0, 2.0)]
    other = [
        trace(*CHAIN, reward=reward, id=f"b{reward}", info={"group_id": "later"}) for reward in (0.0, 4.0)
    ]
    first, second = imported(tmp_path, *alike, *other)
    assert (first.group.item_id, first.group.epoch, second.group.epoch) == ("t", 0, 1)
    assert first.advantages == ((-1.0, -1.0), (1.0, 1.0))
    assert second.advantages == ((-2.0, -2.0), (2.0, 2.0))


def test_an_episode_has_a_session_for_each_agent_that_is_trained(tmp_path):
    agents = [{"name": "a"}, {"name": "b"}, {"name": "judge", "trainable": False}]
    traces = [trace(*CHAIN, agent=agent, id=agent["name"]) for agent in agents]
    groups = imported(tmp_path, {"task": traces[0]["task"], "traces": traces})
    assert [[each.session_id for each in group.group.trajectories] for group in groups] == [["a"], ["b"]]


def test_a_trace_that_broke_is_a_dropped_rollout_and_no_reward(tmp_path):
    errors = [{"type": "ProviderError", "message": "gone"}]
    broken = trace(*CHAIN[:2], id="x", ok=False, errors=errors, info={"turn_rewards": [1.0]})
    (group,) = imported(tmp_path, trace(*CHAIN, id="y"), broken)
    (failure,) = group.group.failures
    assert len(group.group.trajectories) == 1
    assert failure.error == "RolloutError: ProviderError: gone; session x"


def test_a_turn_without_log_probabilities_leaves_its_row_without():
    (row,) = session(CHAIN[0], node("assistant", "a", 0, [3, 4], 1, logprobs=False)).rows
    assert row.logprobs is None


@cases(
    ("wrong", "message"),
    [
        (node("assistant", "a", 4, [3], 1), r"nodes\[1\].parent is 4; give the index"),
        (node("assistant", "a", 0, [3, -4], 1), "token_ids.1 is -4"),
        (node("assistant", "a", 0, [3, 4], 1, logprobs=False) | {"logprobs": [0, 0]}, "2 logprobs for 1"),
        (node("assistant", "a", 0, [3, 4], 1) | {"mask": [True, False]}, r"nodes\[1\].mask is not false"),
        (node("assistant", "a", 0, [3], 1) | {"mask": [True] * 4}, r"nodes\[1\].mask is not false"),
        (node("user", "a", 0, [3]) | {"sampled": True}, "sampled and of role 'user'"),
        (node("user", [{"type": "image_url"}], 0), "no images"),
        (7, "not as verifiers writes a trace"),
    ],
    ids=["parent", "id", "logprobs", "mask", "long_mask", "role", "image", "number"],
)
def test_a_graph_that_does_not_fit_together_is_refused(wrong, message):
    with pytest.raises(SessionError, match=message):
        session(CHAIN[0], wrong)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"rewards": {"r": {"score": 1.0, "weight": 10**400}}}, "rewards.r.weight"),
        ({"rewards": {"r": {"score": 1e90, "weight": 1e90}}}, "rewards.r is"),
        ({"task": {"data": {"id": ["x"]}}}, "task.id is"),
        ({"calls": [{"node": 1, "finish_reason": []}]}, "finish_reason is"),
    ],
    ids=["weight", "product", "id", "finish_reason"],
)
def test_fields_that_no_record_can_hold_are_refused_by_name(changed, message):
    with pytest.raises(SessionError, match=message):
        session(*CHAIN, **changed)


def test_votes_on_nodes_count_beside_the_sum_of_the_turns_as_noted_ones_do():
    voted = [each | ({"vote": 0.25} if at == 1 else {}) for at, each in enumerate(CHAIN)]
    rewards = {"solved": {"score": 1.0}, "turn_rewards": {"score": 0.25}}
    by_votes = session(*voted, rewards=rewards).rewards
    noted = session(*CHAIN, rewards=rewards, info={"turn_rewards": [0.25, None]}).rewards
    assert (by_votes, by_votes.outcome, by_votes.score) == (noted, 1.0, 1.25)


def test_rewards_for_other_turns_than_were_sampled_are_refused(tmp_path):
    with pytest.raises(DatasetError, match=r"jsonl, line 2: info.turn_rewards has 1 entries for 2 sampled"):
        run(write(tmp_path, trace(*CHAIN), trace(*CHAIN, info={"turn_rewards": [1]})))


def long_trace(shape, count):
    """Each second node of a chain is sampled; a context is rewritten in its middle, or all are siblings."""
    nodes = [node("user", "go", ids=[1])]
    for index in range(1, count):
        role = "assistant" if index % 2 or shape == "siblings" else "user"
        parent = {"siblings": 0, "rewritten": None if index == count // 2 else index - 1}.get(
            shape, index - 1
        )
        nodes.append(node(role, f"{index}", parent, [2], role == "assistant"))
    return trace(*nodes)


def calls_of(fields):
    """Calls that reading a trace makes, C's among them."""
    calls = Counter()
    sys.setprofile(lambda _, event, __: calls.update((event,)))
    try:
        read_traces(fields, Scale())
    finally:
        sys.setprofile(None)
    return calls["call"] + calls["c_call"]


@cases("shape", ["chain", "rewritten", "siblings"])
def test_a_trace_of_twice_the_length_is_twice_the_work(shape):
    assert calls_of(long_trace(shape, 200)) < 2.2 * calls_of(long_trace(shape, 100))


def test_what_a_branch_saw_is_its_own_history():
    """Of two branches by turns, after one that rewrote the first."""
    read = session(
        node("user", "a", None, [1]),
        node("assistant", "b", 0, [2], 1),
        node("user", "c", 1, [3]),
        node("user", "z", None, [9]),
        node("assistant", "y", 3, [8], 1),
        node("assistant", "d", 2, [4], 1),
        node("user", "x", 4, [7]),
        node("assistant", "w", 6, [6], 1),
    )
    assert [[each.content for each in seen_by(read, turn)] for turn in read.turns] == [
        ["a"], ["z"], ["a", "b", "c"], ["z", "y", "x"]
    ]  # fmt: skip


def seen_by(read, turn):
    conversation = [*read.prompt, *(each for turn in read.turns[: turn.index] for each in turn.messages)]
    if turn.context is None:
        return conversation
    parts = [conversation[p.start : p.end] if isinstance(p, Kept) else [p] for p in turn.context]
    return [message for part in parts for message in part]
