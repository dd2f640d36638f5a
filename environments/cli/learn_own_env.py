"""`turnwise learn ENV`: what is learnable in an environment, what is gamed, which estimator suits."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from environments.cli.env_command import EnvCall
from environments.lab.learning.learn_env import LearnEnv
from environments.lab.learning.trial_plan import Asked
from environments.record.run_folder import RunFolder, run_folder
from environments.run.stop_signals import until_stopped
from environments.run.whole_run import run_whole
from environments.viewer.learning_values import LearnedChange, LearnedEstimator, LearningValues

_DEFAULTS: Mapping[str, Any] = {"group_size": 4, "scripted_skill": 0.5}
"""Unless they are given: at skill 0 or 1 some scripts offer only what is wrong, or right."""
_STYLES = {True: "green", False: "red", None: ""}
_ARROWS = {"up": " ▲", "down": " ▼", "unclear": ""}
_PIPED_WIDTH = 160


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOptions:
    """What the command was asked for."""

    estimators: tuple[str, ...]
    asked: Asked
    learning_rate: float
    out: Path | None
    as_json: bool


def learn_own_env(call: EnvCall, options: TrialOptions) -> int:
    """Try estimators on an environment, and show what came of it; the exit code.

    Raises:
        UsageError: there is nothing to choose, or the time is too short.
    """
    given = {*call.flags.env, *(call.file.env if call.file else ())}
    flags = {name: value for name, value in _DEFAULTS.items() if name not in given}
    settings = call.settings({**flags, "fresh": True})
    env = call.env_of(settings.env, [*settings.servers, *settings.second])
    folder = RunFolder(options.out) if options.out else run_folder(env.name, "learn")
    learning = LearnEnv(
        estimators=options.estimators,
        asked=options.asked,
        learning_rate=options.learning_rate,
        folder=folder,
        sources=call.sources(),
    )
    console = Console(stderr=True, highlight=False)
    values, code = run_whole(until_stopped(learning.run(env, console)))
    if values is None:
        console.print(Text(f"stopped; what was rolled out is in {folder.path}"), soft_wrap=True)
        return code
    shown = Console(stderr=options.as_json, highlight=False)
    if not shown.is_terminal:
        shown.width = max(shown.width, _PIPED_WIDTH)
    show_learning(shown, values)
    shown.print(Text(str(learning.page), style="bold"), soft_wrap=True)
    if options.as_json:
        click.echo(json.dumps({**values, "page": str(learning.page)}, ensure_ascii=False))
    return 0


def show_learning(console: Console, values: LearningValues) -> None:
    """Verdicts, then the numbers at start and end."""
    found = Table(box=None, pad_edge=False, show_header=False)
    for _ in range(2):
        found.add_column(overflow="fold")
    for verdict in values["verdicts"]:
        found.add_row(
            Text(verdict["about"], style="bold"), Text(verdict["text"], style=_STYLES[verdict["good"]])
        )
    console.print(found)
    tried = [each for each in values["estimators"] if each["refused"] is None]
    if not tried:
        return
    console.print()
    console.print(_numbers(tried))
    console.print(Text("▲ ▼ more than noise, on every seed", style="dim"))


def _numbers(tried: list[LearnedEstimator]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("a rollout")
    for title in ("start", *(each["name"] for each in tried), "scripted, skill 1"):
        table.add_column(title, justify="right")
    first = {change["name"]: change for each in tried for change in reversed(each["changes"])}
    for name in dict.fromkeys(change["name"] for each in tried for change in each["changes"]):
        changed = [next((c for c in each["changes"] if c["name"] == name), None) for each in tried]
        if any(change and (change["start"] or change["end"] or change["reference"]) for change in changed):
            table.add_row(
                Text(name),
                f"{first[name]['start']:.3f}",
                *(_end(change) for change in changed),
                "-" if first[name]["reference"] is None else f"{first[name]['reference']:.3f}",
            )
    return table


def _end(change: LearnedChange | None) -> str:
    return "-" if change is None else f"{change['end']:.3f}{_ARROWS[change['direction']]:2}"
