"""Runs of TRL that go on, in several processes, with its vLLM, and the thread they have; needs TRL."""

import asyncio
import importlib
import os
import subprocess
import sys
import threading
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from environments.policy.rendering.chatml import ChatMLRenderer
from environments.trainers.settings import InexactStepWarning
from tools.errors import ConfigError
from turnwise.lab.probe.canaries import CanaryEnv

if not os.environ.get("TURNWISE_REQUIRE_TORCH"):
    pytest.importorskip("trl", reason="needs torch and TRL, to run TRL's own trainer")
steps = importlib.import_module("tests.environments.trainers.trl_steps")
stubbed_vllm = importlib.import_module("tests.environments.trainers.stubbed_vllm")
torch = steps.torch


class Talk(steps.Talk):
    """Three items, of which a step takes two: epochs end within a step's reach."""

    def load_items(self):
        return [{"id": f"item{index}"} for index in range(3)]


class Playing(steps.Watched):
    """Keeps what was played, step by step."""

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        self.played = [*getattr(self, "played", ()), [of_group(each) for each in self.rollout_func.groups]]
        return output


def of_group(credited):
    siblings = credited.group.trajectories
    turns = [turn for each in siblings for turn in each.turns]
    return (
        credited.group.item_id,
        credited.group.epoch,
        {turn.weight_version for turn in turns},
        [row.token_ids for each in siblings for row in each.rows],
    )


def test_a_run_that_goes_on_from_a_checkpoint_is_the_run_that_was_never_stopped(tmp_path):
    given = {"trainer": Playing, "model": steps.brief_model, "save_strategy": "steps", "save_steps": 2}

    def env(policy):
        return Talk(Talk.env_config_cls(max_tokens_per_turn=20), policy=policy)

    whole = steps.run(env, tmp_path / "whole", steps=4, **given).trainer
    checkpoint = tmp_path / "whole" / "checkpoint-2"
    rest = steps.run(env, tmp_path / "rest", steps=4, resume=str(checkpoint), **given).trainer
    assert [version for _, _, version, _ in whole.played[2]] == [{"step-2"}] * 2
    assert {epoch for groups in whole.played for _, epoch, _, _ in groups} > {0, 1}
    assert rest.played == whole.played[2:]
    for mine, theirs in zip(rest.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.allclose(mine, theirs, atol=1e-7)


# Two groups of four rows, by two processes: a group each, or half of one each, and then the other.
PROCESSES = """
import pytest
from tests.environments.trainers import stubbed_vllm, trl_steps
from tests.environments.trainers.test_trl_runs import MODES, of_processes, shard_on_cpus

stubbed_vllm.install(pytest.MonkeyPatch())
shard_on_cpus()
for name in MODES:
    done = of_processes(name, 2, "out")
    if done.trainer.accelerator.is_main_process:
        logged, rollouts = done.trainer.state.log_history, done.rollouts
        kept = (done.gradients, done.is_sharded, logged, rollouts.counts, len(rollouts.groups))
        trl_steps.torch.save(kept, name)
"""
VLLM = {"env": steps.played, "model": steps.brief_model, "per_device": 4, "use_vllm": True}
MODES = {
    "whole groups": {"env": steps.played, "model": steps.brief_model, "per_device": 4},
    "split groups": {"env": steps.played, "model": steps.brief_model, "per_device": 2, "loss_type": "dapo"},
    "padded groups": {"env": CanaryEnv, "per_device": 8},
    "a vLLM server": {**VLLM, "vllm_mode": "server"},
    "a vLLM in each": {**VLLM, "vllm_mode": "colocate"},
}
FSDP2 = {"fsdp": True, "fsdp_config": {"version": 2, "transformer_layer_cls_to_wrap": "Qwen2DecoderLayer"}}
# The second of two steps is played by the weights that the first one changed.
SHARDED = {
    "sharded weights": MODES["whole groups"] | FSDP2 | {"steps": 2},
    "sharded, split groups": MODES["split groups"] | FSDP2 | {"steps": 2},
    "sharded, a vLLM server": MODES["a vLLM server"] | FSDP2 | {"steps": 2},
}
if steps.HAS_PEFT:
    SHARDED["sharded LoRA"] = SHARDED["sharded, split groups"] | {"model": steps.lora_model}
MODES |= SHARDED


def of_processes(name, processes, folder):
    given = {**MODES[name]}
    rows, env = given.pop("per_device") // processes, given.pop("env")
    if processes == 1:
        given = {name: value for name, value in given.items() if name not in FSDP2}
    return steps.run(env, folder, per_device_train_batch_size=rows, **given)


def shard_on_cpus():
    """Have accelerate, which shards on accelerators alone, do so in processes of CPUs."""
    from accelerate.state import AcceleratorState, DistributedType, PartialState

    made = AcceleratorState.__init__

    def make(self, *args, fsdp_plugin=None, **kwargs):
        made(self, *args, fsdp_plugin=fsdp_plugin, **kwargs)
        if fsdp_plugin is not None:
            self.distributed_type, self.fsdp_plugin = DistributedType.FSDP, fsdp_plugin
            PartialState._shared_state["distributed_type"] = DistributedType.FSDP

    AcceleratorState.__init__ = make


@pytest.mark.soak  # torch is imported three times
@pytest.mark.parametrize("name", MODES)
def test_two_processes_take_the_step_of_one(tmp_path, monkeypatch, in_two, name):
    stubbed_vllm.install(monkeypatch)
    alone = of_processes(name, 1, tmp_path)
    gradients, is_sharded, (logged, *_), counts, _ = torch.load(in_two / name, weights_only=False)
    assert (counts, is_sharded) == (alone.rollouts.counts, name in SHARDED)
    assert logged["reward"] == pytest.approx(alone.trainer.state.log_history[0]["reward"])
    for gradient, expected in zip(gradients, alone.gradients, strict=True):
        assert (gradient - expected).norm() < 1e-5 * expected.norm()


@pytest.mark.soak
def test_each_group_is_rolled_out_once_by_the_one_process_that_can(in_two):
    expected = {
        "whole groups": 1, "split groups": 0, "padded groups": 2, "a vLLM server": 2, "a vLLM in each": 1,
        "sharded weights": 1, "sharded, split groups": 0, "sharded, a vLLM server": 2,
    }  # fmt: skip
    by_first = {name: torch.load(in_two / name, weights_only=False)[-1] for name in expected}
    assert by_first == expected


@pytest.fixture(scope="module")
def in_two(tmp_path_factory):
    """What the first of two processes, started by torchrun and joined by gloo, keeps of each mode."""
    folder = tmp_path_factory.mktemp("processes")
    (folder / "script.py").write_text(PROCESSES)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    path = os.pathsep.join((str(Path(__file__).parents[3]), *sys.path))
    done = subprocess.run(
        [*launch, "script.py"], cwd=folder, env=os.environ | {"PYTHONPATH": path},
        capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.mark.parametrize(
    ("sharded", "message"),
    [
        ("is_deepspeed_enabled", r"DeepSpeed no step was shown .* with FSDP2 \(fsdp_version 2\)"),
        ("is_fsdp_enabled", r"FSDP1 gathers weights in every .*; use FSDP2 \(fsdp_version 2\)"),
    ],
)
def test_other_ways_to_shard_weights_are_refused(tmp_path, sharded, message):
    class Sharded(steps.adapter.TurnwiseGRPOTrainer):
        def create_accelerator_and_postprocess(self):
            super().create_accelerator_and_postprocess()
            setattr(self, sharded, True)
            self.accelerator.state.fsdp_plugin = SimpleNamespace(fsdp_version=1)

    with pytest.raises(ConfigError, match=message):
        steps.run(CanaryEnv, tmp_path, trainer=Sharded)


def test_rollouts_of_a_part_of_a_group_are_refused(tmp_path):
    class Shuffled(steps.Watched):
        def _generate_and_score_completions(self, inputs):
            return super()._generate_and_score_completions(inputs[1:])

    with pytest.raises(ConfigError, match="other than whole groups of 4"):
        steps.run(CanaryEnv, tmp_path, trainer=Shuffled)


def test_trls_own_evaluation_is_refused(tmp_path):
    done = steps.run(CanaryEnv, tmp_path)
    with pytest.raises(ConfigError, match="use `turnwise evaluate`"):
        done.trainer.evaluate(done.rollouts.dataset)


@asynccontextmanager
async def opened_in(events):
    """Notes in which thread it is opened and closed; without a list it cannot be opened."""
    events.append(("open", threading.current_thread().name))
    yield
    events.append(("closed", threading.current_thread().name))


def test_an_environment_opens_works_and_closes_in_one_thread_that_is_gone_then():
    events, tasks = [], []

    async def endless():
        try:
            await asyncio.Event().wait()
        finally:
            events.append(("cancelled", threading.current_thread().name))

    async def begin():
        tasks.append(asyncio.create_task(endless()))
        await asyncio.sleep(0)

    with steps.adapter.OpenInThread(opened_in(events)) as opened:
        opened.run(begin())
    assert events == [(name, "turnwise-loop") for name in ("open", "cancelled", "closed")]
    assert "turnwise-loop" not in {thread.name for thread in threading.enumerate()}


# --- rollouts that a stub of vLLM samples ------------------------------------------------------------------


@pytest.fixture
def vllm(monkeypatch):
    stubbed_vllm.install(monkeypatch)
    return monkeypatch


def by_vllm(folder, mode="server", **given):
    given = {"model": steps.brief_model, "vllm_mode": mode, "exact": "off", **given}
    return steps.run(steps.played, folder, use_vllm=True, **given)


@pytest.mark.parametrize("mode", ["server", "colocate"])
def test_a_turn_is_asked_for_with_its_own_seed_and_the_ends_of_the_chat_format(tmp_path, vllm, mode):
    asked = stubbed_vllm.engine_of(by_vllm(tmp_path, mode).trainer).asked
    assert len({each["seed"] for each in asked}) == len(asked) > 8
    assert {(each["temperature"], *each["stop_token_ids"]) for each in asked} == {
        (1.0, *ChatMLRenderer.embedded().stop_ids)
    }
    assert {each["max_tokens"] for each in asked} == {20}


def test_a_trade_costs_what_the_warning_says(tmp_path, vllm):
    vllm.setattr(stubbed_vllm.Engine, "rounding", 0.005)
    with pytest.warns(InexactStepWarning, match="use_vllm=True samples in an engine") as found:
        cosine, ratio = steps.compared(by_vllm(tmp_path, exact=None), "dr_grpo")
    line = next(str(each.message) for each in found if "use_vllm" in str(each.message))
    assert f"cosine {cosine:.2f}, norm ratio {ratio:.2f}" in line


def test_a_behaviour_cut_weighs_turns_in_the_place_of_trls_importance_weights(tmp_path, vllm):
    vllm.setattr(stubbed_vllm.Engine, "rounding", 0.005)
    done = by_vllm(
        tmp_path, trainer=partial(steps.Watched, behaviour_cut=1.01), gradient_accumulation_steps=1
    )
    (seen,), columns = done.trainer.seen, done.rollouts.step.columns
    of_tokens = {tuple(ids): row for row, ids in enumerate(columns.completion_ids)}
    ratios = []
    for row, ids in enumerate(seen["completion_ids"]):
        width = int(seen["completion_mask"][row].sum())
        known = of_tokens[tuple(ids[:width].tolist())]
        expected = torch.tensor(columns.advantages[known])
        apart = (seen["old_per_token_logps"] - seen["sampling_per_token_logps"])[row, :width]
        for turn in {*columns.turn_ids[known]} - {-1}:
            tokens = torch.tensor(columns.turn_ids[known]) == turn
            ratios.append(apart[tokens].mean().exp().item())
            expected[tokens] *= min(1.01, ratios[-1])
        assert torch.allclose(seen["advantages"][row, :width], expected)
    assert min(ratios) < 1 < 1.01 < max(ratios)
    assert (seen["importance_sampling_ratio"] == 1).all()


def test_a_behaviour_cut_without_weights_to_replace_is_refused(tmp_path):
    with pytest.raises(
        ConfigError, match=r"behaviour_cut=2 takes the place .*; without vLLM each ratio is 1"
    ):
        steps.run(CanaryEnv, tmp_path, trainer=partial(steps.Watched, behaviour_cut=2.0))


@pytest.mark.parametrize("given", [{"vllm_enable_sleep_mode": True}, {"vllm_tensor_parallel_size": 2}])
def test_a_colocated_vllm_that_samples_only_when_trl_says_is_refused(tmp_path, given, vllm):
    vllm.setattr(stubbed_vllm.generation, "VLLMGeneration", lambda **_: None)
    vllm.setattr("trl.trainer.grpo_trainer.VLLMGeneration", lambda **_: None)
    with pytest.raises(ConfigError, match=r"a colocated vLLM samples .*; use vllm_mode server"):
        by_vllm(tmp_path, "colocate", **given)
