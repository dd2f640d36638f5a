"""The examples for TRL run, and its preparation of the text export keeps the record's tokens; needs TRL."""

import importlib
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import datasets
import pytest

from environments.policy.rendering.chatml import EMBEDDED_TOKENIZER_DIR
from environments.record.prompt_response import LineFile, prompt_response
from environments.shipped.retail.env import RetailEnv

if not os.environ.get("TURNWISE_REQUIRE_TORCH"):
    pytest.importorskip("trl", reason="needs torch and TRL, to run the examples")
EXAMPLES = Path(__file__).resolve().parents[3] / "docs" / "examples"
QUIET = {
    "TRL_EXPERIMENTAL_SILENCE": "1",
    "PYTHONWARNINGS": "ignore",
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
}


def run(script, *options, cwd):
    command = [sys.executable, str(EXAMPLES / script), *map(str, options)]
    done = subprocess.run(
        command, cwd=cwd, env={**os.environ, **QUIET}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_the_script_to_copy_trains_and_saves_a_model(tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    config = transformers.Qwen2Config(
        vocab_size=2048, num_key_value_heads=1, bos_token_id=None, eos_token_id=2, **sizes
    )
    transformers.Qwen2ForCausalLM(config).save_pretrained(tmp_path / "model")
    transformers.AutoTokenizer.from_pretrained(EMBEDDED_TOKENIZER_DIR).save_pretrained(tmp_path / "model")
    told = run(
        "train_trl.py", tmp_path / "model", "--family", "chatml", "--steps", 1, "--out", "out", cwd=tmp_path
    )
    assert "'no_credit': 4" in told
    assert (tmp_path / "out" / "model.safetensors").exists()


def test_the_laptop_trainer_takes_three_steps(tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 5, "num_attention_heads": 1}
    config = transformers.LlamaConfig(
        vocab_size=2048, num_key_value_heads=1, bos_token_id=None, eos_token_id=2, **sizes
    )
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "model")
    transformers.AutoTokenizer.from_pretrained(EMBEDDED_TOKENIZER_DIR).save_pretrained(tmp_path / "model")
    told = run("train_smol_trl.py", "--model", tmp_path / "model", "--steps", 3, "--out", "out", cwd=tmp_path)
    assert told.count("'turnwise/padding': '0'") == 3
    assert (tmp_path / "out" / "model.safetensors").exists()


def test_a_tenth_of_the_learning_example_runs(tmp_path):
    run("learn_trl/learn.py", "--tenth", "--out", tmp_path / "out", cwd=tmp_path)
    curves = json.loads((tmp_path / "out" / "curves.json").read_text())
    steps = [(each["arm"], len(each["shares"][0])) for each in curves]
    assert steps == [("gamma-0", 4), ("gamma-1", 4), ("scalar", 4)]
    assert (tmp_path / "out" / "curves.svg").read_text().startswith("<svg")


async def test_sft_sees_and_trains_the_tokens_of_the_record(tmp_path, monkeypatch):
    # A condensed environment with tools, whose scripted agent also writes calls that are cut short.
    config = RetailEnv.env_config_cls(
        group_size=4, max_items=3, condenser=["keep_last_turns"], condenser_turns=2
    )
    async with RetailEnv(config) as env:
        groups = [await env.run_group(task) for task in env.tasks()]
    turns = {
        (credited.group.group_id, each.sibling, turn.index): (each.rows[turn.span.row].token_ids, turn.span)
        for credited in groups
        for each in credited.group.trajectories
        for turn in each.turns
    }
    rows = prepared(groups, tmp_path, monkeypatch)
    assert len(rows) == len(turns) > 50
    for row in rows:
        token_ids, span = turns[row["group_id"], row["sibling"], row["turn"]]
        ids = row["input_ids"]
        assert ids[: span.end] == list(token_ids[: span.end])
        # The template's newline after the end of a message follows.
        assert row["labels"] == [-100] * span.start + ids[span.start :]
        assert len(ids) - span.end <= 1


def prepared(groups, folder, monkeypatch):
    """The dataset of TRL's trainer."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", folder / "cache")
    datasets.disable_progress_bars()
    with LineFile(folder / "out.jsonl") as file:
        for line in (line for group in groups for line in prompt_response(group, Counter())):
            file.write(line)
        file.put_early()
    loaded = datasets.load_dataset("json", data_files=str(folder / "out.jsonl"), split="train")
    transformers, trl = importlib.import_module("transformers"), importlib.import_module("trl")
    tokenizer = transformers.AutoTokenizer.from_pretrained(EMBEDDED_TOKENIZER_DIR)
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    config = transformers.Qwen3Config(vocab_size=len(tokenizer), num_key_value_heads=1, head_dim=8, **sizes)
    settings = trl.SFTConfig(output_dir=str(folder), report_to=[], use_cpu=True, bf16=False, max_length=None)
    model = transformers.Qwen3ForCausalLM(config)
    trainer = trl.SFTTrainer(model=model, args=settings, train_dataset=loaded, processing_class=tokenizer)
    return trainer.train_dataset
