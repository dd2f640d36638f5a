"""verl's own way from an agent loop's output to its loss, with credited groups and turn credit; needs verl.

What runs is verl's: its tool agent, the post-processing of outputs, the dispatch of estimators and the
advantages of the trainer, the loss of the actor. Stubbed are the model server, the queue between worker and
trainer, which here keeps what it was given, and the model of the loss, which here is a table.
"""

import asyncio
import importlib
import os
import subprocess
import sys
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from environments.policy.base import CompletionRequest
from environments.policy.rendering.chatml import EMBEDDED_TOKENIZER_DIR, ChatMLRenderer
from environments.trainers.completion_columns import completion_columns
from environments.trainers.in_process_policy import InProcessPolicy
from environments.trainers.settings import BREAKERS, InexactStepWarning, turn_slices
from environments.trajectory import SEVERAL_VERSIONS, Message
from environments.wire.credited_rows import credited_rows
from tests.environments.trainers.groups import CANARY_GROUPS as GROUPS
from tools.errors import ConfigError

if not os.environ.get("TURNWISE_REQUIRE_VERL"):
    pytest.importorskip("verl", reason="needs verl, to run its data path and loss")
torch, hydra, verl, omegaconf = map(importlib.import_module, ("torch", "hydra", "verl", "omegaconf"))
torch.set_num_threads(1)
core_algos = importlib.import_module("verl.trainer.ppo.core_algos")
agent_loop_tq = importlib.import_module("verl.trainer.ppo.v1.agent_loop_tq")
trainer_base = importlib.import_module("verl.trainer.ppo.v1.trainer_base")
correction_helper = importlib.import_module("verl.trainer.ppo.rollout_corr_helper")
losses = importlib.import_module("verl.workers.utils.losses")
llm_server = importlib.import_module("verl.workers.rollout.llm_server")
replica = importlib.import_module("verl.workers.rollout.replica")
ActorConfig = importlib.import_module("verl.workers.config").ActorConfig
agent_loop = importlib.import_module("verl.experimental.agent_loop.agent_loop")
tools = importlib.import_module("verl.tools.function_tool")
compute_advantage = importlib.import_module("verl.trainer.ppo.ray_trainer").compute_advantage
adapter = importlib.import_module("environments.trainers.verl")
credit = importlib.import_module("environments.trainers.verl_credit")
TOKENIZER = importlib.import_module("transformers").AutoTokenizer.from_pretrained(EMBEDDED_TOKENIZER_DIR)
reference = importlib.import_module("tests.environments.trainers.policy_gradient")

ACTOR = "actor_rollout_ref.actor"


def exact_values(name):
    """The values of a setting of verl's actor that we do not refuse."""
    return next(each.exact for each in BREAKERS["verl"] if each.names == f"{ACTOR}.{name}")


def config_of(*overrides, **changed):
    """verl's own defaults, with what our refusals ask for, and others of its command line."""
    asked = ["algorithm.adv_estimator=turnwise", "trainer.val_before_train=False", *overrides]
    with hydra.initialize_config_dir(f"{Path(verl.__file__).parent}/trainer/config", version_base=None):
        config = hydra.compose("ppo_trainer", overrides=asked)
    for name, value in changed.items():
        omegaconf.OmegaConf.update(config, name, value)
    return config


class Queue:
    """What a TransferQueue keeps, in this process."""

    def __init__(self):
        self.fields = None

    async def async_kv_batch_put(self, keys, fields, tags, partition_id):
        self.keys, self.fields, self.tags = keys, fields, tags
        # As a TransferQueue: rows that happen to be equally long are nested, too.
        for name, value in fields.items():
            if isinstance(value, torch.Tensor) and not value.is_nested:
                fields[name] = nested(value.unbind())

    def kv_batch_get(self, keys, partition_id, select_fields):
        return self.fields.select(*[name for name in select_fields if name in self.fields])

    def kv_batch_put(self, keys, partition_id, fields):
        self.fields.update(fields)


def in_queue(outputs, *, handles=None):
    """What verl's worker puts into the queue of outputs of one prompt."""
    worker = object.__new__(agent_loop_tq.AgentLoopWorkerTQ.__ray_metadata__.modified_class)
    worker.processor, worker.distillation_enabled, worker.reward_loop_worker_handles = None, False, handles
    given = {"uid": "u", "session_id": 0, "global_steps": 3, "raw_prompt": "go"}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(agent_loop_tq, "tq", queue := Queue())
        asyncio.run(worker._agent_loop_postprocess(outputs, validate=False, **given))
    return queue


def group_in_queue(credited, trainer=trainer_base.PPOTrainer):
    """A group's outputs as verl's worker queues them, with the advantages of the trainer's step."""
    queue = in_queue(adapter.outputs_of(credited, version=3), handles=["a worker that is not asked"])
    with_advantages(queue, trainer)
    return queue


def with_advantages(queue, trainer=trainer_base.PPOTrainer):
    """What the trainer's step computes from the queue."""
    settings = {"adv_estimator": "turnwise", "use_kl_in_reward": False, "gamma": 1.0, "lam": 1.0}
    config = SimpleNamespace(
        algorithm=type("Algorithm", (dict,), {"__getattr__": dict.__getitem__})(settings),
        actor_rollout_ref=SimpleNamespace(rollout=SimpleNamespace(n=1)),
    )
    batch = trainer_base.KVBatchMeta(keys=queue.keys, tags=queue.tags, partition_id="train")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(trainer_base, "tq", queue)
        trainer._compute_advantage(SimpleNamespace(config=config), batch, metrics={})


def lists(rows):
    return [row.tolist() for row in rows.unbind()]


def step(queue, model, *, micro_batches=2, sampler=None, correction=None, **actor):
    """The gradient of the actor's loss over its micro-batches, as it would be subtracted.

    With a `sampler`, older weights, ratios are to these; or, with a rollout `correction`, its weights are.
    """
    config = ActorConfig(strategy="fsdp", rollout_n=1, use_dynamic_bsz=True, **actor)
    data = queue.fields
    rows = len(data)
    taken, old = next_tokens(model, data)
    weights = None
    if sampler is not None:
        sampled = next_tokens(sampler, data)[1]
        weights = correction and weights_of(old, sampled, data["response_mask"], correction)
        old = old if correction else sampled
    total = 0.0
    for part in torch.arange(rows).chunk(micro_batches):
        fields = {
            name: nested([data[name].unbind()[row] for row in part])
            for name in ("prompts", "responses", "response_mask", "advantages")
        }
        fields["old_log_probs"] = nested([old[row] for row in part])
        if weights is not None:
            fields["rollout_is_weights"] = nested([weights[row] for row in part])
        micro = losses.TensorDict(fields, batch_size=len(part))
        losses.tu.assign_non_tensor(
            micro,
            dp_size=1,
            batch_num_tokens=int(data["loss_mask"].values().sum()),
            global_batch_size=rows,
        )
        loss, _ = losses.ppo_loss(config, {"log_probs": nested([taken[row] for row in part])}, micro)
        total = total + loss
    return -reference.gradient_of(total, model)


def next_tokens(model, data):
    """As verl's engine has it: at each token the log-probability of the next one; and those of responses."""
    log_probs = [torch.log_softmax(model(ids[None]).logits[0], -1) for ids in data["input_ids"].unbind()]
    taken = [
        torch.cat([row[torch.arange(len(ids) - 1), ids[1:]], row.new_zeros(1)])
        for row, ids in zip(log_probs, data["input_ids"].unbind(), strict=True)
    ]
    spans = zip(data["prompts"].offsets().diff(), data["responses"].offsets().diff(), strict=True)
    old = [row.detach()[int(p) - 1 : int(p) + int(r) - 1] for row, (p, r) in zip(taken, spans, strict=True)]
    return taken, old


def weights_of(old, sampled, mask, correction):
    """verl's own weights for samples of older weights, row by row."""
    padded = [
        torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True)
        for rows in (old, sampled, mask.unbind())
    ]
    weights, _, _ = correction_helper.compute_rollout_correction_and_rejection_mask(*padded, **correction)
    return [row[: len(each)] for row, each in zip(weights.batch["rollout_is_weights"], old, strict=True)]


def nested(rows):
    return torch.nested.as_nested_tensor(list(rows), layout=torch.jagged)


def advantages_in_loss(credited):
    return zip(
        lists(group_in_queue(credited).fields["advantages"]),
        completion_columns(credited).advantages,
        strict=True,
    )


def steps(credited):
    queue, model = group_in_queue(credited), reference.Bigrams(256)
    expected = reference.policy_gradient(model, [credited])
    for mode in exact_values("loss_agg_mode"):
        yield step(queue, model, loss_agg_mode=mode), expected, divisor(credited, mode)


def divisor(credited, mode):
    """What a mode divides Σ A log π by."""
    columns = completion_columns(credited)
    return {"token-mean": sum(map(sum, columns.tool_mask)), "token-sum": 1}.get(mode, columns.rows)


def test_the_probe_says_that_the_step_is_exact_and_what_a_refused_mode_does():
    def uphill(model, groups, **actor):
        return sum(step(group_in_queue(credited), model, **actor) for credited in groups)

    verdict = reference.probed(partial(uphill, loss_agg_mode="token-sum"))
    assert (verdict.exact, verdict.scale) == (True, "the sum")
    wrong = reference.probed(partial(uphill, loss_agg_mode="seq-mean-token-mean"))
    assert "rows do not weigh the same" in wrong.findings[0]


@pytest.mark.parametrize("loss", sorted(core_algos.POLICY_LOSS_REGISTRY))
def test_a_loss_takes_the_policy_gradient_or_is_refused(loss):
    if loss not in exact_values("policy_loss.loss_mode"):
        with pytest.raises(ConfigError, match=f"loss_mode={loss} "):
            adapter.check_config(config_of(**{f"{ACTOR}.policy_loss.loss_mode": loss}))
        return
    given, model = PolicyLoss({"loss_mode": loss, "rollout_correction": {}}), reference.Bigrams()
    for credited in GROUPS.values():
        taken, expected = (
            step(group_in_queue(credited), model, policy_loss=given),
            reference.policy_gradient(model, [credited]),
        )
        assert reference.measured(taken, expected, divisor(credited, "token-mean")) == reference.EXACT


class PolicyLoss(dict):
    __getattr__ = dict.get


def test_verls_own_defaults_are_exact_but_for_its_estimator_and_validation():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        adapter.check_config(config_of(**{f"{ACTOR}.optim.lr": 1e-5, f"{ACTOR}.ppo_mini_batch_size": 64}))
    with pytest.raises(ConfigError, match=r"adv_estimator=gae .*; use turnwise$"):
        adapter.check_config(config_of(**{"algorithm.adv_estimator": "gae"}))
    with pytest.raises(ConfigError, match=r"val_before_train=True .*; use False$"):
        adapter.check_config(config_of(**{"trainer.val_before_train": True}))


def test_rows_have_turns_logprobs_and_the_version_they_were_sampled_from():
    credited = GROUPS["condensed context"]
    queue = group_in_queue(credited)
    rows = credited_rows(credited)
    assert list(queue.fields["num_turns"]) == [len(row.trajectory.turns) for row in rows]
    assert {tag["min_global_steps"] for tag in queue.tags} == {3}
    assert lists(queue.fields["rollout_log_probs"]) == [
        pytest.approx(row, abs=1e-5) for row in completion_columns(credited).logprobs
    ]


def test_a_turn_that_lived_through_an_update_is_one_row_with_the_versions_of_its_ends():
    credited = GROUPS["dropped sibling"]
    (first, *others) = credited.group.trajectories
    turns = (replace(first.turns[0], weight_version=f"2{SEVERAL_VERSIONS}3"), *first.turns[1:])
    group = replace(credited.group, trajectories=(replace(first, turns=turns), *others))
    (output, *rest) = adapter.outputs_of(replace(credited, group=group), version=5)
    assert (output.extra_fields["min_global_steps"], output.extra_fields["max_global_steps"]) == (2, 5)
    assert len(rest) == sum(len(each.rows) for each in others)


class AbortingServer:
    """verl's handle of a model server: an update of the weights aborts the first answer after two tokens."""

    def __init__(self, ids):
        self.ids, self.asked = ids, []
        self.generate = SimpleNamespace(remote=self._generate)

    async def _generate(self, prompt_ids, sampling_params, **_):
        self.asked.append((prompt_ids, dict(sampling_params)))
        begun = len(self.asked) == 1
        ids = self.ids[:2] if begun else self.ids[2:]
        return replica.TokenOutput(
            token_ids=list(ids), log_probs=[-0.5] * len(ids), stop_reason="aborted" if begun else "completed",
            extra_fields={"global_steps": 6 if begun else 7},
        )  # fmt: skip


async def test_a_turn_that_an_update_aborts_is_resumed_by_verls_client_and_stays_one_turn(monkeypatch):
    renderer = ChatMLRenderer.embedded()
    server = AbortingServer(renderer.completion_ids(Message(role="assistant", content="well, yes")))

    class Client(llm_server.FullyAsyncLLMServerClient):
        async def _acquire_server(self, request_id, **_):
            return "s", server

        def _release_server(self, *_, **__):
            pass

    at_once = SimpleNamespace(sleep=lambda _: asyncio.sleep(0))
    monkeypatch.setattr(llm_server, "asyncio", at_once)
    policy = InProcessPolicy(renderer, name="verl")
    policy.use(
        adapter.sampler_of(
            Client(config_of(**{"actor_rollout_ref.rollout.name": "vllm"})), renderer.stop_ids
        ),
        weight_version="5",
    )
    request = CompletionRequest(messages=(Message(role="user", content="Well?"),), max_tokens=50)
    given = await policy.complete(request)
    assert (given.message.content, given.finish_reason) == ("well, yes", "stop")
    assert (given.token_ids, len(given.logprobs)) == (server.ids, len(server.ids))
    assert given.weight_version == f"6{SEVERAL_VERSIONS}7"
    (before, _), (after, params) = server.asked
    assert after == [*before, *server.ids[:2]]
    assert (params["temperature"], params["max_tokens"]) == (1.0, 48)


def test_a_group_with_an_advantage_too_large_has_no_rows_and_is_warned_of(caplog):
    credited = GROUPS["dropped sibling"]
    huge = replace(credited, advantages=tuple((1e60,) * len(row) for row in credited.advantages))
    assert adapter.outputs_of(huge, version=0) == []
    assert "too large for the float32 of a trainer" in caplog.text


def test_verl_knows_the_estimator_when_it_is_told_of_the_module():
    told = os.environ | {"VERL_USE_EXTERNAL_MODULES": "environments.trainers.verl"}
    script = "import verl.trainer.ppo.core_algos as found; found.get_adv_estimator_fn('turnwise')"
    subprocess.run([sys.executable, "-c", script], env=told, check=True, capture_output=True)


def test_an_agent_loop_gives_its_whole_group():
    credited = GROUPS["condensed context"]

    class Loop(adapter.TurnwiseAgentLoop):
        async def credited_group(self, sampling_params, **item):
            assert item["index"] == 7
            return credited

    loop = object.__new__(Loop)
    outputs = asyncio.run(loop.run({}, index=7, global_steps=2))
    assert len(outputs) == completion_columns(credited).rows


TRADES = {
    f"{ACTOR}.ppo_epochs": (2, {}),
    "trainer.v1.trainer_mode": ("separate_async", {}),
    "algorithm.rollout_correction.rollout_is": ("sequence", {"correction": {"rollout_is": "sequence"}}),
}


@pytest.mark.parametrize("trade", TRADES)
def test_a_trade_costs_what_the_warning_says(trade):
    value, given = TRADES[trade]
    with pytest.warns(
        InexactStepWarning, match=rf"{trade}={value} .*each token's advantage stays exact"
    ) as found:
        adapter.check_config(config_of(**{trade: value}))
    got = expected = 0.0
    sampler = reference.Bigrams()
    model = reference.moved(sampler, GROUPS.values())
    for credited in GROUPS.values():
        got = got + step(group_in_queue(credited), model, sampler=sampler, loss_agg_mode="token-sum", **given)
        expected = expected + reference.policy_gradient(model, [credited])
    cosine, ratio = reference.measured(got, expected)
    assert f"cosine {cosine:.2f}, norm ratio {ratio:.2f}" in str(found[0].message)


@pytest.mark.parametrize(
    ("mode", "trainer"),
    [("colocate_async", "PPOTrainerColocateAsync"), ("separate_async", "PPOTrainerSeparateAsync")],
)
def test_groups_of_asynchronous_trainers_arrive_with_their_advantages(mode, trainer):
    module = importlib.import_module(f"verl.trainer.ppo.v1.trainer_{mode}")
    credited = GROUPS["condensed context"]
    queue = group_in_queue(credited, getattr(module, trainer))
    assert lists(queue.fields["advantages"]) == [
        pytest.approx(row, abs=1e-6) for row in completion_columns(credited).advantages
    ]


def test_too_old_prompts_are_dropped_as_whole_groups(monkeypatch):
    buffers = importlib.import_module("verl.trainer.ppo.v1.replay_buffer")
    dropped = []
    monkeypatch.setattr(
        buffers, "tq", SimpleNamespace(kv_clear=lambda partition_id, keys: dropped.extend(keys))
    )
    buffer = buffers.ReplayBufferAsync("separate_async", None, 2, "drop", None)
    queue = group_in_queue(GROUPS["condensed context"])
    buffer.partitions["train"] = dict(zip(queue.keys, queue.tags, strict=True))
    buffer.finished_keys["train"], buffer.prompt_global_steps["train"] = {"u"}, {"u": 3}
    for step_now, gone in ((4, []), (5, sorted(["u", *queue.keys]))):
        buffer._evict_terminal_groups(step_now, "train", buffer._terminal_eviction_reasons(step_now, "train"))
        assert sorted(dropped) == gone


# --- turn credit in verl's registry -----------------------------------------------------------------------


def dispatched(rewards, mask, uids, *overrides):
    """The advantages that verl's trainer computes."""
    config = config_of("algorithm.adv_estimator=turn_return", *overrides).algorithm
    tensors = {"token_level_rewards": torch.tensor(rewards), "response_mask": torch.tensor(mask)}
    data = verl.DataProto.from_single_dict({**tensors, "uid": np.array(uids, object)})
    return compute_advantage(data, config.adv_estimator, config=config).batch["advantages"]


MASK = [[1, 1, 0, 1, 1, 0], [1, 0, 1, 1, 0, 1], [1, 1, 1, 0, 0, 0]]
# The rewards of `CREDIT_BY_HAND`, each within its turn.
NAN = float("nan")
REWARDS = [[0.0, 1.0, 0.0, 0.0, 0.5, 0.0], [NAN, 0.0, 0.0, 2.0, 0.0, 1.0], [0.0, 0.0, 0.25, 0.0, 0.0, 0.0]]


def credit_by_hand(gamma=1.0):
    """The advantages of the turns of `CREDIT_BY_HAND`, by the parameters of verl's command line."""
    advantages = dispatched(REWARDS, MASK, ["a"] * 3, f"+algorithm.turnwise.gamma={gamma}")
    assert not advantages[torch.tensor(MASK) == 0].any()
    return of_turns(advantages, MASK)


def of_turns(advantages, masks):
    """`[row][turn]`, each the advantage of all its tokens."""
    return [
        [value for turn in turn_slices(mask) for value in {*row[turn].tolist()}]
        for row, mask in zip(advantages, masks, strict=True)
    ]


def test_estimators_have_their_names_and_a_prefix_where_verl_has_that_name():
    for name in ("turn_return", "igpo", "process_supervision", "grpo_multiturn"):
        assert core_algos.get_adv_estimator_fn(name).args == (name,)
    for name in ("grpo", "rloo"):
        assert core_algos.get_adv_estimator_fn(f"turnwise_{name}").args == (name,)


def test_the_module_can_be_loaded_again_and_a_users_own_estimator_keeps_its_name():
    before = {*core_algos.ADV_ESTIMATOR_REGISTRY}
    importlib.reload(credit)
    assert {*core_algos.ADV_ESTIMATOR_REGISTRY} == before
    assert "turnwise_igpo" in credit.registry_estimators({"igpo": lambda **_: None})


@pytest.mark.parametrize("name", ["gamma", "lam"])
def test_a_discount_per_token_is_refused(name):
    with pytest.raises(ConfigError, match=rf"algorithm\.{name} is 0\.5, which discounts per token"):
        dispatched(REWARDS, MASK, ["a"] * 3, f"algorithm.{name}=0.5")


def test_rejection_which_takes_tokens_out_of_the_mask_is_refused():
    with pytest.raises(ConfigError, match="rollout_rs takes tokens out of the mask"):
        dispatched(REWARDS, MASK, ["a"] * 3, "algorithm.rollout_correction.rollout_rs=token_k1")


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
    config = config_of("algorithm.adv_estimator=turn_return", format, parallel, *overrides)
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


def test_a_turn_of_verls_tool_agent_is_rewarded_by_its_tools_and_the_last_one_by_the_outcome():
    output = rolled_out(SAID)
    output.reward_score = 1.0
    ((rewards,), (mask,)) = rewards_and_masks([output])
    turns = turn_slices(mask)
    assert [sum(rewards[turn]) for turn in turns] == [0.75, 0.5, 1.0]
    assert [TOKENIZER.decode(output.response_ids[turn]) for turn in turns] == [f"{s}<|im_end|>" for s in SAID]


def rewards_and_masks(outputs):
    """Rewards and masks of a batch as verl's trainer reads them, of one prompt."""
    read = in_queue(outputs).fields.select("response_mask", "rm_scores").to_padded_tensor()
    return read["rm_scores"].tolist(), read["response_mask"].tolist()


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


def test_credit_of_the_tool_agents_rollouts_is_that_computed_by_hand():
    outputs = [rolled_out(said) for said in (SAID, [looks("sky"), "done"], ["no"])]
    for output, outcome in zip(outputs, (1.0, 0.0, 0.5), strict=True):
        output.reward_score = outcome
        output.extra_fields["reward_extra_info"] = {}
    # verl gives all rows of a session its outcome, and so each is a session here.
    rows = [rewards_and_masks([output]) for output in outputs]
    width = max(len(mask) for _, (mask,) in rows)
    rewards, masks = (
        [[*row, *[0] * (width - len(row))] for (row,) in column] for column in zip(*rows, strict=True)
    )
    assert of_turns(dispatched(rewards, masks, ["a"] * 3), masks) == [
        [1.75, 1.5, 1.0],
        [-0.875, -1.5],
        [-0.875],
    ]


def credit_and_step(credited):
    """Advantages with those of the wire, and a step with its constant, of a group's turn rewards."""
    columns, siblings = completion_columns(credited), credited.group.trajectories
    outputs = [
        credit.TurnRewardOutput(
            prompt_ids=columns.prompt_ids[row],
            response_ids=columns.completion_ids[row],
            response_mask=columns.tool_mask[row],
            turn_rewards=[*each.rewards.turns],
            metrics=agent_loop.AgentLoopMetrics(),
        )
        for row, each in enumerate(siblings)
    ]
    rewards, masks = rewards_and_masks(outputs)
    advantages = dispatched(rewards, masks, ["a"] * len(siblings))
    pairs = [
        (row[: len(wanted)].tolist(), wanted)
        for row, wanted in zip(advantages, columns.advantages, strict=True)
    ]
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
    return pairs, (step, expected, sum(map(sum, masks)))
