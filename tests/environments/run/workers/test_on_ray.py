"""Groups that workers of a Ray cluster roll out: the same record, of the same files and settings."""

import json
import os
import subprocess
import sys
from contextlib import contextmanager

import pytest

from tests.environments.rollout import count_up
from tests.environments.run.workers.on_ray import (
    PACED,
    cluster,
    compared,
    process,
    rolled_out,
    run,
    scratch,  # noqa: F401  # of every test here
)
from tests.environments.serve.loopback import (
    SERVED,
    free_port,
    mock_model,
    running,
    wait_for_port,
    wait_until,
)

KINDS = {
    "toy": [f"{SERVED}:WriteWord", "--env.missing_outcome", 0],
    "code_debug": ["code_debug"],
    "retail": ["retail"],
    "branches": [count_up.__file__, "--env.group_size", 4, "--env.branches", 2, "--env.scripted_skill", 0.6],
}
SOME = {"toy": (2, 4), "code_debug": (2,), "retail": (4,), "branches": (2,)}
"""Numbers of workers without `--soak`, which takes all."""
GROUPS = 8
PROGRAM = "tests.environments.run.workers.ray_program"
PROJECT = """
from pathlib import Path
from beside import ANSWER
from tests.environments.counted_items import Counted

class Shipped(Counted):
    name = "shipped"

    def load_items(self):
        words = Path(__file__).with_name("data").joinpath("words.txt").read_text().split()
        more = Path("data/more.txt").read_text().split()
        return [{"id": word, "answer": ANSWER} for word in words + more]
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """The folder of an environment that only the driver has."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "data").mkdir()
    (folder / "data" / "words.txt").write_text("one two three")
    (folder / "data" / "more.txt").write_text("four five")
    (folder / "beside.py").write_text("ANSWER = 'yes'\n")
    (folder / "env.py").write_text(PROJECT)
    return folder


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """Two folders with a version each of one package."""

    def package(version):
        folder = tmp_path_factory.mktemp("packages")
        (folder / "toything.py").write_text(f"VERSION = {version!r}\n")
        about = folder / f"toything-{version}.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: toything\nVersion: {version}\n")
        (about / "top_level.txt").write_text("toything\n")
        (about / "RECORD").write_text("toything.py,,\n")
        return folder

    return {version: package(version) for version in ("1.0", "2.0")}


@pytest.fixture(scope="module")
def address(project, packages):
    """Of a cluster whose one node with room sees no file of the project, and has another package version."""
    with cluster() as started, _node_apart(started, project, packages["2.0"]):
        yield started.address


@contextmanager
def _node_apart(started, hidden, first_on_path):
    address = started.address
    start = "import sys; sys.argv = ['ray', *sys.argv[1:]]; from ray.scripts.scripts import main; main()"
    ray = [sys.executable, "-c", start, "start", "--block", "--address", address, "--num-cpus", "8"]
    ray += ["--object-store-memory", str(100 << 20), "--resources", json.dumps({"sandbox": 1000})]
    ray += ["--disable-usage-stats"]
    script = 'mount -t tmpfs none "$0" && exec "$@"'
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, str(hidden), *ray]
    paths = os.pathsep.join(filter(None, [str(first_on_path), os.environ.get("PYTHONPATH")]))
    node = subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": paths}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_until(lambda: len(started.global_state.node_table()) == 2 or node.poll() is not None)
        yield
    finally:
        node.terminate()
        node.wait(60)


@pytest.mark.parametrize("kind", KINDS)
def test_any_number_of_workers_writes_the_same_record(kind, address, tmp_path, soak):
    env, *options = KINDS[kind]
    counts = (2, 4) if soak else SOME[kind]
    for count in (1, *counts):
        workers = ["--workers", count, "--ray", address] if count > 1 else []
        record = tmp_path / f"{count}.jsonl"
        rolled_out(process(env, record, "--env.total_steps", GROUPS, *options, *workers))
    by_one, *by_workers = (compared(tmp_path / f"{count}.jsonl") for count in (1, *counts))
    assert len(by_one) == GROUPS
    assert by_workers == [by_one] * len(counts)


def test_files_are_sent_to_nodes_that_lack_them(project, address, tmp_path):
    for name, workers in (("here", []), ("there", ["--workers", 2, "--ray", address])):
        rolled_out(process("env.py:Shipped", tmp_path / name, *workers), cwd=project)
    assert len(compared(tmp_path / "here")) == 5
    assert compared(tmp_path / "there") == compared(tmp_path / "here")


def test_a_variable_reaches_workers_that_are_to_have_it(address, tmp_path):
    command = process(_class("Named"), tmp_path / "r", "--workers", 1, "--ray", address)
    rolled_out([*command, "--worker-env", "NAMED_TOKEN"], variables={"NAMED_TOKEN": "x"})


def test_a_variable_that_workers_lack_is_named_with_the_option(address, tmp_path):
    command = process(_class("Named"), tmp_path / "r", "--workers", 1, "--ray", address)
    ended = run(command, variables={"NAMED_TOKEN": "x"})
    assert ended.returncode == 1
    assert ended.stdout.splitlines()[-1].endswith("give it to them, --worker-env NAMED_TOKEN")


def test_a_worker_with_another_version_of_a_package_is_refused_by_its_name(packages, address, tmp_path):
    (tmp_path / "env.py").write_text(
        "import toything\nfrom tests.environments.counted_items import Counted\n\n"
        "class Packaged(Counted):\n    name = 'packaged'\n"
    )
    command = process(f"{tmp_path}/env.py:Packaged", tmp_path / "r", "--workers", 1, "--ray", address)
    paths = os.pathsep.join(filter(None, [str(packages["1.0"]), os.environ.get("PYTHONPATH")]))
    ended = run(command, variables={"PYTHONPATH": paths})
    assert (ended.returncode, len(ended.stdout.splitlines())) == (2, 1)
    assert "(toything was 1.0, is 2.0)" in ended.stdout


def test_a_cluster_without_room_says_what_is_asked_for_and_what_there_is(address, tmp_path):
    command = process(_class("Counted"), tmp_path / "r", "--workers", 1, "--ray", address)
    ended = run([*command, "--worker-memory", "9000GB"])
    assert (ended.returncode, len(ended.stdout.splitlines())) == (2, 1)
    assert "each asks for 1 CPU, 9000.0 GiB of memory; the cluster has " in ended.stdout


def test_a_program_with_a_ray_of_its_own_gets_the_same_groups_and_shows_no_key_of_a_server(address):
    port = free_port()
    with running([sys.executable, "-m", "turnwise", *mock_model("Talk", port)[1:]]) as server:
        wait_for_port(server, port)
        found = json.loads(rolled_out([sys.executable, "-m", PROGRAM, address, str(port)]).splitlines()[-1])
    assert (found["same"], found["uses_ray"]) == ([True, True, True], True)
    assert found["status"] in {"ok", "no_credit"}
    assert found["actors"] >= 3
    assert not found["key"]


def _class(name):
    return f"{PACED}:{name}"
