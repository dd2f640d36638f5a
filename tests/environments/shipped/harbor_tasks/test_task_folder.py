import os
from pathlib import Path

import pytest

from environments.shipped.harbor_tasks.task_folder import base_images, files_below, find_tasks
from environments.shipped.harbor_tasks.task_toml import read_table
from tests.environments.shipped.harbor_tasks.task_folders import TOML, write_task
from tools.errors import DatasetError

NEWEST = """
schema_version = "1.4"
artifacts = ["/app/out.json", {source = "/var/log/app", exclude = ["*.tmp"]}]
[task]
name = "org/name"
[metadata]
made = 2026-01-02
[verifier]
timeout_sec = 30
environment_mode = "separate"
user = "nobody"
env = {LEVEL = "${LEVEL:-3}"}
[environment]
network_mode = "no-network"
cpus = 2.0
memory_mb = 2048
workdir = "/app"
env = {PORT = 8080}
"""
OLDEST = 'version = "1.0"\n[environment]\nmemory = "2G"\nstorage = "512M"\nallow_internet = true\n'


def test_the_newest_schema_is_read():
    table = read_table(NEWEST)
    assert table.is_separate
    assert table.artifact_paths == ("/app/out.json", "/var/log/app")
    assert table.environment.env == {"PORT": "8080"}
    assert table.environment.is_offline


def test_sizes_of_the_oldest_schema_are_read():
    machine = read_table(OLDEST).environment
    assert (machine.memory, machine.storage, machine.is_offline) == (2048, 512, False)


@pytest.mark.parametrize(
    ("toml", "reason"),
    [
        ("[environment]\nmemory_mb = -1", "environment.memory_mb: .* got -1"),
        ("[environment]\nmemory = 'lots'", "environment.memory: .* got 'lots'"),
        ("[agent]\ntimeout_sec = inf", "agent.timeout_sec"),
        ("[agent]\ntimeout_sec = nan", "agent.timeout_sec"),
        ("[verifier]\ntimeout_sec = true\nenv = 3", "verifier.env: .* got 3"),
        ("agent = 3", "agent: .* got 3"),
        ("[environment.env]\n'A=B' = 'x'", "environment.env.A=B"),
        ("= 1", "task.toml is not TOML"),
        ("a = " + "[" * 5000, "task.toml is not TOML"),
        ("a = " + "9" * 5000, "task.toml is not TOML"),
        ("artifacts = ['/app/../../etc']", "artifacts.0.*not a path of a file"),
        ("version = '2.0'", "version 2.0: not supported"),
        ("schema_version = '2.0'", "schema_version 2.0: not supported"),
        ("[[steps]]\nname = 'one'", r"several steps \(\[\[steps\]\]\): not supported"),
        ("[environment]\ngpus = 1", "GPUs"),
        ("[environment]\nos = 'Windows'", "other than Linux"),
        ("[[environment.mcp_servers]]\nname = 'x'", "MCP servers"),
        ("[environment]\nnetwork_mode = 'allowlist'", "a list of hosts"),
        ("[environment.healthcheck]\ncommand = 'true'", "healthcheck"),
        ("[agent]\nuser = 'me'", "agent.user = 'me'"),
        ("[[artifacts]]\nsource = '/a'\nservice = 'db'", "several containers"),
        ("[[verifier.collect]]\ncommand = 'x'", "verifier.collect"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_by_field(toml, reason):
    with pytest.raises(DatasetError, match=reason):
        read_table(toml)


def test_tasks_are_found_at_any_depth_and_the_others_have_a_reason(tmp_path):
    write_task(tmp_path, "a/good", {"environment/Dockerfile": "FROM x\n"}, test="true")
    write_task(tmp_path, "b", {}, test="true", toml="[[steps]]\n")
    write_task(tmp_path, "c", {"environment/docker-compose.yaml": "services: {a: {}, b: {}}"}, test="true")
    write_task(tmp_path, "d", {"instruction.md": "  \n"}, test="true")
    (write_task(tmp_path, "e", {}, test="true") / "tests/test.sh").unlink()
    (write_task(tmp_path, "f", {}, test="true") / "instruction.md").unlink()
    (write_task(tmp_path, "g", {}, test="true") / "instruction.md").write_bytes(b"\xff")
    (write_task(tmp_path, "h", {}, test="true") / "tests/secret").symlink_to("/etc/passwd")
    tasks, refused = find_tasks(tmp_path)
    assert [task.task_id for task in tasks] == ["a/good"]
    assert sorted(refused) == list("bcdefgh")
    assert "docker-compose.yaml" in refused["c"]
    assert "the instruction is empty" in refused["d"]
    assert "no tests/test.sh" in refused["e"]
    assert "instruction.md" in refused["f"]
    assert "not UTF-8" in refused["g"]
    assert refused["h"] == "tests/secret is a link out of the task's folder"


def test_a_folder_whose_name_is_not_utf8_is_named_and_the_others_are_listed(tmp_path):
    write_task(tmp_path, "a", {}, test="true")
    write_task(tmp_path, "b", {}, test="true").rename(tmp_path / os.fsdecode(b"b\xff"))
    found, refused = find_tasks(tmp_path)
    assert ([each.task_id for each in found], refused) == (["a"], {"b\\udcff": "its name is not UTF-8"})


def test_files_may_begin_with_a_byte_order_mark(tmp_path):
    task = write_task(tmp_path, "a", {"instruction.md": "\ufeffDo it."}, test="true", toml=f"\ufeff{TOML}")
    assert [each.instruction for each in find_tasks(task)[0]] == ["Do it."]


def test_a_link_to_a_task_is_named(tmp_path):
    write_task(tmp_path / "tasks", "a", {}, test="true")
    write_task(tmp_path, "b", {}, test="true")
    (tmp_path / "tasks/linked").symlink_to(tmp_path / "b")
    found, refused = find_tasks(tmp_path / "tasks")
    assert ([each.task_id for each in found], refused) == (
        ["a"], {"linked": "it is a link to a task: not followed"},
    )  # fmt: skip


def test_a_task_folder_is_a_dataset_of_one(tmp_path):
    assert [task.task_id for task in find_tasks(write_task(tmp_path, "one", {}, test="true"))[0]] == ["one"]


def test_the_working_directory_as_a_task_has_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(write_task(tmp_path, "one", {}, test="true"))
    assert [task.task_id for task in find_tasks(Path())[0]] == ["one"]


def test_what_lies_in_a_tasks_environment_is_no_task(tmp_path):
    write_task(tmp_path, "one", {"environment/inner/task.toml": TOML}, test="true")
    assert [task.task_id for task in find_tasks(tmp_path)[0]] == ["one"]


def test_files_of_a_task_are_read_through_links_inside_it(tmp_path):
    task = write_task(tmp_path, "one", {"shared/data": "x"}, test="true")
    (task / "tests/data").symlink_to("../shared/data")
    assert files_below(task / "tests")["data"].data == b"x"


def test_a_dockerfile_names_the_images_that_it_needs():
    text = (
        "# FROM no\nARG TAG=3.11-slim\nFROM --platform=linux/amd64 python:${TAG} AS build\n"
        "RUN apt-get update && \\\n  # FROM no\n  from no\nRUN cat > x.py <<'EOF'\nfrom os import path\nEOF\n"
        "FROM $OTHER\nCOPY --from=build /a /a\nCOPY --from=ghcr.io/astral-sh/uv:0.8 /uv /bin/\nFROM scratch\n"
    )  # fmt: skip
    assert base_images(text) == ("python:3.11-slim", "$OTHER", "ghcr.io/astral-sh/uv:0.8")
