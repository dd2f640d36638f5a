"""`HarborTasksEnv`: tasks in Harbor's format, judged by their tests in a fresh machine."""

import asyncio
import logging
import os
import shlex
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Self, cast

from pydantic import Field, PrivateAttr

from environments.base_env import AgentEnv
from environments.config import AgentEnvConfig
from environments.policy.scripted import Choice, PlaysByScript, call, choices, generic_script, say
from environments.rewards.reward_context import Reward, RolloutContext
from environments.rewards.verdict.frame import Control, NoVerdict, decide
from environments.rewards.verification_time import off_the_clock
from environments.rollout.hooks import LEFT_OUT_LOG, is_recorded
from environments.shipped.harbor_tasks.task_folder import (
    HarborTask,
    Images,
    find_tasks,
    in_short,
    refusal_lines,
)
from environments.shipped.harbor_tasks.verdict import SOLUTION, Verdict, put_folder, reach_verdict
from environments.trajectory import Message, Trajectory
from tools.calls import ToolSpec
from tools.errors import ConfigError, DatasetError, IsolationError
from tools.files import file
from tools.plain_text import hide, printable
from tools.sandbox import Opening, lent_folder
from tools.sandbox.base import Sandbox, SandboxLimits, SandboxSpec
from tools.terminal import terminal
from tools.time_profile import measure

_LOG = logging.getLogger(__name__)

Item = Mapping[str, Any]


class HarborTasksConfig(AgentEnvConfig):
    """Settings of `HarborTasksEnv`; smaller limits in a task apply instead."""

    tasks: Path | None = Field(
        default=None,
        description="A task in the format of Harbor or Terminal-Bench 1, or a folder with tasks somewhere "
        "below it.",
    )
    task_variables: list[str] | None = Field(
        default=None,
        description="Names of environment variables of this machine that tasks may take as ${NAME}. Their "
        "values are secrets: no record has them.",
    )
    max_turns: int = Field(default=50, ge=1, le=10_000, description="Model calls per rollout.")
    token_budget: int = Field(default=65_536, ge=1, description="Tokens one rollout may sample in all.")
    rollout_timeout_s: float = Field(
        default=14_400.0, gt=0, description="Wall clock of a rollout's turns: at most [agent].timeout_sec."
    )
    tool_timeout_s: float = Field(default=600.0, gt=0, description="Longest that a command may take.")
    verify_timeout_s: float = Field(
        default=7_200.0,
        gt=0,
        description="Wall clock of a verdict's machine, and of its tests, which have at most "
        "[verifier].timeout_sec.",
    )
    _values: dict[str, str] = PrivateAttr(default_factory=dict[str, str])

    def with_variables(self, variables: Mapping[str, str]) -> Self:
        if missing := [name for name in self.task_variables or () if name not in variables]:
            raise ConfigError(
                f"--env.task_variables {missing[0]}: this environment variable is not set"
            ) from KeyError(missing[0])
        config = self.model_copy()
        config._values = {name: variables[name] for name in self.task_variables or ()}
        return config

    @property
    def secrets(self) -> Collection[str]:
        return self._values.values()

    def granted(self) -> Mapping[str, str]:
        """Return the values of `task_variables`; raises ConfigError if `with_variables` gave none."""
        if unread := set(self.task_variables or ()) - self._values.keys():
            raise ConfigError(f"task_variables {min(unread)}: use config.with_variables(os.environ)")
        return self._values

    def __getstate__(self) -> dict[Any, Any]:
        # Workers read the variables themselves, so that no message has the values.
        return {**super().__getstate__(), "__pydantic_private__": {"_values": {}}}


class HarborTasksEnv(AgentEnv):
    """A task in a Linux machine; its tests write the reward, in a machine that the agent never used."""

    name = "harbor_tasks"
    tools = (terminal, file)
    system_prompt = (
        "You work in a Linux machine through tools. Do what the task says, check the result, then answer "
        "without calling a tool. Hidden tests judge the files that you leave; nobody answers questions."
    )
    scripted_solves = True
    env_config_cls = HarborTasksConfig
    config: HarborTasksConfig  # pyright: ignore[reportIncompatibleVariableOverride]  # narrowed, as env_config_cls says

    async def load_items(self) -> Sequence[Item]:
        config, root = self.config, self.config.tasks
        if config.has_dataset or root is None or not root.is_dir():
            raise ConfigError(
                f"{self.name} reads a folder of tasks: --env.tasks PATH, and no dataset; got {str(root)!r}"
            )
        found, refused = await asyncio.to_thread(find_tasks, root, config.granted())
        self._machine_images, self._reported = dict[str, tuple[str | None, str | None]](), set[str]()
        self._controls = dict[str, Control]()
        missing = await _missing_images(found)
        for task in found:
            try:
                self._machine_images[task.task_id] = self._choose_images(task, missing)
            except DatasetError as error:
                refused[task.task_id] = in_short(str(error))
        self._tasks = {task.task_id: task for task in found if task.task_id in self._machine_images}
        if not self._tasks:
            reasons = "; ".join(refusal_lines(refused)) or "no folder there has a task.toml or task.yaml"
            raise ConfigError(f"no task below {str(root)!r} can be rolled out: {reasons:.2000}")
        for line in refusal_lines(refused):
            LEFT_OUT_LOG.warning("%s", line)
        unset = Counter(name for task in self._tasks.values() for name in task.unset)
        for name, count in sorted(unset.items()):
            _warn_once(
                f"{name} of the host is empty in {count} of {len(self._tasks)} tasks, whose tests do not "
                f"read it; --env.task_variables {name} grants its value"
            )
        self.left_out = refused
        return [{"task_id": task.task_id, "instruction": task.instruction} for task in self._tasks.values()]

    def item_files(self, item: Item) -> Sequence[Path]:
        return [self._task(item).folder]

    def sandbox_for(self, item: Item) -> SandboxSpec:
        task, image = self._task(item), self._machine_images[item["task_id"]][0]
        machine = task.table.environment
        memory_mb = machine.memory_mb or machine.memory
        disk_mb = machine.storage_mb or machine.storage
        if image is None and (memory_mb or disk_mb):
            # The files of a local sandbox are in its memory, beside its programs.
            room_mb = (memory_mb or self.config.sandbox_memory_mb) // 4
            disk_mb = min(disk_mb or SandboxLimits().disk_mb, max(1, room_mb))
        return SandboxSpec(
            image=image,
            whole=image is not None,
            memory_mb=memory_mb,
            disk_mb=disk_mb,
            cpus=None if image is None or machine.cpus is None else min(machine.cpus, os.cpu_count() or 1),
            network="none" if machine.is_offline else None,
        )

    def limits_for(self, item: Item) -> Mapping[str, float]:
        seconds = self._task(item).table.agent.timeout_sec
        return {} if seconds is None else {"rollout_timeout_s": min(seconds, self.config.rollout_timeout_s)}

    def format_prompt(self, item: Item) -> str:
        return item["instruction"]

    async def prepare(self, item: Item, sandbox: Sandbox) -> None:
        task = self._task(item)
        machine = task.table.environment
        if not task.has_image:
            if sandbox.record.tier != "B":
                raise IsolationError(
                    f"task {task.task_id} has no Dockerfile, and its tests need the places /tests and /logs, "
                    f"which local sandboxes of tier {sandbox.record.tier} have not; give it a Dockerfile"
                )
            await put_folder(sandbox, task.context, sandbox.workdir)
        elif machine.workdir:
            workdir = shlex.quote(machine.workdir)
            await sandbox.shell(f"mkdir -p {workdir} && cd {workdir}")
        # A model could find the solution, so only the script gets it.
        by_script = self.policy is None or isinstance(self.policy, PlaysByScript)
        plays_solution = task.solve is not None and by_script and not is_recorded(self)
        for name, value in (machine.env | (task.table.solution.env if plays_solution else {})).items():
            await sandbox.shell(f"export {shlex.quote(name)}={shlex.quote(value)}")
        if plays_solution:
            await put_folder(sandbox, task.solution, _solution(task))

    async def compute_reward(self, item: Item, trajectory: Trajectory, ctx: RolloutContext) -> Reward:
        task = self._task(item)

        async def judge(machine: Sandbox) -> dict[str, float]:
            fresh = ctx.fresh_sandbox()
            if image := self._machine_images[task.task_id][1]:
                spec = replace(self.sandbox_for(item), image=image)
                fresh = self.lifecycle.sandboxes.open_for_verification(spec)
            limit_s = ctx.verify_timeout_s
            found = await reach_verdict(task, machine, cast("Opening", fresh), limit_s=limit_s)
            if machine is ctx.sandbox:
                ctx.metrics |= {"tests_exit_code": found.exit_code, "left_out": len(found.left_out)}
            self._report(task, found)
            if found.rewards is None:
                raise NoVerdict(hide(found.last_words, self.config.secrets))
            return dict(found.rewards)

        async def judge_clean() -> dict[str, float]:
            async with cast("Opening", ctx.fresh_sandbox()) as machine:
                await HarborTasksEnv.prepare(self, item, machine)
                return await judge(machine)

        with measure("ctx.verify"), off_the_clock():
            control = self._controls.setdefault(task.task_id, Control())
            rewards = await decide(lambda: judge(ctx.sandbox), judge_clean, control)
        if "reward" not in rewards:
            return rewards
        ctx.metrics |= {name: value for name, value in rewards.items() if name != "reward"}
        return rewards["reward"]

    def scripted_choices(
        self, item: Item, messages: Sequence[Message], tools: Sequence[ToolSpec], skill: float
    ) -> Sequence[Choice]:
        task = self._task(item)
        if "terminal" not in {tool.name for tool in tools}:
            return generic_script(messages, tools, skill)
        if task.solve is None or any(message.tool_calls for message in messages):
            return choices((1.0, [say("That is all.")]))
        script = task.solve.replace("{}", _solution(task))
        command = {"command": script, "timeout_s": self.config.tool_timeout_s}
        return choices((skill, [call("terminal", command)]), (1 - skill, [say("I leave it as it is.")]))

    def _task(self, item: Item) -> HarborTask:
        return self._tasks[item["task_id"]]

    def _choose_images(self, task: HarborTask, missing: Mapping[str, str]) -> tuple[str | None, str | None]:
        kind = self.config.sandbox
        if not task.has_image:
            if lent := lent_folder("local", task.folder):
                raise DatasetError(
                    f"it lies below {lent}, where every local sandbox can read its tests; move it"
                )
            if kind not in (None, "local"):
                raise DatasetError(f"no image and no Dockerfile: it runs on the local sandbox, not on {kind}")
            return None, None
        if kind not in (None, "docker"):
            raise DatasetError(f"it has an image, and --env.sandbox is {kind}; choose docker")
        verifier = task.verifier_images
        return _first(task.images, missing), _first(verifier, missing) if verifier else None

    def _report(self, task: HarborTask, found: Verdict) -> None:
        if task.task_id in self._reported or not (found.left_out or found.rewards is None):
            return
        self._reported.add(task.task_id)
        if found.left_out:
            level = logging.INFO if found.rewards and all(found.rewards.values()) else logging.WARNING
            paths = printable(", ".join(found.left_out[:5]))
            names = f"all changes: {paths} ({len(found.left_out)} in all)"
            advice = "declare what a solution needs in `artifacts`"
            _LOG.log(level, "task %s: its tests do not see %s; %s", task.task_id, names, advice)
        if found.rewards is None:
            words = printable(hide(" ".join(found.last_words.split()), self.config.secrets))
            _LOG.warning("task %s: the tests wrote no reward that can be read: %s", task.task_id, words)


@cache
def _warn_once(line: str) -> None:  # `check` opens the environment twice
    _LOG.warning("%s", line)


def _solution(task: HarborTask) -> str:
    return SOLUTION if task.has_image else "/tmp/solution"


async def _missing_images(tasks: Sequence[HarborTask]) -> dict[str, str]:
    needed = {name for task in tasks for _, names in (*task.images, *task.verifier_images) for name in names}
    if not needed:
        return {}
    from tools.sandbox.docker.backend import missing_images  # noqa: PLC0415  # an optional backend

    try:
        missing = await missing_images(sorted(needed))
    except IsolationError as error:
        return dict.fromkeys(needed, str(error))
    return {name: f"no image on the Docker engine: `docker pull {name}`" for name in missing}


def _first(images: Images, missing: Mapping[str, str]) -> str:
    for image, needed in images:
        if missing.keys().isdisjoint(needed):
            return image
    raise DatasetError(
        "; ".join({missing[name]: None for _, names in images for name in names if name in missing})
    )
