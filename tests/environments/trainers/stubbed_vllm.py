"""What TRL needs of vLLM, stubbed: a server's answers and a colocated engine, both of a model on the CPU.

TRL's own `VLLMGeneration` and `VLLMClient` run: they give the weights, write requests and read replies. No
vLLM runs, nor a transfer between devices.
"""

import importlib
import os
import random
from types import SimpleNamespace

from environments.trainers.in_process_policy import Wanted
from tests.environments.trainers import trl_steps

torch = trl_steps.torch
generation = importlib.import_module("trl.generation.vllm_generation")
sampling = importlib.import_module("environments.trainers.trl_sampling")
VLLMClient = generation.VLLMClient


class Engine:
    """Samples from the weights that it was last given."""

    rounding = 0.0
    """What its weights differ by from the trainer's."""

    def __init__(self):
        self.model, self.asked, self.loads = trl_steps.tiny_model(), [], 0

    def load(self, weights):
        self.loads += 1
        torch.manual_seed(self.loads)
        own = dict(self.model.named_parameters())
        for name, value in weights:
            own[name].data.copy_(value + self.rounding * torch.randn_like(value))

    def complete(self, prompt_ids, asked):
        self.asked.append(asked)
        wanted = Wanted(
            prompt_ids=prompt_ids, max_tokens=asked["max_tokens"], draws=random.Random(asked["seed"])
        )
        assert asked["ignore_eos"]
        return sampling.CachedSampler(self.model, asked["stop_token_ids"])([wanted])[0]


class Client(VLLMClient):
    """A server's answers in the place of its connection."""

    def __init__(self, **_):
        self.engine, self.base_url, self.model = Engine(), "http://stubbed", "m"

    def init_communicator(self, device=0):
        pass

    def reset_prefix_cache(self):
        pass

    def get_server_info(self):
        return {"model_config": {"logprobs_mode": "processed_logprobs"}}

    def update_named_params(self, metadata, params):
        self.engine.load(params)

    def _post(self, url, json):
        assert url == "http://stubbed/v1/completions"
        (prompt_ids,) = json["prompt"]
        sampled = self.engine.complete(prompt_ids, json)
        logprobs = {
            "tokens": [f"token_id:{each}" for each in sampled.token_ids],
            "token_logprobs": sampled.logprobs,
            "top_logprobs": [None] * len(sampled.token_ids),
        }
        choice = {"prompt_token_ids": prompt_ids, "token_ids": sampled.token_ids, "logprobs": logprobs}
        return {"choices": [choice]}


class LLM:
    """The colocated engine, as far as TRL calls it."""

    def __init__(self, **_):
        self.engine = Engine()
        model = SimpleNamespace(load_weights=self.engine.load)
        worker = SimpleNamespace(model_runner=SimpleNamespace(model=model))
        self.llm_engine = SimpleNamespace(model_executor=SimpleNamespace(driver_worker=worker))

    def reset_prefix_cache(self):
        pass

    def generate(self, prompts, sampling_params, use_tqdm):
        return [
            SimpleNamespace(outputs=[self._output(prompt["prompt_token_ids"], vars(asked))])
            for prompt, asked in zip(prompts, sampling_params, strict=True)
        ]

    def _output(self, prompt_ids, asked):
        sampled = self.engine.complete(prompt_ids, asked)
        logprobs = [
            {token: SimpleNamespace(logprob=logprob, rank=1)}
            for token, logprob in zip(sampled.token_ids, sampled.logprobs, strict=True)
        ]
        return SimpleNamespace(token_ids=sampled.token_ids, logprobs=logprobs)


STUBS = {
    "is_vllm_available": lambda: True,
    "VLLMClient": Client,
    "LLM": LLM,
    "SamplingParams": lambda **asked: SimpleNamespace(**{"temperature": 1.0, **asked}),
    "ensure_master_addr_port": lambda: None,
}


def install(patch):
    """Have TRL find the stubs, and what TRL writes into the process environment undone with them."""
    for name in {"RANK", "LOCAL_RANK", "WORLD_SIZE"} - set(os.environ):
        patch.setenv(name, "0")
        patch.delenv(name)
    for name, stub in STUBS.items():
        patch.setattr(generation, name, stub, raising=False)


def engine_of(trainer):
    """The engine that the trainer samples with."""
    used = trainer.vllm_generation
    return (used.vllm_client if used.mode == "server" else used.llm).engine
