"""All checks of an environment, in order: each tells its row at once, and none ends the others."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial

from environments.env_checks.checked_env import CheckedEnv
from environments.env_checks.checks import (
    FirstRollout,
    check_failures,
    check_items,
    check_prompts,
    check_row_text,
    check_skill,
    check_time,
    check_tools,
    check_variation_by_turn,
    check_variation_in_group,
)
from environments.env_checks.repeated_checks import (
    Belongings,
    belongings,
    check_determinism,
    check_model,
    check_resume,
    left_behind,
)
from environments.env_checks.report import Answer, Finding, Report
from environments.rollout.boundary import raised_by_user, reason_of
from environments.run.experiment import environment_files
from environments.run.watchdog import Watchdog
from tools.errors import DatasetError, RunError

NAMES = (
    "opens", "fingerprint", "items", "prompt", "tools", "rollout", "hooks", "failures", "skill",
    "rewards by turn", "rewards in a group", "rewards twice", "tokens", "time", "closes", "leaks", "resume",
    "model",
)  # fmt: skip
"""Every check, in the order of the table."""
_PLAYED = {
    # The first two play what the others look at.
    "skill": check_skill,
    "rewards in a group": check_variation_in_group,
    "rewards by turn": check_variation_by_turn,
    "failures": check_failures,
    "prompt": check_prompts,
    "tokens": check_row_text,
    "rewards twice": check_determinism,
    "time": check_time,
}
_MOST_FILES = 20
"""Files that the row of the fingerprint names."""
_BROKE_ANSWER: Answer = ("skipped", "the first rollout broke")


class _Warnings(logging.Handler):
    """What is logged while the environment opens; afterwards nothing is shown, since rows say it."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


class CheckRun:
    """The checks of one environment; what is not told at the end is told as skipped, with why."""

    def __init__(self, checked: CheckedEnv, report: Report) -> None:
        """Prepare."""
        self._checked, self._report = checked, report
        self._first = FirstRollout(report)
        self._told: set[str] = set()

    async def run(self) -> None:
        """Make all checks; what an environment's code raises is a row."""
        checked, warnings = self._checked, _Warnings()
        logging.getLogger().addHandler(warnings)
        watchdog = Watchdog(
            checked.env_cls,
            self._report.says,
            ends_after_s=checked.block_s,
        )
        with watchdog.watching():
            before = await self._run_opened(watchdog, warnings)
            if before is not None:
                backend = checked.env.sandboxes.kind
                await self._one("leaks", lambda: left_behind(before, backend))
                with watchdog.armed():
                    await self._one("resume", partial(check_resume, checked))
                    await self._one("model", partial(check_model, checked))
        for name in NAMES:
            if name not in self._told:
                self._tell(name, ("skipped", "the environment does not open"))

    async def _run_opened(self, watchdog: Watchdog, warnings: _Warnings) -> Belongings | None:
        """The checks of the open environment; what was there when it opened, if it did."""
        before: Belongings | None = None
        self._report.begins("opens")
        try:
            async with self._checked.opened():
                before = belongings()
                self._tell("opens", _opened(self._checked, warnings.lines))
                self._tell("fingerprint", _covered(self._checked))
                with watchdog.armed():
                    await self._run_played()
                self._report.begins("closes")
        except BaseException as error:  # noqa: BLE001  # of `setup`, `load_items`, `teardown` and the like
            _go_on_after(error)
            if isinstance(error, DatasetError):
                self._tell("items", ("fail", str(error)))
            self._tell("opens" if before is None else "closes", ("fail", _why(error)))
        else:
            self._tell("closes", ("ok", "`teardown` and what is shared by all rollouts"))
        return before

    async def _run_played(self) -> None:
        checked, first = self._checked, self._first
        await self._one("items", partial(check_items, checked))
        await self._one("tools", partial(check_tools, checked))
        await self._one("rollout", partial(first.check_rollout, checked))
        await self._one("hooks", partial(first.check_hooks, checked))
        for name, check in _PLAYED.items():
            await self._one(name, partial(check, checked))

    async def _one(self, name: str, check: Callable[[], Awaitable[Answer]]) -> None:
        """Make a check and tell its row; one that plays more rollouts waits for none that break alike."""
        self._report.begins(name)
        try:
            is_left = self._first.is_whole or name in ("items", "tools", "rollout", "hooks", "leaks")
            answer = await check() if is_left else _BROKE_ANSWER
        except BaseException as error:  # noqa: BLE001  # what breaks a check is what it found
            _go_on_after(error)
            answer = "fail", _why(error)
        self._tell(name, answer)

    def _tell(self, name: str, answer: Answer) -> None:
        self._told.add(name)
        result, found = answer
        self._report.finding(Finding(check=name, result=result, found=found))


def _opened(checked: CheckedEnv, warnings: list[str]) -> Answer:
    env = checked.env
    rewards = "turn rewards" if env.default_estimator == "turn_return" else "one reward for the whole"
    found = f"{env.name}: {rewards}, estimator {env.estimator}, sandbox {env.sandboxes.kind}"
    return ("warn", f"{found}; {'; '.join(warnings)}") if warnings else ("ok", found)


def _covered(checked: CheckedEnv) -> Answer:
    names = list(environment_files(checked.env))
    more = f" and {len(names) - _MOST_FILES} more files" if len(names) > _MOST_FILES else ""
    return "ok", f"covers settings, tools and {', '.join(names[:_MOST_FILES]) or 'the class alone'}{more}"


def _go_on_after(error: BaseException) -> None:
    """Raise again what ends the whole command: ^C, and a cancellation from outside."""
    task = asyncio.current_task()
    is_cancelled = isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0
    if isinstance(error, KeyboardInterrupt) or is_cancelled:
        raise error


def _why(error: BaseException) -> str:
    error = raised_by_user(error)
    # What broke in a hook of the setup stands in the message of the error that tells so.
    return str(error) if isinstance(error, RunError) else reason_of(error)
