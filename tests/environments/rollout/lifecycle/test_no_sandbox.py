"""`sandbox = "none"`: nothing is opened, nothing Linux-only is loaded, and whoever uses one is told why."""

import subprocess
import sys

import pytest

from environments.base_env import AgentEnv
from environments.config import AgentEnvConfig
from environments.rollout.items.tasks import GroupTask
from environments.run.experiment import origin_of
from tests.tables import cases
from tools.errors import ConfigError
from tools.sandbox.base import SandboxRecord
from tools.terminal import terminal

TASK = GroupTask(item="ping", item_id="item")


class Talk(AgentEnv):
    name = "talk"
    sandbox = "none"

    async def load_items(self):
        return ["ping"]

    def format_prompt(self, item):
        return item

    async def compute_reward(self, item, trajectory, ctx):
        return 1.0


class WithTerminal(Talk):
    tools = (terminal,)


def made(env_cls=Talk, **settings):
    return env_cls(AgentEnvConfig(group_size=1, min_group_size=1, **settings))


def earning(reward):
    return type("Earning", (Talk,), {"compute_reward": reward})


async def rolled_out(reward=Talk.compute_reward, **settings):
    return await made(earning(reward), **settings).rollout_group(TASK, 1)


async def test_a_rollout_without_a_sandbox_is_scored_and_its_record_says_none():
    (trajectory,) = (await rolled_out()).trajectories
    assert (trajectory.score, trajectory.sandbox) == (1.0, None)


@cases(
    "use",
    [
        pytest.param(lambda sandbox: sandbox.record, id="record"),
        pytest.param(lambda sandbox: sandbox.workdir, id="workdir"),
        pytest.param(lambda sandbox: sandbox.exec("true"), id="exec"),
        pytest.param(lambda sandbox: sandbox.shell("true"), id="shell"),
        pytest.param(lambda sandbox: sandbox.read_file("f"), id="read_file"),
        pytest.param(lambda sandbox: sandbox.write_file("f", b""), id="write_file"),
        pytest.param(lambda sandbox: sandbox.put_archive(b""), id="put_archive"),
        pytest.param(lambda sandbox: sandbox.get_archive("."), id="get_archive"),
    ],
)
async def test_any_use_of_it_is_a_failure_that_names_the_setting(use):
    async def reward(self, item, trajectory, ctx):
        use(ctx.sandbox)

    (failure,) = (await rolled_out(reward)).failures
    assert failure.error_class == "ConfigError"
    assert "this rollout has no sandbox" in failure.error
    assert "`sandbox` is 'none'; choose --env.sandbox local" in failure.error


async def test_the_setting_wins_over_the_class():
    (trajectory,) = (await rolled_out(sandbox="local")).trajectories
    assert isinstance(trajectory.sandbox, SandboxRecord)


async def test_the_setting_none_wins_over_a_class_that_says_nothing():
    class Unsaid(Talk):
        sandbox = None

    (trajectory,) = (await made(Unsaid, sandbox="none").rollout_group(TASK, 1)).trajectories
    assert trajectory.sandbox is None


@pytest.mark.parametrize(
    ("env_cls", "settings"),
    [
        pytest.param(WithTerminal, {}, id="own"),
        pytest.param(Talk, {"enabled_toolsets": ["terminal"]}, id="enabled"),
    ],
)
def test_tools_that_act_in_a_sandbox_are_refused_by_name_when_it_is_built(env_cls, settings):
    with pytest.raises(ConfigError, match=r"no sandbox .* act in one: terminal; choose --env.sandbox local"):
        made(env_cls, **settings)


def test_tools_that_are_disabled_are_not_refused():
    assert made(WithTerminal, enabled_toolsets=[]).toolset.tools == ()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        pytest.param({"verify_sandbox": "none"}, "would verify nothing", id="none"),
        pytest.param({"sandbox": "local", "verify_sandbox": "docker"}, "of the same kind", id="another-kind"),
    ],
)
def test_a_sandbox_for_verification_that_contradicts_is_refused(settings, says):
    with pytest.raises(ConfigError, match=says):
        made(**settings)


@pytest.mark.parametrize("chosen", [False, 1, terminal], ids=["false", "number", "toolset"])
def test_a_class_attribute_that_is_no_name_is_refused(chosen):
    with pytest.raises(ConfigError, match=r"\.sandbox is a name, such as 'local' or 'none'"):
        made(type("Wrong", (Talk,), {"sandbox": chosen}))


async def test_verify_runs_in_a_sandbox_that_is_opened_for_it():
    async def reward(self, item, trajectory, ctx):
        ran = await ctx.verify(command="python3 check.py", files={"check.py": "print(6 * 7)"})
        return float(ran.text())

    (trajectory,) = (await rolled_out(reward)).trajectories
    assert trajectory.score == 42.0


async def test_artefacts_of_no_sandbox_are_refused_with_what_to_do():
    async def reward(self, item, trajectory, ctx):
        await ctx.verify(command="true", artefacts=["answer.py"])

    (failure,) = (await rolled_out(reward)).failures
    assert "give what the agent wrote in `files`" in failure.error


def test_a_class_that_chooses_counts_in_the_fingerprint_like_the_setting():
    class Unsaid(Talk):
        sandbox = None

    facts = [origin_of(env).facts() for env in (made(), made(Unsaid, sandbox="none"), made(Unsaid))]
    assert [fact["sandbox"] for fact in facts] == ["none", "none", "local"]


ON_ANOTHER_SYSTEM = """
import asyncio, ctypes, os, resource, sys, sysconfig, uuid

# What Python and other packages ask of the system themselves is not the claim.
sysconfig.get_config_vars()
import aiohttp, numpy, pydantic, rich.console
sys.platform = "darwin"

class Linux:
    def find_spec(self, name, path=None, target=None):
        if name.startswith(("tools.sandbox.local", "tools.sandbox.docker", "tools.sandbox.conformance")):
            raise AssertionError(f"{name} is imported")

def refused(*_, **__):
    raise AssertionError("a call of Linux alone")

def not_permitted(*_):
    raise ValueError("current limit exceeds maximum limit")

def no_process(event, args):
    if event in ("subprocess.Popen", "os.fork", "os.posix_spawn", "os.exec"):
        raise AssertionError(f"a process is started: {args!r:.200}")

sys.meta_path.insert(0, Linux())
ctypes.CDLL = refused
resource.setrlimit(resource.RLIMIT_NOFILE, (512, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
resource.setrlimit = not_permitted
for name in ("prctl", "unshare", "setns", "pidfd_open", "memfd_create", "eventfd", "sched_getaffinity"):
    if hasattr(os, name):
        delattr(os, name)
sys.addaudithook(no_process)
"""
RUN = """
from turnwise import AgentEnv

class Talk(AgentEnv):
    name = "talk"
    sandbox = "none"

    async def load_items(self):
        return ["ping"]

    def format_prompt(self, item):
        return item

    async def compute_reward(self, item, trajectory, ctx):
        return 1.0

sys.argv = ["talk", *sys.argv[1:]]
Talk.cli()
"""


def run_elsewhere(tmp_path, *args):
    """A run in a process that has nothing which only Linux has."""
    script = tmp_path / "talk.py"
    script.write_text(ON_ANOTHER_SYSTEM + RUN)
    return subprocess.run(
        [sys.executable, script, *args, "--env.group_size", "2"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=280,
    )  # fmt: skip


@pytest.mark.parametrize("command", ["process", "evaluate"])
def test_it_runs_where_nothing_of_linux_is(tmp_path, command):
    done = run_elsewhere(tmp_path, command)
    assert done.returncode == 0, done.stderr


def test_with_a_sandbox_the_same_process_shows_that_it_would_have_been_caught(tmp_path):
    done = run_elsewhere(tmp_path, "process", "--env.sandbox", "local")
    assert done.returncode != 0
    assert "tools.sandbox.local" in done.stderr
