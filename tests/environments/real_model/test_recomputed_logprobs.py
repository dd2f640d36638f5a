"""What a trainer computes anew is what was recorded: a real model samples, over real HTTP, into a record."""

import asyncio
import importlib
import math
from collections import Counter
from contextlib import aclosing
from dataclasses import dataclass, replace

import pytest
from rich.console import Console

from environments.config import ServerConfig
from environments.policy.inference.model_server import ModelServer
from environments.policy.inference.token_wires import WIRES
from environments.policy.rendering.chatml import THINK, CannotExtendError, ChatMLRenderer
from environments.policy.token_policy import TokenPolicy
from environments.record.recorder import read_groups
from environments.run.process_run import process
from environments.trajectory import IGNORED, NOT_SAMPLED
from environments.wire.views import VIEWS
from tests.environments.policy.token_server import server_type_of
from tests.environments.real_model.looking_env import Looking
from tests.equipment.running_server import running_server
from tests.tables import cases

TOLERANCE = 1e-4
MODEL = "tiny"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """How the model is asked, and for how many rollouts of each of the 8 items."""

    server: str = "vllm"
    wire: str | None = None
    family: str = "chatml"
    forgets: bool = False
    temperature: float = 1.0
    group_size: int = 2


KINDS = {
    "completions": Asked(group_size=8),
    "vllm_generate": Asked(wire="generate"),
    "sglang_generate": Asked(server="sglang"),
    "sglang_chat": Asked(server="sglang", wire="chat"),
    "qwen3": Asked(family="qwen3"),
    "forgetting": Asked(forgets=True, group_size=3),
    "chat": Asked(server="plain", group_size=3),
}


class Forgetting(ChatMLRenderer):
    """A format that shows a model what it thought only while it writes that turn, as several do."""

    def prompt_ids(self, messages, tools):
        return super().prompt_ids([replace(message, reasoning=None) for message in messages], tools)

    def extend(self, sampled, messages, tools=()):
        if self._marker(THINK[0])[0] in sampled:
            raise CannotExtendError("reasoning")
        return super().extend(sampled, messages, tools)


def forgetting_policy(url):
    server = ModelServer(base_url=url, api_key="none")
    return TokenPolicy(
        server=server, model=MODEL, renderer=Forgetting.embedded(), wire=WIRES["vllm", "completions"]
    )


async def played(tiny, asked, path):
    """The groups of a record of rollouts by the tiny model behind a server."""
    from tests.environments.real_model.transformer_server import transformer_app

    config = Looking.env_config_cls(
        group_size=asked.group_size, max_turns=5, max_tokens_per_turn=64, tokenizer_name=str(tiny.folder),
        data_path_to_save_groups=str(path),
    )  # fmt: skip
    async with running_server(
        transformer_app(tiny.model, tiny.tokenizer, asked.server, asked.temperature)
    ) as url:
        server = ServerConfig(
            base_url=url,
            model_name=MODEL,
            family=asked.family,
            temperature=asked.temperature,
            server_type="auto" if asked.wire is None else server_type_of(asked.server, asked.wire),
        )
        async with aclosing(forgetting_policy(url)) as policy:
            env = Looking(config, [server], policy=policy if asked.forgets else None)
            assert await process(env, Console(quiet=True)) == 0
    return list(read_groups(path))


@pytest.fixture(scope="module")
def recorded(tiny, tmp_path_factory):
    """The groups of a record by how the model was asked, each made when it is first wanted."""
    made = {}

    def groups(kind):
        if kind not in made:
            path = tmp_path_factory.mktemp(kind) / "record.jsonl"
            made[kind] = asyncio.run(played(tiny, KINDS[kind], path))
        return made[kind]

    return groups


def trajectories(groups):
    return [trajectory for credited in groups for trajectory in credited.group.trajectories]


def differences(model, row, temperature=1.0):
    """How far the logprob of each sampled token is from what one pass over the row gives."""
    torch = importlib.import_module("torch")
    with torch.inference_mode():
        logits = model(torch.tensor([row.tokens])).logits[0, :-1] / temperature
        logprobs = torch.log_softmax(logits, dim=-1).gather(1, torch.tensor(row.tokens[1:])[:, None])
    computed = [math.nan, *logprobs[:, 0].tolist()]
    sampled = [index for index, label in enumerate(row.mask) if label != IGNORED]
    return [abs(computed[index] - row.logprobs[index]) for index in sampled]


def rows_of(groups, view):
    return [row for credited in groups for group in VIEWS[view](credited) for row in group.rows]


@cases("view", VIEWS)
@cases("kind", KINDS)
def test_each_sampled_token_has_the_logprob_that_a_trainer_computes(tiny, recorded, kind, view):
    apart = [gap for row in rows_of(recorded(kind), view) for gap in differences(tiny.model, row)]
    assert len(apart) > 500
    assert max(apart) <= TOLERANCE


@cases("kind", KINDS)
def test_spans_hold_each_sampled_token_once(recorded, kind):
    for trajectory in trajectories(recorded(kind)):
        held = [
            (turn.span.row, i) for turn in trajectory.turns for i in range(turn.span.start, turn.span.end)
        ]
        sampled = [
            (index, i)
            for index, row in enumerate(trajectory.rows)
            for i, logprob in enumerate(row.logprobs)
            if logprob != NOT_SAMPLED
        ]
        assert held == sampled


def test_fifty_rollouts_with_several_turns_are_compared(recorded):
    assert sum(len(each.turns) > 1 for each in trajectories(recorded("completions"))) >= 50


def test_calls_that_no_parser_could_read_are_among_them(recorded):
    turns = [turn for each in trajectories(recorded("completions")) for turn in each.turns]
    statuses = Counter(call.status for turn in turns for call in turn.message.tool_calls)
    assert statuses["ok"] > 50
    assert len(statuses) > 1


@pytest.mark.parametrize("kind", ["completions", "qwen3"])
def test_what_goes_on_from_its_ids_never_forks(recorded, kind):
    assert all(len(each.rows) == 1 for each in trajectories(recorded(kind)))


@pytest.mark.parametrize(("kind", "cause"), [("forgetting", "renderer: reasoning"), ("chat", "template")])
def test_forked_rollouts_are_among_them(recorded, kind, cause):
    forked = [each for each in trajectories(recorded(kind)) if len(each.rows) > 1]
    assert len(forked) >= 5
    assert {turn.fork for each in forked for turn in each.turns} == {None, cause}


async def test_logprobs_from_before_a_temperature_are_not_those_of_a_trainer_and_are_warned_of(
    tiny, tmp_path, caplog
):
    groups = await played(tiny, Asked(temperature=0.7), tmp_path / "record.jsonl")
    rows = rows_of(groups, "token_advantages")
    assert max(gap for row in rows for gap in differences(tiny.model, row, temperature=0.7)) > 0.1
    assert caplog.text.count("temperature 0.7: vLLM's logprobs are those of the model before") == 1
