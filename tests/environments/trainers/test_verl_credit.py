"""Turnwise's estimators through verl's own dispatch, on its own tool agent's rollouts; needs verl and torch.

Stubbed are the model server, which says what it is told, and the queue between worker and trainer.
"""

import asyncio
import importlib
import os
from pathlib import Path

import numpy as np
import pytest

from environments.policy.rendering.chatml import EMBEDDED_TOKENIZER_DIR
from environments.trainers.completion_columns import completion_columns
from tests.environments.trainers.groups import ONE_ROW
from tools.errors import ConfigError

if not os.environ.get("TURNWISE_REQUIRE_VERL"):
    pytest.importorskip("verl", reason="needs verl, to call its dispatch")
torch, hydra, verl = map(importlib.import_module, ("torch", "hydra", "verl"))
torch.set_num_threads(1)
adapter = importlib.import_module("environments.trainers.verl_credit")
agent_loop = importlib.import_module("verl.experimental.agent_loop.agent_loop")
agent_loop_tq = importlib.import_module("verl.trainer.ppo.v1.agent_loop_tq")
core_algos = importlib.import_module("verl.trainer.ppo.core_algos")
replica = importlib.import_module("verl.workers.rollout.replica")
tools = importlib.import_module("verl.tools.function_tool")
compute_advantage = importlib.import_module("verl.trainer.ppo.ray_trainer").compute_advantage
ActorConfig = importlib.import_module("verl.workers.config").ActorConfig
DataProto = importlib.import_module("verl").DataProto
reference = importlib.import_module("tests.environments.trainers.policy_gradient")
TOKENIZER = importlib.import_module("transformers").AutoTokenizer.from_pretrained(EMBEDDED_TOKENIZER_DIR)


def config_of(*overrides):
    """What verl's command line makes of them."""
    with hydra.initialize_config_dir(f"{Path(verl.__file__).parent}/trainer/config", version_base=None):
        return hydra.compose("ppo_trainer", overrides=["algorithm.adv_estimator=turn_return", *overrides])


def dispatched(rewards, mask, uids, *overrides):
    """The advantages that verl's trainer computes."""
    config = config_of(*overrides).algorithm
    tensors = {"token_level_rewards": torch.tensor(rewards), "response_mask": torch.tensor(mask)}
    data = DataProto.from_single_dict({**tensors, "uid": np.array(uids, object)})
    return compute_advantage(data, config.adv_estimator, config=config).batch["advantages"]


NAN = float("nan")
MASK = [[1, 1, 0, 1, 1, 0], [1, 0, 1, 1, 0, 1], [1, 1, 1, 0, 0, 0]]
REWARDS = [[0.0, 1.0, 0.0, 0.0, 0.5, 0.0], [NAN, 0.0, 0.0, 2.0, 0.0, 1.0], [0.0, 0.0, 0.25, 0.0, 0.0, 0.0]]
# Returns are 1.5, 0.5 · 3, 3, 1 · 0.25; the third turn of the second has no peer.
BY_HAND = [
    [-0.125, -0.125, 0.0, -2.5, -2.5, 0.0],
    [2.125, 0.0, 2.5, 2.5, 0.0, 1.0],
    [-2.0, -2.0, -2.0, 0.0, 0.0, 0.0],
]


def test_verls_dispatch_gives_the_advantages_computed_by_hand():
    assert dispatched(REWARDS, MASK, ["a"] * 3).tolist() == BY_HAND


def test_estimators_have_their_names_and_a_prefix_where_verl_has_that_name():
    for name in ("turn_return", "progress", "process_supervision", "grpo_multiturn"):
        assert core_algos.get_adv_estimator_fn(name).args == (name,)
    for name in ("grpo", "rloo"):
        assert core_algos.get_adv_estimator_fn(f"turnwise_{name}").args == (name,)


def test_parameters_come_from_verls_command_line():
    got = dispatched(REWARDS, MASK, ["a"] * 3, "+algorithm.turnwise.gamma=0.5")
    assert got[1, 0].item() == 0.5 * (2.0 + 0.5) - (1.25 + 0.25) / 2


def test_the_module_can_be_loaded_again_and_a_users_own_estimator_keeps_its_name():
    before = {*core_algos.ADV_ESTIMATOR_REGISTRY}
    importlib.reload(adapter)
    assert {*core_algos.ADV_ESTIMATOR_REGISTRY} == before
    assert "turnwise_progress" in adapter.registry_estimators({"progress": lambda **_: None})


@pytest.mark.parametrize("name", ["gamma", "lam"])
def test_a_discount_per_token_is_refused(name):
    with pytest.raises(ConfigError, match=rf"algorithm\.{name} is 0\.5, which discounts per token"):
        dispatched(REWARDS, MASK, ["a"] * 3, f"algorithm.{name}=0.5")


def test_rejection_which_takes_tokens_out_of_the_mask_is_refused():
    with pytest.raises(ConfigError, match="rollout_rs takes tokens out of the mask"):
        dispatched(REWARDS, MASK, ["a"] * 3, "algorithm.rollout_correction.rollout_rs=token_k1")


# --- rollouts ------------------------------------------------------------------------------------------


class Queue:
    """What verl's worker puts into a TransferQueue, padded as its trainer gets it."""

    async def async_kv_batch_put(self, keys, fields, tags, partition_id):
        self.fields = fields.select("response_mask", "rm_scores").to_padded_tensor()


def through_the_worker(monkeypatch, outputs):
    """Rewards and masks of a batch as verl's trainer reads them, of one prompt."""
    monkeypatch.setattr(agent_loop_tq, "tq", queue := Queue())
    worker = object.__new__(agent_loop_tq.AgentLoopWorkerTQ.__ray_metadata__.modified_class)
    worker.processor, worker.distillation_enabled, worker.reward_loop_worker_handles = None, False, None
    given = {"uid": "u", "session_id": 0, "global_steps": 0, "raw_prompt": "go"}
    asyncio.run(worker._agent_loop_postprocess(outputs, validate=False, **given))
    return queue.fields["rm_scores"].tolist(), queue.fields["response_mask"].tolist()


@tools.function_tool
def look(at: str):
    """Look somewhere.

    Args:
        at: where to look.
    """
    return f"you see {at}", {"tree": 0.25, "sky": 0.5}[at], {}


class Server:
    """It says what it is told."""

    def __init__(self, said):
        self.said = iter(said)

    async def generate(self, request_id, prompt_ids, sampling_params, **_):
        said = next(self.said)
        token_ids = [] if said is None else TOKENIZER.encode(said + "<|im_end|>", add_special_tokens=False)
        return replica.TokenOutput(token_ids=token_ids, log_probs=[-1.0] * len(token_ids))


def rolled_out(said, *overrides, loop="turnwise_tool_agent"):
    """An output of verl's tool agent."""
    format = "actor_rollout_ref.rollout.multi_turn.format=hermes"
    parallel = "actor_rollout_ref.rollout.multi_turn.max_parallel_calls=2"
    config = config_of(format, parallel, *overrides)
    wrap, listed = agent_loop.DictConfigWrap, agent_loop.ToolListWrap([tools.FUNCTION_TOOL_REGISTRY["look"]])
    loop_cls = hydra.utils.get_class(agent_loop._agent_loop_registry[loop]["_target_"])

    async def run():
        made = loop_cls(wrap(config), Server(said), TOKENIZER, None, None, wrap(config.data), tools=listed)
        return await made.run({}, raw_prompt=[{"role": "user", "content": "go"}])

    return asyncio.run(run())


def looks(*places):
    return "".join(
        f'<tool_call>{{"name":"look","arguments":{{"at":"{place}"}}}}</tool_call>' for place in places
    )


SAID = [looks("tree", "sky"), looks("sky"), "done"]


def test_a_turn_of_verls_tool_agent_is_rewarded_by_its_tools_and_the_last_one_by_the_outcome(monkeypatch):
    output = rolled_out(SAID)
    output.reward_score = 1.0
    ((rewards,), (mask,)) = through_the_worker(monkeypatch, [output])
    turns = adapter.turn_slices(mask)
    assert [sum(rewards[turn]) for turn in turns] == [0.75, 0.5, 1.0]
    assert [TOKENIZER.decode(output.response_ids[turn]) for turn in turns] == [f"{s}<|im_end|>" for s in SAID]


def test_workers_that_drop_rewards_of_turns_refuse_them():
    worker, output = object.__new__(agent_loop.AgentLoopWorker), rolled_out(SAID)
    with pytest.raises(ConfigError, match=r"drops rewards of turns: use main_ppo, trainer\.use_v1=True"):
        asyncio.run(worker._agent_loop_postprocess(output, validate=False, raw_prompt="go"))


BY_LENGTH = "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean"


def test_a_setting_that_breaks_the_step_is_refused_by_the_tool_agent_unless_it_is_wanted():
    with pytest.raises(ConfigError, match="loss_agg_mode=seq-mean-token-mean divides parts"):
        rolled_out(SAID, BY_LENGTH)
    with pytest.raises(ConfigError, match=r"algorithm\.turnwise\.exact is 'of'; give one of"):
        rolled_out(SAID, BY_LENGTH, "+algorithm.turnwise.exact=of")
    assert rolled_out(SAID, BY_LENGTH, "+algorithm.turnwise.exact=off").turn_rewards == [0.75, 0.5, 0.0]


def test_credit_of_the_tool_agents_rollouts_is_that_computed_by_hand(monkeypatch):
    outputs = [rolled_out(said) for said in (SAID, [looks("sky"), "done"], ["no"])]
    for output, outcome in zip(outputs, (1.0, 0.0, 0.5), strict=True):
        output.reward_score = outcome
        output.extra_fields["reward_extra_info"] = {}
    # verl gives all rows of a session its outcome, and so each is a session here.
    rows = [through_the_worker(monkeypatch, [output]) for output in outputs]
    width = max(len(mask) for _, (mask,) in rows)
    rewards, masks = (
        [[*row, *[0] * (width - len(row))] for (row,) in column] for column in zip(*rows, strict=True)
    )
    advantages = dispatched(rewards, masks, ["a"] * 3)
    got = [
        [set(row[turn].tolist()) for turn in adapter.turn_slices(mask)]
        for row, mask in zip(advantages, masks, strict=True)
    ]
    assert got == [[{1.75}, {1.5}, {1.0}], [{-0.875}, {-1.5}], [{-0.875}]]


def output_of(columns, row, rewards, **given):
    return adapter.TurnRewardOutput(
        prompt_ids=columns.prompt_ids[row],
        response_ids=columns.completion_ids[row],
        response_mask=columns.tool_mask[row],
        turn_rewards=rewards,
        metrics=agent_loop.AgentLoopMetrics(),
        **given,
    )


@pytest.mark.parametrize("credited", ONE_ROW.values(), ids=ONE_ROW)
def test_advantages_and_the_step_are_those_of_the_adapter_for_environments(monkeypatch, credited):
    columns = completion_columns(credited)
    siblings = credited.group.trajectories
    outputs = [output_of(columns, row, [*each.rewards.turns]) for row, each in enumerate(siblings)]
    rewards, masks = through_the_worker(monkeypatch, outputs)
    advantages = dispatched(rewards, masks, ["a"] * len(siblings))
    for row, wanted in zip(advantages, columns.advantages, strict=True):
        assert row[: len(wanted)].tolist() == pytest.approx(wanted, abs=1e-6)

    model = reference.Bigrams()
    taken = torch.zeros(advantages.shape, dtype=torch.float64)
    for row, (prompt, completion) in enumerate(zip(columns.prompt_ids, columns.completion_ids, strict=True)):
        tokens = torch.tensor([*prompt, *completion])
        log_p = torch.log_softmax(model(tokens[None, :-1]).logits[0], dim=-1)
        taken[row, : len(completion)] = log_p[range(len(tokens) - 1), tokens[1:]][len(prompt) - 1 :]
    loss, _ = core_algos.get_policy_loss_fn("vanilla")(
        taken.detach(),
        taken,
        advantages,
        torch.tensor(masks),
        loss_agg_mode="token-mean",
        config=ActorConfig(strategy="fsdp", rollout_n=1, use_dynamic_bsz=True),
    )
    step, expected = -reference.gradient_of(loss, model), reference.policy_gradient(model, [credited])
    assert torch.allclose(step * sum(map(sum, masks)), expected, atol=1e-6)
