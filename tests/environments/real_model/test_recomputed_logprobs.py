"""What a trainer computes anew is what was recorded: a real model samples, over real HTTP, into a record."""

import asyncio
import importlib
from collections import Counter
from dataclasses import dataclass

import pytest
from rich.console import Console

from environments.config import ServerConfig
from environments.policy.mock.mock_server import running_mock_server
from environments.record.recorder import read_groups
from environments.run.process_run import process
from environments.trajectory import IGNORED, NOT_SAMPLED
from environments.wire.views import VIEWS
from tests.environments.real_model.looking_env import Looking

TOLERANCE = 1e-4


async def played(tiny, folder, *, group_size, server_type, **settings):
    """The groups of a record, rolled out by the tiny model behind a server."""
    from tests.environments.real_model.transformer_server import transformer_app

    path = folder / "record.jsonl"
    config = Looking.env_config_cls(
        group_size=group_size, max_turns=5, max_tokens_per_turn=64, data_path_to_save_groups=str(path), **settings
    )
    async with running_mock_server(transformer_app(tiny.model, tiny.tokenizer)) as url:
        server = ServerConfig(base_url=url, model_name="tiny", server_type=server_type)
        assert await process(Looking(config, [server]), Console(quiet=True)) == 0
    return list(read_groups(path))


@pytest.fixture(scope="module", params=["chat"])
def groups(request, tiny, tmp_path_factory):
    return asyncio.run(played(tiny, tmp_path_factory.mktemp(request.param), group_size=6, server_type=request.param))


def recomputed(tiny, token_ids):
    """The log-probability of each token after the first, by one pass over all of them."""
    torch = importlib.import_module("torch")
    logits = tiny.model(torch.tensor([token_ids])).logits[0, :-1]
    return torch.log_softmax(logits, dim=-1).gather(1, torch.tensor(token_ids[1:])[:, None])[:, 0].tolist()


def differences(tiny, tokens, mask, logprobs):
    """How far recorded and recomputed logprobs are apart, for each sampled token."""
    found = [0.0, *recomputed(tiny, list(tokens))]
    sampled = [index for index, label in enumerate(mask) if label != IGNORED]
    assert all(mask[index] == tokens[index] for index in sampled)
    assert Counter(logprobs)[NOT_SAMPLED] == len(tokens) - len(sampled)
    return [abs(found[index] - logprobs[index]) for index in sampled]


@pytest.mark.parametrize("view", VIEWS)
def test_each_sampled_token_has_the_logprob_that_a_trainer_computes(tiny, groups, view):
    rows = [row for credited in groups for group in VIEWS[view](credited) for row in group.rows]
    apart = [gap for row in rows for gap in differences(tiny, row.tokens, row.mask, row.logprobs)]
    assert len(apart) > 1000
    assert max(apart) <= TOLERANCE


def test_spans_hold_each_sampled_token_once(groups):
    for trajectory in (trajectory for credited in groups for trajectory in credited.group.trajectories):
        held = [(turn.span.row, i) for turn in trajectory.turns for i in range(turn.span.start, turn.span.end)]
        sampled = [
            (index, i)
            for index, row in enumerate(trajectory.rows)
            for i, logprob in enumerate(row.logprobs)
            if logprob != NOT_SAMPLED
        ]
        assert held == sampled
