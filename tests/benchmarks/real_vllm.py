"""Rollouts on a real vLLM over both of its wires, and their log-probabilities beside one pass in torch.

    make real-vllm

Exits with 1 if a row is not exact, or the log-probabilities are more than 0.1 nats apart on average.
"""

import argparse
import asyncio
import shutil
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from statistics import fmean

from environments.policy.rendering.gguf_tokenizer import write_tokenizer_folder
from tests.environments.real_model.smol import Kind, find_gguf, gaps, play, sampled_turns, torch_model
from tests.environments.real_model.smol_envs import Chat

WIRES = ("vllm", "vllm_generate")
MOST_NATS = 0.1
ROLLOUTS = 40


def write(folder):
    """Write a folder for `from_pretrained`; transformers reads a GGUF, and refuses to save what it read."""
    if (folder / "model.safetensors").exists():
        return
    read = torch_model()
    del read.config.quantization_config
    plain = type(read)(read.config)
    plain.load_state_dict(read.state_dict())
    shutil.copytree(write_tokenizer_folder(find_gguf()), folder, dirs_exist_ok=True)
    plain.save_pretrained(folder)


def measure(url, folder, model, wire):
    """Print a line on 40 rollouts; whether they are exact and near."""
    kind = Kind(env=Chat, server={"server_type": wire}, settings={"group_size": 8, "on_cut": "respond"})
    with tempfile.TemporaryDirectory() as scratch:
        rollouts = asyncio.run(play(kind, url, folder, Path(scratch, "record.jsonl"))).rollouts
    reasons = [turn.finish_reason for each in rollouts for turn in each.turns]
    apart, tokens = list(gaps(model, rollouts)), sum(len(ids) for _, ids, _ in sampled_turns(rollouts))
    is_exact = all(each.exact and len(each.rows) == 1 for each in rollouts)
    print(f"{wire}: {len(rollouts)} rollouts, {len(reasons)} turns, {reasons.count('length')} of them cut")
    print(f"  {tokens} tokens, {'every row exact' if is_exact else 'NOT EXACT'}")
    print(f"  beside torch {fmean(apart):.3f} nats on average, {max(apart):.2f} at most")
    return is_exact and len(rollouts) == ROLLOUTS and fmean(apart) <= MOST_NATS


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--packages", type=Path, required=True, help="site-packages with torch")
    parser.add_argument("--folder", type=Path, required=True, help="the model's weights, written if missing")
    parser.add_argument("--url", help="a vLLM that serves them")
    given = parser.parse_args()
    sys.path.append(str(given.packages))
    write(given.folder)
    if given.url is None:
        return 0
    print(f"torch {version('torch')}, float32; transformers {version('transformers')}")
    model = torch_model()
    passed = [measure(given.url, given.folder, model, wire) for wire in WIRES]
    return int(not all(passed))


if __name__ == "__main__":
    sys.exit(main())
