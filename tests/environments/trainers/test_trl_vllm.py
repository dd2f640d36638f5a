"""TRL's trainer on rollouts that its vLLM samples, behind a stub of vLLM; needs torch and TRL."""

import importlib
import os

import pytest

from environments.policy.rendering.chatml import ChatMLRenderer
from environments.trainers.settings import InexactStepWarning
from tools.errors import ConfigError

if not os.environ.get("TURNWISE_REQUIRE_TORCH"):
    pytest.importorskip("trl", reason="needs torch and TRL, to run TRL's own trainer")
steps = importlib.import_module("tests.environments.trainers.trl_steps")
stubbed = importlib.import_module("tests.environments.trainers.stubbed_vllm")
torch = steps.torch


@pytest.fixture(autouse=True)
def vllm(monkeypatch):
    stubbed.install(monkeypatch)
    return monkeypatch


def by_vllm(folder, mode="server", **given):
    given = {"model": steps.brief_model, "vllm_mode": mode, "exact": "off", **given}
    return steps.run(steps.played, folder, use_vllm=True, **given)


@pytest.mark.parametrize("mode", ["server", "colocate"])
def test_a_turn_is_asked_for_with_its_own_seed_and_the_ends_of_the_chat_format(tmp_path, mode):
    asked = stubbed.engine_of(by_vllm(tmp_path, mode).trainer).asked
    assert len({each["seed"] for each in asked}) == len(asked) > 8
    assert {(each["temperature"], *each["stop_token_ids"]) for each in asked} == {
        (1.0, *ChatMLRenderer.embedded().stop_ids)
    }
    assert {each["max_tokens"] for each in asked} == {20}


def test_a_trade_costs_what_the_warning_says(tmp_path, vllm):
    vllm.setattr(stubbed.Engine, "rounding", 0.005)
    with pytest.warns(InexactStepWarning, match="use_vllm=True samples in an engine") as found:
        cosine, ratio = steps.compared(by_vllm(tmp_path, exact=None), "dr_grpo")
    line = next(str(each.message) for each in found if "use_vllm" in str(each.message))
    assert f"cosine {cosine:.2f}, norm ratio {ratio:.2f}" in line


@pytest.mark.parametrize("given", [{"vllm_enable_sleep_mode": True}, {"vllm_tensor_parallel_size": 2}])
def test_a_colocated_vllm_that_samples_only_when_trl_says_is_refused(tmp_path, given, vllm):
    vllm.setattr(stubbed.generation, "VLLMGeneration", lambda **_: None)
    vllm.setattr("trl.trainer.grpo_trainer.VLLMGeneration", lambda **_: None)
    with pytest.raises(ConfigError, match=r"a colocated vLLM samples .*; use vllm_mode server"):
        by_vllm(tmp_path, "colocate", **given)
