"""Arms against each other: every one learns with every seed."""

import json
import math
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any

from environments.lab.learning.arms import Arm, LearnedArm, LearningSetup, run_arm
from environments.record.append_file import AppendFile
from environments.record.private_file import write_private
from environments.record.run_folder import RunFolder
from environments.run.open_run import put_aside
from tools.errors import RecordError

CURVE, RESULT = "curve.jsonl", "result.json"
TURN, SCALAR = "turn_return", "scalar"
"""The arms whose medians are compared."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedArms:
    """What came out of each arm with each seed."""

    arms: Sequence[Arm]
    ended: Mapping[str, Sequence[LearnedArm]]
    """By name, in the order of seeds."""
    seconds: float

    def steps(self, name: str) -> list[int | None]:
        """Until the target, seed by seed; `None`: not reached."""
        return [each.steps for each in self.ended[name]]

    def median(self, name: str) -> float | None:
        """Of the steps; `None` where most seeds did not arrive."""
        middle = median(math.inf if each is None else each for each in self.steps(name))
        return None if math.isinf(middle) else middle

    @property
    def ratio(self) -> float | None:
        """Steps that turn credit takes, in those of the scalar; `None` where one of them has no median."""
        turn, scalar = self.median(TURN), self.median(SCALAR)
        return None if turn is None or scalar is None or scalar == 0 else turn / scalar

    def values(self) -> dict[str, Any]:
        """As JSON values."""
        arms = {
            arm.name: {
                "steps": self.steps(arm.name),
                "median": self.median(arm.name),
                "success": [each.curve[-1].success for each in self.ended[arm.name]],
            }
            for arm in self.arms
        }
        return {"arms": arms, "ratio": self.ratio, "seconds": round(self.seconds, 3)}


class LearnFolder:
    """A folder that is ours alone while it is open: curves, the result, and a run for each arm and seed."""

    def __init__(self, path: Path, curve: AppendFile) -> None:
        self.path = path
        self._curve = curve

    def add(self, learned: LearnedArm) -> None:
        """Keep a curve."""
        for step in learned.curve:
            line = {
                "arm": learned.arm,
                "seed": learned.seed,
                "step": step.step,
                "success": step.success,
                "seconds": round(step.seconds, 3),
                **step.numbers,
            }
            self._curve.append(json.dumps(line).encode() + b"\n")

    def write(self, name: str, text: str) -> None:
        """Keep what came out."""
        write_private(self.path / name, text.encode())


@contextmanager
def opened_folder(path: Path, say: Say) -> Generator[LearnFolder]:
    """A new folder, in the place of a former one, which is put aside.

    Raises:
        RecordError: it cannot be written, holds something else, or another process writes there.
    """
    if os.path.lexists(path):
        if not os.path.isdir(path):  # noqa: PTH112  # `is_dir` may raise
            raise RecordError(f"cannot write {path}: it is a file; give a folder")
        if (path / CURVE).is_file():
            put_aside(path, path / CURVE, say)
        elif any(path.iterdir()):
            raise RecordError(
                f"{path} holds something else than a former `turnwise learn`; give another folder"
            )
    curve = AppendFile(path / CURVE, fresh=False, each_on_disk=False)
    try:
        yield LearnFolder(path, curve)
    finally:
        curve.close()


async def compare_arms(
    setup: LearningSetup,
    arms: Sequence[Arm],
    seeds: Sequence[int],
    *,
    folder: LearnFolder,
    say: Say,
) -> LearnedArms:
    """Let each arm learn with each seed, and keep the curves.

    Args:
        setup: what they have in common.
        arms: how rewards are credited.
        seeds: of each arm.
        folder: open.
        say: shows a line for each run that ended.

    Raises:
        RunError: every group of a step failed.
        UsageError: the environment cannot be opened, or the folder not written.
    """
    started = monotonic()
    ended: list[LearnedArm] = []
    # Seed by seed, so that all arms are seen from the start.
    for seed in seeds:
        for arm in arms:
            run = RunFolder(folder.path / arm.name / f"seed-{seed}")
            learned = await run_arm(setup, arm, seed, run)
            folder.add(learned)
            say(_line(learned, setup.target))
            ended.append(learned)
    by_arm = {arm.name: [each for each in ended if each.arm == arm.name] for arm in arms}
    return LearnedArms(arms=arms, ended=by_arm, seconds=monotonic() - started)


def _line(ended: LearnedArm, target: float) -> str:
    last = ended.curve[-1]
    if last.success is None:
        took = f"{last.step} steps"
    elif ended.steps is None:
        took = f"success {last.success:.2g} after {last.step} steps, target {target:g} not reached"
    else:
        took = f"success {target:g} after {ended.steps} steps"
    return f"{ended.arm} seed {ended.seed}: {took} ({last.seconds:.1f} s)"
