"""`turnwise check`: tests an environment without a model, and prints one table."""

import ast
import inspect
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from itertools import takewhile
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from rich.console import Console
from rich.table import Table
from rich.text import Text

from environments.base_env import AgentEnv
from environments.run.worker_pool import run_whole
from tools.errors import ConfigError
from tools.extras import OWN_FOLDERS
from tools.plain_text import printable
from turnwise.check.check_run import NAMES, NOT_OPEN, run_checks
from turnwise.check.checked_env import CheckedEnv
from turnwise.check.report import PARTS, Answer, Report, Result, part_lines, run_supervised
from turnwise.check.solutions import check_solutions
from turnwise.cli.env_command import EnvCall, EnvCommand, with_variables

_STYLES: dict[Result, str] = {"ok": "green", "warn": "yellow", "fail": "red", "skipped": "dim"}
_ARGS = "turnwise.check.args"
_PIPED_WIDTH = 160
_FAILED = 1
_ITEMS = 3
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class CheckCommand(EnvCommand):
    """Runs the checks in a child process, so that no code of an environment can suppress the table."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_ARGS] = list(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        options = ctx.params
        if self.is_help(ctx) or options["report"] is not None:
            return super().invoke(ctx)
        # -P: the current folder is last on Python's path, where it hides none of our packages.
        program = ["-P", "-m", "turnwise"] if ctx.obj is None else [sys.argv[0]]
        command = [sys.executable, *program, "check", *ctx.meta[_ARGS]]
        with Console(stderr=True).status("checking"):
            report = run_supervised(command, NAMES, limit_s=options["limit"])
        if isinstance(report, int):
            return report
        if report.get("solves"):
            for name in ("limit", "write"):
                if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
                    raise ConfigError(
                        f"--{name} is for the checks of the environment itself, which --items N asks for; "
                        "here each item's solution is played"
                    )
            return super().invoke(ctx)
        if options["as_json"]:
            checks = [{"check": name, "result": report[name][0], "found": report[name][1]} for name in NAMES]
            shown = {part: report[f"shown {part}"] for part in PARTS if f"shown {part}" in report}
            click.echo(json.dumps({"checks": checks, **shown}, indent=2, ensure_ascii=False))
        else:
            _show(report)
        return _FAILED if any(report[name][0] == "fail" for name in NAMES) else 0


@click.command("check", cls=CheckCommand)
@click.option(
    "--items",
    type=click.IntRange(1, 1000),
    help="How many items are played. [default: 3; where items bring solutions, those of all]",
)
@click.option(
    "--limit", type=click.FloatRange(1), default=300, show_default=True, help="Seconds for all of it."
)
@click.option("--write", is_flag=True, help="Write the failed_score that is proposed into the class.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: all that was found, and what is shown.")
@click.option("--report", type=click.Path(path_type=Path), hidden=True)
def command(
    call: EnvCall, items: int | None, report: Path | None, as_json: bool, write: bool, **_: Any
) -> int:
    """Find out whether an environment is right, without a model; ENV as for `turnwise process`.

    Its scripted agent plays some items at several skills. Shown are prompt, tools, hooks and one rollout, and
    one row for each check. Exits with 0 when none failed, with 1 when one did.

    Where items bring solutions (`harbor_tasks`), these and an agent that does nothing are played instead, one
    row an item; the same command resumes. --items N checks the environment itself.
    """
    if report is None:
        return _check_items(call, as_json=as_json)
    settings = call.settings({})
    if items is None and call.env_cls.scripted_solves and call.env_cls.agent is None:
        Report(report).add({"check": None, "solves": True})
        return 0
    checked = CheckedEnv(
        env_cls=call.env_cls,
        config=settings.env.with_variables(os.environ),
        servers=with_variables(settings.second),
        items=items or _ITEMS,
        report=Report(report),
    )
    run_whole(run_checks(checked))
    if write and checked.proposed_floor is not None:
        checked.report.add({"failures": _write_floor(call.env_cls, checked.proposed_floor)})
    sys.stdout.flush()
    os._exit(0)  # threads of the environment may still run


def _write_floor(env_cls: type[AgentEnv], floor: float) -> Answer:
    """Add `failed_score = FLOOR` to the source of a class, below the attributes that open its body."""
    name = env_cls.__name__
    try:
        path, line = Path(inspect.getsourcefile(env_cls) or ""), inspect.getsourcelines(env_cls)[1]
        if path.as_posix().startswith(OWN_FOLDERS):
            return "warn", f"{name} is shipped: give it --env.failed_score {floor}"
        with path.open(encoding="utf-8", newline="") as file:
            lines = file.readlines()
        classes = (node for node in ast.walk(ast.parse("".join(lines))) if isinstance(node, ast.ClassDef))
        body = next(node.body for node in classes if _first_line(node) == line)
        opening = [*takewhile(lambda node: not isinstance(node, _DEFINITIONS), body)]
        first = last = (opening[-1].end_lineno or 0) if opening else _first_line(body[0]) - 1
        for node in body:
            if re.match(r"failed_score\b", ast.unparse(node)):
                first, last = node.lineno - 1, node.end_lineno
        line_end = lines[0][len(lines[0].rstrip("\r\n")) :]
        lines[first:last] = [f"{' ' * body[0].col_offset}failed_score = {floor}{line_end}"]
        ast.parse(text := "".join(lines))
        path.write_text(text, encoding="utf-8", newline="")
    except (OSError, TypeError, ValueError, SyntaxError, StopIteration) as error:
        why = f"{type(error).__name__}: {error}"
        return "warn", f"failed_score = {floor} could not be written into the source of {name} ({why})"
    return "ok", f"failed_score = {floor} now stands in {name}, {path.name}:{first + 1}"


def _first_line(node: ast.stmt) -> int:
    return min(each.lineno for each in (node, *getattr(node, "decorator_list", ())))


def _check_items(call: EnvCall, *, as_json: bool) -> int:
    def new_env(skill: float) -> AgentEnv:
        settings = call.settings({"scripted_skill": skill, "eval_rollouts": 1})
        return call.env_of(settings.env, settings.second)

    items, code = run_whole(check_solutions(new_env, Console(stderr=True)))
    counts = Counter(each.verdict for each in items)
    if as_json:
        found = {"items": [asdict(each) for each in items], "counts": counts}
        click.echo(json.dumps(found, indent=2, ensure_ascii=False))
    else:
        widest = max(len(each.item) for each in items)
        for each in items:
            click.echo(printable(f"{each.item:<{widest}}  {each.verdict:<10}  {each.reason}".rstrip()))
        click.echo("; ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    return code or (0 if counts.keys() == {"right"} else _FAILED)


def _show(report: Mapping[str, Any]) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, _PIPED_WIDTH)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(Text("check", style="underline"), no_wrap=True)
    table.add_column(Text("", style="underline"), no_wrap=True)
    table.add_column(Text("what was found", style="underline"), overflow="fold")
    shown = [name for name in NAMES if tuple(report[name]) != NOT_OPEN]
    for name in shown:
        result, found = report[name]
        table.add_row(name, Text(result, style=_STYLES[result]), Text(found))
    with console.capture() as printed:  # rich ends the process when its output is closed
        console.print(table)
    click.echo("\n".join(part_lines(report, console.width)))
    click.echo("\n".join(line.rstrip() for line in printed.get().splitlines()))
    if len(shown) < len(NAMES):
        click.echo(f"\n{len(NAMES) - len(shown)} more checks need an environment that opens")
