"""Weights that change while a group rolls out, at real servers: each turn says who sampled it."""

from contextlib import asynccontextmanager

import aiohttp
import pytest

from environments.config import AgentEnvConfig, ServerConfig
from environments.policy.mock_server import MockSettings, mock_app
from environments.policy.rendering.chatml import EMBEDDED_TOKENIZER_DIR
from environments.run.process_run import process
from environments.wire.training_rows import columns_of
from environments.wire.views import VIEWS
from tests.environments.chat.chat_env import TASK, Chat, ScalarChat
from tests.environments.chat.versioned import CHOICES
from tests.environments.policy.test_server_policy import ALL_WIRES
from tests.environments.policy.token_server import server_type_of
from tests.environments.write_file import quiet
from tests.equipment.running_server import running_server
from tests.tables import cases
from tools.errors import ConfigError

NAMING = [wire for wire in ALL_WIRES if wire[0] != "llama.cpp"]
BY_MESSAGES = [("vllm", None), ("sglang", None), ("plain", None)]
servers = pytest.mark.parametrize(("kind", "wire"), [*NAMING, *BY_MESSAGES], ids=str)


async def update(base_url, version):
    """What a trainer says once the server has its weights."""
    url = base_url.removesuffix("v1") + "update_weight_version"
    async with aiohttp.ClientSession() as client, client.post(url, json={"new_version": version}) as answer:
        return answer.status


class Updated(Chat):
    """The weights change after the second turn of each rollout."""

    base_url = ""
    changes = ("step-1", "step-2")

    async def respond(self, item, turn, ctx):
        if turn.index == 1 and self.changes:
            version, *self.changes = self.changes
            assert await update(self.base_url, version) == 200
        return None if turn.index == 2 else "Another one."


class UpdatedScalar(Updated, ScalarChat):
    name = "updated_scalar"


@asynccontextmanager
async def served(kind="sglang", wire=None, cls=Updated, told="step-0", **fields):
    """The chat, two siblings one after the other, played by a server; without a wire by messages."""
    app = mock_app(
        lambda _: lambda *_: CHOICES, skill=0.5, renderer=cls().renderer, settings=MockSettings(kind=kind)
    )
    async with running_server(app) as base_url:
        if told is not None:
            assert await update(base_url, told) == 200
        asked = {} if wire is None else {"server_type": server_type_of(kind, wire), "family": "chatml"}
        if wire is not None:
            fields["tokenizer_name"] = str(EMBEDDED_TOKENIZER_DIR)
        server = ServerConfig(base_url=base_url, model_name="scripted", **asked)
        config = AgentEnvConfig(**{"group_size": 2, "max_concurrent_rollouts": 1, **fields})
        yield type(cls.__name__, (cls,), {"base_url": base_url})(config, [server])


async def group_from(env):
    async with env:
        return await env.run_group(TASK)


@servers
async def test_every_turn_says_which_weights_sampled_it(kind, wire):
    async with served(kind, wire) as env:
        done = await group_from(env)
    first, second = ([turn.weight_version for turn in each.turns] for each in done.group.trajectories)
    assert first == ["step-0", "step-0", "step-1"]
    assert second == ["step-1", "step-1", "step-2"]
    assert done.group.weight_versions == ("step-0", "step-1", "step-2")


async def test_the_override_of_a_row_names_the_version_of_each_turn():
    async with served() as env:
        done = await group_from(env)
    for view, names in (("token_advantages", ["step-0", "step-0", "step-1"]), ("turn_rows", ["step-0"])):
        columns = columns_of(VIEWS[view](done)[0])
        assert columns["overrides"][0]["weight_versions"] == names


async def test_plain_scores_have_the_versions_beside_them_and_no_other_override():
    async with served(cls=UpdatedScalar) as env:
        done = await group_from(env)
    (group,) = VIEWS["token_advantages"](done)
    columns = columns_of(group)
    assert columns["overrides"][1] == {"sibling": 1, "weight_versions": ["step-1", "step-1", "step-2"]}
    assert "advantages" not in columns


@cases(("most", "withheld"), [(0, [True, True]), (1, [True, False]), (2, [False, False])])
async def test_a_rollout_is_as_old_as_the_versions_since_its_first_turn(most, withheld):
    async with served(max_staleness=most) as env, env:
        group = env.withhold_stale(await env.run_group(TASK)).group
    assert [each.stale is not None for each in group.trajectories] == withheld


async def test_a_server_that_says_no_version_ends_the_run_at_its_first_group(tmp_path):
    path = str(tmp_path / "r.jsonl")
    async with served("plain", told=None, max_staleness=1, data_path_to_save_groups=path) as env:
        env.changes = ()
        with pytest.raises(ConfigError, match="no completion names one"):
            await process(env, quiet())


@cases("kind", ["vllm", "sglang"])
async def test_weights_that_nobody_named_yet_have_a_version_by_messages_as_well(kind):
    async with served(kind, told=None) as env:
        done = await group_from(env)
    assert done.group.weight_versions == ("default", "step-1", "step-2")
