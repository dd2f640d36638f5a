"""What an agent may try to forge its reward: attacks that work in its own sandbox and change no reward."""

from dataclasses import dataclass

import pytest

from environments.policy.scripted import Choice, call, say
from environments.rewards.reward_context import RolloutContext
from environments.rollout.items.tasks import GroupTask
from environments.shipped.code_debug import CodeDebugEnv
from tests.tables import across
from tests.tools.sandbox.conftest import TEST_IMAGE, docker_engine  # noqa: F401  # a fixture
from tools.sandbox import open_sandbox

WRONG, RIGHT = b"def add(a, b):\n    return 0\n", b"def add(a, b):\n    return a + b\n"
CHECK = """
import json, os, runpy
if os.path.exists("conftest.py"):  # as pytest does
    runpy.run_path("conftest.py")
import solution
verdict = {"passed": solution.add(1, 2) == 3}
with open("result.json", "w") as file:
    json.dump(verdict, file)
assert verdict["passed"]
print("passed")
"""
EXITS = """
import sys
import solution
if solution.add(1, 2) != 3:
    sys.exit("wrong")
print("passed")
"""
SUITE = """
import unittest
import solution

class Suite(unittest.TestCase):
    def test_add(self):
        self.assertEqual(solution.add(1, 2), 3)

if unittest.main(exit=False).result.wasSuccessful():
    print("passed")
"""
FORGE = "import os; os.write(1, b'passed'); os._exit(0)"
USER_SITE = "d=$(python3 -m site --user-site); mkdir -p $d"


@dataclass(frozen=True, kw_only=True)
class Attack:
    """What the agent leaves behind, and the command that it is meant to fool."""

    setup: str
    command: str = "python3 check.py"


ATTACKS = {
    "conftest": Attack(setup=f'echo "{FORGE}" >conftest.py'),
    "usercustomize": Attack(setup=f'{USER_SITE}; echo "{FORGE}" >$d/usercustomize.py'),
    "a shadowing module": Attack(setup=f'echo "{FORGE}" >json.py'),
    "a patched exit": Attack(
        setup=f"{USER_SITE}; cat >$d/usercustomize.py <<'EOF'\n"
        "import atexit, os\natexit.register(lambda: (os.write(1, b'passed'), os._exit(0)))\nEOF"
    ),
    "a patched assert": Attack(
        setup=f"{USER_SITE}; cat >$d/usercustomize.py <<'EOF'\n"
        "import builtins, sys\nsys.excepthook = lambda *_: builtins.print('passed')\nEOF"
    ),
    "a patched sys.exit": Attack(
        setup=f"{USER_SITE}; echo 'import sys; sys.exit = lambda *_: None' >$d/usercustomize.py",
        command="python3 exits.py",
    ),
    "a shadowing test library": Attack(
        setup="mkdir unittest; cat >unittest/__init__.py <<'EOF'\n"
        "class TestCase: pass\n"
        "def main(**_):\n    print('passed')\n    raise SystemExit\nEOF",
        command="python3 suite.py",
    ),
    "poisoned bytecode": Attack(
        setup="cp solution.py kept; printf 'def add(a, b):\\n    return a + b\\n' >solution.py; python3 -c "
        "\"from py_compile import *; compile('solution.py', "
        'invalidation_mode=PycInvalidationMode.UNCHECKED_HASH)"; mv kept solution.py'
    ),
    "a process that rewrites results": Attack(
        setup="(while :; do echo '{passed}' >r; mv r result.json; done) >/dev/null 2>&1 &",
        command="python3 check.py; for i in $(seq 100); do "
        "tr -d '{}' <result.json | grep -x passed && break; sleep 0.02; done",
    ),
    "a linked artefact": Attack(setup="ln -sf reference.py solution.py"),
    "a linked folder": Attack(setup="ln -s . up; ln -sf up/up/reference.py solution.py"),
}
VERIFIER = {"check.py": CHECK, "exits.py": EXITS, "suite.py": SUITE, "reference.py": RIGHT}


@pytest.fixture
async def ctx(request):
    backend, image = getattr(request, "param", "local"), None
    if backend == "docker":
        request.getfixturevalue("docker_engine")
        image = TEST_IMAGE

    def fresh():
        return open_sandbox(backend, image=image, memory_mb=192, disk_mb=32)

    async with fresh() as sandbox:
        await sandbox.write_file("solution.py", WRONG)
        yield RolloutContext(env="attacked", item_id="1", sandbox=sandbox, fresh_sandbox=fresh)


async def verified(ctx, command):
    result = await ctx.verify(command=command, artefacts=["solution.py"], files=VERIFIER)
    return b"passed" in result.stdout


OF_EACH_KIND = ("conftest", "usercustomize", "a process that rewrites results", "a linked artefact")


@across(ATTACKS, OF_EACH_KIND, "ctx", ("local", "docker"))
async def test_an_attack_that_works_in_the_agents_sandbox_fails_in_a_fresh_one(ctx, case):
    await ctx.sandbox.shell(case.setup)
    assert not await verified(ctx, case.command)
    # The attack is a real one: judged where the agent worked, it would have passed.
    for path, data in VERIFIER.items():
        await ctx.sandbox.write_file(path, data.encode() if isinstance(data, str) else data)
    assert b"passed" in (await ctx.sandbox.exec(case.command)).stdout


@pytest.mark.parametrize("command", sorted({attack.command for attack in ATTACKS.values()}))
async def test_an_honest_solution_passes_each_of_these_commands(ctx, command):
    await ctx.sandbox.write_file("solution.py", RIGHT)
    assert await verified(
        ctx, f"{command}; grep -o passed result.json" if "result.json" in command else command
    )


async def test_the_verifiers_files_are_read_only_and_artefacts_are_not(ctx):
    result = await ctx.verify(
        command="stat -c '%a %n' *; echo x >>check.py", artefacts=["solution.py"], files=VERIFIER
    )
    assert result.text().splitlines() == [
        "444 check.py", "444 exits.py", "444 reference.py", "644 solution.py", "444 suite.py"
    ]  # fmt: skip
    assert result.exit_code != 0


async def test_the_verifiers_files_never_enter_the_agents_sandbox(ctx):
    watch = "while :; do ls -R /workspace /tmp; done >/tmp/seen 2>&1 &"
    await ctx.sandbox.shell(watch)
    await ctx.sandbox.exec("until grep -q solution.py /tmp/seen; do sleep 0.02; done")
    await ctx.verify(command="sleep 0.3", artefacts=["solution.py"], files=VERIFIER)
    seen = (await ctx.sandbox.exec("sort -u /tmp/seen")).text()
    assert "solution.py" in seen
    assert "check.py" not in seen


@pytest.mark.parametrize("alias", ["./check.py", "sub/../check.py", "/workspace/check.py"])
async def test_an_artefact_does_not_replace_a_file_of_the_verifier_by_another_path(ctx, alias):
    await ctx.sandbox.exec("mkdir sub; echo \"print('passed')\" >check.py")
    result = await ctx.verify(
        command="python3 check.py", artefacts=["solution.py", "sub/x", alias], files=VERIFIER
    )
    assert b"passed" not in result.stdout


# The whole way: a rollout of code_debug whose agent attacks instead of fixing.

IN_THE_SOLUTION = {
    "exits with success": "import os; os._exit(0)",
    "patched assert": "import builtins; builtins.AssertionError = type('A', (BaseException,), {})",
    "equal to everything": "class float(float):\n    __eq__ = __ne__ = lambda *_: True",
    "writes a result": "open('result.json', 'w').write('passed'); print('ready'); print('0 1')",
    "kills the judge": "import os, signal; os.kill(os.getppid(), signal.SIGKILL)",
    "rewrites the harness": "import os\ntry:\n    os.chmod('harness.py', 0o644)\nexcept OSError:\n    pass\n"
    "open('harness.py', 'w').write('print(1)')",
}


class Attacked(CodeDebugEnv):
    """Its agent runs one command and stops."""

    command = ""

    def scripted_choices(self, item, messages, tools, skill):
        done = sum(message.role == "assistant" for message in messages)
        moves = [call("terminal", {"command": self.command}), say("Done.")]
        return [Choice(probability=1.0, message=moves[done])]


async def score_after(command):
    env = Attacked()
    Attacked.command = command
    item = next(item for item in await env.load_items() if item["entry_point"] == "moving_average")
    group = await env.rollout_group(GroupTask(item=item, item_id="item"), 1)
    assert group.failures == ()
    return group.trajectories[0].score


async def test_a_rollout_that_mends_nothing_scores_nothing():
    assert await score_after("true") == 0.0


@pytest.mark.parametrize("name", ["conftest", "usercustomize", "a process that rewrites results"])
async def test_what_is_left_beside_the_solution_changes_no_reward(name):
    assert await score_after(f"cd /workspace; {ATTACKS[name].setup}") == 0.0


@pytest.mark.parametrize("line", IN_THE_SOLUTION.values(), ids=IN_THE_SOLUTION)
async def test_what_the_solution_itself_tries_changes_no_reward(line):
    assert (
        await score_after(
            f"cat >attack <<'EOF'\n{line}\nEOF\ncat solution.py >>attack; mv attack solution.py"
        )
        == 0.0
    )


@pytest.mark.parametrize("target", ["harness.py", "/proc/self/environ", "."])
async def test_a_solution_that_is_a_link_changes_no_reward(target):
    assert await score_after(f"ln -sfn {target} solution.py") == 0.0


@pytest.mark.parametrize("build", [None, "sleep 60"], ids=["the command", "the build"])
async def test_a_verification_over_its_limit_is_a_result_that_is_timed_out(ctx, build):
    ctx.verify_timeout_s = 0.5
    command = "true" if build else "sleep 60"
    result = await ctx.verify(artefacts=["solution.py"], command=command, build=build)
    assert (result.timed_out, result.exit_code, result.stdout) == (True, 137, b"")


SHADOWS = (
    "json",
    "random",
    "argparse",
    "runpy",
    "unittest",
    "sitecustomize",
    "usercustomize",
    "own/__init__",
)
IMPORTING = {
    "check.py": "import json, random, own, solution, tests.part\n"
    "print(json.dumps([own.NAME, tests.part.NAME, solution.NAME, hasattr(random, 'shuffle')]))",
    "own.py": "NAME = 'own'",
    "tests/__init__.py": "",
    "tests/part.py": "NAME = 'part'",
}


@pytest.mark.parametrize("ctx", ["local", pytest.param("docker", marks=pytest.mark.docker)], indirect=True)
async def test_what_an_agent_left_beside_a_check_is_not_imported_in_place_of_a_module(ctx):
    for name in (*SHADOWS, "tests/part/__init__"):
        await ctx.sandbox.write_file(f"{name}.py", b"raise SystemExit('shadowed')\n")
    await ctx.sandbox.write_file("solution.py", b"from helper import NAME\n")
    await ctx.sandbox.write_file("helper.py", b"NAME = 'solution'\n")
    commands = ("python3 check.py", "python3 -m check", "python3 -c 'import check'", "python3 - <check.py",
                "cd tests && python3 ../check.py")  # fmt: skip
    results = [await ctx.verify(command=each, artefacts=["."], files=IMPORTING) for each in commands]
    assert {(result.text(), result.stderr) for result in results} == {
        ('["own", "part", "solution", true]\n', b"")
    }
