"""The chat path against a server that others wrote: `transformers serve` on the tiny model."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from environments.record.recorder import read_groups
from tests.environments.real_model import looking_env
from tests.environments.serve.loopback import TURNWISE, free_port, running, wait_for_port

pytestmark = pytest.mark.timeout(300)
TRANSFORMERS = str(Path(sys.executable).with_name("transformers"))


@pytest.fixture(scope="module")
def server(tiny, tmp_path_factory):
    """Its base URL. It cannot list its models: its cache of the hub is not there."""
    if not os.environ.get("TURNWISE_REQUIRE_TORCH"):
        pytest.importorskip("accelerate", reason="needs accelerate, for `transformers serve`")
    folder, port = tmp_path_factory.mktemp("serve"), free_port()
    command = [TRANSFORMERS, "serve", str(tiny.folder), "--host", "127.0.0.1", "--port", str(port)]
    # Several threads of so small a model only wait for each other.
    environ = {**os.environ, "HF_HOME": str(folder), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    (folder / "hub").mkdir()
    with (
        (folder / "log").open("wb") as log,
        running([*command, "--device", "cpu"], environ=environ, stdout=log, stderr=log) as process,
    ):
        wait_for_port(process, port)
        yield f"http://127.0.0.1:{port}/v1"


@pytest.fixture(scope="module")
def run(server, tiny, tmp_path_factory):
    """What `turnwise process` said, and its record."""
    record = tmp_path_factory.mktemp("run") / "record.jsonl"
    command = [TURNWISE, "process", f"{looking_env.__file__}:Looking", "--out", str(record)]
    command += ["--openai.base_url", server, "--openai.model_name", str(tiny.folder)]
    # It answers 500 to a call that it cannot read; the cooler, the fewer.
    command += ["--env.temperature", "0.5", "--env.max_turns", "4", "--env.max_items", "4"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended, list(read_groups(record))


def test_every_item_is_rolled_out(run):
    _, groups = run
    assert len(groups) == 4
    assert sum(len(credited.group.trajectories) for credited in groups) >= 12


def test_tool_calls_arrive_and_their_results_go_back(run):
    _, groups = run
    turns = [t for credited in groups for each in credited.group.trajectories for t in each.turns]
    answered = [result.content for turn in turns for result in turn.tool_results]
    assert set(looking_env.HOLDS.values()) & set(answered)


def test_rows_are_recorded_as_not_exact(run):
    _, groups = run
    trajectories = [each for credited in groups for each in credited.group.trajectories]
    assert not any(each.exact or any(row.logprobs for row in each.rows) for each in trajectories)


def test_that_tokens_are_not_exact_is_said(run):
    ended, _ = run
    assert "exact" in ended.stdout + ended.stderr
