"""The examples for TRL run; needs torch and TRL."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from environments.policy.rendering.chatml import EMBEDDED_TOKENIZER_DIR

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


def test_a_tenth_of_the_learning_example_runs(tmp_path):
    run("learn_trl/learn.py", "--tenth", "--out", tmp_path / "out", cwd=tmp_path)
    curves = json.loads((tmp_path / "out" / "curves.json").read_text())
    steps = [(each["arm"], len(each["shares"][0])) for each in curves]
    assert steps == [("gamma-0", 4), ("gamma-1", 4), ("scalar", 4)]
    assert (tmp_path / "out" / "curves.svg").read_text().startswith("<svg")
