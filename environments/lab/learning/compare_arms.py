"""Arms against each other: every one learns with every seed, is shown as it does, and is kept in a folder."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from rich.console import Console

from environments.lab.learning.arm_pool import ArmJob, ArmWork, learned
from environments.lab.learning.curve_plot import curve_plot
from environments.lab.learning.curves import Curves
from environments.lab.learning.learn_folder import LearnFolder, opened_folder
from environments.lab.learning.learned_arms import LearnedArms
from environments.lab.learning.run_arm import Arm, LearnedArm, LearnedStep
from environments.run.progress import LiveView


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparing:
    """Which arms learn what, with which seeds."""

    work: ArmWork
    arms: Sequence[Arm]
    seeds: Sequence[int]
    title: str
    """Of the plot."""
    workers: int = 1
    """Processes."""


async def compare_arms(comparing: Comparing, folder: Path, console: Console) -> LearnedArms:
    """Learn, show a live curve on a terminal and a line for each run elsewhere; keep curves and plot.

    Raises:
        RunError: every group of a step failed, or a worker process ended.
        UsageError: the environment cannot be opened, or the folder not written.
    """
    curves = Curves([arm.name for arm in comparing.arms], len(comparing.seeds))
    live = LiveView(console, lambda: curves.picture(console.width))

    def say(line: str) -> None:
        console.print(line, soft_wrap=True, markup=False, highlight=False)

    def on_end(ended: LearnedArm) -> None:
        curves.end(ended)
        if not live.is_shown:
            say(_line(ended, comparing.work.setup.target))

    with opened_folder(folder, say) as opened:

        def on_step(job: ArmJob, step: LearnedStep) -> None:
            opened.add(job.arm.name, job.seed, step)
            curves.add(job.arm.name, job.seed, step)

        started = monotonic()
        jobs = _jobs(comparing, opened)
        with live:
            ended = await learned(
                comparing.work, jobs, workers=comparing.workers, on_step=on_step, on_end=on_end
            )
        result = _learned_arms(comparing, ended, monotonic() - started)
        console.print(curves.picture(console.width))
        opened.end(result.values(), _plot(comparing, result, curves))
    return result


def _jobs(comparing: Comparing, folder: LearnFolder) -> list[ArmJob]:
    """Seed by seed, so that all arms are seen from the start."""
    return [
        ArmJob(arm=arm, seed=seed, folder=folder.of_seed(arm, seed))
        for seed in comparing.seeds
        for arm in comparing.arms
    ]


def _learned_arms(comparing: Comparing, ended: Sequence[LearnedArm], seconds: float) -> LearnedArms:
    setup = comparing.work.setup
    return LearnedArms(
        arms=comparing.arms,
        ended={arm.name: [each for each in ended if each.arm == arm.name] for arm in comparing.arms},
        cap=setup.cap,
        target=setup.target,
        seconds=seconds,
    )


def _plot(comparing: Comparing, result: LearnedArms, curves: Curves) -> str:
    setup = comparing.work.setup
    legend = [(arm.name, _legend(arm, result)) for arm in comparing.arms]
    value = "mean score" if setup.success is None else "success, exact"
    target = None if setup.success is None else setup.target
    return curve_plot(curves, legend, title=comparing.title, value=value, target=target)


def _legend(arm: Arm, result: LearnedArms) -> str:
    steps = result.steps(arm.name)
    arrived = sum(each is not None for each in steps)
    middle = result.median(arm.name)
    took = "" if middle is None else f", median {middle:g} steps"
    credit = f"{arm.estimator}{', permuted' if arm.permuted else ''}"
    return f"{credit}, Adam {arm.learning_rate:g}; {arrived} of {len(steps)} seeds arrived{took}"


def _line(ended: LearnedArm, target: float) -> str:
    last = ended.curve[-1]
    if last.success is None:
        took = f"{last.step} steps"
    elif ended.steps is None:
        took = f"success {last.success:.2g} after {last.step} steps, target {target:g} not reached"
    else:
        took = f"success {target:g} after {ended.steps} steps"
    return f"{ended.arm} seed {ended.seed}: {took} ({last.seconds:.1f} s)"
