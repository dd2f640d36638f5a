"""Observers of a run, such as traces and charts: each has its own thread and never delays the run."""

import logging
import re
import sys
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from io import StringIO
from pathlib import Path
from queue import SimpleQueue
from threading import Condition, Thread
from typing import Any

import yaml

from environments.base_env import AgentEnv
from environments.record.group_line import decode_group
from environments.record.summary import flat
from environments.record.totals import Summary
from environments.run.console_streams import HUNG_THREAD
from environments.run.group_source import FinishedGroup, GroupNote, ShownGroups
from environments.run.run_files import settings_text
from environments.run.spans import configured_tracer, trace_group
from tools.errors import ConfigError
from tools.extras import needs_extra
from tools.plain_text import without_credentials

MOST_JOBS = 100
"""Jobs that may wait for one observer. A trace job holds its group's line, which may have megabytes."""
END_S = 10.0
MOST_WARNINGS = 3
logger = logging.getLogger(__name__)
Job = Callable[[], object]


class Observers:
    """Runs jobs on one thread per observer; jobs beyond `MOST_JOBS` are dropped."""

    def __init__(self) -> None:
        self.dropped, self._left = Counter[str](), Counter[str]()
        self._changed = Condition()
        self._serving = dict[str, tuple[SimpleQueue[Job | None], Thread]]()

    def put(self, what: str, job: Job) -> bool:
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
        """Wait up to `END_S` for the jobs; unfinished ones then count as dropped."""
        with self._changed:
            self._changed.wait_for(lambda: not self._left.total(), END_S)
            self.dropped.update(+self._left)
            for what, (jobs, thread) in self._serving.items():
                jobs.put(None)
                if self._left[what]:
                    thread.name = HUNG_THREAD
            self._serving.clear()

    @contextmanager
    def wait_at_end(self) -> Generator[None]:
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
            except BaseException as error:  # noqa: BLE001  # from an exporter or a service's client
                warned += 1
                if warned <= MOST_WARNINGS:
                    text = without_credentials(f"{type(error).__name__}: {error}")
                    logger.warning("%s: %s", what, text)
            with self._changed:
                self._left[what] -= 1
                self._changed.notify_all()


PROJECT = "turnwise"
_SECRETS = ("api_key", "server_token")
Table = Sequence[Mapping[str, str | float | None]]
MAX_NAMES = 400
WINDOW = 16
"""Groups per window: one group has few late turns, and a mean over the run hides progress."""


class Traces:
    def __init__(self, observers: Observers) -> None:
        self._observers = observers
        self._tracer = configured_tracer()

    @property
    def are_made(self) -> bool:
        return self._tracer is not None

    def add(self, done: FinishedGroup) -> None:
        tracer, line = self._tracer, done.line
        if tracer is not None and line is not None:
            at = Path("a group that ended")
            self._observers.put("traces", lambda: trace_group(decode_group(line.content, at, 1), tracer))


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A package with wandb's interface: `init` (a run with `log` and `finish`), `Histogram`, `Table`."""

    name: str
    package: str
    setting: str
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    is_silent: bool = False

    @contextmanager
    def silence(self) -> Generator[None]:
        nowhere = StringIO()
        with ExitStack() as silent:
            if self.is_silent:
                silent.enter_context(redirect_stdout(nowhere))
                silent.enter_context(redirect_stderr(nowhere))
            yield


WANDB = Service(name="Weights & Biases", package="wandb", setting="use_wandb")
TRACKIO = Service(
    name="trackio",
    package="trackio",
    setting="use_trackio",
    options={"embed": False, "auto_log_gpu": False, "auto_log_cpu": False},
    is_silent=True,  # it prints addresses with write access to a dashboard
)


class Charts:
    def __init__(self, service: Service, run: Any, package: Any) -> None:
        self.name = service.name
        self._service, self._run, self._package = service, run, package

    def log(
        self, numbers: Mapping[str, float], histograms: Mapping[str, Sequence[float]], samples: Table
    ) -> None:
        logged: dict[str, Any] = dict(numbers)
        for name, values in histograms.items():
            logged[name] = self._package.Histogram(list(values), num_bins=32)
        if samples:
            columns = list(samples[0])
            rows = [[row[column] for column in columns] for row in samples]
            logged["samples"] = self._package.Table(columns=columns, data=rows)
        self._run.log(logged)

    def finish(self) -> None:
        with self._service.silence():
            self._run.finish()


def start_charts(service: Service, name: str, settings: Mapping[str, Any]) -> Charts:
    with needs_extra(service.package, f"--env.{service.setting}"):
        package: Any = import_module(service.package)
    arguments = sys.argv
    # wandb stores the command line.
    after_key = [False, *(each.endswith(_SECRETS) for each in arguments)]
    sys.argv = [
        "***" if secret else re.sub(f"({'|'.join(_SECRETS)})=.*", r"\1=***", without_credentials(each))
        for secret, each in zip(after_key, arguments, strict=False)
    ]
    try:
        with service.silence():
            run = package.init(project=PROJECT, name=name, config=dict(settings), **service.options)
    except Exception as error:  # trackio defines no error class
        raise ConfigError(f"--env.{service.setting}: {without_credentials(str(error))}") from error
    finally:
        sys.argv = arguments
    return Charts(service, run, package)


@contextmanager
def open_charts(env: AgentEnv, observers: Observers) -> Generator["Tracker"]:
    charts = list[Charts]()
    with ExitStack() as closing:
        for service in (WANDB, TRACKIO):
            if getattr(env.config, service.setting):
                settings = yaml.safe_load(settings_text(env, None))  # without secrets
                charts.append(made := start_charts(service, env.config.wandb_name or env.name, settings))
                closing.callback(observers.put, made.name, made.finish)
        tracker = Tracker(charts, observers)
        closing.callback(tracker.end)
        yield tracker


class Tracker:
    def __init__(self, charts: Sequence[Charts], observers: Observers) -> None:
        self.charts, self._observers = charts, observers
        self._known: set[str] = set()
        self._run, self._window, self._shown = Summary(), Summary(), ShownGroups()

    def add(self, note: GroupNote) -> None:
        if not self.charts:
            return
        self._run.merge(note.summary)
        self._window.merge(note.summary)
        if note.shown is not None:
            self._shown.merge(note.shown)
        self._log(group_numbers(note.summary), with_window=self._window.done == WINDOW)

    def end(self) -> None:
        if self._window.done:
            self._log({}, with_window=True)

    def _log(self, numbers: Mapping[str, float], *, with_window: bool) -> None:
        shown = ShownGroups()
        if with_window:
            numbers = {**numbers, **flat(self._window.values(), "window"), **flat(self._run.values(), "run")}
            shown, self._window, self._shown = self._shown, Summary(), ShownGroups()
        self.put(limit_names(numbers, self._known), shown)

    def put(self, numbers: Mapping[str, float], shown: ShownGroups) -> None:
        for charts in self.charts:
            step = partial(charts.log, numbers, shown.histograms, shown.samples)
            self._observers.put(charts.name, step)


def group_numbers(summary: Summary) -> dict[str, float]:
    numbers = flat(summary.values(), "group")
    return {name: value for name, value in numbers.items() if not name.startswith("group/turn/")}


def limit_names(numbers: Mapping[str, float], known: set[str]) -> dict[str, float]:
    """Return the numbers under the first `MAX_NAMES` names of the run; add new names to `known`."""
    for name in numbers:
        if len(known) < MAX_NAMES:
            known.add(name)
    return {name: value for name, value in numbers.items() if name in known}
