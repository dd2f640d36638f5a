"""`SweTasksEnv`: fix a bug in a repository; hidden tests decide."""

import asyncio
import json
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from importlib.resources import files
from pathlib import Path
from typing import cast

from pydantic import Field

from environments.base_env import AgentEnv
from environments.config import AgentEnvConfig
from environments.policy.scripted import Choice, call, calls_that_ran, generic_script, mostly, say
from environments.rewards.reward_context import Reward, RolloutContext
from environments.rewards.verdict.frame import Control
from environments.rollout.items.items import load_items
from environments.shipped.swe_tasks.patches import Tree, git
from environments.shipped.swe_tasks.repositories import check_repository, find_repository, read_tree
from environments.shipped.swe_tasks.verdict import (
    MAX_PATCH_BYTES,
    SUSPICIOUS,
    Row,
    find_passing,
    patch_of_code,
    tests_of,
)
from environments.trajectory import Message, Trajectory, Turn
from environments.turn_level_reward import TurnLevelRewardMixin
from tools.calls import ToolSpec
from tools.errors import AgentCausedError, DatasetError
from tools.files import file
from tools.sandbox.archive import pack
from tools.sandbox.base import Sandbox, SandboxFileError, SandboxSpec
from tools.sandbox.layers import digests_of, files_beside
from tools.terminal import terminal

TURN_SHARE = 0.5
"""Sum of the turn rewards if every test of `FAIL_TO_PASS` passes at the end."""
NEEDED_TOOLS = frozenset({"read_file", "edit_file", "write_file"})
_PATCH = "model.patch"
_MOST_NAMED = 20
_MOST_CHANGED = 4 * MAX_PATCH_BYTES
_OWN_DATA = Path(str(files("environments.shipped.swe_tasks")))


class SweTasksConfig(AgentEnvConfig):
    max_turns: int = Field(default=30, ge=1, le=10_000, description="Model calls per rollout.")
    max_tokens_per_turn: int = Field(default=4096, ge=1, description="Tokens one model call may sample.")
    token_budget: int = Field(default=65_536, ge=1, description="Tokens one rollout may sample in all.")
    max_token_length: int = Field(
        default=65_536, ge=16, description="Tokens one training row may have; a rollout stops before it."
    )
    repositories: list[Path] = Field(
        default=[],
        description="Folders that rows may name repositories below, beside that of the dataset; an archive "
        "there needs the row's `sha256`.",
    )
    verify_every: int = Field(
        default=1,
        ge=0,
        description="Run the tests of FAIL_TO_PASS after every so many turns, where files changed, for turn "
        "rewards; 0: only at the end, without turn rewards.",
    )


class SweTasksEnv(TurnLevelRewardMixin, AgentEnv):
    """A repository and a problem: 1 if the failing tests pass and the others still do, else 0."""

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
        if self.config.has_dataset:
            rows = await super().load_items()
        else:
            rows = load_items(path=_OWN_DATA / "tasks.jsonl", limit=self.config.max_items)
        await asyncio.to_thread(git, "--version", cwd=_OWN_DATA)
        problems = await asyncio.to_thread(lambda: [each for row in rows if (each := self._problem(row))])
        if problems:
            raise DatasetError(
                f"{len(problems)} of {len(rows)} rows cannot be used: {'; '.join(problems[:_MOST_NAMED])}"
            )
        return [{**row, "item_id": row["instance_id"]} for row in rows]

    def sandbox_for(self, item: Row) -> SandboxSpec:
        return SandboxSpec(prepared=f"{item['repo']}@{item.get('base_commit')}")

    async def prepare_sandbox(self, item: Row, sandbox: Sandbox) -> None:
        tree, _ = await asyncio.to_thread(self._tree_and_digests, item)
        await sandbox.put_archive(await asyncio.to_thread(pack, tree))

    def format_prompt(self, item: Row) -> str:
        return (
            f"The repository in your working directory has this problem:\n\n{item['problem_statement']}\n\n"
            f"Solve it in the code. Hidden tests decide; changes to tests and their settings do not count."
        )

    async def score_turn(self, item: Row, turn: Turn, ctx: RolloutContext) -> Reward | None:
        every = self.config.verify_every
        if not every or (len(ctx.turn_scores) + 1) % every:
            return None
        try:
            return await self._progress(item, ctx)
        except (AgentCausedError, SandboxFileError):
            return None  # a later turn may remove the cause; at the end it counts

    async def compute_turn_rewards(
        self, item: Row, trajectory: Trajectory, ctx: RolloutContext
    ) -> Sequence[Reward | None]:
        """Return the scores of the turns; an unverified rest counts for the last one."""
        rewards = list(ctx.turn_scores)
        if self.config.verify_every and rewards and rewards[-1] is None:
            rewards[-1] = await self._progress(item, ctx)
        return rewards

    async def compute_outcome(self, item: Row, trajectory: Trajectory, ctx: RolloutContext) -> float:
        failing, passing = tests_of(item, "FAIL_TO_PASS"), tests_of(item, "PASS_TO_PASS")
        patch = await self._patch(item, ctx)
        ctx.metrics["suspicious_patch"] = float(SUSPICIOUS.search(patch) is not None)
        passed = await self._passing(item, [*failing, *passing], patch, ctx)
        ctx.metrics["fail_to_pass"] = len(passed.intersection(failing)) / len(failing)
        ctx.metrics["pass_to_pass"] = len(passed.intersection(passing)) / len(passing) if passing else 1.0
        return float(passed.issuperset([*failing, *passing]))

    def scripted_choices(
        self, item: Row, messages: Sequence[Message], tools: Sequence[ToolSpec], skill: float
    ) -> Sequence[Choice]:
        """Mostly look at the file, make each change of the patch, and answer; else a mistake."""
        steps = changes(str(item.get("patch") or ""))
        if not steps or not {tool.name for tool in tools} >= NEEDED_TOOLS:
            return generic_script(messages, tools, skill)
        done = [(each.name, json.loads(each.arguments)) for each, _ in calls_that_ran(messages)]
        changed = len([name for name, _ in done if name in ("edit_file", "write_file")])
        p_right = 0.2 + 0.79 * skill
        answer = say("The bug is fixed.")
        if changed >= len(steps):
            return mostly(p_right, [answer], [call("read_file", {"path": steps[0]["path"]})])
        step = steps[changed]
        if "content" in step:
            right, wrong = call("write_file", step), call("write_file", {**step, "content": ""})
        else:
            right, wrong = call("edit_file", step), call("edit_file", {**step, "new": ""})
        if not done:
            right = call("read_file", {"path": step["path"]}, content="First I read the code.")
        clumsy = [call("edit_file", '{"path": '), call("apply_patch", step)]
        return mostly(p_right, [right], [wrong, answer], clumsy)

    async def _progress(self, item: Row, ctx: RolloutContext) -> Reward:
        before, share_before = cast("tuple[bytes, float]", ctx.notes.get("verified", (b"", 0.0)))
        patch = await self._patch(item, ctx)
        if patch == before:
            return {"tests_pass": 0.0}
        failing = tests_of(item, "FAIL_TO_PASS")
        passed = await self._passing(item, failing, patch, ctx)
        share = len(passed) / len(failing)
        ctx.notes["verified"] = patch, share
        return {"tests_pass": TURN_SHARE * (share - share_before)}

    async def _patch(self, item: Row, ctx: RolloutContext) -> bytes:

        async def make() -> bytes:
            base, digests = await asyncio.to_thread(self._tree_and_digests, item)
            async with ctx.sandbox.paused():
                found = await files_beside(ctx.sandbox, base, digests, max_bytes=_MOST_CHANGED)
            return await asyncio.to_thread(patch_of_code, item, base, found)

        return await ctx.artefact(_PATCH, make)

    async def _passing(
        self, item: Row, tests: Sequence[str], patch: bytes, ctx: RolloutContext
    ) -> frozenset[str]:
        base, _ = await asyncio.to_thread(self._tree_and_digests, item)
        control = self._controls[str(item["instance_id"]), *tests]
        timeout_s = self.config.verify_timeout_s
        return await find_passing(ctx.verify, item, tests, base, patch, control, timeout_s=timeout_s)

    def _problem(self, row: Row) -> str:
        try:
            tests_of(row)
            check_repository(self._repository(row), row.get("base_commit"))
        except (DatasetError, OSError, RuntimeError, TypeError, ValueError) as error:
            return f"{row['instance_id']}: {error}"
        return ""

    def _repository(self, row: Row) -> Path:
        config = self.config
        own = None if config.dataset_name else Path(config.dataset_path or _OWN_DATA / "tasks.jsonl")
        return find_repository(row, own and own.parent, config.repositories)

    def _tree_and_digests(self, row: Row) -> tuple[Tree, bytes]:
        return self._trees(str(row["repo"]), row.get("base_commit"), row.get("sha256"))

    @cached_property
    def _controls(self) -> defaultdict[tuple[str, ...], Control]:
        return defaultdict(Control)

    @cached_property
    def _trees(self) -> Callable[[str, str | None, str | None], tuple[Tree, bytes]]:
        return lru_cache(maxsize=4)(self._read_tree)

    def _read_tree(self, repo: str, commit: str | None, sha256: str | None) -> tuple[Tree, bytes]:
        row = {"repo": repo, "base_commit": commit, "sha256": sha256}
        found = read_tree(self._repository(row), commit)
        return found, digests_of(found)


def changes(patch: str) -> list[dict[str, str]]:
    """Return the arguments of `edit_file` per hunk, or of `write_file` for a new file."""
    found: list[dict[str, str]] = []
    for part in re.split(r"^diff --git .*\n", patch, flags=re.MULTILINE):
        path = re.search(r"^\+\+\+ b/(.+)$", part, re.MULTILINE)
        if path is None:
            continue
        for hunk in re.split(r"^@@ .*\n", part, flags=re.MULTILINE)[1:]:
            lines = hunk.replace("\n\\ No newline at end of file", "").splitlines(keepends=True)
            old, new = ("".join(each[1:] for each in lines if each[0] in kept) for kept in (" -", " +"))
            to: dict[str, str] = {"old": old, "new": new} if old else {"content": new}
            found.append({"path": path[1], **to})
    return found
