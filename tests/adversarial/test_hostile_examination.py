"""A model server that answers anything at all is examined to the end: findings, and never an exception."""

import asyncio
import json
import random

from environments.policy.inference import http_client
from environments.policy.inference.model_server import ModelServer
from tests.adversarial.hostile_server import hostile
from tests.adversarial.test_hostile_api import ANSWERS
from tests.adversarial.test_mutated_replies import paths
from tests.equipment.quirky_server import Quirk
from tests.tables import cases
from tests.turnwise.lab.test_model_check import RENDERER, examined
from tools.errors import ServerAway
from turnwise.lab.model_check import CheckedModel, check_model

ODD = [
    None, 0, -1, 1e308, 2**70, float("nan"), True, "", "x" * 100, "\x1b[2J\ud83d", [], [[]], [None], {},
    {"a": 1},
]  # fmt: skip


@cases("made", ANSWERS.values(), ids=ANSWERS)
async def test_an_answer_that_is_no_completion_ends_the_examination(made, monkeypatch):
    monkeypatch.setattr(http_client, "_MAX_ANSWER_BYTES", 1 << 20)
    async with hostile({"*": made}) as server:
        asked = ModelServer(base_url=f"{server.url}/v1", api_key="k", tries=1, request_timeout_s=0.5)
        try:
            tokens = (await check_model(CheckedModel(server=asked, model="m"))).tokens
        except ServerAway:  # nothing was found out, and one line says so
            tokens = "none"
        await asked.aclose()
    assert tokens == "none"


def damaging(rng):
    """Changes most replies in a few places."""

    def change(reply):
        for _ in range(rng.choice([0, 0, 1, 1, 2, 4])):
            if not (found := list(paths(reply))):
                return
            *outer, last = rng.choice(found)
            around = reply
            for step in outer:
                around = around[step]
            if rng.random() < 0.3:
                del around[last]
            else:
                around[last] = rng.choice(ODD)

    return change


async def examined_with_damage(seed):
    rng = random.Random(seed)
    damaged = Quirk(replies=damaging(rng), writes=lambda reply: json.dumps(reply).encode())
    kind, renderer = rng.choice(["plain", "vllm", "sglang"]), rng.choice([None, RENDERER])
    examination, findings = await examined(damaged, kind=kind, renderer=renderer)
    assert {"server", "window"} <= findings.keys()
    assert (examination.tokens == "none") == (not examination.flags)


async def test_replies_that_are_damaged_anywhere_are_findings(soak):
    # An examination mostly waits for its server.
    for first in range(0, 150 if soak else 25, 5):
        await asyncio.gather(*map(examined_with_damage, range(first, first + 5)))
