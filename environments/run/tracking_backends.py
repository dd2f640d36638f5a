"""Weights & Biases and trackio behind one small protocol: numbers, histograms and a table of texts."""

import logging
import re
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from importlib import import_module
from io import StringIO
from threading import Thread
from typing import Any, Protocol

from environments.extras import needs_extra
from environments.inference.endpoint import without_credentials
from tools.errors import ConfigError

logger = logging.getLogger(__name__)

PROJECT = "turnwise"
BINS = 32
FINISH_S = 60.0
"""A service that is away keeps no run from its end."""
MOST_WARNINGS = 3

Table = Sequence[Mapping[str, str | float | None]]
"""Rows with equal keys."""


class Backend(Protocol):
    """Where numbers of a run go; each `log` is a step."""

    def log(
        self, numbers: Mapping[str, float], histograms: Mapping[str, Sequence[float]], samples: Table
    ) -> None:
        """Take what is known at a step."""
        ...

    def finish(self) -> None:
        """Take nothing more."""
        ...


class Tolerated:
    """A backend whose failures are told, and end nothing: a run goes on without those who only watch it."""

    def __init__(self, name: str, backend: Backend, *, silent: bool = False) -> None:
        """Name it for warnings; `silent` keeps from the screen what it prints at its end."""
        self._name, self._backend, self._silent = name, backend, silent
        self._warnings = 0

    def log(
        self, numbers: Mapping[str, float], histograms: Mapping[str, Sequence[float]], samples: Table
    ) -> None:
        """As `Backend.log`."""
        self._try(lambda: self._backend.log(numbers, histograms, samples))

    def finish(self) -> None:
        """As `Backend.finish`, within `FINISH_S`."""
        last = Thread(target=lambda: self._try(self._backend.finish), daemon=True)
        with _silent() if self._silent else nullcontext():
            last.start()
            last.join(FINISH_S)
        if last.is_alive():
            logger.warning("%s: not done after %.0f s; the run ends without it", self._name, FINISH_S)

    def _try(self, report: Callable[[], object]) -> None:
        try:
            report()
        except Exception as error:  # noqa: BLE001  # whatever a client of a web service raises
            self._warnings += 1
            if self._warnings <= MOST_WARNINGS:
                text = without_credentials(str(error))
                logger.warning("%s: %s: %s", self._name, type(error).__name__, text)


def wandb_backend(name: str, settings: Mapping[str, Any]) -> Backend:
    """A run at Weights & Biases; where that is, is its own configuration (WANDB_MODE, login).

    Raises:
        ConfigError: wandb is not installed, or cannot start, for want of a key or of a connection.
    """
    with needs_extra("wandb", "--env.use_wandb"):
        import wandb  # noqa: PLC0415
    try:
        with _shown_arguments():
            run = wandb.init(project=PROJECT, name=name, config=dict(settings))
    except wandb.Error as error:
        raise ConfigError(f"--env.use_wandb: {error}") from error
    return Tolerated("Weights & Biases", _Charts(run, wandb))


def trackio_backend(name: str, settings: Mapping[str, Any]) -> Backend:
    """A run in trackio's SQLite file, or where its own configuration says (TRACKIO_DIR, TRACKIO_SPACE_ID).

    Raises:
        ConfigError: trackio is not installed, or cannot start.
    """
    with needs_extra("trackio", "--env.use_trackio"):
        trackio: Any = import_module("trackio")
    try:
        with _silent():
            run = trackio.init(
                project=PROJECT,
                name=name,
                config=dict(settings),
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )
    except Exception as error:  # it has no error of its own
        raise ConfigError(f"--env.use_trackio: {without_credentials(str(error))}") from error
    return Tolerated("trackio", _Charts(run, trackio), silent=True)


class _Charts:
    """A run of a package that has wandb's names: `Histogram`, `Table`, `run.log`, `run.finish`."""

    def __init__(self, run: Any, package: Any) -> None:
        self._run, self._package = run, package

    def log(
        self, numbers: Mapping[str, float], histograms: Mapping[str, Sequence[float]], samples: Table
    ) -> None:
        logged: dict[str, Any] = dict(numbers)
        for name, values in histograms.items():
            logged[name] = self._package.Histogram(list(values), num_bins=BINS)
        if samples:
            columns = list(samples[0])
            rows = [[row[column] for column in columns] for row in samples]
            logged["samples"] = self._package.Table(columns=columns, data=rows)
        self._run.log(logged)

    def finish(self) -> None:
        self._run.finish()


@contextmanager
def _silent() -> Generator[None]:
    """Around what prints addresses that let anybody write to a dashboard."""
    nowhere = StringIO()
    with redirect_stdout(nowhere), redirect_stderr(nowhere):
        yield


@contextmanager
def _shown_arguments() -> Generator[None]:
    """The command line as it can be shown, where wandb keeps a copy of it."""
    arguments = sys.argv
    after_key = [False, *(each.endswith("api_key") for each in arguments)]
    sys.argv = [
        "***" if secret else re.sub("(api_key=).*", r"\1***", without_credentials(each))
        for secret, each in zip(after_key, arguments, strict=False)
    ]
    try:
        yield
    finally:
        sys.argv = arguments
