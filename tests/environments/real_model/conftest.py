"""The tiny model, trained once for all tests of a process, and servers around it."""

import importlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from environments.policy.rendering.chatml import ChatMLRenderer
from environments.trajectory import Message


@dataclass(frozen=True, kw_only=True)
class Saved:
    """A model in a folder, and loaded from it."""

    folder: Path
    model: Any
    tokenizer: Any


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    if not os.environ.get("TURNWISE_REQUIRE_TORCH"):
        pytest.importorskip("torch", reason="needs torch, for a real model")
    torch, transformers = (importlib.import_module(name) for name in ("torch", "transformers"))
    from tests.environments.real_model.tiny_qwen import overfitted_model, save

    torch.set_num_threads(1)
    renderer, folder = ChatMLRenderer.embedded(), tmp_path_factory.mktemp("tiny")
    (stop_id,) = renderer.completion_ids(Message(role="assistant"))
    save(overfitted_model(renderer), folder, stop_id)
    return Saved(
        folder=folder,
        model=transformers.Qwen3ForCausalLM.from_pretrained(folder),
        tokenizer=transformers.AutoTokenizer.from_pretrained(folder),
    )
