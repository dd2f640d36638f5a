"""verifiers' own traces, their branches and their way to a trainer; prime-rl, the trainer, is on no index.

So its loss (0.8.0, `default_loss_fn` under `compute_loss`) is computed here, from what its `trace_to_samples`
reads of a branch: `token_ids`, `sampled_mask`, `logprobs` and `advantages`.
"""

import importlib
import os
from dataclasses import replace

import pytest

from environments.trajectory import IGNORED, Message
from environments.wire.credited_rows import credited_rows
from tests.environments.trainers.groups import GROUPS, UNTRAINED, every_group
from tools.calls import ToolCall, ToolResult
from tools.errors import WireError

if not os.environ.get("TURNWISE_REQUIRE_VERIFIERS"):
    pytest.importorskip("verifiers", reason="needs verifiers and torch")
torch = importlib.import_module("torch")
trace = importlib.import_module("verifiers.v1.trace")
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


@every_group
def test_the_advantages_of_branches_are_those_of_the_wire(credited):
    for branch, row in zip(sent(credited), credited_rows(credited), strict=True):
        end = row.turns[-1].span.end
        assert branch.token_ids == row.tokens[:end]
        assert branch.sampled_mask == [label != IGNORED for label in row.mask[:end]]
        assert branch.advantages == row.advantages[:end]


@every_group
def test_the_step_is_the_policy_gradient_over_the_trained_tokens(credited):
    model = gradients.Bigrams(256)
    sampled = gradients.sampled_by(model, credited)
    expected = gradients.policy_gradient(model, [sampled])
    step, trained = uphill(model, [sampled])
    assert gradients.measured(step, expected, trained) == gradients.EXACT


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
