"""A probe: canaries, and a model that a trainer takes one step of; what that step was."""

import json
import math
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from environments.record.recorder import Recorder
from environments.trainers.completion_columns import CompletionColumns, completion_columns
from environments.trajectory import CreditedGroup
from environments.wire.training_rows import Columns, RowGroup, columns_of
from environments.wire.views import VIEWS, Divisor
from tools.errors import ConfigError, TurnwiseError
from turnwise.lab.probe.canaries import GROUP_SIZE, CanaryEnv
from turnwise.lab.probe.canary_model import CanaryModel, write_canary_model
from turnwise.lab.probe.diagnosis import CanaryTokens, StepVerdict, diagnose
from turnwise.lab.probe.step_reading import taken_step

DIVISOR = 32
"""Of scores: small, so that a step in float32 is not rounded."""
_MODEL, _RECORD, _ASKED = "model", "canaries.jsonl", "probe.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the trainer was asked for."""

    lr: float
    """Of plain SGD."""
    view: str | None = None
    """Over the API; `None`: the groups were given otherwise."""
    divisor: Divisor = DIVISOR
    batch_rows: int | None = None
    """Over the API, padding included."""


@dataclass(frozen=True, kw_only=True)
class Probe:
    """What a trainer takes exactly one step of, with plain SGD or with Adam: no warm-up, no dropout."""

    folder: Path
    asked: Asked

    @property
    def lr(self) -> float:
        """The learning rate to use."""
        return self.asked.lr

    @property
    def model(self) -> Path:
        """A Hugging Face folder: a tiny causal LM in float32, with a tokenizer."""
        return self.folder / _MODEL

    @cached_property
    def before(self) -> CanaryModel:
        """The model as it was, whatever a trainer saved over it."""
        return CanaryModel()

    @cached_property
    def groups(self) -> tuple[CreditedGroup, ...]:
        """The canaries with the log-probabilities of the model, so that ratios are 1."""
        return tuple(self.before.groups())

    def columns(self, *, rows: int | None = GROUP_SIZE, pad_id: int = 0) -> list[CompletionColumns]:
        """Each group as trainers of completions take it; `None`: without padding for dropped siblings."""
        return [completion_columns(group, rows=rows, pad_id=pad_id) for group in self.groups]

    def env(self, **_: Any) -> CanaryEnv:
        """An environment whose groups they are, for adapters that open one: `Rollouts(probe.env)`."""
        env = CanaryEnv()
        env.groups = {group.group.item_id: lambda group=group: group for group in self.groups}
        return env

    def row_groups(self) -> list[RowGroup]:
        """The groups in the view that was asked for."""
        show = VIEWS[self.asked.view or "token_advantages"]
        return [shown for group in self.groups for shown in show(group, self.asked.divisor)]

    def batch(self) -> list[Columns]:
        """The groups in the view that was asked for, as the trajectory API hands them to a trainer."""
        return [columns_of(group) for group in self.row_groups()]

    def verdict(self, stepped: object, *, is_gradient: bool = False) -> StepVerdict:
        """Compare the weights after the step with those before it.

        Args:
            stepped: a checkpoint's path, a model, its state dict, an optimizer, or the weights of the head.
            is_gradient: whether it holds the gradient of the loss in the place of weights.

        Raises:
            ConfigError: it has no head of the canary model, or only the signs of a step.
        """
        divisor = self.asked.divisor if self.asked.view is not None else None
        taken = taken_step(stepped, self.before, self.lr, is_gradient=is_gradient)
        return diagnose(
            taken,
            CanaryTokens.of(self.before, self.groups),
            self.before,
            batch_rows=self.asked.batch_rows,
            divisor=divisor if isinstance(divisor, int) else None,
        )

    def served(self, batch_rows: int) -> None:
        """Note in the folder how many rows the trainer's batch has."""
        _write(self.folder, replace(self.asked, batch_rows=batch_rows))


def probe_trainer(
    step: Callable[[Probe], object], *, lr: float = 1.0, is_gradient: bool = False
) -> StepVerdict:
    """Let a function take one step on the canaries, and compare it with Σ A ∇log π.

    Args:
        step: trains the model in `probe.model` on `probe.columns()`, `probe.batch()` or `probe.groups` for
            one step at `probe.lr`; returns the model, its state dict or a checkpoint's path after plain
            SGD, the optimizer after Adam.
        lr: the learning rate.
        is_gradient: whether `step` returns the gradient of its loss in the place of weights.

    Raises:
        ConfigError: the step failed, or what it returns holds no weights of the canary model, or only the
            signs of a step.
    """
    with TemporaryDirectory(prefix="turnwise-probe-") as folder:
        probe = begin_probe(Path(folder), Asked(lr=lr))
        try:
            stepped = step(probe)
        except TurnwiseError:
            raise
        except (Exception, SystemExit) as error:  # one that exits in a step would pass for a verdict
            failure = ConfigError(f"the step failed: {type(error).__name__}: {error}")
            failure.add_note("".join(traceback.format_exception(error)))
            raise failure from error
        return probe.verdict(stepped, is_gradient=is_gradient)


def begin_probe(folder: Path, asked: Asked) -> Probe:
    """Write the canary model and the record of the canaries into a folder.

    Raises:
        ConfigError: no learning rate, or the folder holds something else or cannot be written.
        RecordError: the record cannot be written.
    """
    if not 0 < asked.lr < math.inf:
        raise ConfigError(f"a learning rate is a number above 0, not {asked.lr}")
    if (folder / _MODEL).exists() and not (folder / _ASKED).exists():
        raise ConfigError(f"{folder} holds a model that is not of a probe; choose another folder")
    try:
        write_canary_model(folder / _MODEL)
    except OSError as error:
        raise ConfigError(f"cannot write {folder}: {error.strerror}") from error
    probe = Probe(folder=folder, asked=asked)
    with Recorder(folder / _RECORD, fresh=True) as recorder:
        for group in probe.groups:
            recorder.append(group)
    _write(folder, asked)
    return probe


def open_probe(folder: Path) -> Probe:
    """A probe that was begun in a folder.

    Raises:
        ConfigError: there is none.
    """
    try:
        asked = Asked(**json.loads((folder / _ASKED).read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"{folder} is no folder of `turnwise doctor trainer begin`: {error}") from error
    return Probe(folder=folder, asked=asked)


def _write(folder: Path, asked: Asked) -> None:
    (folder / _ASKED).write_text(json.dumps(asdict(asked)) + "\n")
