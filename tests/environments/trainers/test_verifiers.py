"""verifiers' own traces, their branches, the advantages on them, and their way to a trainer.

prime-rl, the trainer, is on no index.

So its loss (0.8.0, `default_loss_fn` under `compute_loss`) is computed here, from what its `trace_to_samples`
reads of a branch: `token_ids`, `sampled_mask`, `logprobs` and `advantages`.
"""

import importlib
import os
from dataclasses import replace

import pytest

from environments.trainers.verifiers_credit import stamp_advantages
from environments.trajectory import IGNORED, Message
from environments.wire.credited_rows import credited_rows
from tests.environments.trainers.groups import CREDIT_BY_HAND, GROUPS, UNTRAINED, every_group
from tools.calls import ToolCall, ToolResult
from tools.errors import CreditError, WireError

if not os.environ.get("TURNWISE_REQUIRE_VERIFIERS"):
    pytest.importorskip("verifiers", reason="needs verifiers and torch")
torch = importlib.import_module("torch")
trace = importlib.import_module("verifiers.v1.trace")
graph = importlib.import_module("verifiers.v1.graph")
task = importlib.import_module("verifiers.v1.task")
configs = importlib.import_module("verifiers.v1.configs.agent")
adapter = importlib.import_module("environments.trainers.verifiers_traces")
gradients = importlib.import_module("tests.environments.trainers.policy_gradient")


def sent(credited):
    """The branches of a group's traces as a trainer has them, after verifiers' own way between processes."""
    dumped = [each.model_dump(mode="python") for each in adapter.traces(credited)]
    return [branch for each in dumped for branch in trace.WireTrace.model_validate(each).branches]


def uphill(model, groups):
    """prime-rl's step of a batch, and how many tokens it trains."""
    loss, trained = 0.0, 0
    for branch in (branch for credited in groups for branch in sent(credited)):
        tokens, mask = torch.tensor(branch.token_ids), torch.tensor(branch.sampled_mask)[1:]
        log_p = torch.log_softmax(model(tokens[None, :-1]).logits[0], dim=-1)
        log_ratio = log_p[torch.arange(len(log_p)), tokens[1:]] - torch.tensor(branch.logprobs)[1:]
        pull = mask * torch.tensor(branch.advantages)[1:] * torch.exp(log_ratio)
        loss = loss - (pull - 1e-3 * mask * log_ratio**2).sum()
        trained += int(mask.sum())
    return -gradients.gradient_of(loss / trained, model), trained


def advantages_in_loss(credited):
    for branch, row in zip(sent(credited), credited_rows(credited), strict=True):
        end = row.turns[-1].span.end
        yield branch.token_ids, row.tokens[:end]
        yield branch.sampled_mask, [label != IGNORED for label in row.mask[:end]]
        yield branch.advantages, row.advantages[:end]


def steps(credited):
    model = gradients.Bigrams(256)
    sampled = gradients.sampled_by(model, credited)
    step, trained = uphill(model, [sampled])
    yield step, gradients.policy_gradient(model, [sampled]), trained


def test_messages_are_those_that_the_model_saw_in_verifiers_shape():
    (only, *others) = GROUPS["dropped sibling"].group.trajectories
    first, *rest = only.turns
    called = replace(
        first,
        message=Message(role="assistant", tool_calls=(ToolCall(id="c", name="look", arguments="{}"),)),
        tool_results=(ToolResult(call_id="c", name="look", content="seen"),),
        replies=(),
    )
    group = replace(
        GROUPS["dropped sibling"].group, trajectories=(replace(only, turns=(called, *rest)), *others)
    )
    (one, *_) = adapter.traces(replace(GROUPS["dropped sibling"], group=group))
    assert [message.role for message in one.messages] == ["user", "assistant", "tool", "assistant"]
    assert one.messages[1].tool_calls[0].name == "look"
    assert one.messages[2].tool_call_id == "c"
    assert one.reward == only.score


def test_tokens_without_log_probabilities_are_refused():
    rows = [replace(row, logprobs=None) for row in UNTRAINED.group.trajectories[1].rows]
    (first, second, third) = UNTRAINED.group.trajectories
    group = replace(UNTRAINED.group, trajectories=(first, replace(second, rows=tuple(rows)), third))
    with pytest.raises(WireError, match="sibling 1 has tokens without log-probabilities"):
        adapter.traces(replace(UNTRAINED, group=group))


# --- advantages stamped on verifiers' own traces ----------------------------------------------------------


def rolled_out(turns, *, outcome=None, rewards=None, ok=True):
    """A trace as verifiers' rollouts leave it, of two sampled tokens a turn."""
    made = trace.WireTrace(
        task=trace.TraceTask(type="t", data=task.WireTaskData()),
        agent=trace.AgentInfo(config=configs.WireAgentConfig()),
        ok=ok,
    )
    for _ in range(turns):
        for role, mask in (("user", [False]), ("assistant", [False, True, True])):
            node = graph.MessageNode(
                parent=len(made.nodes) - 1 if made.nodes else None,
                message={"role": role, "content": "said"},
                sampled=role == "assistant",
                token_ids=[7] * len(mask),
                mask=mask,
                logprobs=[-1.0] * sum(mask),
            )
            made.nodes.append(node)
    if outcome is not None:
        made.record_reward("correct", outcome)
    if rewards is not None:
        made.info["turn_rewards"] = rewards
    return made


def credit_by_hand(gamma=1.0):
    """The advantages of the turns of `CREDIT_BY_HAND`, by the nodes that they are stamped on."""
    group = [rolled_out(len(row), rewards=[*row]) for row in CREDIT_BY_HAND]
    stamp_advantages(group, gamma=gamma)
    nodes = [[node for node in each.nodes if node.sampled] for each in group]
    assert all(len({*node.advantages}) == 1 and len(node.advantages) == 2 for each in nodes for node in each)
    assert all(node.advantages is None for each in group for node in each.nodes if not node.sampled)
    assert group[0].branches[0].advantages[:2] == [0.0, 0.0]
    return [[node.advantages[0] for node in each] for each in nodes]


def test_a_rollout_with_an_error_is_compared_with_nothing_and_gets_no_advantage():
    group = [rolled_out(1, outcome=1.0), rolled_out(1, outcome=0.0), rolled_out(1, ok=False)]
    stamp_advantages(group)
    assert group[0].branches[0].advantages[-1] == 1.0
    assert group[2].branches[0].advantages is None


def test_other_turn_rewards_than_sampled_nodes_are_refused():
    with pytest.raises(CreditError, match=r"has 2 sampled nodes and the turn_rewards \[1\.0\]"):
        stamp_advantages([rolled_out(2, rewards=[1.0])])
    none = rolled_out(2)
    none.info["turn_rewards"] = None
    with pytest.raises(CreditError, match="has 2 sampled nodes and the turn_rewards None"):
        stamp_advantages([none])


@every_group
def test_our_own_traces_stamped_again_after_they_were_sent_are_equal(credited):
    ours = adapter.traces(credited)
    again = [trace.WireTrace.model_validate(each.model_dump(mode="python")) for each in ours]
    for node in (node for each in again for node in each.nodes):
        node.advantages = None
    stamp_advantages(again)
    one, other = ([[node.advantages for node in each.nodes] for each in group] for group in (ours, again))
    assert one == other
