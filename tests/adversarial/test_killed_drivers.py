"""Programs that we start outside a sandbox end with the driver, however it ends and whatever they do."""

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

HOLDER = """
import os, signal, sys
fifo, *strikes = sys.argv[1:]
held = os.open(fifo, os.O_WRONLY)
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
inner = os.getppid()
outer = int(open(f"/proc/{inner}/stat").read().rpartition(")")[2].split()[1])
said, say = os.pipe()
for how in ("child", "session", "daemon"):
    if os.fork() == 0:
        if how != "child":
            os.setsid()
        if how == "daemon" and os.fork():
            os._exit(0)
        os.write(say, b".")
        while True:
            signal.pause()
for _ in range(3):
    os.read(said, 1)
os.write(held, f"{outer} {os.environ['HOME']}\\n".encode())
for strike in strikes:
    which, name = strike.split()
    os.kill({"outer": outer, "inner": inner}[which], getattr(signal, name))
os.write(held, b"done\\n")
while True:
    signal.pause()
"""
"""Holds a FIFO open, as three others do that it starts: in its group, in a session, as a daemon."""

DRIVERS = {
    "agent": """
class Held(Prompted):
    agent = Command([sys.executable, *sys.argv[1:]], prompt="none")
asyncio.run(roll_out(Held))
""",
    "server": """
async def main():
    server = MCPToolset(name="held", command=sys.executable, args=tuple(sys.argv[1:]))
    async with MCPServers([server]).connect(print):
        pass
asyncio.run(main())
""",
    "check": """
from turnwise.check.report import run_supervised
run_supervised([sys.executable, *sys.argv[1:]], ["opens"], limit_s=600)
""",
    "installer": """
from tools.sandbox.local import packages
packages.importlib.util.find_spec = lambda name: None
folder = tempfile.mkdtemp()
uv = Path(folder, "uv")
uv.write_text("#!/bin/sh\\nexec " + shlex.join([sys.executable, *sys.argv[1:]]))
uv.chmod(0o755)
os.environ.update(PATH=f"{folder}:{os.environ['PATH']}", XDG_CACHE_HOME=folder)
packages.folder_of(("held==1",))
""",
}
IMPORTS = """
import asyncio, os, shlex, sys, tempfile
from pathlib import Path
from tests.environments.rollout.agents.recorded import roll_out
from tests.environments.rollout.agents.test_command import Prompted
from tools.mcp.mcp_servers import MCPServers
from turnwise import Command, MCPToolset
"""


class Driven:
    """A driver whose program holds a FIFO open with all that it started."""

    def __init__(self, folder, kind, strikes):
        holder, fifo = folder / "holder.py", folder / "fifo"
        holder.write_text(HOLDER)
        os.mkfifo(fifo)
        self._end = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
        argv = [sys.executable, "-c", IMPORTS + DRIVERS[kind], str(holder), str(fifo), *strikes]
        root = Path(__file__).parents[2]
        self.process = subprocess.Popen(argv, cwd=root, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        self.guard, self.home = self.line().split()

    def line(self):
        """What the program wrote; empty once all that held the FIFO are gone."""
        read = b""
        while not read.endswith(b"\n"):
            wait_for(self._end)
            if not (byte := os.read(self._end, 1)):
                break
            read += byte
        return read.decode()

    def end_and_wait_for_guard(self):
        guard = os.pidfd_open(int(self.guard))
        self.process.kill()
        wait_for(guard)
        os.close(guard)

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self._end)


def wait_for(fd):
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    assert poll.poll(90_000), "nothing comes"


@pytest.fixture
def driven(tmp_path):
    """Starts a driver."""
    opened = []

    def started(kind, *strikes):
        opened.append(Driven(tmp_path, kind, strikes))
        return opened[-1]

    yield started
    for each in opened:
        each.close()


@pytest.mark.parametrize("kind", list(DRIVERS))
def test_nothing_of_a_program_outlives_a_killed_driver(driven, kind):
    driver = driven(kind)
    driver.process.kill()
    while driver.line():
        pass


@pytest.mark.parametrize("strike", ["inner SIGSTOP", "outer SIGSTOP"])
def test_a_program_that_stops_a_guard_ends_with_the_driver(driven, strike):
    driver = driven("agent", strike)
    driver.line()
    driver.end_and_wait_for_guard()
    while driver.line():
        pass


@pytest.mark.parametrize("strike", ["inner SIGKILL", "outer SIGKILL", "outer SIGTERM", "inner SIGTERM"])
def test_a_program_that_ends_a_guard_ends_itself(driven, strike):
    driver = driven("agent", strike)
    while driver.line():
        pass


@pytest.mark.parametrize("kind", ["agent", "server"])
def test_a_killed_driver_leaves_no_folder_of_a_rollout(driven, kind):
    driver = driven(kind)
    folder = next(path for path in Path(driver.home).parents if path.name.startswith("turnwise."))
    assert folder.is_dir()
    driver.end_and_wait_for_guard()
    assert not folder.exists()


def test_the_next_process_removes_the_folder_that_guards_could_not(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    code = """
import asyncio, os
from tools.sandbox.host.ownership import own_folder
async def main():
    async with own_folder() as folder:
        os.mkdir(folder + "/closed", 0)
        os._exit(0)
asyncio.run(main())
"""
    for _ in range(2):
        subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=True)
        (folder,) = tmp_path.iterdir()
    assert folder.name.startswith("turnwise.")
