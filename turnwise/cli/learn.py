"""`turnwise learn`: what a small policy learns in a minute, with turn and scalar credit, or in your ENV."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, cast, get_args

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from environments.base_env import AgentEnv
from environments.config import AgentEnvConfig
from environments.policy.base import Policy
from environments.record.run_folder import run_folder
from environments.run.worker_pool import run_whole, until_stopped
from environments.shipped.stations.env import StationsConfig, StationsEnv, Task
from tools.errors import ConfigError
from turnwise.cli.settings import EnvCall, EnvCommand
from turnwise.lab.learning.arms import (
    RESULT,
    SCALAR,
    TURN,
    Arm,
    LearnedArms,
    compare_arms,
    opened_folder,
)
from turnwise.lab.learning.curve_plot import curve_plot
from turnwise.lab.learning.reward_lint import PAGE, REFERENCE, Asked, lint_rewards
from turnwise.lab.learning.stations_arms import findings, stations_arms, stations_setup
from turnwise.viewer.learning_values import LearnedChange, LearningValues

_OWN_SETTINGS = frozenset({
    "estimator", "estimator_params", "estimator_preset", "max_items", "total_steps",
    "data_path_to_save_groups",
})  # fmt: skip
"""What the command sets itself."""
_SEEDS, _STEPS = 5, 120
_SECONDS, _LEARNING_RATE = 60.0, 0.6
_TITLES = ("arm", "credit", "Adam", "steps of each seed", "median", "range", "success")
_NARROW = 70
"""Columns of a terminal below which the table has arms, medians and ranges alone."""
_DEFAULTS: Mapping[str, Any] = {"group_size": 4, "scripted_skill": 0.5}
"""Of an ENV, unless they are given: at skill 0 or 1 some scripts offer only what is wrong, or right."""
_STYLES = {True: "green", False: "red", None: ""}
_ARROWS = {"up": " ▲", "down": " ▼", "unclear": ""}
_PIPED_WIDTH = 160
PLOT = "plot.svg"


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnOptions:
    """What the command was asked for."""

    task: Task | None
    seeds: int | None
    steps: int | None
    seconds: float | None
    lr: float | None
    estimator: tuple[str, ...]
    out: Path | None
    as_json: bool


@click.command("learn", cls=EnvCommand, default_env="stations")
@click.option(
    "--task", type=click.Choice(get_args(Task)), help="Of stations: what is paid, and when.  [stop]"
)
@click.option("--seeds", type=click.IntRange(1, 1000), help="Runs of each arm.  [5; 3 of your own ENV]")
@click.option("--steps", type=click.IntRange(1, 5000), help="At most.  [120; 25 of your own ENV]")
@click.option("--seconds", type=click.FloatRange(1), help="Of your own ENV: no longer than this.  [60]")
@click.option("--lr", type=click.FloatRange(1e-6, 1e3), help="Of your own ENV: Adam's.  [0.6]")
@click.option(
    "--estimator",
    multiple=True,
    metavar="NAME[:PARAMETER=VALUE,…]",
    help="Of stations: one more arm, such as turn_return:gamma=0.5.",
)
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Instead of runs/ENV/learn.")
@click.option("--json", "as_json", is_flag=True, help="The result as one line on stdout, all else on stderr.")
def command(call: EnvCall, **given: Any) -> int:
    """Let a small policy learn, and compare turn credit with scalar credit.

    Without ENV it learns the game `stations`, in which one key is right at each sign. Arms: turn_return;
    scalar, which is rloo; and a control, whose advantages change places within a step, so that it can learn
    nothing. Counted are the steps, of 2 groups of 4 rollouts, until eight right keys in a row have the
    probability 0.8. The folder has a record of each run (ARM/seed-N), the curves, result.json and plot.svg;
    a former one is put aside.

    With ENV, your own, the policy chooses among the messages of its scripted agent, with a table over its
    states (state_key), and learns by its estimator (--env.estimator). It says whether the rewards are
    learnable, and which turn rewards are gamed. Beside the records stands learning.html, a page of it.
    """
    options = LearnOptions(**given)
    is_game = call.env_cls is StationsEnv
    others = ("seconds", "lr") if is_game else ("task", "estimator")
    for name in others:
        if getattr(options, name):
            whose = "an ENV of your own" if is_game else "the game that `turnwise learn` plays without ENV"
            raise ConfigError(f"--{name.replace('_', '-')} is of {whose}, not of {call.env_cls.name}")
    return _learn_stations(call, options) if is_game else _learn_env(call, options)


def _learn_stations(call: EnvCall, options: LearnOptions) -> int:
    for name in _OWN_SETTINGS & {name for layer in call.layers for name in layer.of("env")}:
        raise ConfigError(f"`turnwise learn` sets --env.{name} itself; see turnwise learn --help")
    if any("openai" in layer.sections for layer in call.layers):
        raise ConfigError("`turnwise learn` has a policy of its own, and asks no model server")
    if options.task is not None and "task" in call.flags.of("env"):
        raise ConfigError("--task and --env.task say the same; give one of them")
    config = cast(StationsConfig, call.settings({"task": options.task}).env)
    setup = stations_setup(config, cap=options.steps or _STEPS)
    arms = stations_arms(config.task, estimators=options.estimator)
    seeds = range(config.seed, config.seed + (options.seeds or _SEEDS))
    folder = options.out or run_folder(StationsEnv.name, "learn").path
    console = Console(stderr=options.as_json, highlight=False)

    def say(line: str) -> None:
        console.print(Text(line), soft_wrap=True)

    async def learned_arms() -> LearnedArms:
        with opened_folder(folder, say) as opened:
            learned = await compare_arms(setup, arms, seeds, folder=opened, say=say)
            opened.write(RESULT, json.dumps(learned.values(), indent=2) + "\n")
            title = f"stations, {config.task}: table policy, {len(seeds)} seeds and their median"
            opened.write(PLOT, _plot(learned, title, setup.target))
        return learned

    learned, code = run_whole(until_stopped(learned_arms()))
    if learned is None:
        say(f"stopped; what was rolled out is in {folder}")
        return code
    console.print(_steps_table(learned, is_narrow=console.width < _NARROW))
    ratio = "none" if learned.ratio is None else f"{learned.ratio:.2f}"
    say(f"ratio {TURN}/{SCALAR}: {ratio} · - : not within {setup.cap} steps")
    for sentence in findings(learned, config.task):
        say(sentence)
    say(f"{folder}: {PLOT}, {RESULT}, and the record of each run, ARM/seed-N")
    if options.as_json:
        click.echo(json.dumps(learned.values()))
    return 0


def _credit(arm: Arm) -> str:
    return f"{arm.estimator}{', permuted' if arm.permuted else ''}"


def _plot(learned: LearnedArms, title: str, target: float) -> str:
    curves: dict[str, list[list[float]]] = {}
    legend: dict[str, str] = {}
    for arm in learned.arms:
        ended, middle = learned.ended[arm.name], learned.median(arm.name)
        curves[arm.name] = [[step.success or 0.0 for step in each.curve] for each in ended]
        arrived = sum(each.steps is not None for each in ended)
        took = "" if middle is None else f", median {middle:g} steps"
        legend[arm.name] = (
            f"{_credit(arm)}, Adam {arm.learning_rate:g}; {arrived} of {len(ended)} seeds arrived{took}"
        )
    return curve_plot(curves, legend, title=title, value="success, exact", target=target)


def _steps_table(learned: LearnedArms, *, is_narrow: bool) -> Table:
    table = Table(box=None, pad_edge=False)
    shown = (0, 4, 5) if is_narrow else range(len(_TITLES))
    for title in (_TITLES[index] for index in shown):
        table.add_column(title, justify="left" if title in _TITLES[:2] else "right", no_wrap=title == "arm")
    for arm in learned.arms:
        steps = learned.steps(arm.name)
        known = [each for each in steps if each is not None]
        last = [each.curve[-1].success or 0.0 for each in learned.ended[arm.name]]
        cells = (
            arm.name,
            _credit(arm),
            f"{arm.learning_rate:g}",
            " ".join(map(_shown, steps)),
            _shown(learned.median(arm.name)),
            f"{min(known)} to {'-' if None in steps else max(known)}" if known else "-",
            f"{median(last):.2f}",
        )
        table.add_row(*(cells[index] for index in shown))
    return table


def _shown(steps: float | None) -> str:
    return "-" if steps is None else f"{steps:g}"


def _learn_env(call: EnvCall, options: LearnOptions) -> int:
    given = {name for layer in call.layers for name in layer.of("env")}
    flags = {name: value for name, value in _DEFAULTS.items() if name not in given}
    settings = call.settings(flags)
    folder = options.out or run_folder(call.env_cls.name, "learn").path
    console = Console(stderr=True, highlight=False)

    def make_env(config: AgentEnvConfig, *, policy: Policy) -> AgentEnv:
        return call.env_of(config, [*settings.servers, *settings.second], policy=policy)

    def say(line: str) -> None:
        console.print(Text(line), soft_wrap=True)

    asked = Asked(seconds=options.seconds or _SECONDS, seeds=options.seeds, steps=options.steps)
    rate = options.lr or _LEARNING_RATE
    learning = lint_rewards(make_env, settings.env, asked=asked, learning_rate=rate, folder=folder, say=say)
    values, code = run_whole(until_stopped(learning))
    if values is None:
        say(f"stopped; what was rolled out is in {folder}")
        return code
    shown = Console(stderr=options.as_json, highlight=False)
    if not shown.is_terminal:
        shown.width = max(shown.width, _PIPED_WIDTH)
    show_learning(shown, values)
    shown.print(Text(str(folder / PAGE), style="bold"), soft_wrap=True)
    if options.as_json:
        click.echo(json.dumps({**values, "page": str(folder / PAGE)}, ensure_ascii=False))
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
    console.print()
    table = Table(box=None, pad_edge=False)
    table.add_column("a rollout")
    for title in ("start", "end", REFERENCE):
        table.add_column(title, justify="right")
    for change in values["changes"]:
        if change["start"] or change["end"] or change["reference"]:
            table.add_row(Text(change["name"]), f"{change['start']:.3f}", _end(change), _reference(change))
    console.print(table)
    console.print(Text("▲ ▼ more than noise, on every seed", style="dim"))


def _end(change: LearnedChange) -> str:
    return f"{change['end']:.3f}{_ARROWS[change['direction']]:2}"


def _reference(change: LearnedChange) -> str:
    return "-" if change["reference"] is None else f"{change['reference']:.3f}"
