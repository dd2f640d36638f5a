"""TRL's preparation of the text export: its tokens equal those of the record; needs torch and TRL."""

import importlib
import os
from collections import Counter

import datasets
import pytest

from environments.policy.rendering.chatml import EMBEDDED_TOKENIZER_DIR
from environments.record.prompt_response import LineFile, prompt_response
from environments.shipped.retail.env import RetailEnv

if not os.environ.get("TURNWISE_REQUIRE_TORCH"):
    pytest.importorskip("trl", reason="needs torch and TRL, to run TRL's preparation of data")


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
