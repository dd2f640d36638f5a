"""Agents that run in the sandbox of their rollout, with no network but the endpoint."""

import asyncio

import pytest

from tests.environments.rollout.agents.recorded import Talk, roll_out
from tests.environments.rollout.agents.test_command import PROGRAM
from tests.tools.sandbox.conftest import TEST_IMAGE, docker_engine
from tools.errors import IsolationError
from turnwise import Command, StopReason

__all__ = ["docker_engine"]
KINDS = ["local", pytest.param("docker", marks=pytest.mark.docker)]


@pytest.fixture
def where(request):
    if request.param == "docker":
        request.getfixturevalue("docker_engine")
        return {"sandbox": "docker", "sandbox_image": TEST_IMAGE}
    return {"sandbox": "local"}


class Inside(Talk):
    sandbox = "local"
    agent = Command(["python3", "agent.py"], where="sandbox")
    program = "ask(user(sys.argv[1]))"

    def format_prompt(self, item):
        return "Say A or B."

    async def prepare(self, item, sandbox):
        await sandbox.write_file("agent.py", (PROGRAM + self.program).encode())


def inside(program, **attributes):
    return type("Programmed", (Inside,), {"program": program, **attributes})


@pytest.mark.parametrize("where", KINDS, indirect=True)
async def test_its_calls_reach_the_endpoint_and_its_end_is_recorded(where):
    credited = await roll_out(inside("print(ask(user(sys.argv[1]))['content']); sys.exit(3)"), **where)
    (trajectory,) = credited.group.trajectories
    assert trajectory.prompt[0].content == "Say A or B."
    assert (trajectory.stop_reason, trajectory.agent.exit_code) == (StopReason.AGENT_ERROR, 3)
    assert trajectory.agent.output.strip() == trajectory.turns[0].message.content


@pytest.mark.parametrize("where", KINDS, indirect=True)
async def test_it_has_no_other_network(where):
    async def answer(reader, writer):
        writer.close()

    other = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = other.sockets[0].getsockname()[1]
    program = f"""
import socket
ask(user("x"))
for host, port in (("127.0.0.1", {port}), ("192.0.2.1", 80)):
    try:
        socket.create_connection((host, port), timeout=1)
    except OSError:
        print("closed")
"""
    async with other:
        credited = await roll_out(inside(program), **where)
    assert credited.group.trajectories[0].agent.output.split() == ["closed", "closed"]


@pytest.mark.parametrize("where", KINDS, indirect=True)
async def test_a_hook_looks_at_its_files_while_it_is_paused(where):
    class Looking(Inside):
        async def score_turn(self, item, turn, ctx):
            async with ctx.sandbox.paused():
                written = await ctx.sandbox.read_file("count")
                assert await ctx.sandbox.read_file("count") == written
            return float(written)

    program = """
import threading
count = 0
def counting():
    global count
    while True:
        count += 1
        open("new", "w").write(str(count)); os.rename("new", "count")
threading.Thread(target=counting, daemon=True).start()
while not os.path.exists("count"):
    pass
first = ask(user("x"))
ask(user("x"), first, user("on"))
"""
    credited = await roll_out(type("Counting", (Looking,), {"program": program}), **where)
    assert credited.group.failures == ()
    one, two = credited.group.trajectories[0].rewards.turns
    assert 0 < one <= two


async def test_one_that_goes_on_is_ended_when_it_was_told():
    program = """
import time
while True:
    try:
        ask(user("x"))
    except Exception:
        time.sleep(0.05)
"""

    class Left(Inside):
        async def compute_outcome(self, item, trajectory, ctx):
            left = await ctx.sandbox.exec("ls /proc | grep -c '^[0-9]'")
            return float(left.text())

    (trajectory,) = (
        await roll_out(type("Told", (Left,), {"program": program}), max_turns=2)
    ).group.trajectories
    assert (trajectory.stop_reason, len(trajectory.turns)) == (StopReason.MAX_TURNS, 2)
    assert trajectory.rewards.outcome <= 5


async def test_a_killed_watcher_is_a_killed_agent():
    credited = await roll_out(inside("ask(user('x')); os.kill(os.getppid(), 9); import time; time.sleep(60)"))
    (trajectory,) = credited.group.trajectories
    assert (trajectory.stop_reason, trajectory.agent.exit_code) == (StopReason.AGENT_ERROR, 137)


async def test_a_folder_of_the_host_is_lent(tmp_path):
    tmp_path.chmod(0o755)
    (tmp_path / "agent.py").write_text(PROGRAM + "ask(user('x'))")
    agent = Command(["python3", str(tmp_path / "agent.py")], where="sandbox", read_only=(str(tmp_path),))
    credited = await roll_out(type("Lent", (Inside,), {"agent": agent}))
    assert [each.stop_reason for each in credited.group.trajectories] == [StopReason.COMPLETED]


async def test_a_sandbox_with_the_hosts_network_is_refused_before_any_rollout():
    with pytest.raises(IsolationError, match="promises no network but the endpoint"):
        await roll_out(Inside, sandbox_network="full")


async def test_a_child_that_holds_its_output_open_does_not_delay_the_end():
    program = "import subprocess; ask(user('x')); subprocess.Popen(['sleep', '60']); print('bye')"
    (trajectory,) = (await roll_out(inside(program))).group.trajectories
    assert (trajectory.stop_reason, trajectory.agent.output) == (StopReason.COMPLETED, "bye\n")
    assert trajectory.agent.wall_s < 20


async def test_idle_connections_of_its_own_do_not_keep_it_from_asking():
    program = """
import os, socket, urllib.parse
url = urllib.parse.urlsplit(os.environ["OPENAI_BASE_URL"])
idle = [socket.create_connection((url.hostname, url.port)) for _ in range(40)]
print(ask(user("x"))["content"])
"""
    (trajectory,) = (await roll_out(inside(program))).group.trajectories
    assert trajectory.stop_reason is StopReason.COMPLETED
