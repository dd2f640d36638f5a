"""What TRL makes of the text exports: tokens that equal those of the record; needs torch, as TRL does."""

import importlib
import os
from collections import Counter
from functools import partial
from types import SimpleNamespace

import datasets
import pytest

from environments.policy.rendering.chatml import EMBEDDED_TOKENIZER_DIR
from environments.record.prompt_response import LineFile, prompt_response
from environments.shipped.retail.env import RetailEnv

if not os.environ.get("TURNWISE_REQUIRE_TORCH"):
    pytest.importorskip("trl", reason="needs torch and TRL, to run TRL's preparation of data")


@pytest.fixture(scope="module")
def trl(tmp_path_factory):
    transformers, theirs = importlib.import_module("transformers"), importlib.import_module("trl")
    tokenizer = transformers.AutoTokenizer.from_pretrained(EMBEDDED_TOKENIZER_DIR)
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    config = transformers.Qwen3Config(vocab_size=len(tokenizer), num_key_value_heads=1, head_dim=8, **sizes)
    folder = tmp_path_factory.mktemp("model")
    transformers.Qwen3ForCausalLM(config).save_pretrained(folder)
    model = partial(transformers.Qwen3ForCausalLM.from_pretrained, folder)
    return SimpleNamespace(theirs=theirs, tokenizer=tokenizer, model=model)


@pytest.fixture
async def groups():
    """Of a condensed environment with tools, whose scripted agent also writes calls that are cut short."""
    config = RetailEnv.env_config_cls(
        group_size=4, max_items=3, condenser=["keep_last_turns"], condenser_turns=2
    )
    async with RetailEnv(config) as env:
        return [await env.run_group(task) for task in env.tasks()]


@pytest.fixture
def prepared(trl, tmp_path, monkeypatch):
    """The dataset of a trainer, given groups."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()

    def prepare(groups):
        path = tmp_path / "out.jsonl"
        with LineFile(path) as file:
            for line in (line for group in groups for line in prompt_response(group, Counter())):
                file.write(line)
            file.put_early()
        loaded = datasets.load_dataset("json", data_files=str(path), split="train")
        settings = trl.theirs.SFTConfig(
            output_dir=str(tmp_path), report_to=[], use_cpu=True, bf16=False, max_length=None
        )
        return trl.theirs.SFTTrainer(
            model=trl.model(), args=settings, train_dataset=loaded, processing_class=trl.tokenizer
        ).train_dataset

    return prepare


def sampled(groups):
    """Per turn the tokens that the model saw, and those that it sampled."""
    tokens = {}
    for credited in groups:
        for each in credited.group.trajectories:
            for turn in each.turns:
                row, span = each.rows[turn.span.row].token_ids, turn.span
                tokens[credited.group.group_id, each.sibling, turn.index] = (
                    list(row[: span.start]),
                    list(row[span.start : span.end]),
                )
    return tokens


def test_sft_sees_and_trains_the_tokens_of_the_record(prepared, groups):
    rows, tokens = prepared(groups), sampled(groups)
    assert len(rows) == len(tokens) > 50
    for row in rows:
        prompt, completion = tokens[row["group_id"], row["sibling"], row["turn"]]
        ids = row["input_ids"]
        assert ids[: len(prompt) + len(completion)] == prompt + completion
        # The template's newline after the end of a message follows.
        assert row["labels"] == [-100] * len(prompt) + ids[len(prompt) :]
        assert len(ids) - len(prompt) - len(completion) <= 1


def test_what_sft_trains_holds_calls_that_were_cut_and_prompts_that_were_condensed(groups):
    turns = [turn for credited in groups for each in credited.group.trajectories for turn in each.turns]
    assert any(turn.context is not None for turn in turns)
    assert any("}" not in call.arguments for turn in turns for call in turn.message.tool_calls)
