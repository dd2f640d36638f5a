"""Those that only watch a run, such as traces and charts: each on a thread of its own, they never hold it."""

import logging
import re
import sys
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, redirect_stderr, redirect_stdout
from functools import partial
from importlib import import_module
from io import StringIO
from pathlib import Path
from queue import SimpleQueue
from threading import Condition, Thread
from typing import Any

import yaml

from environments.base_env import AgentEnv
from environments.policy.inference.endpoint import without_credentials
from environments.record.group_line import decode_group
from environments.record.summary import flat
from environments.record.totals import Summary
from environments.run.console_streams import HUNG_THREAD
from environments.run.group_source import FinishedGroup, GroupNote, ShownGroups
from environments.run.run_files import settings_text
from environments.run.spans import configured_tracer, trace_group
from tools.errors import ConfigError
from tools.extras import needs_extra

MOST_JOBS = 100
"""Most jobs that wait for one observer. A trace job holds its group's line, which may have megabytes."""
END_S = 10.0
MOST_WARNINGS = 3
"""Of one observer."""
logger = logging.getLogger(__name__)
Job = Callable[[], object]


class Observers:
    """Does jobs on a thread for each observer. A job that does not fit into its queue is dropped."""

    def __init__(self) -> None:
        self.dropped, self._left = Counter[str](), Counter[str]()
        """Jobs that were not done, and those that are to be done or run, by observer."""
        self._changed = Condition()
        self._serving = dict[str, tuple[SimpleQueue[Job | None], Thread]]()

    def put(self, what: str, job: Job) -> bool:
        """Queue a job of the observer `what`, without waiting. Return False where it is dropped instead."""
        with self._changed:
            try:
                fits = self._left[what] < MOST_JOBS
                if fits and what not in self._serving:
                    jobs = SimpleQueue[Job | None]()
                    thread = Thread(target=self._serve, args=(what, jobs), daemon=True)
                    thread.start()
                    self._serving[what] = jobs, thread
            except RuntimeError:  # too many threads just now; the next job tries again
                fits = False
            if fits:
                self._left[what] += 1
                self._serving[what][0].put(job)
            else:
                self.dropped[what] += 1
            return fits

    def end(self) -> None:
        """Wait for the jobs, for `END_S` at most; those that are left then count as dropped."""
        with self._changed:
            self._changed.wait_for(lambda: not self._left.total(), END_S)
            self.dropped.update(+self._left)
            for what, (jobs, thread) in self._serving.items():
                jobs.put(None)
                if self._left[what]:
                    thread.name = HUNG_THREAD
            self._serving.clear()

    @contextmanager
    def of_run(self) -> Generator[None]:
        """At the end, wait for the jobs, and log how many were dropped."""
        try:
            yield
        finally:
            self.end()
            if self.dropped:
                counts = ", ".join(f"{count} {what}" for what, count in self.dropped.items())
                logger.warning("dropped, since whoever takes them hangs or is too slow: %s", counts)

    def _serve(self, what: str, jobs: "SimpleQueue[Job | None]") -> None:
        warned = 0
        while (job := jobs.get()) is not None:
            try:
                job()
            except BaseException as error:  # noqa: BLE001  # whatever an exporter or a client of a service raises
                warned += 1
                if warned <= MOST_WARNINGS:
                    text = without_credentials(f"{type(error).__name__}: {error}")
                    logger.warning("%s: %s", what, text)
            with self._changed:
                self._left[what] -= 1
                self._changed.notify_all()


PROJECT = "turnwise"
BINS = 32
_SECRETS = ("api_key", "server_token")
"""How the names of settings end that are secrets."""
Table = Sequence[Mapping[str, str | float | None]]
"""Rows with equal keys."""
MAX_NAMES = 400
"""A chart each; environments name their metrics as they like."""
WINDOW = 16
"""Groups whose numbers are taken together: one group says little of late turns, and a mean over the whole run
hides that a policy learns."""
Track = Callable[[GroupNote], None]


class Traces:
    """Traces groups as they are recorded, where OpenTelemetry is set up in this process."""

    def __init__(self, observers: Observers) -> None:
        self._observers = observers
        self._tracer = configured_tracer()

    @property
    def are_made(self) -> bool:
        """Whether there is a tracer."""
        return self._tracer is not None

    def add(self, done: FinishedGroup) -> None:
        """Have a group traced."""
        tracer, line = self._tracer, done.line
        if tracer is not None and line is not None:
            group = Path("a group that ended")
            self._observers.put("traces", lambda: trace_group(decode_group(line.content, group, 1), tracer))


class Charts:
    """A run at a service whose package has wandb's names."""

    def __init__(self, name: str, run: Any, package: Any, *, is_silent: bool = False) -> None:
        """Charts to a run (`log`, `finish`) of a service whose package has `Histogram` and `Table`.

        `name` is of the service, for warnings; `is_silent` keeps what it prints at its end from the screen.
        """
        self.name, self._run, self._package, self._is_silent = name, run, package, is_silent

    def log(
        self, numbers: Mapping[str, float], histograms: Mapping[str, Sequence[float]], samples: Table
    ) -> None:
        """Adds a step."""
        logged: dict[str, Any] = dict(numbers)
        for name, values in histograms.items():
            logged[name] = self._package.Histogram(list(values), num_bins=BINS)
        if samples:
            columns = list(samples[0])
            rows = [[row[column] for column in columns] for row in samples]
            logged["samples"] = self._package.Table(columns=columns, data=rows)
        self._run.log(logged)

    def finish(self) -> None:
        """Ends the run."""
        with _silent() if self._is_silent else nullcontext():
            self._run.finish()


def wandb_charts(name: str, settings: Mapping[str, Any]) -> Charts:
    """A run at Weights & Biases; where that is, is its own configuration (WANDB_MODE, login).

    Raises ConfigError if wandb is not installed, or cannot start, for want of a key or of a connection.
    """
    with needs_extra("wandb", "--env.use_wandb"):
        import wandb  # noqa: PLC0415
    arguments = sys.argv
    # wandb keeps a copy of the command line.
    after_key = [False, *(each.endswith(_SECRETS) for each in arguments)]
    sys.argv = [
        "***" if secret else re.sub(f"({'|'.join(_SECRETS)})=.*", r"\1=***", without_credentials(each))
        for secret, each in zip(after_key, arguments, strict=False)
    ]
    try:
        run = wandb.init(project=PROJECT, name=name, config=dict(settings))
    except wandb.Error as error:
        raise ConfigError(f"--env.use_wandb: {error}") from error
    finally:
        sys.argv = arguments
    return Charts("Weights & Biases", run, wandb)


def trackio_charts(name: str, settings: Mapping[str, Any]) -> Charts:
    """A run in trackio's SQLite file, or where its own configuration puts it (TRACKIO_DIR, TRACKIO_SPACE_ID).

    Raises ConfigError if trackio is not installed, or cannot start.
    """
    with needs_extra("trackio", "--env.use_trackio"):
        trackio: Any = import_module("trackio")
    options = {"embed": False, "auto_log_gpu": False, "auto_log_cpu": False}
    try:
        with _silent():
            run = trackio.init(project=PROJECT, name=name, config=dict(settings), **options)
    except Exception as error:  # it has no error of its own
        raise ConfigError(f"--env.use_trackio: {without_credentials(str(error))}") from error
    return Charts("trackio", run, trackio, is_silent=True)


@contextmanager
def _silent() -> Generator[None]:
    """Around what prints addresses that let anybody write to a dashboard."""
    nowhere = StringIO()
    with redirect_stdout(nowhere), redirect_stderr(nowhere):
        yield


@contextmanager
def opened_charts(env: AgentEnv, observers: Observers) -> Generator[list[Charts]]:
    """The services that settings ask for, until their ends, which are left to the observers.

    Raises ConfigError if a service's package is not installed, or cannot start.
    """
    config, charts = env.config, list[Charts]()
    with ExitStack() as closing:
        for wanted, make in ((config.use_wandb, wandb_charts), (config.use_trackio, trackio_charts)):
            if wanted:
                # Without what may be a secret.
                settings = yaml.safe_load(settings_text(env, None))
                charts.append(made := make(config.wandb_name or env.name, settings))
                closing.callback(observers.put, made.name, made.finish)
        yield charts


@contextmanager
def tracked(env: AgentEnv, observers: Observers) -> Generator[Track | None]:
    """A run that `Track` adds groups to, at each of the services that settings ask for; `None`: at none.

    Raises as `opened_charts`.
    """
    with opened_charts(env, observers) as charts:
        tracker = Tracker(charts, observers)
        try:
            yield tracker.add if charts else None
        finally:
            tracker.end()


class Tracker:
    """Makes the steps of the charts: one per group, and every `WINDOW` groups those of the window with it."""

    def __init__(self, charts: Sequence[Charts], observers: Observers) -> None:
        self._charts, self._observers = charts, observers
        self._known: set[str] = set()
        self._run, self._window, self._shown = Summary(), Summary(), ShownGroups()

    def add(self, note: GroupNote) -> None:
        """Takes one finished group in."""
        self._run.merge(note.summary)
        self._window.merge(note.summary)
        if note.shown is not None:
            self._shown.merge(note.shown)
        self._log(group_numbers(note.summary), with_window=self._window.done == WINDOW)

    def end(self) -> None:
        """Shows what the last groups came to, too few for a window."""
        if self._window.done:
            self._log({}, with_window=True)

    def _log(self, numbers: Mapping[str, float], *, with_window: bool) -> None:
        shown = ShownGroups()
        if with_window:
            numbers = {**numbers, **flat(self._window.values(), "window"), **flat(self._run.values(), "run")}
            shown, self._window, self._shown = self._shown, Summary(), ShownGroups()
        numbers = few_names(numbers, self._known)
        for charts in self._charts:
            step = partial(charts.log, numbers, shown.histograms, shown.samples)
            self._observers.put(charts.name, step)


def group_numbers(summary: Summary) -> dict[str, float]:
    """What one group came to, without its numbers by turn; a mean over nothing is left out, never 0."""
    numbers = flat(summary.values(), "group")
    return {name: value for name, value in numbers.items() if not name.startswith("group/turn/")}


def few_names(numbers: Mapping[str, float], known: set[str]) -> dict[str, float]:
    """The numbers under the first `MAX_NAMES` names that ever came; `known` grows by those that are new."""
    for name in numbers:
        if len(known) < MAX_NAMES:
            known.add(name)
    return {name: value for name, value in numbers.items() if name in known}
