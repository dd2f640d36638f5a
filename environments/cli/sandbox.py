"""`turnwise sandbox`: prove a backend with the conformance suite, see sandboxes and take away orphans."""

import asyncio
import difflib
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Literal

import click
import orjson

from tools.errors import ConfigError, IsolationError, UsageError
from tools.sandbox import SandboxLimits, find_backend, prepare_sandboxes
from tools.sandbox.check import CheckResult, Target, all_checks, run_checks
from tools.sandbox.conformance.checks import Check
from tools.sandbox.inventory import INVENTORIES, SandboxEntry, list_sandboxes, reap_sandboxes

_OPENS_WITHIN_S = 60
_COLOURS: Mapping[str, str] = {"ok": "green", "failed": "red", "skipped": "yellow"}


@click.group("sandbox", no_args_is_help=True)
def command() -> None:
    """Sandboxes: prove a backend, list what is there, remove what dead programs left."""


@command.command("check")
@click.argument("backend", default="local")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per check.")
@click.option(
    "--only", metavar="NAME", multiple=True, help="Run only this check; may be given several times."
)
@click.option(
    "--tier",
    type=click.Choice(["B", "C"]),
    help="local: the tier to check; unset: the one that is chosen here.",
)
@click.option("--image", help="docker: the image to check; unset: the backend's own.")
@click.option(
    "--network",
    type=click.Choice(["none", "full"]),
    default="none",
    help="What the sandboxes get; tier C cannot do without.",
)
@click.option(
    "--crowd",
    type=click.IntRange(1),
    default=64,
    show_default=True,
    help="Sandboxes that checks open at once.",
)
def check(
    backend: str,
    as_json: bool,
    only: tuple[str, ...],
    crowd: int,
    network: Literal["none", "full"],
    **options: str | None,
) -> int:
    """Run the conformance suite on BACKEND: local, docker or one that a package registers.

    One line per check: ok, failed with the reason, or skipped with what is missing. The exit code is 1 when
    one failed, and 2 when no sandbox can be opened with these options.
    """
    find_backend(backend)
    given = {name: value for name, value in options.items() if value is not None}
    target = Target(backend=backend, options=given, limits=SandboxLimits(network=network))
    checks = _chosen(only)
    return asyncio.run(_check(target, checks, crowd, as_json))


@command.command("list")
@click.argument("backends", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per sandbox.")
def list_command(backends: tuple[str, ...], as_json: bool) -> None:
    """Show the sandboxes on this machine and whose they are; of BACKENDS or of all."""
    entries = asyncio.run(_ask(list_sandboxes, backends))
    if as_json:
        for entry in entries:
            click.echo(orjson.dumps(entry).decode())
        return
    for entry in entries:
        owner = "unknown" if entry.owner is None else f"process {entry.owner}"
        click.echo(f"{entry.backend:<8}{entry.state:<9}{owner:<17}{entry.name}")
    orphans = sum(entry.state == "orphan" for entry in entries)
    click.echo(f"{len(entries)} sandboxes, {orphans} of them orphans")


@command.command("reap")
@click.argument("backends", nargs=-1)
def reap_command(backends: tuple[str, ...]) -> None:
    """Remove sandboxes whose owner is provably dead; of BACKENDS or of all."""
    removed = asyncio.run(_ask(reap_sandboxes, backends))
    for entry in removed:
        click.echo(f"{entry.backend:<8}removed {entry.name}")
    click.echo(f"{len(removed)} orphans removed")


def _chosen(only: Sequence[str]) -> list[Check]:
    checks = all_checks()
    names = [each.name for each in checks]
    for name in only:
        if name not in names:
            close = difflib.get_close_matches(name, names, n=1)
            meant = f"; did you mean {close[0]!r}?" if close else ""
            raise ConfigError(
                f"no check {name!r}{meant}; `turnwise sandbox check` runs and names all of them"
            )
    return [each for each in checks if not only or each.name in only]


async def _refuse_what_never_opens(target: Target) -> None:
    """One line about options that no sandbox can be opened with, instead of one per check."""
    try:
        async with asyncio.timeout(_OPENS_WITHIN_S), target.open():
            pass
    except UsageError:
        raise
    except Exception:  # noqa: BLE001  # what a backend cannot do is for the checks to tell
        return


async def _check(target: Target, checks: Sequence[Check], crowd: int, as_json: bool) -> int:
    counts = Counter[str]()
    image: str | None = target.options.get("image")
    await prepare_sandboxes(target.backend, image=image, progress=partial(click.echo, err=True))
    await _refuse_what_never_opens(target)
    async for result in run_checks(target, checks, crowd=crowd):
        counts[result.status] += 1
        _print(result, as_json)
    total = f"{target.backend}: {counts['ok']} ok, {counts['failed']} failed, {counts['skipped']} skipped"
    # With --json every line of the output is one check.
    click.echo(f"{total}, of {len(checks)} checks", err=as_json)
    return 1 if counts["failed"] else 0


def _print(result: CheckResult, as_json: bool) -> None:
    if as_json:
        click.echo(orjson.dumps(result).decode())
        return
    word = click.style(f"{result.status:<8}", fg=_COLOURS[result.status])
    reason = f": {' '.join(result.reason.split())}" if result.reason else ""
    click.echo(f"{word}{result.number:>3} {result.name}{reason}")


async def _ask(
    question: Callable[[str], Awaitable[Sequence[SandboxEntry]]], backends: Sequence[str]
) -> list[SandboxEntry]:
    """The answers of the backends given; without any, of those that answer."""
    for backend in backends:
        if backend not in INVENTORIES:
            raise ConfigError(f"no list of {backend!r} sandboxes; choose from {sorted(INVENTORIES)}")
    answers: list[SandboxEntry] = []
    for backend in backends or INVENTORIES:
        try:
            answers += await question(backend)
        except IsolationError as error:
            if backends:
                raise
            click.echo(f"{backend}: {error}", err=True)
    return answers
