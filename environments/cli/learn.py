"""`turnwise learn`: a small policy learns in a minute, with turn credit and with scalar credit."""

import json
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, cast, get_args

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from environments.cli.env_command import EnvCall, EnvCommand
from environments.cli.learn_own_env import TrialOptions, learn_own_env
from environments.lab.learning.arm_pool import ArmWork, cores
from environments.lab.learning.compare_arms import Comparing, compare_arms
from environments.lab.learning.learned_arms import SCALAR, TURN, LearnedArms, findings
from environments.lab.learning.run_arm import NetworkKind
from environments.lab.learning.stations_arms import stations_arms, stations_setup
from environments.lab.learning.trial_plan import Asked
from environments.record.run_folder import run_folder
from environments.run.stop_signals import until_stopped
from environments.run.whole_run import run_whole
from environments.stations_env.env import StationsConfig, StationsEnv, Task
from tools.errors import ConfigError

_OWN_SETTINGS = frozenset({
    "estimator", "estimator_params", "estimator_preset", "max_items", "total_steps", "run_name", "fresh",
    "accept", "data_path_to_save_groups",
})  # fmt: skip
"""What the command sets itself."""
_SEEDS, _STEPS = 5, 120
_SECONDS, _LEARNING_RATE = 60.0, 0.6
_TITLES = ("arm", "credit", "Adam", "steps of each seed", "median", "range", "success")
_NARROW = 70
"""Columns of a terminal below which the table has arms, medians and ranges alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnOptions:
    """What the command was asked for."""

    task: Task | None
    seeds: int | None
    steps: int | None
    seconds: float | None
    lr: float | None
    same_lr: bool
    estimator: tuple[str, ...]
    policy: NetworkKind
    out: Path | None
    workers: int | None
    as_json: bool


@click.command("learn", cls=EnvCommand, default_env="stations")
@click.option(
    "--task", type=click.Choice(get_args(Task)), help="Of stations: what is paid, and when.  [stop]"
)
@click.option("--seeds", type=click.IntRange(1, 1000), help="Runs of each arm.  [5; 3 of your own ENV]")
@click.option("--steps", type=click.IntRange(1, 5000), help="At most.  [120; 25 of your own ENV]")
@click.option("--seconds", type=click.FloatRange(1), help="Of your own ENV: no longer than this.  [60]")
@click.option("--lr", type=click.FloatRange(1e-6, 1e3), help="Of your own ENV: Adam's, for all.  [0.6]")
@click.option("--same-lr", is_flag=True, help="One learning rate for all arms, not each its own.")
@click.option("--estimator", multiple=True, metavar="NAME", help="One more arm; may be given again.")
@click.option("--policy", type=click.Choice(get_args(NetworkKind)), default="table", show_default=True)
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Instead of runs/ENV/learn.")
@click.option("--workers", type=click.IntRange(1, 64), help="Processes; they change no result.  [one a core]")
@click.option("--json", "as_json", is_flag=True, help="The result as one line on stdout, all else on stderr.")
def command(call: EnvCall, **given: Any) -> int:
    """Let a small policy learn, and compare turn credit with scalar credit.

    Without ENV it learns the game `stations`, in which one key is right at each sign. Arms: turn_return;
    scalar, which is rloo; and a control, whose advantages change places within a step, so that it can learn
    nothing. Counted are the steps, of 2 groups of 4 rollouts, until eight right keys in a row have the
    probability 0.8. The folder has a record of each run (ARM/seed-N), the curves, result.json and plot.svg;
    a former one is put aside.

    With ENV, your own, the policy chooses among the messages of its scripted agent, with a table over its
    states (state_key). It says whether the rewards are learnable, which turn rewards are gamed, and which
    estimator suits: by itself it tries turn_return, rloo, gigpo and the environment's own. Beside the record
    stands learning.html, a page of all of it.
    """
    options = LearnOptions(**given)
    if call.env_cls is not StationsEnv:
        return learn_own_env(call, _of_own_env(call.env_cls.name, options))
    for name in ("seconds", "lr"):
        if getattr(options, name) is not None:
            raise ConfigError(f"--{name} is of an ENV of your own; the game has its own steps and rates")
    return _learn_stations(call, options)


def _of_own_env(env: str, options: LearnOptions) -> TrialOptions:
    """The options that any environment has; the others are of the game."""
    is_given = {
        "--task": options.task is not None,
        "--same-lr": options.same_lr,
        "--policy": options.policy != "table",
        "--workers": options.workers is not None,
    }
    for name, given in is_given.items():
        if given:
            raise ConfigError(f"{name} is of the game that `turnwise learn` plays without ENV, not of {env}")
    return TrialOptions(
        estimators=options.estimator,
        asked=Asked(seconds=options.seconds or _SECONDS, seeds=options.seeds, steps=options.steps),
        learning_rate=options.lr or _LEARNING_RATE,
        out=options.out,
        as_json=options.as_json,
    )


def _learn_stations(call: EnvCall, options: LearnOptions) -> int:
    for name in _OWN_SETTINGS & {*call.flags.env, *(call.file.env if call.file else ())}:
        raise ConfigError(f"`turnwise learn` sets --env.{name} itself; see turnwise learn --help")
    if call.flags.openai or (call.file and call.file.openai):
        raise ConfigError("`turnwise learn` has a policy of its own, and asks no model server")
    if options.task is not None and "task" in call.flags.env:
        raise ConfigError("--task and --env.task say the same; give one of them")
    config = cast(StationsConfig, call.settings({"task": options.task}).env)
    seeds = options.seeds or _SEEDS
    comparing = Comparing(
        work=ArmWork(setup=stations_setup(config, options.policy, cap=options.steps or _STEPS)),
        arms=stations_arms(
            config.task, options.policy, is_same_rate=options.same_lr, estimators=options.estimator
        ),
        seeds=range(config.seed, config.seed + seeds),
        title=f"stations, {config.task}: {options.policy} policy, {seeds} seeds and their median",
        workers=options.workers or cores(),
    )
    folder = options.out or run_folder(StationsEnv.name, "learn").path
    console = Console(stderr=options.as_json, highlight=False)
    learned, code = run_whole(until_stopped(compare_arms(comparing, folder, console)))
    if learned is None:
        console.print(Text(f"stopped; what was rolled out is in {folder}"), soft_wrap=True)
        return code
    _show(console, learned, config.task, options.policy)
    console.print(
        Text(f"{folder}: plot.svg, result.json, and the record of each run, ARM/seed-N"), soft_wrap=True
    )
    if options.as_json:
        click.echo(json.dumps(learned.values()))
    return 0


def _show(console: Console, learned: LearnedArms, task: Task, network: NetworkKind) -> None:
    table = Table(box=None, pad_edge=False)
    shown = (0, 4, 5) if console.width < _NARROW else range(len(_TITLES))
    for title in (_TITLES[index] for index in shown):
        table.add_column(title, justify="left" if title in _TITLES[:2] else "right", no_wrap=title == "arm")
    for arm in learned.arms:
        steps = learned.steps(arm.name)
        last = [each.curve[-1].success or 0.0 for each in learned.ended[arm.name]]
        cells = (
            arm.name,
            "permuted" if arm.permuted else arm.estimator,
            f"{arm.learning_rate:g}",
            " ".join(map(_shown, steps)),
            _shown(learned.median(arm.name)),
            _range(steps),
            f"{median(last):.2f}",
        )
        table.add_row(*(cells[index] for index in shown))
    console.print(table)
    ratio = "none" if learned.ratio is None else f"{learned.ratio:.2f}"
    console.print(
        Text(f"ratio {TURN}/{SCALAR}: {ratio} · - : not within {learned.cap} steps"), soft_wrap=True
    )
    for sentence in [*findings(learned), *_of_task(learned, task)]:
        console.print(Text(sentence), soft_wrap=True)
    scope = f"That holds for this task, a {network} policy and these seeds; other tasks differ."
    console.print(Text(scope), soft_wrap=True)


def _of_task(learned: LearnedArms, task: Task) -> list[str]:
    """The check that is built in: where all is paid at the last turn, both credits are the same."""
    if task != "delayed":
        return []
    if learned.steps(TURN) == learned.steps(SCALAR):
        return ["All is paid at the last turn, so both credits are the same, and so are the steps."]
    return ["All is paid at the last turn, so the steps must be equal, and they are NOT: this is a defect."]


def _shown(steps: float | None) -> str:
    return "-" if steps is None else f"{steps:g}"


def _range(steps: list[int | None]) -> str:
    known = [each for each in steps if each is not None]
    if not known:
        return "-"
    return f"{min(known)} to {'-' if None in steps else max(known)}"
