"""Open an environment for one run, with its record, folder, charts and source of groups."""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic
from typing import Any, cast

from rich.console import Console

from environments.base_env import AgentEnv
from environments.config import AgentEnvConfig
from environments.credit import describe
from environments.record.origin import RunOrigin, credit_text, in_short
from environments.record.private_file import AppendFile
from environments.record.recorder import Recorder
from environments.record.run_folder import RunFolder, Shard, run_folder
from environments.record.totals import Summary
from environments.run.experiment import has_file, later_files, origin_of
from environments.run.group_source import Finishing, GroupSource, source_in_process
from environments.run.progress import Progress, RolloutsInFlight
from environments.run.run_files import Sources, write_run_files
from environments.run.run_list import RunLog, moment, read_summary, unique_groups, write_summary
from environments.run.tracking import Tracker, open_charts
from environments.run.watchdog import Watchdog, watch_run
from tools.errors import ConfigError, RecordError
from tools.plain_text import without_credentials

DEFAULT_NAME = "default"
_PLAIN_NAME = re.compile(r"\w[\w.+=@-]{0,62}")
_NAME_BYTES = 200
OF_RECORD = ("of", "experiments", "failed", "score", "pass@1", "evaluation", "aggregates")
"""Fields of `summary.json` that describe the record rather than the last run."""
_INSTEAD = "start over with --fresh, run it as --name OTHER, or go on all the same with --accept"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    name: str | None = None
    shard: Shard | None = None
    fresh: bool = False
    accept: bool = False
    sources: Sources | None = None
    outbox: Path | None = None
    send_all: bool = False

    def __post_init__(self) -> None:
        name = self.name
        if name is not None and not (_PLAIN_NAME.fullmatch(name) and len(name.encode()) <= _NAME_BYTES):
            raise ConfigError(
                f"--name {name!r:.100} names a folder: it takes letters, digits and _.+=@- after a letter or "
                f"digit, 63 at most and {_NAME_BYTES} bytes"
            )


DEFAULTS = RunOptions()


def place_of(config: AgentEnvConfig, env: str, options: RunOptions) -> RunFolder | Path:
    """Return the folder of a run's name and shard, or the plain file that its settings name.

    Raises ConfigError if both are given.
    """
    path, name, shard = config.data_path_to_save_groups, options.name, options.shard
    if path is None:
        folder = run_folder(env, name or DEFAULT_NAME)
        return folder if shard is None else RunFolder(shard.path_of(folder.path))
    if name is not None:
        raise ConfigError(
            f"--name {name} is a run's folder, and --out {path} a plain file with no folder: give one of them"
        )
    return Path(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    finishing: Finishing
    say: Callable[[str], None]
    in_flight: RolloutsInFlight
    evaluation: bool = False
    waits: bool = False


OpenSource = Callable[[AgentEnv, SourceOptions], AbstractAsyncContextManager[GroupSource]]


@asynccontextmanager
async def in_this_process(env: AgentEnv, options: SourceOptions) -> AsyncGenerator[GroupSource]:
    yield source_in_process(env, options.in_flight.watch, options.finishing, evaluation=options.evaluation)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRun:
    env: AgentEnv
    origin: RunOrigin
    record: "OpenRecord | None"
    source: GroupSource
    finishing: Finishing
    is_evaluation: bool
    progress: Progress
    watchdog: Watchdog
    tracker: Tracker


@asynccontextmanager
async def open_run(  # noqa: PLR0913  # what three commands want of it, by name
    env: AgentEnv,
    console: Console,
    place: RunFolder | Path | None,
    options: RunOptions,
    open_source: OpenSource,
    *,
    evaluation: bool = False,
    waits: bool = False,
    finishing: Callable[[Finishing, Progress], Finishing] = lambda plain, _: plain,
    on_open: Callable[[Progress], object] = lambda _: None,
) -> AsyncGenerator[OpenRun]:
    """Open an environment for a run, with a watchdog and with observers that cannot delay it.

    `finishing` adds the run's own outputs of each group. `on_open` is called when the environment is open and
    may refuse the run before anything is written.

    Raises UsageError if the environment cannot be opened, or the record is of another experiment, cannot be
    read or written, or is written by another process.
    """
    config = env.config
    if config.group_size == 1 and not evaluation:
        describe(env.estimator).refuse_singles(
            config.estimator_preset, config.estimator_params, "group_size is 1"
        )
    log = RunLog()
    progress = Progress(console, log=log)
    with watch_run(env, progress) as watchdog:
        async with env.opened(evaluation=evaluation, waits=waits, notify=progress.say):
            on_open(progress)
            origin = origin_of(env, evaluation=evaluation)
            # The record last, since `--fresh` puts the former run aside.
            with (
                open_charts(env, progress.observers) as tracker,
                _open_record(env, origin, place, options, log, progress.say) as record,
            ):
                fingerprint = None if record is None else record.recorder.fingerprint
                plain = Finishing(fingerprint=fingerprint, is_charted=bool(tracker.charts) and not evaluation)
                wanted = SourceOptions(
                    finishing=finishing(plain, progress),
                    say=progress.say,
                    in_flight=progress.in_flight,
                    evaluation=evaluation,
                    waits=waits,
                )
                async with open_source(env, wanted) as source:
                    yield OpenRun(
                        env=env,
                        origin=origin,
                        record=record,
                        source=source,
                        finishing=wanted.finishing,
                        is_evaluation=evaluation,
                        progress=progress,
                        watchdog=watchdog,
                        tracker=tracker,
                    )


@contextmanager
def _open_record(
    env: AgentEnv,
    origin: RunOrigin,
    place: RunFolder | Path | None,
    options: RunOptions,
    log: RunLog,
    say: Callable[[str], None],
) -> Generator["OpenRecord | None"]:
    if place is None:
        yield None
        return
    folder, path = (place, place.record) if isinstance(place, RunFolder) else (None, place)
    if folder is not None and options.fresh and path.is_file() and path.stat().st_size:
        _put_aside(folder.path, path, say)
    with Recorder(path, fresh=options.fresh and folder is None) as recorder:
        record = OpenRecord(
            recorder=recorder, folder=folder, resumed=bool(path.stat().st_size), say=say, shard=options.shard
        )
        if options.shard is not None:
            origin = replace(origin, shard=str(options.shard))
        accepted = _begin(env, origin, record, accept=options.accept)
        with later_files(env, recorder, accept=options.accept):
            if folder is None:
                yield record
                return
            record.facts = {
                "env": env.name,
                "policy": origin.policy,
                "estimator": credit_text(origin.estimator, origin.estimator_params),
                "fingerprint": origin.fingerprint,
                "state": "running",
                "started": moment(),
            }
            for note in write_run_files(
                folder, env, origin, sources=options.sources, accepted=accepted, resumed=record.resumed
            ):
                say(note)
            log.open(folder.log, title=f"{env.name} as {folder.path.name}, fingerprint {origin.fingerprint}")
            try:
                yield record
            except BaseException as error:
                log.add(f"{type(error).__name__}: {error}")
                record.write_error(error)
                raise
            finally:
                log.close()


def _begin(env: AgentEnv, origin: RunOrigin, record: "OpenRecord", *, accept: bool) -> list[str]:
    """Claim a record for this run; return accepted differences from its experiment."""
    recorder, say = record.recorder, record.say
    if not has_file(type(env)):
        say(
            f"{type(env).__name__} has no file: when the record is continued, changes in its own functions "
            f"will be noticed, and none in what they import"
        )
    items = zip(env.item_ids, env.items, strict=True)
    options = {} if record.folder is None else {"instead": _INSTEAD}
    accepted = recorder.begin(origin, items, all_items=env.config.max_items is None, accept=accept, **options)
    if accepted:
        say(f"accepted: {recorder.path} holds groups of another run, too ({in_short(accepted)})")
    elif recorder.contents.fingerprints - {origin.fingerprint}:
        say(f"{recorder.path} holds groups of other experiments, too, as was accepted once")
    others = sorted(recorder.contents.estimators - {credit_text(origin.estimator, origin.estimator_params)})
    if others:
        say(
            f"the groups in {recorder.path} keep the advantages of {', '.join(others)}; "
            f"`turnwise credit` computes all of them anew"
        )
    return accepted


def _put_aside(folder: Path, locked: Path, say: Callable[[str], None]) -> None:
    """Rename the folder of a former run, unless another process holds the lock on `locked`."""
    file = AppendFile(locked, fresh=False)
    try:
        number = 1
        while (aside := folder.with_name(f"{folder.name}.{number}")).exists():
            number += 1
        folder.rename(aside)
    except OSError as error:
        raise RecordError(f"cannot put {folder} aside: {error.strerror}") from error
    finally:
        file.close()
    say(f"the former run is put aside as {aside}")


@dataclass(slots=True, kw_only=True)
class OpenRecord:
    recorder: Recorder
    folder: RunFolder | None
    resumed: bool
    say: Callable[[str], None]
    shard: Shard | None = None
    facts: dict[str, Any] = field(default_factory=dict[str, Any])
    _started: float = field(default_factory=monotonic)

    def write_plan(self, *, groups: int, done: int) -> None:
        self.facts |= {"planned": groups, "done": done}
        if self.folder is not None:
            write_summary(self.folder.summary, self.facts | self._record_facts(self.folder))

    async def end(self, added: Summary, *, done: int, planned: int, code: int, **more: Any) -> None:
        """Write the totals of the whole record; an error is only shown."""
        if self.folder is None:
            return
        state = "finished" if code == 0 or done == planned else "stopped"
        self._close(state, planned=planned, done=done, exit_code=code)
        try:
            self.facts |= await self._numbers(self.folder, added) | more
            write_summary(self.folder.summary, self.facts)
        except (RecordError, OSError, ValueError) as error:
            self.say(f"the summary of the run could not be written: {error}")

    async def _numbers(self, folder: RunFolder, added: Summary) -> dict[str, Any]:
        """Return the record's totals; the record is read only if earlier runs and this one wrote groups."""
        recorder = self.recorder
        size = recorder.path.stat().st_size
        experiments = len(recorder.contents.fingerprints | {self.facts["fingerprint"]})
        kept = self._record_facts(folder)
        covered: Any = kept.get("of")
        is_known = self.resumed and not recorder.written and isinstance(covered, dict)
        if is_known and cast("dict[str, Any]", covered).get("bytes") == size:
            return kept | {"experiments": experiments}
        whole = added
        if self.resumed:
            whole = await asyncio.to_thread(Summary, unique_groups(recorder.path, recorder.finished))
        return {
            "of": {"groups": whole.done, "bytes": size},
            "experiments": experiments,
            "failed": whole.groups["failed"],
            "score": whole.values()["score"]["mean"],
            "aggregates": whole.values(),
        }

    def write_error(self, error: BaseException) -> None:
        if self.folder is None:
            return
        state = "stopped" if isinstance(error, asyncio.CancelledError) else "broke"
        self._close(state, error=without_credentials(f"{type(error).__name__}: {error}")[:500])
        with suppress(RecordError):
            write_summary(self.folder.summary, self._record_facts(self.folder) | self.facts)

    def _record_facts(self, folder: RunFolder) -> dict[str, Any]:
        before = read_summary(folder.summary) or {}
        return {name: before[name] for name in OF_RECORD if self.resumed and name in before}

    def _close(self, state: str, **more: Any) -> None:
        ended = {"state": state, "ended": moment(), "wall_s": round(monotonic() - self._started, 3)}
        self.facts |= ended | more
