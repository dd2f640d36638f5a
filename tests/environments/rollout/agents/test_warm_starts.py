"""Programs that are forked from an interpreter that has made their imports."""

import asyncio
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest

from environments.rollout.agents.warm_starts import WarmStarts
from tests.environments.rollout.agents.recorded import Talk
from tests.environments.serve.loopback import wait_until
from tests.tables import cases
from tools.sandbox.host.ownership import home_variables
from turnwise import AgentEnvConfig, Command, ConfigError

ROOT = Path(__file__).parents[4]
SHARED = "import os\nIMPORTED_BY = os.getpid()\n"


class Program:
    """A program that imports an installed module `shared`, started cold, warm and warm after its imports."""

    def __init__(self, folder):
        self.folder, self.site, self.runs = folder, folder / "site-packages", 0
        self.site.mkdir()
        self.installs("shared", SHARED)

    def installs(self, module, text):
        (self.site / f"{module}.py").write_text(text)

    def writes(self, text, name="agent.py"):
        (self.folder / name).write_text(f"import shared\n{text}\n")

    def variables(self, home, **env):
        path = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(self.site)}
        return {**path, **home_variables(home), **env}

    def streams(self, own, stdin=b""):
        (own / "input").write_bytes(stdin)
        output = os.open(own / "output", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        return os.open(own / "input", os.O_RDONLY), output, output

    def own(self):
        self.runs += 1
        own = self.folder / f"run{self.runs}"
        own.mkdir()
        return own

    async def fork(self, starts, arguments=(), stdin=b"", **env):
        own = self.own()
        streams = self.streams(own, stdin)
        variables = self.variables(own, OPENAI_API_KEY="sk", **env)
        program = await starts.start(arguments, variables, str(own), streams)
        for each in streams[:2]:
            os.close(each)
        if program is None:
            return None
        code = await program.wait()
        starts.note_modules(str(own))
        return code, (own / "output").read_text()

    async def warm(self, argv, arguments=(), stdin=b"", **env):
        async with WarmStarts(argv, lambda home: self.variables(home, **env)) as starts:
            return [await self.fork(starts, arguments, stdin, **env) for _ in range(2)]

    def cold(self, argv, arguments=(), stdin=b"", **env):
        own = self.own()
        done = subprocess.run(
            [*argv, *arguments], env=self.variables(own, OPENAI_API_KEY="sk", **env), input=stdin,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        code = done.returncode
        return code if code >= 0 else 128 - code, done.stdout.decode()


@pytest.fixture
def program(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Program(tmp_path)


SCRIPT, MODULE, CODE = ["python", "agent.py"], ["python", "-m", "agent"], ["python", "-c", "import agent"]


@cases(
    "argv, text",
    [
        (SCRIPT, "import sys; print(sys.argv, sys.orig_argv)"),
        (MODULE, "import sys; print(sys.argv, sys.orig_argv)"),
        (CODE, "import sys; print(sys.argv, sys.orig_argv)"),
        (["python", "-u", "-W", "ignore", "agent.py"], "import sys; print(sys.argv, sys.flags)"),
        (SCRIPT, "import sys; print(sys.path, sys.executable, sys.prefix)"),
        (MODULE, "import sys; print(sys.path)"),
        (["python", "-P", "agent.py"], "import sys; print(sys.path)"),
        (SCRIPT, "print({n: v for n, v in globals().items() if n != '__loader__' and n != 'shared'})"),
        (MODULE, "print(__file__, __name__, __package__, __spec__)"),
        (SCRIPT, "import sys; print(sys.modules['__main__'].__dict__ is globals(), sys._getframe().f_back)"),
        (SCRIPT, "def fails():\n    raise ValueError('no')\nfails()"),
        (MODULE, "1 / 0"),
        (CODE, "1 / 0"),
        (SCRIPT, "raise SystemExit('bye')"),
        (SCRIPT, "raise SystemExit(7)"),
        (SCRIPT, "raise KeyboardInterrupt"),
        (SCRIPT, "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"),
        (SCRIPT, "import os; os._exit(9)"),
        (SCRIPT, "import signal; print([signal.getsignal(n) for n in signal.valid_signals()])"),
        (SCRIPT, "import sys; print(sys.stdin.read())"),
        (SCRIPT, "import sys; print(1); print(2, file=sys.stderr); print(sys.stdout, sys.stdin.isatty())"),
        (SCRIPT, "import atexit; atexit.register(print, 'at the end')"),
        (SCRIPT, "import resource as r; print([r.getrlimit(n) for n in range(10)])"),
        (SCRIPT, "import os; print(os.listdir('/proc/self/fd'), os.getcwd(), os.umask(0))"),
        (SCRIPT, "import os; print(os.getsid(0) == os.getpid() == os.getpgid(0))"),
        (SCRIPT, "import os; print(sorted(os.environ), os.environ['OPENAI_API_KEY'])"),
        (
            SCRIPT,
            "import subprocess; print(subprocess.run(['env'], capture_output=True).stdout.count(b'\\n'))",
        ),
        (SCRIPT, "import threading; print(threading.enumerate(), threading.current_thread())"),
        (
            SCRIPT,
            "import site, sysconfig, os; print(sysconfig.get_config_var('userbase').split(os.sep)[:-1][-2:])",
        ),
    ],
)
async def test_a_warm_program_is_as_a_cold_one(argv, text, program):
    program.writes(text)
    found = await program.warm(argv, ["prompt"], b"asked")
    found.append(program.cold(argv, ["prompt"], b"asked"))
    assert len({re.sub(r"run\d+|0x\w+|\d{12,}", "", repr(each)) for each in found}) == 1


async def test_the_imports_of_the_first_are_made_once_for_the_next(program):
    program.writes("import os; print(shared.IMPORTED_BY == os.getpid())")
    assert [output for _, output in await program.warm(SCRIPT)] == ["True\n", "False\n"]


async def test_a_script_of_python_is_warm_too(program):
    script = program.folder / "tool"
    script.write_text(
        f"#!{sys.executable}\nimport os, sys, shared\nprint(shared.IMPORTED_BY == os.getpid(), sys.argv)"
    )
    script.chmod(0o755)
    (_, _), (_, output) = await program.warm([str(script)], ["prompt"])
    assert output == f"False ['{script}', 'prompt']\n"


async def test_a_module_of_the_programs_folder_hides_an_installed_one_as_ever(program):
    program.installs("other", "")
    program.installs("shared", f"{SHARED}import other")
    (program.folder / "other.py").write_text("")
    program.writes("print(shared.other.__file__)")
    assert {output for _, output in await program.warm(SCRIPT)} == {f"{program.folder / 'other.py'}\n"}


async def test_a_module_that_reads_what_differs_is_imported_by_each_rollout(program):
    program.installs("reads_home", "import os\nHOME = os.path.expanduser('~')")
    program.installs("package", "import reads_home")
    program.writes("import os, package; print(shared.IMPORTED_BY == os.getpid(), package.reads_home.HOME)")
    _, (_, output) = await program.warm(SCRIPT)
    assert output == f"False {program.folder / 'run2' / 'home'}\n"


@cases(
    "text, reason",
    [
        (
            "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
            "importing shared leaves a second thread",
        ),
        ("import socket\nheld = socket.socket()", "the imports leave socket:"),
        ("import os\nHOME = os.environ['HOME']", "importing shared reads HOME"),
        ("import os\nKEY = os.getenv('OPENAI_API_KEY')", "importing shared reads OPENAI_API_KEY"),
        ("import os\nNAMES = [*os.environ]", "importing shared reads "),
    ],
)
async def test_a_run_says_why_it_starts_programs_cold(text, reason, program, caplog):
    program.installs("shared", text)
    program.writes("import os; os._exit(0) if 'X' in os.environ else print(1)")
    caplog.clear()
    assert (await program.warm(SCRIPT))[1] is None
    assert f"agent: warm=True is not used: {reason}" in caplog.text


async def test_a_variable_that_is_equal_in_all_rollouts_may_be_read(program):
    program.installs("shared", "import os\nKEY = os.getenv('MORE')")
    program.writes("print(shared.KEY)")
    assert [output for _, output in await program.warm(SCRIPT, MORE="1")] == ["1\n", "1\n"]


async def test_a_variable_that_imports_write_or_remove_stays_so(program):
    program.installs("shared", "import os\nos.environ['WRITTEN'] = '1'\ndel os.environ['MORE']")
    program.writes("import os; print(os.environ.get('WRITTEN'), os.environ.get('MORE'))")
    assert [output for _, output in await program.warm(SCRIPT, MORE="1")] == ["1 None\n", "1 None\n"]


async def test_imports_of_a_variable_that_differs_are_counted_with_their_reason(program, caplog):
    program.installs("reads_home", "import os\nHOME = os.path.expanduser('~')")
    program.writes("import reads_home")
    await program.warm(SCRIPT)
    reason = "1 are imported by each rollout: importing reads_home reads HOME, which differs between rollouts"
    assert reason in caplog.text


async def test_a_run_says_that_programs_which_are_ended_tell_no_imports(program, caplog):
    program.writes("import os; os._exit(0)")
    await program.warm(SCRIPT)
    assert caplog.text.count("agent: warm=True waits for a program that ends by itself") == 1


async def test_a_fork_that_cannot_become_the_program_fails(program):
    program.writes("print(1)")
    async with WarmStarts(SCRIPT, program.variables) as starts:
        code, output = await program.fork(starts, **{"A=B": "1"})
    assert (code, output.splitlines()[-1]) == (1, "ValueError: illegal environment variable name")


async def test_a_program_whose_interpreter_was_killed_starts_cold(program, caplog):
    program.writes("")
    async with WarmStarts(SCRIPT, program.variables) as starts:
        await program.fork(starts)
        await program.fork(starts)
        for each in starts._pythons:
            each.result()._process.kill()
        assert await program.fork(starts) is None
    assert "warm=True is not used: its interpreter ended" in caplog.text


async def test_what_imports_print_begins_each_output(program):
    program.installs("shared", "print('imported')")
    program.writes("")
    async with WarmStarts(SCRIPT, program.variables) as starts:
        await program.fork(starts)
        await program.fork(starts)
        assert starts.printed == b"imported\n"


async def test_random_numbers_differ_between_siblings(program):
    program.installs("shared", "import random")
    program.writes("print(shared.random.random())")
    async with WarmStarts(SCRIPT, program.variables) as starts:
        await program.fork(starts)
        assert await program.fork(starts) != await program.fork(starts)


OWNER = """
import asyncio, os, sys, tempfile
from environments.rollout.agents.warm_starts import WarmStarts
async def main():
    async with WarmStarts([sys.executable, sys.argv[1]], lambda _: {}) as starts:
        program = await starts.start([], {}, tempfile.mkdtemp(dir="."), (0, 1, 2))
        await program.wait()
asyncio.run(main())
"""


def test_a_program_and_its_interpreter_end_with_a_killed_owner(program):
    program.folder.joinpath("agent.py").write_text(
        "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, "agent.py"],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as owner:
        assert owner.stdout.readline()
        owner.kill()
        assert owner.stdout.read() == b""  # the end of the last process that holds it


class Prompted(Talk):
    def format_prompt(self, item):
        return "Say A or B."


TALKS = """
import os, sys, openai
client = openai.OpenAI()
messages = [{"role": "user", "content": sys.argv[1]}]
for _ in range(3):
    completion = client.chat.completions.create(model=os.environ["TURNWISE_MODEL"], messages=messages)
    text = completion.choices[0].message.content
    messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "more"}]
print("openai", os.environ["HOME"] in os.environ["TMPDIR"], messages)
"""


REQUEST = """
import json, os, urllib.request
body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "Say A."}]}).encode()
headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
urllib.request.urlopen(urllib.request.Request(url, body, headers))
"""


async def groups(path, *, warm, env=MappingProxyType({})):
    env_class = type("Talks", (Prompted,), {"agent": Command(["python", str(path)], warm=warm, env=env)})
    async with env_class(AgentEnvConfig(group_size=3)) as env:
        played = [(await env.run_group(env.tasks()[0])) for _ in range(2)]
        if measuring := env.lifecycle.parts.warm_starts._measuring:
            await measuring
        return played


def without_times(credited):
    turns = [
        [replace(turn, model_s=0, tools_s=0) for turn in trajectory.turns]
        for trajectory in credited.group.trajectories
    ]
    agents = [replace(each.agent, wall_s=0) for each in credited.group.trajectories]
    return turns, agents, credited.advantages


@pytest.mark.soak
async def test_records_of_an_openai_program_are_equal_warm_and_cold(tmp_path, caplog):
    (tmp_path / "agent.py").write_text(TALKS)
    cold, warm = [await groups(tmp_path / "agent.py", warm=warm) for warm in (False, True)]
    assert [*map(without_times, warm)] == [*map(without_times, cold)]
    assert "warm=True is not used" not in caplog.text


BUSY = "import time\nwhile time.process_time() < 0.8: pass\n"


@cases("module, code, count", [(BUSY, "import slow\n", 1), ("", f"import slow\n{BUSY}", 0)])
async def test_a_run_recommends_it_once_for_a_program_whose_imports_are_slow(
    module, code, count, program, caplog
):
    program.installs("slow", module)
    (program.folder / "helpers.py").write_text(code)
    (program.folder / "agent.py").write_text(f"import helpers\n{REQUEST}")
    caplog.clear()
    await groups(program.folder / "agent.py", warm=False, env={"PYTHONPATH": str(program.site)})
    pattern = r"agent: imports are \d\.\d of \d\.\d CPU s of a start: Command\(\.\.\., warm=True\)"
    assert len(re.findall(pattern, caplog.text)) == count


async def test_the_interpreter_that_measures_has_no_variable_of_the_command(program):
    program.installs("shared", "import os, pathlib\npathlib.Path('noted').write_text(str({*os.environ}))")
    program.writes("")
    async with WarmStarts(
        SCRIPT, lambda home: program.variables(home, VENDOR_KEY="sk"), is_wanted=False
    ) as starts:
        starts.note_first_request(os.getpid())
        await starts._measuring
    assert "VENDOR_KEY" not in (program.folder / "noted").read_text()


async def test_a_measurement_that_hangs_ends_with_its_run(program):
    os.mkfifo(program.folder / "held")
    program.installs("shared", "import time\nheld = open('held', 'w')\ntime.sleep(600)")
    program.writes("")
    async with WarmStarts(SCRIPT, program.variables, is_wanted=False) as starts:
        starts.note_first_request(os.getpid())
        held = await asyncio.to_thread((program.folder / "held").open)
    with held:
        assert held.read() == ""  # the end of the process that holds it, before it has slept


async def test_an_import_that_hangs_ends_with_its_run(program):
    program.installs("shared", "import os, time\nif 'HANGS' in os.listdir(): time.sleep(600)")
    program.writes("")
    async with WarmStarts(SCRIPT, program.variables) as starts:
        await program.fork(starts)
        (program.folder / "HANGS").touch()
        second = asyncio.create_task(program.fork(starts))
        await asyncio.to_thread(wait_until, lambda: len(starts._pythons) == 2)
        second.cancel()
    assert second.cancelled()


@cases(
    "argv, options, problem",
    [
        (["python", "agent.py"], {"where": "sandbox"}, "add where='host'"),
        (["sh", "agent.sh"], {}, "warm=True takes python SCRIPT"),
        (["python"], {"prompt": "none"}, "warm=True takes python SCRIPT"),
        (["python", "-I", "agent.py"], {}, "without -I, -E and -S"),
        (["python", "-uE", "agent.py"], {}, "without -I, -E and -S"),
        (["python", "-"], {}, "warm=True takes python SCRIPT"),
    ],
)
def test_a_command_that_cannot_be_warm_is_refused_when_it_is_written(argv, options, problem):
    with pytest.raises(ConfigError, match=problem):
        type("Cold", (Prompted,), {"agent": Command(argv, warm=True, **options)})()
