"""The chat path against a server that others wrote: `transformers serve` on the tiny model."""

import os
import subprocess
import sys
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

import pytest

from environments.policy.inference.http_client import StatusError
from environments.policy.inference.model_server import ModelServer
from environments.policy.inference.server_kind import check_server
from environments.record.recorder import read_groups
from tests.environments.real_model import looking_env
from tests.environments.serve.loopback import TURNWISE, free_port, running, wait_for_port

TRANSFORMERS = str(Path(sys.executable).with_name("transformers"))


@dataclass(frozen=True, kw_only=True)
class Served:
    """A running server, and its cache of the hub, without which it breaks at `/models`."""

    base_url: str
    hub: Path


@pytest.fixture(scope="module")
def server(tiny, tmp_path_factory):
    if not os.environ.get("TURNWISE_REQUIRE_TORCH"):
        pytest.importorskip("accelerate", reason="needs accelerate, for `transformers serve`")
    folder, port = tmp_path_factory.mktemp("serve"), free_port()
    command = [TRANSFORMERS, "serve", str(tiny.folder), "--host", "127.0.0.1", "--port", str(port)]
    # Several threads of so small a model only wait for each other.
    environ = {**os.environ, "HF_HOME": str(folder), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    with (
        (folder / "log").open("wb") as log,
        running([*command, "--device", "cpu"], environ=environ, stdout=log, stderr=log) as process,
    ):
        wait_for_port(process, port)
        yield Served(base_url=f"http://127.0.0.1:{port}/v1", hub=folder / "hub")


@pytest.fixture(scope="module")
def run(server, tiny, tmp_path_factory):
    """What `turnwise process` said, and its record."""
    record = tmp_path_factory.mktemp("run") / "record.jsonl"
    command = [TURNWISE, "process", f"{looking_env.__file__}:Looking", "--out", str(record)]
    command += ["--openai.base_url", server.base_url, "--openai.model_name", str(tiny.folder)]
    # It answers 500 to a call that it cannot read; the cooler, the fewer.
    command += ["--openai.temperature", "0.5", "--env.max_turns", "4", "--env.max_items", "4"]
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert ended.returncode == 0, ended.stdout
    return ended.stdout, [t for credited in read_groups(record) for t in credited.group.trajectories]


def test_a_run_completes(run):
    _, trajectories = run
    assert len({each.item_id for each in trajectories}) == 4
    assert len(trajectories) >= 12


def test_tool_calls_arrive_and_their_results_go_back(run):
    _, trajectories = run
    last = [each.turns[-1].message for each in trajectories if any(turn.tool_results for turn in each.turns)]
    assert len(last) >= 8
    # It has seen what a key holds.
    assert any(" holds " in message.content for message in last)


def test_rows_are_recorded_as_not_exact(run):
    _, trajectories = run
    assert not any(each.exact or any(row.logprobs for row in each.rows) for each in trajectories)


def test_that_tokens_are_not_exact_is_said_before_the_first_group_is_done(run):
    said, _ = run
    assert 0 <= said.index("exact: false") < said.index("groups ")


async def test_a_server_that_cannot_list_its_models_is_accepted(server, tiny):
    asked = ModelServer(base_url=server.base_url, api_key="none")
    async with aclosing(asked):
        with pytest.raises(StatusError, match="500"):
            await asked.ask_once("/models")
        await check_server(asked, str(tiny.folder))
        server.hub.mkdir()
        assert b'"data":[]' in await asked.ask_once("/models")
        await check_server(asked, str(tiny.folder))
