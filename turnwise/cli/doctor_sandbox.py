"""`turnwise doctor sandbox`: runs the conformance suite, lists sandboxes, removes orphans."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import click
import orjson

from tools.errors import ConfigError, IsolationError, UsageError
from tools.plain_text import did_you_mean
from tools.sandbox import (
    INVENTORIES,
    SandboxEntry,
    SandboxLimits,
    find_backend,
    list_sandboxes,
    prepare_sandboxes,
    reap_sandboxes,
)
from tools.sandbox.check import Target, all_checks, run_checks
from tools.sandbox.conformance.checks import Check

_OPENS_WITHIN_S = 60
_COLOURS: Mapping[str, str] = {"ok": "green", "failed": "red", "skipped": "yellow"}


@click.command("sandbox")
@click.argument("backend", required=False)
@click.option("--list", "lists", is_flag=True, help="List the sandboxes on this machine, and check nothing.")
@click.option("--reap", "reaps", is_flag=True, help="Remove sandboxes whose owner is provably dead.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per check, or sandbox of --list.")
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
def command(
    backend: str | None,
    *,
    only: tuple[str, ...],
    crowd: int,
    network: Literal["none", "full"],
    **options: Any,
) -> int:
    """Run the conformance suite on BACKEND: local [default], docker or one that a package registers.

    One line per check: ok, failed with the reason, or skipped with what is missing. The exit code is 1 when
    one failed, and 2 when no sandbox can be opened with these options. --list and --reap are about the
    sandboxes of BACKEND, or of all.
    """
    lists, reaps, as_json = (options.pop(name) for name in ("lists", "reaps", "as_json"))
    if lists or reaps:
        entries = asyncio.run(_query(reap_sandboxes if reaps else list_sandboxes, backend))
        _show_entries(entries, removed=reaps, as_json=as_json)
        return 0
    backend = backend or "local"
    find_backend(backend)
    given = {name: value for name, value in options.items() if value is not None}
    target = Target(backend=backend, options=given, limits=SandboxLimits(network=network))
    checks = all_checks()
    names = [each.name for each in checks]
    for name in only:
        if name not in names:
            meant = did_you_mean(name, names)
            raise ConfigError(f"no check {name!r}{meant}; `turnwise doctor sandbox` runs and names all")
    checks = [each for each in checks if not only or each.name in only]
    return asyncio.run(_check(target, checks, crowd, as_json))


def _show_entries(entries: Sequence[SandboxEntry], *, removed: bool, as_json: bool) -> None:
    if as_json:
        for entry in entries:
            click.echo(orjson.dumps(entry).decode())
        return
    for entry in entries:
        owner = "unknown" if entry.owner is None else f"process {entry.owner}"
        state = "removed " if removed else f"{entry.state:<9}{owner:<17}"
        click.echo(f"{entry.backend:<8}{state}{entry.name}")
    orphans = sum(entry.state == "orphan" for entry in entries)
    total = "orphans removed" if removed else f"sandboxes, {orphans} of them orphans"
    click.echo(f"{len(entries)} {total}")


async def _check(target: Target, checks: Sequence[Check], crowd: int, as_json: bool) -> int:
    counts = Counter[str]()
    image: str | None = target.options.get("image")
    await prepare_sandboxes(target.backend, image=image, progress=partial(click.echo, err=True))
    try:
        async with asyncio.timeout(_OPENS_WITHIN_S), target.open():
            pass
    except UsageError:  # the options permit no sandbox, so that every check would fail
        raise
    except Exception:  # noqa: BLE001, S110  # the checks report it
        pass
    async for result in run_checks(target, checks, crowd=crowd):
        counts[result.status] += 1
        if as_json:
            click.echo(orjson.dumps(result).decode())
            continue
        word = click.style(f"{result.status:<8}", fg=_COLOURS[result.status])
        reason = f": {' '.join(result.reason.split())}" if result.reason else ""
        click.echo(f"{word}{result.number:>3} {result.name}{reason}")
    total = f"{target.backend}: {counts['ok']} ok, {counts['failed']} failed, {counts['skipped']} skipped"
    # With --json, stdout has one check per line.
    click.echo(f"{total}, of {len(checks)} checks", err=as_json)
    return 1 if counts["failed"] else 0


async def _query(
    question: Callable[[str], Awaitable[Sequence[SandboxEntry]]], backend: str | None
) -> list[SandboxEntry]:
    if backend is not None:
        if backend not in INVENTORIES:
            raise ConfigError(f"no list of {backend!r} sandboxes; choose from {sorted(INVENTORIES)}")
        return list(await question(backend))
    answers: list[SandboxEntry] = []
    for each in INVENTORIES:
        try:
            answers += await question(each)
        except IsolationError as error:
            click.echo(f"{each}: {error}", err=True)
    return answers
