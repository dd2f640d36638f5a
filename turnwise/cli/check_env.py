"""`turnwise check`: tests an environment without a model, and prints one table."""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from environments.run.worker_pool import run_whole
from turnwise.check.check_run import NAMES, run_checks
from turnwise.check.checked_env import CheckedEnv
from turnwise.check.report import PARTS, Report, Result, part_lines, run_supervised
from turnwise.cli.env_command import EnvCall, EnvCommand, with_variables

_STYLES: dict[Result, str] = {"ok": "green", "warn": "yellow", "fail": "red", "skipped": "dim"}
_ARGS = "turnwise.check.args"
_PIPED_WIDTH = 160
FAILED = 1


class CheckCommand(EnvCommand):
    """Runs the checks in a child process, so that no code of an environment can suppress the table."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_ARGS] = list(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        options = ctx.params
        if options.get("help") or options["report"] is not None:
            return super().invoke(ctx)
        # -P: the current folder is last on Python's path, where it hides none of our packages.
        program = ["-P", "-m", "turnwise"] if ctx.obj is None else [sys.argv[0]]
        command = [sys.executable, *program, "check", *ctx.meta[_ARGS]]
        with Console(stderr=True).status("checking"):
            report = run_supervised(command, NAMES, limit_s=options["limit"])
        if isinstance(report, int):
            return report
        if options["as_json"]:
            checks = [{"check": name, "result": report[name][0], "found": report[name][1]} for name in NAMES]
            shown = {part: report[f"shown {part}"] for part in PARTS if f"shown {part}" in report}
            click.echo(json.dumps({"checks": checks, **shown}, indent=2, ensure_ascii=False))
        else:
            _show(report)
        return FAILED if any(report[name][0] == "fail" for name in NAMES) else 0


@click.command("check", cls=CheckCommand)
@click.option(
    "--items", type=click.IntRange(1, 1000), default=3, show_default=True, help="How many items are played."
)
@click.option(
    "--limit", type=click.FloatRange(1), default=300, show_default=True, help="Seconds for all of it."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON: all that was found, and what is shown.")
@click.option("--report", type=click.Path(path_type=Path), hidden=True)
def command(call: EnvCall, items: int, report: Path, **_: Any) -> int:
    """Find out whether an environment is right, without a model; ENV as for `turnwise process`.

    Its scripted agent plays some items at several skills. Shown are prompt, tools, hooks and one rollout, and
    one row for each check. Exits with 0 when none failed, with 1 when one did.
    """
    settings = call.settings({})
    checked = CheckedEnv(
        env_cls=call.env_cls,
        config=settings.env,
        servers=with_variables(settings.second),
        items=items,
        report=Report(report),
    )
    run_whole(run_checks(checked))
    sys.stdout.flush()
    os._exit(0)  # threads of the environment may still run


def _show(report: Mapping[str, Any]) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, _PIPED_WIDTH)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(Text("check", style="underline"), no_wrap=True)
    table.add_column(Text("", style="underline"), no_wrap=True)
    table.add_column(Text("what was found", style="underline"), overflow="fold")
    for name in NAMES:
        result, found = report[name]
        table.add_row(name, Text(result, style=_STYLES[result]), Text(found))
    with console.capture() as shown:  # rich ends the process when its output is closed
        console.print(table)
    click.echo("\n".join(part_lines(report, console.width)))
    click.echo("\n".join(line.rstrip() for line in shown.get().splitlines()))
