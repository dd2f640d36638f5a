"""verl's own way from an agent loop's output to its loss, with credited groups; needs verl and torch.

What runs is verl's: the post-processing of outputs, the advantages of the trainer, the loss of the actor.
Stubbed are the queue between them, which here keeps what it was given, and the model, which here is a table.
"""

import asyncio
import importlib
import os
import subprocess
import sys
import warnings
from dataclasses import replace
from functools import partial
from importlib.resources import files
from types import SimpleNamespace

import pytest

from environments.policy.base import CompletionRequest
from environments.policy.rendering.chatml import ChatMLRenderer
from environments.trainers.completion_columns import completion_columns
from environments.trainers.in_process_policy import InProcessPolicy
from environments.trainers.settings import BREAKERS, InexactStepWarning
from environments.trajectory import SEVERAL_VERSIONS, Message
from environments.wire.credited_rows import credited_rows
from tests.environments.trainers.groups import CANARY_GROUPS as GROUPS
from tests.environments.trainers.groups import WITHHELD, every_canary
from tools.errors import ConfigError

if not os.environ.get("TURNWISE_REQUIRE_VERL"):
    pytest.importorskip("verl", reason="needs verl, to run its data path and loss")
torch = importlib.import_module("torch")
torch.set_num_threads(1)
omegaconf = importlib.import_module("omegaconf")
core_algos = importlib.import_module("verl.trainer.ppo.core_algos")
agent_loop_tq = importlib.import_module("verl.trainer.ppo.v1.agent_loop_tq")
trainer_base = importlib.import_module("verl.trainer.ppo.v1.trainer_base")
correction_helper = importlib.import_module("verl.trainer.ppo.rollout_corr_helper")
losses = importlib.import_module("verl.workers.utils.losses")
llm_server = importlib.import_module("verl.workers.rollout.llm_server")
replica = importlib.import_module("verl.workers.rollout.replica")
ActorConfig = importlib.import_module("verl.workers.config").ActorConfig
adapter = importlib.import_module("environments.trainers.verl")
reference = importlib.import_module("tests.environments.trainers.policy_gradient")

ACTOR = "actor_rollout_ref.actor"


def exact_values(name):
    """The values of a setting of verl's actor that we do not refuse."""
    return next(each.exact for each in BREAKERS["verl"] if each.names == f"{ACTOR}.{name}")


def config_of(**changed):
    """verl's own defaults, with what our refusals ask for, and others."""
    asked = {"algorithm.adv_estimator": "turnwise", "trainer.val_before_train": False}
    defaults = files("verl") / "trainer" / "config" / "_generated_ppo_trainer.yaml"
    config = omegaconf.OmegaConf.load(str(defaults))
    for name, value in {**asked, **changed}.items():
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


@pytest.fixture
def queue(monkeypatch):
    queue = Queue()
    for module in (agent_loop_tq, trainer_base):
        monkeypatch.setattr(module, "tq", queue)
    return queue


def through_the_worker(queue, credited):
    """A group's outputs as verl's worker puts them into the queue."""
    worker_class = agent_loop_tq.AgentLoopWorkerTQ.__ray_metadata__.modified_class
    worker = object.__new__(worker_class)
    worker.processor, worker.distillation_enabled = None, False
    worker.reward_loop_worker_handles = ["a worker that is not asked"]
    outputs = adapter.outputs_of(credited, version=3)
    given = {"uid": "u", "session_id": 0, "global_steps": 3, "raw_prompt": "go"}
    asyncio.run(worker._agent_loop_postprocess(outputs, validate=False, **given))


def with_advantages(queue, trainer=trainer_base.PPOTrainer, **algorithm):
    """What the trainer's step computes from the queue."""
    settings = {"adv_estimator": "turnwise", "use_kl_in_reward": False, "gamma": 1.0, "lam": 1.0} | algorithm
    config = SimpleNamespace(
        algorithm=type("Algorithm", (dict,), {"__getattr__": dict.__getitem__})(settings),
        actor_rollout_ref=SimpleNamespace(rollout=SimpleNamespace(n=1)),
    )
    batch = trainer_base.KVBatchMeta(keys=queue.keys, tags=queue.tags, partition_id="train")
    trainer._compute_advantage(SimpleNamespace(config=config), batch, metrics={})
    return queue.fields["advantages"]


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


def measured(queue, credited, constant=1.0, **actor):
    model = reference.Bigrams()
    through_the_worker(queue, credited)
    with_advantages(queue)
    taken = step(queue, model, **actor)
    expected = reference.policy_gradient(model, [credited])
    return reference.measured(taken, expected, constant)


def divisor(credited, mode):
    """What a mode divides Σ A log π by."""
    columns = completion_columns(credited)
    return {"token-mean": sum(map(sum, columns.tool_mask)), "token-sum": 1}.get(mode, columns.rows)


@every_canary
def test_the_advantages_in_the_loss_are_those_of_the_wire(queue, credited):
    through_the_worker(queue, credited)
    advantages = [row.tolist() for row in with_advantages(queue).unbind()]
    wire = completion_columns(credited).advantages
    assert advantages == [pytest.approx(row, abs=1e-6) for row in wire]


@every_canary
@pytest.mark.parametrize("mode", exact_values("loss_agg_mode"))
def test_the_step_is_the_policy_gradient(queue, credited, mode):
    assert measured(queue, credited, divisor(credited, mode), loss_agg_mode=mode) == reference.EXACT


def test_the_probe_says_that_the_step_is_exact_and_what_a_refused_mode_does(queue):
    def uphill(model, groups, **actor):
        total = 0.0
        for credited in groups:
            through_the_worker(queue, credited)
            with_advantages(queue)
            total = total + step(queue, model, **actor)
        return total

    verdict = reference.probed(partial(uphill, loss_agg_mode="token-sum"))
    assert (verdict.exact, verdict.scale) == (True, "the sum")
    wrong = reference.probed(partial(uphill, loss_agg_mode="seq-mean-token-mean"))
    assert "rows do not weigh the same" in wrong.findings[0]


@pytest.mark.parametrize("loss", sorted(core_algos.POLICY_LOSS_REGISTRY))
def test_a_loss_takes_the_policy_gradient_or_is_refused(queue, loss):
    if loss not in exact_values("policy_loss.loss_mode"):
        with pytest.raises(ConfigError, match=f"loss_mode={loss} "):
            adapter.check_config(config_of(**{f"{ACTOR}.policy_loss.loss_mode": loss}))
        return
    given = {"loss_mode": loss, "rollout_correction": {}}
    for credited in GROUPS.values():
        constant = divisor(credited, "token-mean")
        assert measured(queue, credited, constant, policy_loss=PolicyLoss(given)) == reference.EXACT


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


def test_rows_have_turns_logprobs_and_the_version_they_were_sampled_from(queue):
    credited = GROUPS["condensed context"]
    through_the_worker(queue, credited)
    rows = credited_rows(credited)
    assert list(queue.fields["num_turns"]) == [len(row.trajectory.turns) for row in rows]
    assert {tag["min_global_steps"] for tag in queue.tags} == {3}
    logprobs = [row.tolist() for row in queue.fields["rollout_log_probs"].unbind()]
    assert logprobs == [pytest.approx(row, abs=1e-5) for row in completion_columns(credited).logprobs]


def test_a_turn_that_lived_through_an_update_is_one_row_with_the_versions_of_its_ends(queue):
    credited = GROUPS["dropped sibling"]
    (first, *others) = credited.group.trajectories
    turns = (replace(first.turns[0], weight_version=f"2{SEVERAL_VERSIONS}3"), *first.turns[1:])
    group = replace(credited.group, trajectories=(replace(first, turns=turns), *others))
    (output, *rest) = adapter.outputs_of(replace(credited, group=group), version=5)
    assert (output.extra_fields["min_global_steps"], output.extra_fields["max_global_steps"]) == (2, 5)
    assert len(rest) == sum(len(each.rows) for each in others)


class Server:
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
    server = Server(renderer.completion_ids(Message(role="assistant", content="well, yes")))

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


def test_a_withheld_sibling_is_a_row_of_which_nothing_is_trained_and_which_the_divisor_counts(queue):
    model = reference.Bigrams(256)
    through_the_worker(queue, WITHHELD)
    with_advantages(queue)
    assert [bool(row.sum()) for row in queue.fields["response_mask"].unbind()] == [True, False, True]
    taken = step(queue, model, loss_agg_mode="seq-mean-token-sum")
    expected = reference.policy_gradient(model, [WITHHELD]) / 3
    assert taken.tolist() == pytest.approx(expected.tolist(), abs=1e-7)


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
def test_a_trade_costs_what_the_warning_says(queue, trade):
    value, given = TRADES[trade]
    with pytest.warns(
        InexactStepWarning, match=rf"{trade}={value} .*each token's advantage stays exact"
    ) as found:
        adapter.check_config(config_of(**{trade: value}))
    got = expected = 0.0
    sampler = reference.Bigrams()
    model = reference.moved(sampler, GROUPS.values())
    for credited in GROUPS.values():
        through_the_worker(queue, credited)
        with_advantages(queue)
        got = got + step(queue, model, sampler=sampler, loss_agg_mode="token-sum", **given)
        expected = expected + reference.policy_gradient(model, [credited])
    cosine, ratio = reference.measured(got, expected)
    assert f"cosine {cosine:.2f}, norm ratio {ratio:.2f}" in str(found[0].message)


@pytest.mark.parametrize(
    ("mode", "trainer"),
    [("colocate_async", "PPOTrainerColocateAsync"), ("separate_async", "PPOTrainerSeparateAsync")],
)
def test_groups_of_asynchronous_trainers_arrive_with_their_advantages(queue, mode, trainer):
    module = importlib.import_module(f"verl.trainer.ppo.v1.trainer_{mode}")
    credited = GROUPS["condensed context"]
    through_the_worker(queue, credited)
    advantages = with_advantages(queue, getattr(module, trainer))
    assert [row.tolist() for row in advantages.unbind()] == [
        pytest.approx(row, abs=1e-6) for row in completion_columns(credited).advantages
    ]


def test_too_old_prompts_are_dropped_as_whole_groups(queue, monkeypatch):
    buffers = importlib.import_module("verl.trainer.ppo.v1.replay_buffer")
    dropped = []
    monkeypatch.setattr(
        buffers, "tq", SimpleNamespace(kv_clear=lambda partition_id, keys: dropped.extend(keys))
    )
    buffer = buffers.ReplayBufferAsync("separate_async", None, 2, "drop", None)
    through_the_worker(queue, GROUPS["condensed context"])
    buffer.partitions["train"] = dict(zip(queue.keys, queue.tags, strict=True))
    buffer.finished_keys["train"], buffer.prompt_global_steps["train"] = {"u"}, {"u": 3}
    for step_now, gone in ((4, []), (5, sorted(["u", *queue.keys]))):
        buffer._evict_terminal_groups(step_now, "train", buffer._terminal_eviction_reasons(step_now, "train"))
        assert sorted(dropped) == gone
