"""The conformance suite for sandbox backends, ours and users', with stable check names.

Run it with `turnwise doctor sandbox NAME`, or with `run_check` in pytest.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from tools.errors import IsolationError
from tools.sandbox.conformance import commands, file_safety, floor, isolation, lifecycle, limits, verification
from tools.sandbox.conformance.checks import (
    CHECKS,
    LACKING,
    Bench,
    Check,
    CheckFailedError,
    MissingError,
    Target,
)

__all__ = ["TOPICS", "Bench", "Check", "CheckResult", "Target", "all_checks", "run_check", "run_checks"]

TOPICS = (floor, commands, limits, isolation, file_safety, lifecycle, verification)
"""Modules that declare checks when imported, in order of their numbers."""
_WITHIN_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    number: int
    name: str
    claim: str
    status: Literal["ok", "failed", "skipped"]
    reason: str = ""
    """Reason for a failed or skipped check, or for a skipped part of it."""


def all_checks() -> list[Check]:
    return sorted(CHECKS.values(), key=lambda check: check.number)


async def run_checks(
    target: Target, checks: Iterable[Check], *, crowd: int = 64
) -> AsyncGenerator[CheckResult]:
    """Run checks one by one, each in its own sandbox, and yield results."""
    for check in checks:
        yield await run_check(target, check, crowd=crowd)


async def run_check(target: Target, check: Check, *, crowd: int = 64) -> CheckResult:
    """Run one check.

    It is skipped if a limit it needs cannot be enforced, the sandbox's `lacks` contains its subject, or a
    program is missing. Some checks open `crowd` sandboxes.
    """
    result = partial(CheckResult, number=check.number, name=check.name, claim=check.claim)
    if check.run is None:
        return result(status="skipped", reason=check.missing or "")
    try:
        async with asyncio.timeout(_WITHIN_S), target.open(**check.limits) as sandbox:
            lacking = [name for name in check.needs if name not in sandbox.record.enforced]
            if lacking:
                return result(status="skipped", reason=f"{', '.join(lacking)} cannot be enforced here")
            if lacks := [name for name in check.gives if name in sandbox.record.lacks]:
                return result(status="skipped", reason=_in_words(lacks))
            bench = Bench(target=target, sandbox=sandbox, crowd=crowd)
            await check.run(bench)
    except MissingError as error:
        return result(status="skipped", reason=str(error))
    except IsolationError as error:
        return result(status="skipped" if check.needs else "failed", reason=str(error))
    except TimeoutError:
        return result(status="failed", reason=f"it did not end within {_WITHIN_S:.0f} s")
    except CheckFailedError as error:
        return result(status="failed", reason=str(error))
    except Exception as error:  # noqa: BLE001  # a check that breaks is a check that fails; the others go on
        return result(status="failed", reason=f"{type(error).__name__}: {error}")
    reason = f"a part is passed over: {_in_words(bench.passed_over)}" if bench.passed_over else ""
    return result(status="ok", reason=reason)


def _in_words(lacks: Iterable[str]) -> str:
    return "; ".join(LACKING.get(name, name) for name in dict.fromkeys(lacks))
