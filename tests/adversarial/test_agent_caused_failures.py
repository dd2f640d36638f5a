"""What an agent does to its own sandbox and its own files is a score, never a missing sibling."""

# ruff: noqa: E501  # an attack is one line

import pytest

from environments.base_env import AgentEnv
from environments.policy.scripted import Choice, call, say
from environments.rollout.items.tasks import GroupTask
from tests.adversarial.tiers import OPENERS, docker_engine, fresh, in_each_tier, tier_c  # noqa: F401  # fixtures
from tools.files import file
from tools.sandbox import Opening
from tools.terminal import terminal

pytestmark = pytest.mark.usefixtures("impatient")
DEEP = "import os\nfor _ in range(3000):\n    os.mkdir('d' * 200); os.chdir('d' * 200)\n"
BUFFERS = """
import fcntl, os, socket, time
def pipe():
    r, w = os.pipe(); fcntl.fcntl(w, 1031, 1 << 20); return r, w
def pair():
    a, b = socket.socketpair(); a.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 24); return a.detach(), b.detach()
for _ in range(40):
    if os.fork() == 0:
        held = []
        while True:
            try:
                held.append(MAKE()); os.set_blocking(held[-1][-1], False)
                while True: os.write(held[-1][-1], bytes(1 << 16))
            except OSError: time.sleep(0.001)
"""
"""Memory that no process has: it is not given back before the last that holds an end of it is dead."""
MISDEEDS = {
    "memory that is buffers of pipes": f"cat >f.py <<'EOF'\n{BUFFERS.replace('MAKE', 'pipe')}\nEOF\npython3 f.py; sleep 2",
    "memory that is buffers of sockets": f"cat >f.py <<'EOF'\n{BUFFERS.replace('MAKE', 'pair')}\nEOF\npython3 f.py; sleep 2",
    "shared memory": "for i in $(seq 40); do ipcmk -M 100000000; head -c 90000000 /dev/zero >/dev/shm/$i; done",
    "a full disk": "head -c 999999999 /dev/zero >fill",
    "every file system full": "for d in . /tmp $TMPDIR /dev/shm /run/turnwise; do "
    "head -c 999999999 /dev/zero >$d/fill; done",
    "no inodes": "mkdir many; cd many; seq 200000 | xargs touch",
    "a disk that is filled all the time": "(while :; do head -c 99999999 /dev/zero >fill; done) >/dev/null 2>&1 &",
    "a fork bomb": "(f() { f | f & }; f) >/dev/null 2>&1 &",
    "memory up to the limit": "python3 -c 'x = bytearray(10**9)' & python3 -c \"x = b'x' * (150 << 20); "
    "import time; time.sleep(1000)\" &",
    "the supervisor killed": "sh -c 'kill -9 $PPID'; kill -9 1 $PPID; true",
    "the supervisor killed all the time": "cat >k.py <<'EOF'\n"
    "import os, signal, time\nif os.fork(): os._exit(0)\nos.setsid()\n"
    "while True:\n    for p in os.listdir('/proc'):\n        if p.isdigit() and int(p) != os.getpid():\n"
    "            try: os.kill(int(p), signal.SIGSTOP)\n            except OSError: pass\nEOF\npython3 k.py &",
    "the workspace deleted": "rm -rf $HOME; rm -rf ./* ./.[a-z]*; rmdir $PWD",
    "the workspace closed": "chmod 000 $PWD; cd /",
    "the run folder emptied": "rm -rf /run/turnwise/* $TMPDIR/../run/*; chmod 000 /run/turnwise $TMPDIR/../run",
    "100,000 files": "mkdir out; cd out; seq 100000 | xargs touch",
    "a path without end": f"cat >deep.py <<'EOF'\n{DEEP}EOF\nmkdir out; cd out; python3 ../deep.py",

}  # fmt: skip
ODD_SOLUTIONS = {
    "a solution that cannot be read": "chmod 000 solution.py",
    "a FIFO for a solution": "rm -f solution.py; mkfifo solution.py",
    "a huge solution with nothing in it": "rm -f solution.py; truncate -s 1T solution.py",
    "a device for a solution": "ln -sf /dev/zero solution.py",
    "a loop of links": "ln -sf b a; ln -sf a b; ln -sf a solution.py",
    "names that are no text": "mkdir out; cd out; touch $'new\\nline' $'\\xff\\xfe' $'\\xed\\xa0\\x80' -- -rf "
    "' ' $'\\e[31m' '$(id)'; touch $(printf 'x%.0s' $(seq 255))",
    "files that change meanwhile": "(while :; do rm -rf out solution.py; mkdir -p out/a solution.py; "
    "touch out/a/b; rm -rf out solution.py; ln -s /proc/self out; mkfifo solution.py; rm -f out solution.py; "
    "done) >/dev/null 2>&1 &",
}  # fmt: skip
"""What is brought over meets the same code on every tier."""


class Vandal(AgentEnv):
    """Its agent does one thing, and looks for solution.py to be judged."""

    name = "vandal"
    tools = (terminal, file)
    opener = None
    command = ""

    async def load_items(self):
        return ["item"]

    def format_prompt(self, item):
        return "Do it."

    async def prepare(self, item, sandbox):
        await sandbox.write_file("solution.py", b"print('wrong')\n")

    def open_sandbox(self):
        return self.opener()

    async def compute_reward(self, item, trajectory, ctx):
        result = await ctx.verify(
            command="ls -R out | head -c 100; timeout 5 python3 -I check.py",
            artefacts=["solution.py", "out", "../../etc/passwd", "."],
            files={"check.py": "import runpy\nrunpy.run_path('solution.py')\n"},
            timeout_s=20,
        )
        return float(result.exit_code == 0 and b"right" in result.stdout)

    def scripted_choices(self, item, messages, tools, skill):
        done = sum(message.role == "assistant" for message in messages)
        look = [call("read_file", {"path": "solution.py"}), call("list_files", {"path": "."})]
        moves = [call("terminal", {"command": self.command, "timeout_s": 4}), *look,
                 call("terminal", {"command": "ls | head; true", "timeout_s": 2}), say("Done.")]  # fmt: skip
        return [Choice(probability=1.0, message=moves[done])]


async def score(opener, command):
    """Of the rollout, which has to be there."""
    Vandal.opener, Vandal.command = staticmethod(opener), command
    group = await Vandal().rollout_group(GroupTask(item="item", item_id="item"), 1)
    assert group.failures == ()
    return group.trajectories[0].score


OF_EACH_KIND = (
    "every file system full",
    "memory up to the limit",
    "memory that is buffers of pipes",
    "the supervisor killed",
    "the workspace deleted",
    "the run folder emptied",
)


@in_each_tier(MISDEEDS, OF_EACH_KIND, slow=["the supervisor killed all the time"])
async def test_an_agent_cannot_make_its_rollout_go_missing(fresh, case):  # noqa: F811
    assert await score(fresh, case) == 0.0


@pytest.mark.parametrize("command", ODD_SOLUTIONS.values(), ids=ODD_SOLUTIONS)
async def test_nothing_that_stands_for_a_solution_makes_its_rollout_go_missing(command):
    assert await score(lambda: Opening(*OPENERS["B"]), command) == 0.0
