"""Sabotages of a verdict in whole machines: no rollout is missing, and none scores more than honest failure."""

# ruff: noqa: E501  # a sabotage is one line

import pytest

from tests.environments.shipped.harbor_tasks.task_folders import Forging, opened, write_task
from tests.tables import seldom
from tests.tools.sandbox.conftest import TEST_IMAGE, docker_engine

__all__ = ["docker_engine"]
LOCAL = """
[verifier]
timeout_sec = 6
[environment]
memory_mb = 512
storage_mb = 64
"""
TOML = f"""{LOCAL}
docker_image = "{TEST_IMAGE}"
workdir = "/app"
"""
REWARD = "/logs/verifier/reward.txt"
COMPARED = f"if cmp -s /tests/expected /app/answer; then echo 1; else echo 0; fi > {REWARD}"
IMPORTED = f"if python3 -c 'import sys; sys.path.append(\"/app\"); import calc; assert calc.double(2) == 4'; then echo 1; else echo 0; fi > {REWARD}"
LINKS = {
    "to the expected answer": "ln -s /tests/expected answer",
    "relative": "ln -s ../tests/expected answer",
    "a chain": "ln -s /tests/expected b; ln -s b c; ln -s c answer",
    "over a folder": "ln -s /tests t; ln -s t/expected answer",
    "over the root": "ln -s / r; ln -s r/tests/expected answer",
    "over a folder of another place": "ln -s / /srv/r; ln -s /srv/r/tests/expected answer",
    "to a link of the process": "ln -s /proc/self/root/tests/expected answer",
    "to what the test opened": "ln -s /proc/self/fd/3 answer",
    "to what tests will make": "ln -s /tmp/expected answer",
    "to what tests will write": "touch /tmp/expected; ln -s /tmp/expected answer",
    "hard": "ln /etc/hostname answer; mkdir /tests; echo x > /tests/expected; ln /tests/expected b; rm -f answer; mv b answer",
    "hard, to a link": "ln -s /tests/expected a; ln -P a answer; ln -P a b",
    "a folder of links": "mkdir d; ln -s /tests/expected d/answer; ln -s d/answer answer",
    "to the reward": f"ln -s {REWARD} answer; ln -s {REWARD} x",
    "in the place of a folder": "cd /; rm -rf /app; ln -s /tests /app",
    "in the place of a folder around": "cd /; mv /app /srv/app; ln -s /srv/app /app; ln -s /tests/expected /srv/app/answer",
}
FILES = {
    "empty files": "python3 -c \"[open(f'{n}', 'w').close() for n in range(200_000)]\"",
    "no folder": "cd /; rm -rf /app",
    "a file for a folder": "cd /; rm -rf /app; echo > /app",
    "a closed folder": "chmod 0 /app",
    "a FIFO": "mkfifo answer; ln answer b",
    "a socket": "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"answer\")'",
    "a device": "mknod answer c 1 5; mknod b b 8 0",
    "a folder": "mkdir answer",
    "a loop of links": "ln -s answer answer",
    "odd names": "touch \"$(printf 'a\\nb')\" \"$(printf '\\377\\355\\240\\200')\" \"$(printf '\\033[2J')\" -- '-rf' '*' ; mkdir \"$(printf 'd\\377')\"; touch \"$(printf 'd\\377/x')\"",
    "long names": "python3 -c \"import os\nfor _ in range(30): os.mkdir('d' * 250); os.chdir('d' * 250)\nopen('x', 'w')\"",
    "a sparse file": "truncate -s 1T answer",
    "sparse files": "for n in $(seq 60); do truncate -s 4M s$n; done",
    "many hard links": "echo > a; python3 -c \"import os\nfor n in range(5000): os.link('a', f'l{n}')\"",
    "many links": "python3 -c \"import os\nfor n in range(3000): os.symlink('/usr/bin/python3', f'l{n}')\"",
    "tools removed": "rm -rf /usr/lib/python3* /bin/bash /tests /logs",
    "all removed": "rm -rf --no-preserve-root / 2>/dev/null",
    "all killed": "kill -9 -1",
    "a full disk": "head -c 500000000 /dev/zero > fill",
    "a fork bomb": "(f() { f | f & }; f) >/dev/null 2>&1 &",
    "a writer in the background": "(while :; do rm -rf answer; mkdir answer; rm -rf answer; mkfifo answer; rm answer; done) >/dev/null 2>&1 &",
}
CODE = {
    "the parent killed": "import os; os.kill(os.getppid(), 9); os.kill(os.getpid(), 9)",
    "all killed": "import os; os.kill(-1, 9)",
    "all killed again and again": "import os\nif os.fork():\n    os.setsid()\nwhile True:\n    try: os.kill(-1, 9)\n    except OSError: pass",
    "all stopped": "import os; os.kill(-1, 19); os.kill(os.getpid(), 19)",
    "a sleep": "import time; time.sleep(9999)",
    "processors": "import os\nfor _ in range(3): os.fork()\nwhile True: pass",
    "forks": "import os\nwhile True: os.fork()",
    "memory": "x = []\nwhile True: x.append(bytearray(10**7))",
    "memory of all": "import os\nfor path in os.listdir('/proc'):\n    try: open(f'/proc/{path}/oom_score_adj', 'w').write('1000')\n    except OSError: pass\nx = []\nwhile True: x.append(b'x' * 10**7)",
    "a full disk": "f = open('/srv/fill', 'wb')\nwhile True: f.write(bytes(10**6))",
    "a full log folder": "f = open('/logs/verifier/fill', 'wb')\nwhile True: f.write(bytes(10**6))",
    "no log folder": "import shutil; shutil.rmtree('/logs')",
    "a file for a log folder": "import shutil; shutil.rmtree('/logs/verifier'); open('/logs/verifier', 'w')",
    "tools removed": "import shutil\nfor d in ('/usr', '/bin', '/etc', '/var'): shutil.rmtree(d, True)",
    "a folder for the reward": "import os; os.makedirs('/logs/verifier/reward.txt'); os.makedirs('/logs/verifier/reward.json')",
    "a FIFO for the reward": f"import os, time\nos.remove('{REWARD}'); os.mkfifo('{REWARD}'); time.sleep(99)",
    "a link for the reward": "import os; os.symlink('/dev/zero', '/logs/verifier/reward.json'); os.remove('/logs/verifier/reward.txt'); os.symlink('/proc/kmsg', '/logs/verifier/reward.txt'); os.kill(os.getppid(), 9)",
    "no number": "open('/logs/verifier/reward.json', 'w').write('{\"reward\": NaN}'); import os; os.kill(os.getppid(), 9)",
    "a number without end": "open('/logs/verifier/reward.json', 'w').write('{\"a\": 1' + '0' * 400 + '}'); import os; os.kill(os.getppid(), 9)",
    "half a character": "open('/logs/verifier/reward.json', 'w').write('{\"\\\\ud800\": 1}'); import os; os.kill(os.getppid(), 9)",
    "depth": "open('/logs/verifier/reward.json', 'w').write('[' * 500_000); import os; os.kill(os.getppid(), 9)",
    "endless output": "import sys\nwhile True: sys.stderr.write('x' * 100_000)",
}
IN_EACH_TEST = {
    "links": ["over the root", "hard, to a link"],
    "files": ["many links"],
    "code": ["memory of all"],
}


def sabotages():
    """Each with a task."""
    for kind, table in (("links", LINKS), ("files", FILES), ("code", CODE)):
        listed = {name: (kind, each) for name, each in table.items()}
        for param in seldom(listed, IN_EACH_TEST[kind]):
            yield pytest.param(*param.values[0], id=f"{kind}-{param.id}", marks=param.marks)


@pytest.mark.docker
@pytest.mark.parametrize(("kind", "sabotage"), [*sabotages()])
async def test_a_sabotaged_verdict_is_a_score_and_no_better_than_an_honest_failure(
    docker_engine, tmp_path, kind, sabotage
):
    task = code_task if kind == "code" else files_task
    task(tmp_path, sabotage, TOML)
    await assert_failed(tmp_path)


@pytest.mark.parametrize("sabotage", seldom(CODE, ["the parent killed"]))
async def test_code_that_sabotages_a_verdict_without_an_image_is_a_score(tmp_path, sabotage):
    code_task(tmp_path, sabotage, LOCAL)
    await assert_failed(tmp_path)


def code_task(root, code, toml):
    forge = f"cd /app; cat > calc.py <<'EOF'\n{code}\nEOF"
    write_task(root, "task", {"forge.sh": forge}, test=IMPORTED, toml=toml)


def files_task(root, forge, toml):
    test = f"cp /tests/expected /tmp/expected; cd /app; {COMPARED}"
    write_task(root, "task", {"forge.sh": forge, "tests/expected": "0\n"}, test=test, toml=toml)


async def assert_failed(root):
    async with opened(root, Forging, tool_timeout_s=20.0) as env:
        group = await env.rollout_group(env.tasks()[0], 1)
    assert [failure.error for failure in group.failures] == []
    assert [each.score for each in group.trajectories] == [0.0]
