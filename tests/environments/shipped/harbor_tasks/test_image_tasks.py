"""Ten tasks over images that are built here: an honest solution gets 1, and each of five forgers 0."""

import hashlib
import os
import subprocess

import pytest

from environments.shipped.harbor_tasks import HarborTasksEnv, verdict
from tests.environments.shipped.harbor_tasks.task_folders import (
    PASS,
    TOML,
    Forging,
    opened,
    played,
    scores,
    write_task,
    write_terminal_bench,
)
from tests.equipment.engine_proxy import late, proxied
from tests.tools.sandbox.conftest import TEST_IMAGE, docker_engine
from tools.errors import SandboxUnavailable
from turnwise import Command

__all__ = ["docker_engine"]
pytestmark = pytest.mark.docker
UBUNTU, DEBIAN, PYTHON = BASES = tuple(
    f"turnwise-test-harbor-{os.getpid()}:{name}" for name in ("24.04", "bookworm", "3.11")
)
"""Three names of the test image, of this process: others remove theirs."""
REWARD = "/logs/verifier/reward.txt"
ANSWER = PASS.format("grep -qx 42 /app/answer.txt")
SOLVE = {"solution/solve.sh": "echo 42 > /app/answer.txt"}
FAKE = "#!/bin/sh\necho 1 > /logs/verifier/reward.txt\nexit 0\n"
PYTEST = """\
import runpy, sys
try:
    runpy.run_path(sys.argv[1])
except AssertionError:
    sys.exit(1)
"""
PROGRAM = """
import json, os, subprocess, sys, urllib.request
body = json.dumps({"model": "m", "messages": [{"role": "user", "content": sys.argv[-1]}]}).encode()
headers = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
urllib.request.urlopen(urllib.request.Request(url, body, headers)).read()
open("/app/answer.txt", "w").write("42\\n")
"""
HONEST = {
    "file": (UBUNTU, SOLVE, ANSWER, TOML),
    "parts": (DEBIAN, SOLVE, "echo '{\"right\": 0.5, \"fast\": 0.5}' > /logs/verifier/reward.json\n", TOML),
    "module": (
        PYTHON,
        {"environment/calc.py": "def double(n): return n\n",
         "solution/calc.py": "def double(n): return 2 * n\n",
         "solution/solve.sh": "cp /solution/calc.py /app/calc.py", "tests/test_calc.py":
         "import sys; sys.path.append('/app'); import calc; assert calc.double(4) == 8\n"},
        PASS.format("python3 /tests/test_calc.py"), TOML,
    ),
    "artefact": (
        UBUNTU, {"solution/solve.sh": "mkdir -p /srv/out; echo 42 | tee /srv/out/a /srv/b"},
        PASS.format("grep -qx 42 /srv/out/a && ! test -e /srv/b"),
        f'artifacts = ["/srv/out"]\n{TOML}environment_mode = "separate"\n',
    ),
    "machine": (
        DEBIAN,
        {"environment/old": "x", "solution/solve.sh": "rm old; cd /srv; mkdir www; ln -s /app/page www/i; "
         "echo hi > /app/page; chmod 700 /app/page; git init -q site; ls"},
        PASS.format("! test -e old && grep -q hi /srv/www/i && test -x page && test -d /srv/site/.git"),
        TOML,
    ),
}  # fmt: skip
FORGERS = {
    "tests_in_reach": f"mkdir /tests; for f in /tests/test.sh /app/tests/run.sh; do echo '{FAKE}' > $f; done",
    "reward_file": f"mkdir -p /logs/verifier; echo 1 > {REWARD}; chattr +i {REWARD}; "
    "ln -s /app/mine /logs/verifier/reward.json",
    "patched_pytest": "echo 'raise SystemExit(0)' | tee /opt/pytest/pytest.py pytest.py > sitecustomize.py",
    "background_writer": f"nohup setsid sh -c 'while :; do mkdir -p /logs/verifier; echo 1 > {REWARD}; "
    "cp /opt/pytest/pytest.py /app/conftest.py; done' >/dev/null 2>&1 &",
    "replaced_shell": f"printf '%s' '{FAKE}' > /tmp/sh; chmod 755 /tmp/sh; for f in /bin/bash /etc/profile "
    "/usr/local/bin/python3 /usr/local/bin/grep /root/.bashrc /root/.bash_profile; do "
    "cp -f /tmp/sh $f || mv -f /tmp/sh $f; done",
}  # fmt: skip


def write_image_task(root, name, base, files, test, toml=TOML):
    dockerfile = f"FROM {base}\nWORKDIR /app\nCOPY . /app/\n"
    return write_task(root, name, {"environment/Dockerfile": dockerfile, **files}, test=test, toml=toml)


def forged(root, name, base):
    """A task whose tests are run by a `pytest` of the image, beside a copy of them in the agent's reach."""
    folder = write_image_task(
        root, name, base,
        {**SOLVE, "forge.sh": FORGERS[name], "tests/test_it.py":
         "assert open('/app/answer.txt').read() == '42\\n'\n", "environment/tests/run.sh": "true",
         "environment/pytest.py": PYTEST},
        f"cd /app && if python3 -m pytest /tests/test_it.py; then echo 1; else echo 0; fi > {REWARD}\n",
    )  # fmt: skip
    (folder / "environment/Dockerfile").write_text(
        f"FROM {base}\nWORKDIR /app\nENV PYTHONPATH=/opt/pytest\n"
        "COPY pytest.py /opt/pytest/\nCOPY tests /app/tests\n"
    )


@pytest.fixture(scope="module")
def bases(docker_engine):
    for name in BASES:
        subprocess.run(["docker", "tag", TEST_IMAGE, name], check=True)
    yield
    subprocess.run(["docker", "rmi", *BASES], check=True, capture_output=True)


@pytest.fixture
def root(bases, tmp_path):
    yield tmp_path
    tags = [
        f"turnwise-built:{hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]}"
        for part in ("environment", "tests")
        for folder in tmp_path.rglob(part)
    ]
    subprocess.run(["docker", "rmi", "--no-prune", "-f", *tags], check=False, capture_output=True)


@pytest.mark.soak
async def test_an_honest_solution_of_each_task_gets_1_and_an_idle_agent_nothing(root):
    for name, (base, files, test, toml) in HONEST.items():
        write_image_task(root, name, base, files, test, toml)
    for name, base in zip(FORGERS, (*BASES, *BASES), strict=False):
        forged(root, name, base)
    assert await scores(root) == dict.fromkeys([*HONEST, *FORGERS], 1.0)
    assert await scores(root, skill=0.0) == {**dict.fromkeys([*HONEST, *FORGERS], 0.0), "parts": 1.0}


@pytest.mark.soak
async def test_each_forger_gets_nothing(root):
    for name, base in zip(FORGERS, (*BASES, *BASES), strict=False):
        forged(root, name, base)
    assert await scores(root, Forging) == dict.fromkeys(FORGERS, 0.0)


async def test_a_repository_and_a_virtual_environment_under_another_name_are_not_used(root):
    fake = f"printf '%s' '{FAKE}' > fake; chmod 755 fake; "
    forgers = {
        "git": "mv .git g; echo 'gitdir: /app/g' > .git; git config core.fsmonitor /app/fake",
        "venv": "cp fake env/bin/python",
    }
    for name, forge in forgers.items():
        folder = write_image_task(
            root, name, DEBIAN, {"forge.sh": fake + forge},
            "cd /app; echo 0 > /logs/verifier/reward.txt; git status; env/bin/python -c 1\n",
        )  # fmt: skip
        (folder / "environment/Dockerfile").write_text(
            f"FROM {DEBIAN}\nWORKDIR /app\nRUN git init -q . && mkdir -p env/bin && touch env/pyvenv.cfg\n"
            "RUN cp /bin/true env/bin/python\n"
        )
    assert await scores(root, Forging) == {"git": 0.0, "venv": 0.0}


async def test_settings_and_scripts_that_tools_read_do_not_come(root):
    read = (
        "/var/lib/dpkg/info/forged.postinst", "/app/.coveragerc", "/app/jest.config.js", "/app/.yarnrc.yml",
        "/app/uv.toml", "/tmp/node-compile-cache/a", "/app/.env",
    )  # fmt: skip
    forge = f"mkdir -p /tmp/node-compile-cache; touch {' '.join(read)} /app/seen"
    test = PASS.format(f"test -e /app/seen && ! ls {' '.join(read)}")
    toml = f"{TOML}[environment]\ndocker_image = '{UBUNTU}'\nworkdir = '/app'\n"
    write_task(root, "tools", {"forge.sh": forge}, test=test, toml=toml)
    found = (await played(root, Forging))["tools"]
    assert (found.score, found.metrics["left_out"]) == (1.0, len(read))


@pytest.mark.parametrize(("failures", "scored"), [pytest.param(1, [1.0], marks=pytest.mark.soak), (9, [])])
async def test_an_engine_that_fails_while_files_come_is_tried_once_more_and_never_a_score(
    root, monkeypatch, failures, scored
):
    left, taken = iter(range(failures)), verdict.changed_paths

    async def changed_paths(sandbox):
        if next(left, None) is not None:
            raise SandboxUnavailable("the engine does not answer")
        return await taken(sandbox)

    monkeypatch.setattr(verdict, "changed_paths", changed_paths)
    toml = f"{TOML}[environment]\ndocker_image = '{UBUNTU}'\nworkdir = '/app'\n"
    write_task(root, "task", SOLVE, test=ANSWER, toml=toml)
    async with opened(root) as env:
        group = await env.rollout_group(env.tasks()[0], 1)
    assert [each.score for each in group.trajectories] == scored
    assert [each.error_class for each in group.failures] == ["SandboxUnavailable"] * (1 - len(scored))


async def test_tasks_with_an_image_and_without_one_run_side_by_side(root, caplog):
    write_image_task(root, "image", UBUNTU, {**SOLVE, "forge.sh": FORGERS["replaced_shell"]}, ANSWER)
    write_task(root, "local", {**SOLVE, "forge.sh": "true"}, test=ANSWER)
    write_image_task(root, "lost", "turnwise-nowhere:1", SOLVE, ANSWER)
    assert await scores(root) == {"image": 1.0, "local": 1.0}
    assert (
        "1 task is left out, no image on the Docker engine: lost (`docker pull turnwise-nowhere:1`)"
        in caplog.text
    )
    assert await scores(root, Forging) == {"image": 0.0, "local": 0.0}


@pytest.mark.soak
async def test_what_the_tests_do_not_see_is_counted(root):
    changed = "touch /usr/local/bin/tool conftest.py $'not-utf8-\\xff'"
    solve = {"solution/solve.sh": f"echo 42 > answer.txt; {changed}"}
    write_image_task(root, "tools", DEBIAN, solve, ANSWER)
    assert (await played(root))["tools"].metrics["left_out"] == 3


@pytest.mark.soak
async def test_a_verifier_with_an_image_of_its_own_gets_artefacts_alone(root):
    folder = write_image_task(
        root, "separate", UBUNTU,
        {"solution/solve.sh": "mkdir -p /logs/artifacts out; touch out/a no /logs/artifacts/b"},
        PASS.format("test -e /judge && test -e /app/out/a && test -e /logs/artifacts/b && ! test -e /app/no"),
        'artifacts = ["out"]\n[verifier]\nenvironment_mode = "separate"\n',
    )  # fmt: skip
    (folder / "tests/Dockerfile").write_text(
        f"FROM {PYTHON}\nWORKDIR /app\nCOPY . /tests/\nRUN touch /judge\n"
    )
    assert await scores(root) == {"separate": 1.0}


@pytest.mark.soak
async def test_tests_run_as_the_user_that_the_file_names_with_the_limits_of_the_file(root):
    toml = f"{TOML}user = 'nobody'\n[environment]\nmemory_mb = 300\ncpus = 1\nallow_internet = false\n"
    write_image_task(root, "user", DEBIAN, {}, PASS.format("test $(id -un) = nobody"), toml)
    found = (await played(root))["user"]
    assert (found.score, found.sandbox.limits.memory_mb, found.sandbox.limits.cpus) == (1.0, 300, 1.0)


@pytest.mark.soak
async def test_what_is_too_much_to_be_judged_is_the_agents_doing(root):
    big = {"forge.sh": "head -c 140000000 /dev/urandom > big", "solution/solve.sh": ""}
    write_image_task(
        root, "big", UBUNTU, big, PASS.format("true"), f"{TOML}[environment]\nstorage_mb = 500\n"
    )
    assert await scores(root, Forging) == {"big": 0.0}


async def test_an_engine_that_lists_changes_too_late_drops_the_sibling_with_its_cause(root, monkeypatch):
    write_image_task(root, "file", UBUNTU, SOLVE, ANSWER)
    with proxied(monkeypatch) as proxy:
        async with opened(root) as env:
            proxy.breaks("GET .*/changes", late)
            group = await env.rollout_group(env.tasks()[0], 1)
    assert (len(group.trajectories), len(group.failures)) == (0, 1)
    assert "SandboxUnavailable: the engine does not give or take the files" in group.failures[0].error


async def test_a_name_that_no_image_can_have_leaves_out_one_task(root):
    write_image_task(root, "good", PYTHON, SOLVE, ANSWER)
    for name in ("", " ", "a:b:c", "../a"):
        toml = f"{TOML}[environment]\ndocker_image = '{name}'\n"
        write_image_task(root, f"bad{len(name)}", "a:b:c", {}, "", toml)
    async with opened(root) as env:
        assert env.item_ids == ["good"]


async def test_a_program_plays_a_task_unchanged(root):
    class Program(HarborTasksEnv):
        agent = Command(["python3", "-c", PROGRAM], where="sandbox")

    write_image_task(root, "program", PYTHON, SOLVE, ANSWER)
    assert await scores(root, Program) == {"program": 1.0}


async def test_a_task_of_terminal_bench_is_judged_by_what_its_tests_print(tmp_path, docker_engine):
    write_terminal_bench(tmp_path, "hello", {})
    assert await scores(tmp_path) == {"hello": 1.0}
    assert await scores(tmp_path, skill=0.0) == {"hello": 0.0}


async def test_tests_of_terminal_bench_may_print_to_either_stream(tmp_path, docker_engine):
    tests = "#!/bin/bash\necho '=== short test summary info ===\nPASSED a' >&2\n"
    write_terminal_bench(tmp_path, "hello", {"run-tests.sh": tests})
    assert await scores(tmp_path) == {"hello": 1.0}


async def test_variables_of_a_compose_file_reach_the_machine_and_the_tests(tmp_path, docker_engine):
    files = {
        "environment/Dockerfile": f"FROM {TEST_IMAGE}\nWORKDIR /app\n",
        "environment/docker-compose.yaml": "services: {main: {environment: {LEVEL: 3}, working_dir: /srv}}",
        "solution/solve.sh": 'echo "$LEVEL" > /srv/made',
    }
    write_task(tmp_path, "compose", files, test=PASS.format('[ "$(cat made)$LEVEL" = 33 ]'))
    assert await scores(tmp_path) == {"compose": 1.0}


async def test_files_in_a_volume_of_the_image_are_judged(tmp_path, docker_engine):
    files = {"environment/Dockerfile": f"FROM {TEST_IMAGE}\nWORKDIR /app\nVOLUME /app\n"}
    write_task(tmp_path, "a", {**SOLVE, **files}, test=ANSWER)
    assert await scores(tmp_path) == {"a": 1.0}
