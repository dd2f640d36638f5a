"""Runs all checks of an environment; each reports at once, and a failure does not stop the others."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial

from environments.rollout.boundary import reason_of, unwrap_user_error
from environments.run.experiment import environment_files
from environments.run.watchdog import Watchdog
from tools.errors import DatasetError, RunError
from turnwise.check.checked_env import CheckedEnv
from turnwise.check.checks import (
    Resources,
    check_failures,
    check_hooks,
    check_items,
    check_leaks,
    check_prompts,
    check_rollout,
    check_siblings,
    check_skill,
    check_tools,
    check_variation_by_turn,
    check_variation_in_group,
    list_resources,
)
from turnwise.check.padded_agents import check_padding
from turnwise.check.report import Answer

NAMES = (
    "opens", "fingerprint", "items", "prompt", "tools", "rollout", "hooks", "siblings", "failures",
    "skill", "rewards by turn", "rewards in a group", "padding", "closes", "leaks",
)  # fmt: skip
_OF_OPEN = {
    "items": check_items,
    "tools": check_tools,
    "rollout": check_rollout,
    "hooks": check_hooks,
    # First, before state of other rollouts exists.
    "siblings": check_siblings,
    # These two play the rollouts that the others examine.
    "skill": check_skill,
    "rewards in a group": check_variation_in_group,
    "rewards by turn": check_variation_by_turn,
    "failures": check_failures,
    "padding": check_padding,
    "prompt": check_prompts,
}
_WITHOUT_ROLLOUT = ("items", "tools", "rollout", "hooks", "leaks")
"""Checks that run even if the first rollout failed."""
NOT_OPEN: Answer = "skipped", "the environment does not open"
_MOST_FILES = 20


class _Warnings(logging.Handler):
    def __init__(self, lines: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(record.getMessage())


async def run_checks(checked: CheckedEnv) -> None:
    """Run all checks and report them; an exception of the environment's code is an answer."""
    logging.getLogger().addHandler(_Warnings(checked.warnings))
    report = checked.report
    watchdog = Watchdog(
        checked.env_cls, lambda line: report.add({"blocked": line}), ends_after_s=checked.block_s
    )
    with watchdog.watch():
        before = await _check_open(checked, watchdog)
        if before is not None:
            await _check(checked, "leaks", partial(check_leaks, before))
    report.add({"check": None})


async def _check_open(checked: CheckedEnv, watchdog: Watchdog) -> Resources | None:
    """Check the open environment; return the resources that existed when it opened, or None."""
    report, before = checked.report, None
    report.add({"check": "opens"})
    try:
        async with checked.open():
            before = list_resources()
            env, warnings = checked.env, checked.warnings
            rewards = "turn rewards" if env.default_estimator == "turn_return" else "one reward for the whole"
            sandbox = env.lifecycle.sandboxes.kind
            found = f"{env.name}: {rewards}, estimator {env.estimator}, sandbox {sandbox}"
            names = list(environment_files(env))
            more = f" and {len(names) - _MOST_FILES} more files" if len(names) > _MOST_FILES else ""
            files = f"{', '.join(names[:_MOST_FILES]) or 'the class alone'}{more}"
            opens = ("warn", "; ".join([found, *warnings])) if warnings else ("ok", found)
            report.add({"opens": opens, "fingerprint": ("ok", f"covers settings, tools and {files}")})
            with watchdog.arm():
                for name, check in _OF_OPEN.items():
                    await _check(checked, name, check)
            report.add({"check": "closes", "doing": ""})
    except BaseException as error:  # noqa: BLE001  # of hooks such as `setup`
        failed = _failure_of(error)
        if before is not None:
            report.add({"closes": failed})
            return before
        of_items = {"items": failed} if isinstance(error, DatasetError) else {}
        report.add(dict.fromkeys(NAMES, NOT_OPEN) | {"opens": failed} | of_items)
    else:
        report.add({"closes": ("ok", "`teardown` and what is shared by all rollouts")})
    return before


async def _check(checked: CheckedEnv, name: str, check: Callable[[CheckedEnv], Awaitable[Answer]]) -> None:
    checked.report.add({"check": name, "doing": ""})
    answer: Answer = "skipped", "the first rollout broke"
    try:
        if checked.first is not None or name in _WITHOUT_ROLLOUT:
            answer = await check(checked)
    except BaseException as error:  # noqa: BLE001  # an exception is the answer of the check
        answer = _failure_of(error)
    checked.report.add({name: answer})


def _failure_of(error: BaseException) -> Answer:
    """Return the answer for an exception; re-raise ^C and cancellations of the command."""
    task = asyncio.current_task()
    is_cancelled = isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0
    if isinstance(error, KeyboardInterrupt) or is_cancelled:
        raise error
    error = unwrap_user_error(error)
    return "fail", str(error) if isinstance(error, RunError) else reason_of(error)
