"""The options of commands that may have their groups rolled out by workers."""

import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from environments.run.open_run import OpenSource, in_this_process
from tools.errors import ConfigError

_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
Command = TypeVar("Command", bound=Callable[..., Any])


def worker_options(command: Command) -> Command:
    """Give a command the options, as its argument `open_source`."""
    for option in (
        click.option(
            "--worker-memory", metavar="SIZE", help="Memory that one worker may have, such as 4GiB."
        ),
        click.option(
            "--worker-env", multiple=True, metavar="NAME", help="A variable that workers of --ray get."
        ),
        click.option(
            "--ray", metavar="HOST:PORT", help="Workers on this Ray cluster; auto: on that of here."
        ),
        click.option("--workers", type=int, metavar="N", help="Roll out in N worker processes, on Ray."),
    ):
        command = option(command)
    return command


def source_of(
    *, workers: int | None, ray: str | None, worker_env: Sequence[str], worker_memory: str | None
) -> OpenSource:
    """What rolls out the groups.

    Raises ConfigError if one of the options makes no sense.
    """
    if workers is None and ray is None:
        for given, flag in ((worker_env, "--worker-env"), (worker_memory, "--worker-memory")):
            if given:
                raise ConfigError(f"{flag} is for workers: give --workers N, or --ray")
        return in_this_process
    # Only this needs it.
    from environments.run.workers.workers import OnWorkers  # noqa: PLC0415

    split = [name for each in worker_env for name in each.split(",") if name]
    return OnWorkers(count=workers, ray=ray, variables=split, max_memory=_bytes(worker_memory)).open


def _bytes(text: str | None) -> int | None:
    if text is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?) *([kmgt]?)(?:i?b)?", text.strip().lower())
    if found is None or not (size := int(float(found[1]) * _UNITS[found[2]])):
        raise ConfigError(f"--worker-memory {text!r:.40}: give a size such as 4GiB or 512MB")
    return size
