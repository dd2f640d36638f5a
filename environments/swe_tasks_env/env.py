"""`SweTasksEnv`: a repository with a bug; tests that are not the agent's decide whether it is fixed."""

import asyncio
import base64
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cached_property, lru_cache
from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import Any, cast

from pydantic import Field

from environments.base_env import AgentEnv
from environments.config import AgentEnvConfig
from environments.data.items import load_items
from environments.policy.scripted import Choice
from environments.reward_context import Reward, RolloutContext
from environments.swe_tasks_env.patches import Tree, file_of, patch_between, patched_files
from environments.swe_tasks_env.repositories import find_repository, read_tree
from environments.swe_tasks_env.script import fix_script
from environments.swe_tasks_env.test_runner import READY
from environments.trajectory import Message, Trajectory, Turn
from environments.turn_level_reward import TurnLevelRewardMixin
from tools.calls import ToolSpec
from tools.errors import ConfigError, DatasetError
from tools.files import file
from tools.sandbox.archive import ArchivedFile, pack, unpack
from tools.sandbox.base import Sandbox, SandboxSpec
from tools.terminal import terminal

Row = Mapping[str, Any]
"""As SWE-bench has them."""

TURN_SHARE = 0.5
"""What the turn rewards of a rollout add up to when every test of `FAIL_TO_PASS` passes in the end."""
TEST_S = 60.0
"""Wall clock of one test."""
_PATCH = "model.patch"
_RUNNER = ".verifier/test_runner.py"
RUN_TESTS = ("python3", "-I", _RUNNER)
_SETTINGS = (
    "conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "pyproject.toml", "tox.ini",
    "setup.cfg",
)  # fmt: skip
_FILES_OF_TESTS = (
    *_SETTINGS, "test_*.py", "*_test.py", "tests.py", "sitecustomize.py", "usercustomize.py", "*.pth", "*.pyc"
)  # fmt: skip
_OWN_DATA = Path(str(files("environments.swe_tasks_env")))


class SweTasksConfig(AgentEnvConfig):
    """Room for the files of a repository, and how often tests run."""

    max_turns: int = Field(default=30, ge=1, le=10_000, description="Model calls per rollout.")
    max_tokens_per_turn: int = Field(default=4096, ge=1, description="Tokens one model call may sample.")
    token_budget: int = Field(default=65_536, ge=1, description="Tokens one rollout may sample in all.")
    max_token_length: int = Field(
        default=65_536, ge=16, description="Tokens one training row may have; a rollout stops before it."
    )
    verify_every: int = Field(
        default=1,
        ge=0,
        description="Run the tests of FAIL_TO_PASS after every so many turns, where files changed, for turn "
        "rewards; 0: only at the end, without turn rewards.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What is known about the last patch that was verified."""

    patch: bytes = b""
    share: float = 0.0
    """Of the tests of `FAIL_TO_PASS`, those that pass."""


class SweTasksEnv(TurnLevelRewardMixin, AgentEnv):
    """A repository and what is wrong with it: 1 when its failing tests pass and the others still do."""

    name = "swe_tasks"
    tools = (terminal, file)
    system_prompt = (
        "You are a careful software engineer. You work in a sandbox through tools, one small step at a time; "
        "your working directory is the repository. Change the code so that the problem is solved. When you "
        "are done, answer without calling a tool."
    )
    packages = ("pytest==8.4.2",)
    data = ("repositories",)
    required_fields = ("instance_id", "repo", "problem_statement", "FAIL_TO_PASS")
    env_config_cls = SweTasksConfig
    config: SweTasksConfig  # pyright: ignore[reportIncompatibleVariableOverride]  # narrowed, as env_config_cls says

    async def load_items(self) -> Sequence[Row]:
        """The rows that the config names, or the embedded ones.

        Raises:
            DatasetError: a repository cannot be had, or tests are no list.
        """
        if self.config.dataset_name or self.config.dataset_path:
            rows = await super().load_items()
        else:
            rows = load_items(path=_OWN_DATA / "tasks.jsonl", limit=self.config.max_items)
        problems = await asyncio.to_thread(lambda: [each for row in rows if (each := self._problem(row))])
        if problems:
            raise DatasetError(f"{len(problems)} of {len(rows)} rows cannot be used: {'; '.join(problems)}")
        return [{**row, "item_id": row["instance_id"]} for row in rows]

    def sandbox_for(self, item: Row) -> SandboxSpec:
        """One that begins with the repository."""
        return SandboxSpec(prepared=f"{item['repo']}@{item.get('base_commit')}")

    async def prepare_sandbox(self, item: Row, sandbox: Sandbox) -> None:
        """The repository at its commit, without its history."""
        tree = await asyncio.to_thread(self._tree, item)
        await sandbox.put_archive(await asyncio.to_thread(pack, tree))

    def format_prompt(self, item: Row) -> str:
        """The problem."""
        return (
            f"The repository in your working directory has this problem:\n\n{item['problem_statement']}\n\n"
            f"Solve it in the code. Hidden tests decide; changes to tests and their settings do not count."
        )

    async def score_turn(self, item: Row, turn: Turn, ctx: RolloutContext) -> Reward | None:
        """The tests of `FAIL_TO_PASS` that this turn, or those since the last verification, made pass."""
        every = self.config.verify_every
        if not every or (len(ctx.turn_scores) + 1) % every:
            return None
        return await self._progress(item, ctx)

    async def compute_turn_rewards(
        self, item: Row, trajectory: Trajectory, ctx: RolloutContext
    ) -> Sequence[Reward | None]:
        """What was given after each turn; what is not verified yet counts for the last one."""
        rewards = list(ctx.turn_scores)
        if self.config.verify_every and rewards and rewards[-1] is None:
            rewards[-1] = await self._progress(item, ctx)
        return rewards

    async def compute_outcome(self, item: Row, trajectory: Trajectory, ctx: RolloutContext) -> float:
        """1 when all tests of both kinds pass, else 0."""
        failing, passing = tests_of(item, "FAIL_TO_PASS"), tests_of(item, "PASS_TO_PASS")
        passed = await self._passed(item, await self._patch(item, ctx), [*failing, *passing], ctx)
        ctx.metrics["fail_to_pass"] = len(passed.intersection(failing)) / len(failing)
        ctx.metrics["pass_to_pass"] = len(passed.intersection(passing)) / len(passing) if passing else 1.0
        return float(passed.issuperset([*failing, *passing]))

    def scripted_choices(
        self, item: Row, messages: Sequence[Message], tools: Sequence[ToolSpec], skill: float
    ) -> Sequence[Choice]:
        """An agent that knows the patch, and makes mistakes as its skill allows."""
        return fix_script(item, messages, tools, skill)

    async def _progress(self, item: Row, ctx: RolloutContext) -> Reward:
        """The reward for the change in passing tests since this was asked last."""
        before = cast(Verified, ctx.notes.get("verified", Verified()))
        patch = await self._patch(item, ctx)
        if patch == before.patch:
            return {"tests_pass": 0.0}
        failing = tests_of(item, "FAIL_TO_PASS")
        passed = await self._passed(item, patch, failing, ctx)
        after = ctx.notes["verified"] = Verified(patch=patch, share=len(passed) / len(failing))
        return {"tests_pass": TURN_SHARE * (after.share - before.share)}

    async def _patch(self, item: Row, ctx: RolloutContext) -> bytes:
        """What the agent changed, but for tests; its own git has no part in it."""

        async def make() -> bytes:
            base = await asyncio.to_thread(self._tree, item)
            most = ctx.sandbox.record.limits.disk_mb << 20
            try:
                async with ctx.sandbox.paused():
                    archive = await ctx.sandbox.get_archive(".", max_bytes=most)
                found = unpack(archive)
            except OSError:  # of what the agent did: no folder, or more than fits
                found = dict[str, ArchivedFile]()
            return await asyncio.to_thread(_patch_of_code, item, base, found)

        return await ctx.artefact(_PATCH, make)

    async def _passed(
        self, item: Row, patch: bytes, tests: Sequence[str], ctx: RolloutContext
    ) -> frozenset[str]:
        """Those of the tests that pass with a patch, in a fresh sandbox with the verifier's test files.

        Raises:
            ConfigError: there is no pytest.
        """
        base = await asyncio.to_thread(self._tree, item)
        changed = await asyncio.to_thread(patched_files, base, patch)
        own = await asyncio.to_thread(_files_of_verifier, item, base)
        words = {test: secrets.token_hex(16) for test in (READY, *tests)}
        request = {
            "words": words,
            "test_s": TEST_S,
            "deleted": [path for path, file in {**changed, **own}.items() if file is None],
            "written": {
                path: (base64.b64encode(file.data).decode(), file.mode)
                for path, file in changed.items()
                if file is not None
            },
        }
        result = await ctx.verify(
            command=RUN_TESTS,
            files={
                _RUNNER: _OWN_DATA.joinpath("test_runner.py").read_bytes(),
                **{path: file.data for path, file in own.items() if file is not None},
            },
            stdin=json.dumps(request).encode(),
            timeout_s=self.config.verify_timeout_s,
        )
        said = set(result.text().split())
        if words[READY] not in said and not result.timed_out:
            last = result.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
            raise ConfigError(
                f"the tests of {item['instance_id']} cannot run in the sandbox: {last:.300}; it needs "
                f"`python3` with pytest"
            )
        return frozenset(test for test in tests if words[test] in said)

    def _problem(self, row: Row) -> str:
        try:
            _tests(row)
            self._repository(row)
        except DatasetError as error:
            return f"{row['instance_id']}: {error}"
        return ""

    def _repository(self, row: Row) -> Path:
        path = self.config.dataset_path
        folder = Path(path).parent if path else _OWN_DATA
        return find_repository(row, folder.resolve(), Path.home() / ".cache" / "turnwise" / "sources")

    def _tree(self, row: Row) -> Tree:
        return self._read_tree(self._repository(row), row.get("base_commit"))

    @cached_property
    def _read_tree(self) -> Any:
        return lru_cache(maxsize=4)(read_tree)


def tests_of(row: Row, column: str) -> list[str]:
    """The ids of tests in a column: a list, or its JSON text.

    Raises:
        DatasetError: it is something else; or there is none, and without a failing test nothing is judged.
    """
    given = row.get(column)
    try:
        tests: Any = json.loads(given) if isinstance(given, str) else given or []
    except ValueError:
        tests = None
    if not isinstance(tests, list) or not all(isinstance(each, str) for each in cast("list[Any]", tests)):
        raise DatasetError(
            f"{column} is {given!r:.100}; give a list of test ids, such as tests/test_x.py::test_y"
        )
    if not tests and column == "FAIL_TO_PASS":
        raise DatasetError("FAIL_TO_PASS is empty; name at least one test")
    return cast("list[str]", tests)


def is_of_tests(row: Row, path: str) -> bool:
    """Whether a file is a test's or its settings', so that the agent's changes of it do not count."""
    *folders, name = path.split("/")
    own = {"tests", *(PurePosixPath(test.partition("::")[0]).parent.name for test in _tests(row))} & {
        "tests", "test", "testing",
    }  # fmt: skip
    return bool(own.intersection(folders)) or any(fnmatch(name, each) for each in _FILES_OF_TESTS)


def _tests(row: Row) -> list[str]:
    return [*tests_of(row, "FAIL_TO_PASS"), *tests_of(row, "PASS_TO_PASS")]


def _patch_of_code(row: Row, base: Tree, found: Tree) -> bytes:
    """The difference of two trees in files that are no tests'."""
    kept = {
        path: file_of(file.data, file.mode)
        for path, file in found.items()
        if ".git" not in path.lower().split("/") and not is_of_tests(row, path)
    }
    return patch_between({path: file for path, file in base.items() if not is_of_tests(row, path)}, kept)


def _files_of_verifier(row: Row, base: Tree) -> dict[str, ArchivedFile | None]:
    """What tests are read from and set by; `None`: gone with the row's own patch."""
    patched = patched_files(base, str(row.get("test_patch") or "").encode())
    named = {test.partition("::")[0] for test in _tests(row)}
    kept = {
        path: file for path, file in base.items() if path in named or PurePosixPath(path).name in _SETTINGS
    }
    return {**kept, **patched}
