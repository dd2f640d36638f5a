"""A trial of estimators on an environment as a run: its folder, its record, its page."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from environments.base_env import AgentEnv
from environments.lab.learning.learning_page import write_learning_page
from environments.lab.learning.trial import Trial, checked_estimators
from environments.lab.learning.trial_plan import GROUPS_A_STEP, Asked, TrialPlan
from environments.lab.learning.trial_report import learning_values
from environments.record.private_file import write_private
from environments.record.run_folder import RunFolder
from environments.run.experiment import origin_of
from environments.run.open_run import opened_run
from environments.run.progress import Progress
from environments.run.run_files import Sources
from environments.run.run_log import RunLog
from environments.run.watchdog import watchdog_of
from environments.trajectory import CreditedGroup
from environments.viewer.learning_values import LearningValues

POLICY = "learned"
"""What the run is said to be played by; each group says by which policy."""
PAGE, VALUES = "learning.html", "learning.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnEnv:
    """What is tried, and where it is written."""

    estimators: Sequence[str]
    """Empty: those that suit the environment."""
    asked: Asked
    learning_rate: float
    folder: RunFolder
    sources: Sources | None = None

    async def run(self, env: AgentEnv, console: Console) -> LearningValues:
        """Try, and write record, values and page; a former run in the folder is put aside.

        Raises:
            UsageError: the environment cannot be opened or has nothing to choose, or the time is too short.
            RunError: its rollouts break.
        """
        log = RunLog()
        progress = Progress(console, log=log)
        with watchdog_of(env, progress) as watchdog:
            async with env.opened(notify=progress.say):
                estimators = checked_estimators(env, self.estimators)  # before a former trial is put aside
                origin = replace(origin_of(env), policy=POLICY)
                opened = opened_run(env, origin, self.folder, sources=self.sources, log=log, say=progress.say)
                with opened as run, progress, watchdog.armed():
                    progress.ready()

                    async def record(credited: CreditedGroup) -> CreditedGroup:
                        credited = await asyncio.to_thread(run.recorder.append, credited)
                        progress.group_done(credited)
                        return credited

                    def planned(plan: TrialPlan, group_s: float, estimators: int) -> None:
                        groups = plan.groups(estimators)
                        progress.start(total=groups, done_before=0)
                        run.planned(groups=groups, done=0)
                        progress.say(_plan_line(env, plan, group_s, estimators, self.asked.seconds))

                    result = await Trial(
                        env=env,
                        estimators=estimators,
                        asked=self.asked,
                        learning_rate=self.learning_rate,
                        record=record,
                        watch=progress.rollout,
                        planned=planned,
                    ).run()
                    done = progress.summary.done
                    await run.end(progress.summary, done=done, planned=done, code=0)
        values = learning_values(result, env, self.learning_rate)
        write_private(self.folder.path / VALUES, json.dumps(values, indent=1, ensure_ascii=False).encode())
        write_learning_page(self.page, self.folder.record, values, result)
        return values

    @property
    def page(self) -> Path:
        """The page."""
        return self.folder.path / PAGE


def _plan_line(env: AgentEnv, plan: TrialPlan, group_s: float, estimators: int, seconds: float) -> str:
    groups = plan.groups(estimators)
    about_s = min(seconds, groups * group_s)
    return (
        f"{env.name}: {estimators} estimators, {plan.seeds} seeds, {plan.steps} steps of {GROUPS_A_STEP} "
        f"groups of {env.config.group_size}, {plan.items} items: {groups:,} groups, some {about_s:.0f} s "
        f"(at most {seconds:g})"
    )
