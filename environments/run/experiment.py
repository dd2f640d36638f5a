"""What a run is an experiment with: everything that decides how its rollouts go and what they earn.

The settings and tools that count, the environment's code, and the data that it loads. Data that rollouts read
first, after the fingerprint was made, is recorded as it is read (`LaterFiles`).
"""

import ast
import hashlib
import math
import os
import re
import sys
import sysconfig
import tempfile
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import time_ns
from types import CodeType, FunctionType
from typing import cast, get_args

import orjson

from environments.base_env import AgentEnv
from environments.config import AgentEnvConfig, ServerConfig
from environments.credit import recorded_params
from environments.record.origin import LATER, RunOrigin, digest, refuse_other_run
from environments.record.recorder import Recorder
from environments.record.run_folder import RUNS
from environments.rollout.agents.command import Command
from environments.rollout.items.item_json import stable_text
from environments.rollout.lifecycle.opened_files import OpenedFiles
from tools.extras import OWN_PACKAGES
from tools.plain_text import without_credentials
from tools.python_syntax import parse_python
from tools.registry import Tool, Toolset

WHERE_WRITTEN = frozenset({
    "data_path_to_save_groups", "data_dir_to_save_evals", "outbox_groups", "use_wandb",
    "use_trackio", "wandb_name", "profile",
})  # fmt: skip
"""Settings of where one run is written and shown."""
NOT_COUNTED = WHERE_WRITTEN | frozenset({
    # How much is run, and how fast.
    "max_items", "total_steps", "shuffle", "max_concurrent_rollouts", "max_failed_groups",
    # Of an evaluation, in which alone they count, see `origin_of`.
    "eval_rollouts", "pass_score",
    # How it reaches a trainer.
    "credit_view", "score_divisor", "allow_approximate_tokens", "max_batches_offpolicy",
    "min_batch_allocation",
    # Rollouts and rewards are the same; which of them are too old to be trained on stands in each group.
    "max_staleness",
    # How much is kept of a rollout, which goes as it goes.
    "artefacts_mb",
    # What the file holds counts, not where it lies.
    "dataset_path",
})  # fmt: skip
"""Settings that may change from one run of an experiment to the next."""
OF_A_SERVER = frozenset({
    "server_type", "family", "context_tokens", "temperature", "top_p", "extra_body",
})  # fmt: skip
"""Settings of a model server that shape what is sampled; its model's name is in the policy's."""
OF_A_SECOND_MODEL = ("model_name", "temperature", "top_p", "max_tokens", "extra_body")
OF_TRAINING = ("group_size", "min_group_size")
"""Settings that an evaluation has no use for."""
_NOT_COUNTED = re.compile(r"estimator.*|.*(_s|timeout|_url|key|secret|password|credentials?)")
"""Credit can be computed anew; waits, addresses and secrets change nothing that is recorded."""
_LONG = 200
_LARGEST_PROGRAM = 1 << 20
"""Bytes: what is larger is an interpreter."""
_MOST_NAMED = 500
"""Files of data that are named one by one; more are named by their folders."""
_SYSTEM = tuple(Path(each) for each in ("/proc", "/sys", "/dev", "/etc", "/usr/share", "/usr/lib"))
_WRITTEN, _GONE = "written by a run", "gone"
"""In the place of a digest: a file that a run writes decides nothing that its writer does not."""
_INSTEAD = "put the file back, start over with --fresh, or go on all the same with --accept"


def origin_of(
    env: AgentEnv, *, evaluation: bool = False, more_files: Mapping[str, Path] | None = None
) -> RunOrigin:
    """Returns what the groups of an open environment have in common, for its record and its outbox.

    `more_files` count as its own: those that another process which opened it has loaded, beside these.
    """
    config = env.config
    settings = _settings(config)
    if evaluation:
        settings = {name: text for name, text in settings.items() if name not in OF_TRAINING}
        counted = {"eval_rollouts": config.eval_rollouts, "pass_score": config.pass_score}
        settings |= {"evaluation": "true", **{name: stable_text(each) for name, each in counted.items()}}
    tools = {
        f"tool {spec.name}": digest(orjson.dumps(spec.to_openai(), option=orjson.OPT_SORT_KEYS))
        for spec in env.toolset.specs
    }
    second_models = {
        f"{server.section} {name}": stable_text(getattr(server, name))[:_LONG]
        for server in env.lifecycle.parts.second_servers
        for name in OF_A_SECOND_MODEL
    }
    dataset = config.dataset_path
    # One that the environment makes itself is in its code and items.
    is_local = dataset is not None and Path(dataset).is_file()
    return RunOrigin(
        env=env.name,
        policy=env.policy_name,
        estimator=env.estimator,
        estimator_params=recorded_params(
            env.estimator, preset=config.estimator_preset, params=env.lifecycle.parts.estimator_params
        ),
        experiment={
            "turnwise": turnwise_version(),
            "class": type(env).__qualname__,
            "system prompt": digest((env.system_prompt or "").encode("utf-8", "surrogatepass")),
            **settings,
            # A class's own choices count like settings.
            **env.lifecycle.facts(),
            **_servers(env.servers),
            **second_models,
            **_agent(env.agent),
            **({"dataset": file_digest(Path(dataset))} if dataset is not None and is_local else {}),
            **tools,
            **code_facts(type(env), {**(more_files or {}), **environment_files(env)}),
        },
    )


def _agent(command: Command | None) -> dict[str, str]:
    if command is None:
        return {}
    files = {Path(each) for each in command.argv if _size(each) < _LARGEST_PROGRAM}
    left = [each for each in files if each.suffix == ".py"]
    while left:  # and the modules beside it that it imports
        program = left.pop()
        beside = {program.with_name(f"{name}.py") for name in _imported_names(program)} - files
        left += [each for each in beside if each.is_file()]
        files |= set(left)
    names = [Path(each).name for each in command.argv]
    how = [*names, command.where, command.prompt, *command.read_only, *["share_home"] * command.share_home]
    facts = {"agent": stable_text(how), "agent's env": digest(stable_text(dict(command.env)).encode())}
    return facts | {f"agent's {each.name}": file_digest(each) for each in sorted(files)}


def _imported_names(program: Path) -> set[str]:
    try:
        tree = ast.parse(program.read_bytes())
    except (SyntaxError, ValueError):
        return set()
    names = [each.module or "" for each in ast.walk(tree) if isinstance(each, ast.ImportFrom)]
    for each in ast.walk(tree):
        names += [alias.name for alias in each.names] if isinstance(each, ast.Import) else []
    return {name.partition(".")[0] for name in names}


def _size(path: str) -> float:
    return Path(path).stat().st_size if Path(path).is_file() else math.inf


def turnwise_version() -> str:
    try:
        return version("turnwise")
    except PackageNotFoundError:
        return "unknown"


def _settings(config: AgentEnvConfig) -> dict[str, str]:
    """The settings that count. Text in those of an environment's own may hold a secret: it is a digest."""
    facts: dict[str, str] = {}
    for name, field in type(config).model_fields.items():
        if name in NOT_COUNTED or _NOT_COUNTED.fullmatch(name) or not field.repr:
            continue
        value = getattr(config, name)
        text = without_credentials(stable_text(value))
        plain = isinstance(value, int | float | None) or value in get_args(field.annotation)
        known = plain or name in AgentEnvConfig.model_fields
        facts[name] = text if known and len(text) <= _LONG else digest(text.encode("utf-8", "surrogatepass"))
    return facts


def _servers(servers: Sequence[ServerConfig]) -> dict[str, str]:
    """How model servers are asked, where that is set; their addresses do not count."""
    return {
        name if len(servers) == 1 else f"{name} of server {index}": stable_text(getattr(server, name))[:_LONG]
        for index, server in enumerate(servers)
        for name in sorted(OF_A_SERVER & server.model_fields_set)
        if getattr(server, name) != ServerConfig.model_fields[name].default
    }


def environment_files(env: AgentEnv) -> dict[str, Path]:
    """Returns the files that the fingerprint covers, as `code of env.py` or `data of users.jsonl`."""
    opened = env.lifecycle.opened_files
    return counted_files(type(env), opened=opened.read, written=opened.written, apart=_apart(env))


def _apart(env: AgentEnv) -> list[Path]:
    """What runs write, and the datasets, which count by their items."""
    config = env.config
    paths = (
        config.data_path_to_save_groups,
        config.data_dir_to_save_evals,
        config.dataset_path,
    )
    return [RUNS, *(Path(path) for path in paths if path is not None)]


def counted_files(
    env_cls: type, *, opened: Iterable[str] = (), written: Iterable[str] = (), apart: Iterable[Path] = ()
) -> dict[str, Path]:
    """Returns the files by name: `code of env.py`, `data of ../corpus/a.txt`, from the class's folder on."""
    modules, apart = _module_files(), list(apart)
    code: dict[str, Path] = {}
    own = {file.parent: file for cls in reversed(_classes(env_cls)) if (file := _file_of(cls.__module__))}
    for folder, file in own.items():
        start = f"{folder}{os.sep}"  # `each.parents` takes long where thousands are loaded
        beside = {*_code_beside(file), *(each for each in modules if str(each).startswith(start))}
        for each in _counted(beside, folder, apart):
            name = f"code of {each.relative_to(folder).as_posix()}"
            code[name if code.get(name, each) == each else f"{name} in {folder.name}"] = each
    scratch = _scratch_folder()
    temporary = {path for each in written if (path := Path(each).resolve()).is_relative_to(scratch)}
    named = {file for each in getattr(env_cls, "data", ()) for file in _files_at(_home_of(env_cls) / each)}
    data = {*(Path(each).resolve() for each in opened), *named} - temporary - {*code.values()}
    found = _data_by_name(env_cls, data - modules, apart)
    return code | {f"data of {name}": path for name, path in found.items()}


def code_facts(env_cls: type, files: Mapping[str, Path] | None = None) -> dict[str, str]:
    """Returns a digest for each file that counts: of code without comments and layout, of data as it is.

    A class without a file (a notebook, a REPL) counts by its functions, tools and states, and by functions of
    the same module that they name. Without `files` (see `counted_files`), these are the code of the class.
    """
    files = counted_files(env_cls) if files is None else files
    facts = {name: file_digest(file) for name, file in files.items()}
    data = [name for name in files if name.startswith("data of ")]
    if len(data) > _MOST_NAMED:
        folders: dict[str, list[str]] = {}
        for name in data:
            folders.setdefault(f"{name.rpartition('/')[0]}/", []).append(f"{name} {facts.pop(name)}")
        facts |= {folder: digest("\n".join(lines).encode()) for folder, lines in folders.items()}
    return facts | {
        f"code of class {cls.__qualname__}": digest(_class_text(cls, set()).encode())
        for cls in _classes(env_cls)
        if not has_file(cls)
    }


def file_digest(file: Path) -> str:
    """Equal for files of equal content; of code, comments and layout are no content."""
    return _read(file, file.stat().st_mtime_ns, file.stat().st_size)[0]


def has_file(cls: type) -> bool:
    return _file_of(cls.__module__) is not None


@lru_cache(maxsize=4096)
def _read(file: Path, _mtime_ns: int, _size: int) -> tuple[str, frozenset[str]]:
    """A file's digest and, of code, the modules that it imports, in functions too: read once while it stays.

    Each group of a run asks for the files that its rollouts read.
    """
    if file.suffix != ".py":
        with file.open("rb") as opened:
            return f"sha256:{hashlib.file_digest(opened, 'sha256').hexdigest()[:16]}", frozenset()
    data = file.read_bytes()
    try:
        tree = parse_python(data)
        nodes = list(ast.walk(tree))
        names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        names += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
        code = ast.unparse(tree).encode("utf-8", "surrogatepass")
        return digest(code), frozenset(name.partition(".")[0] for name in names)
    except (SyntaxError, ValueError, RecursionError):
        return digest(data), frozenset()


def _classes(env_cls: type) -> list[type]:
    """Those whose code is not Turnwise's, about which its version says all; a shipped environment counts."""
    return [
        cls
        for cls in env_cls.__mro__
        if (parts := cls.__module__.split("."))[0] != "builtins"
        and (parts[0] not in OWN_PACKAGES or parts[:2] == ["environments", "shipped"])
    ]


def _home_of(env_cls: type) -> Path:
    return next((file.parent for cls in _classes(env_cls) if (file := _file_of(cls.__module__))), Path.cwd())


def _scratch_folder() -> Path:
    return Path(tempfile.gettempdir()).resolve()


def _file_of(module: str) -> Path | None:
    file = getattr(sys.modules.get(module), "__file__", None)
    return _resolved(file) if isinstance(file, str) else None


def _module_files() -> set[Path]:
    # The second is what multiprocessing, and Ray with it, calls the program.
    names = [each for each in list(sys.modules) if each not in ("__main__", "__mp_main__")]
    return {file for name in names if (file := _file_of(name))}


@cache
def _resolved(file: str) -> Path | None:
    """Once for each module of a process: there are thousands, in few folders."""
    path = _resolved_folder(os.path.dirname(file)) / os.path.basename(file)  # noqa: PTH119, PTH120  # a `Path` of each takes longer
    return path if os.path.isfile(path) else None  # noqa: PTH113  # likewise


@cache
def _resolved_folder(folder: str) -> Path:
    return Path(folder).resolve()


@cache
def _installed() -> tuple[Path, ...]:
    source = Path(__file__).resolve().parents[2]
    paths = {sys.prefix, *sysconfig.get_paths().values()}
    return (*_SYSTEM, *(Path(path).resolve() for path in paths), *(source / name for name in OWN_PACKAGES))


def _data_by_name(env_cls: type, files: Iterable[Path], apart: Iterable[Path]) -> dict[str, Path]:
    """The files among these that are the environment's data, by their paths from its folder on."""
    home = _home_of(env_cls)
    data = [path for path in files if path.suffix != ".pyc" and path.is_file()]
    return {Path(os.path.relpath(path, home)).as_posix(): path for path in _counted(data, home, apart)}


def _counted(files: Iterable[Path], folder: Path, apart: Iterable[Path]) -> list[Path]:
    """The files that are the environment's, sorted: not hidden, and no part of what stands apart."""
    left_out = [*(path.resolve() for path in apart), *_installed()]
    counted: list[Path] = []
    for file in sorted(files):
        is_below = file.is_relative_to(folder)
        parts = (file.relative_to(folder) if is_below else file).parts
        hidden = [part for part in parts if part[0] == "." or part.endswith(("__pycache__", "-packages"))]
        # What is installed around the environment does not take it out: a package may be one.
        outside = (each for each in left_out if not (is_below and folder.is_relative_to(each)))
        if not hidden and not any(file.is_relative_to(each) for each in outside):
            counted.append(file)
    return counted


def _code_beside(file: Path) -> Iterator[Path]:
    """The package that a file is part of; without one, the file and what it imports from beside it."""
    folder = file.parent
    if (folder / "__init__.py").is_file():
        yield from folder.rglob("*.py")
        return
    found, waiting = set[Path](), [file]
    while waiting:
        each = waiting.pop()
        if each not in found:
            found.add(each)
            for name in _read(each, each.stat().st_mtime_ns, each.stat().st_size)[1]:
                waiting += _files_at(folder / f"{name}.py")
                waiting += [path for path in _files_at(folder / name) if path.suffix == ".py"]
    yield from found


def _files_at(path: Path) -> list[Path]:
    """A file, or those below a folder; none where there is nothing or where it may not be read."""
    try:
        if path.is_file():
            return [path.resolve()]
        return [each.resolve() for each in path.rglob("*") if each.is_file()] if path.is_dir() else []
    except OSError:
        return []


def _class_text(cls: type, seen: set[object]) -> str:
    """The functions and plain values of a class, as text that is the same in every process."""
    values = {name: value for name, value in vars(cls).items() if not name.startswith("__")}
    return "\n".join(f"{name}={_value_text(value, seen)}" for name, value in sorted(values.items()))


def _value_text(value: object, seen: set[object]) -> str:
    """Of a function its code, and that of functions of its module that it names."""
    value = getattr(value, "__func__", getattr(value, "fget", value))
    value = value.tools if isinstance(value, Toolset) else value
    value = value.function if isinstance(value, Tool) else value
    if isinstance(value, FunctionType):
        if value.__code__ in seen:
            return ""
        seen.add(value.__code__)
        named = [value.__globals__.get(name) for name in value.__code__.co_names]
        functions = [each for each in named if isinstance(each, FunctionType)]
        own = [each for each in functions if each.__module__ == value.__module__]
        return _value_text([value.__code__, *own], seen)
    if isinstance(value, CodeType):
        consts = _value_text(value.co_consts, seen)
        return f"{value.co_code.hex()} {value.co_names} {value.co_varnames} {consts}"
    if isinstance(value, frozenset | set):
        return repr(sorted(map(repr, cast("frozenset[object]", value))))
    if isinstance(value, tuple | list):
        return repr([_value_text(each, seen) for each in cast("list[object]", value)])
    if isinstance(value, type) and not has_file(value) and value not in seen:
        seen.add(value)
        return "\n".join(_class_text(each, seen) for each in value.__mro__ if not has_file(each))
    return repr(value) if isinstance(value, str | int | float | bytes | None) else type(value).__qualname__


class LaterFiles:
    """The data that rollouts read and that the fingerprint, made before them, does not cover."""

    def __init__(self, env: AgentEnv, recorder: Recorder, *, accept: bool) -> None:
        """Compares what the groups of a record that was begun have read with what is there now.

        Raises OtherRunError if a file changed and is not accepted so, or is gone.
        """
        self.opened = OpenedFiles(in_hooks=True)
        self._env_cls, self._accept, self._record = type(env), accept, recorder.path
        self._covered = frozenset(environment_files(env).values())
        self._apart = [*_apart(env), _scratch_folder()]
        self._since = time_ns()
        recorded = recorder.contents.facts_of(recorder.fingerprint)
        self._digests = {
            name.removeprefix(LATER): value for name, value in recorded.items() if name.startswith(LATER)
        }
        home = _home_of(self._env_cls)
        self._names = {os.path.realpath(home / name): name for name in self._digests}
        now = {name: self._digest_of(file) or _GONE for file, name in self._names.items()}
        self._unrecorded = self._changes(now)

    def facts(self) -> dict[str, str]:
        """Returns the digests of the files that were read since the last call, unless the record has them.

        Raises OtherRunError if a file is not as it was.
        """
        facts, self._unrecorded = self._unrecorded, {}
        if self.opened.read or self.opened.written:
            files = _taken(self.opened.read)
            if new := {Path(file) for file in files - self._names.keys()} - self._covered:
                found = _data_by_name(self._env_cls, new, self._apart)
                modules = _module_files() if found else ()
                self._names |= {str(path): name for name, path in found.items() if path not in modules}
            known = {self._names[file]: file for file in files if file in self._names}
            now = {name: value for name, file in known.items() if (value := self._digest_of(file))}
            # Last: a write that the digests saw was noted before it.
            written = {self._names.get(file) for file in _taken(self.opened.written)}
            now |= dict.fromkeys({*now, *self._digests} & written, _WRITTEN)
            facts |= self._changes(now)
        return {f"{LATER}{name}": value for name, value in facts.items()}

    def _digest_of(self, file: str) -> str | None:
        """The file's content; `None`: there is no file, or it came to be during the run."""
        path = Path(file)
        try:
            stat = path.stat()
            is_new = max(stat.st_mtime_ns, stat.st_ctime_ns) >= self._since
            counts = path.is_file() and (self._names[file] in self._digests or not is_new)
            return file_digest(path) if counts else None
        except OSError:
            return None

    def _changes(self, now: Mapping[str, str]) -> dict[str, str]:
        """What the record does not have yet. Raises OtherRunError if it says something else."""
        known = self._digests
        news = {name: value for name, value in now.items() if known.get(name) not in (value, _WRITTEN)}
        changed = [
            f"{name}, which rollouts read, {'is gone' if value == _GONE else 'changed'}"
            for name, value in sorted(news.items())
            if name in known and value != _WRITTEN
        ]
        if not self._accept:
            refuse_other_run(str(self._record), changed, instead=_INSTEAD)
        known |= news
        return news


@contextmanager
def later_files(env: AgentEnv, recorder: Recorder, *, accept: bool) -> Generator[None]:
    """While entered, the record also notes which files rollouts read, and takes no group that read others.

    Raises OtherRunError if a file that its groups have read changed.
    """
    later = LaterFiles(env, recorder, accept=accept)
    with later.opened.watched():
        recorder.more_facts = later.facts
        yield


def _taken(paths: dict[str, None]) -> set[str]:
    """The resolved paths, which are no longer noted; other threads may note more meanwhile."""
    taken = list(paths)
    for path in taken:
        del paths[path]
    return {os.path.realpath(path) for path in taken}
