"""Task folders in Harbor's format for the tests, and environments that play them."""

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path

from environments.policy.scripted import call, choices, say
from environments.shipped.harbor_tasks import HarborTasksEnv
from environments.shipped.harbor_tasks.env import HarborTasksConfig

TOML = 'version = "1.0"\n[agent]\ntimeout_sec = 60\n[verifier]\ntimeout_sec = 60\n'
PASS = "if {}; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"


def write_task(root: Path, name: str, files: dict[str, str], *, test: str, toml: str = TOML) -> Path:
    """A task with an instruction, `tests/test.sh` and more files."""
    given = {"task.toml": toml, "instruction.md": f"Do {name}.\n", "tests/test.sh": f"#!/bin/bash\n{test}"}
    for path, text in {**given, **files}.items():
        target = root / name / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    return root / name


def write_terminal_bench(root: Path, name: str, files: dict[str, str | None]) -> Path:
    """A task of Terminal-Bench 1, whose solution writes `hello`; a file that is None is left out."""
    given = {
        "task.yaml": f"instruction: Do {name}.\ndifficulty: easy\nparser_name: pytest\n"
        "max_agent_timeout_sec: 120\nmax_test_timeout_sec: 30\nrun_tests_in_same_shell: false\n",
        "Dockerfile": "FROM turnwise-test\nWORKDIR /app\n",
        "docker-compose.yaml": "services: {client: {build: {dockerfile: Dockerfile}, environment: "
        "['TEST_DIR=${T_BENCH_TEST_DIR}'], command: [sh, -c, sleep infinity]}}",
        "run-tests.sh": "#!/bin/bash\necho '=== short test summary info ==='\n"
        "grep -qx hello /app/hello.txt && echo PASSED a || echo FAILED a\n",
        "solution.sh": "#!/bin/bash\necho hello > hello.txt\n",
    }
    for path, text in {**given, **files}.items():
        if text is not None:
            target = root / name / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
    return root / name


class Forging(HarborTasksEnv):
    """Its agent runs the `forge.sh` of the task's folder."""

    def scripted_choices(self, item, messages, tools, skill):
        if any(message.tool_calls for message in messages):
            return choices((1.0, [say("Done.")]))
        command = (self.config.tasks / item["task_id"] / "forge.sh").read_text()
        return choices((1.0, [call("terminal", {"command": command})]))


@asynccontextmanager
async def opened(root: Path, env_cls=HarborTasksEnv, **settings):
    """An environment of these tasks, played by scripted agents."""
    async with env_cls(HarborTasksConfig(tasks=root, **settings)) as env:
        yield env


async def played(root: Path, env_cls=HarborTasksEnv, *, skill: float = 1.0, **settings):
    """One trajectory of each task, by id."""
    async with opened(root, env_cls, scripted_skill=skill, **settings) as env:
        tasks = env.tasks()
        groups = await asyncio.gather(*(env.rollout_group(task, 1) for task in tasks))
    assert not [failure for group in groups for failure in group.failures]
    return {group.item_id: group.trajectories[0] for group in groups}


async def scores(root: Path, env_cls=HarborTasksEnv, **settings):
    """The score of one rollout of each task, by id."""
    return {name: each.score for name, each in (await played(root, env_cls, **settings)).items()}
