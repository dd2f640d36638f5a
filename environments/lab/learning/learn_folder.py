"""The folder of a comparison of arms: curves as they grow, the result, a plot, a record for each run."""

import json
import os
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from environments.lab.learning.run_arm import Arm, LearnedStep
from environments.record.append_file import AppendFile
from environments.record.private_file import write_private
from environments.record.run_folder import RunFolder
from environments.run.open_run import put_aside
from tools.errors import RecordError

CURVE, RESULT, PLOT = "curve.jsonl", "result.json", "plot.svg"


class LearnFolder:
    """One that is ours alone while it is open."""

    def __init__(self, path: Path, curve: AppendFile) -> None:
        self.path = path
        self._curve = curve

    @property
    def plot(self) -> Path:
        """The SVG."""
        return self.path / PLOT

    def of_seed(self, arm: Arm, seed: int) -> RunFolder:
        """The run of one arm and seed, which `runs`, `show`, `view` and `recredit` take."""
        return RunFolder(self.path / arm.name / f"seed-{seed}")

    def add(self, arm: str, seed: int, step: LearnedStep) -> None:
        """Keep a step of a curve."""
        line = {
            "arm": arm,
            "seed": seed,
            "step": step.step,
            "success": step.success,
            "score": step.score,
            "turns": step.turns,
            "seconds": round(step.seconds, 3),
        }
        self._curve.append(json.dumps(line).encode() + b"\n")

    def end(self, result: Mapping[str, Any], plot: str) -> None:
        """Keep what came out."""
        write_private(self.path / RESULT, json.dumps(result, indent=2).encode() + b"\n")
        write_private(self.plot, plot.encode())


@contextmanager
def opened_folder(path: Path, say: Callable[[str], None]) -> Generator[LearnFolder]:
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
