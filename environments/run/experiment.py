"""The experiment of a run: all facts that decide how its rollouts go and what they earn.

These are settings, tools, the environment's code, and data read before the fingerprint is made. Data that
rollouts read first is recorded when it is read (`LaterFiles`).
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
NOT_COUNTED = WHERE_WRITTEN | frozenset({
    # Amount and speed.
    "max_items", "total_steps", "shuffle", "max_concurrent_rollouts", "max_failed_groups",
    # Counted in evaluations only, see `origin_of`.
    "eval_rollouts", "pass_score",
    # Delivery to a trainer.
    "credit_view", "score_divisor", "allow_approximate_tokens", "max_batches_offpolicy",
    "min_batch_allocation",
    # Staleness is recorded in each group.
    "max_staleness",
    # Bytes kept of a rollout.
    "artefacts_mb",
    # The content counts, not the path.
    "dataset_path",
})  # fmt: skip
"""Settings that may differ between runs of an experiment."""
ADDED = frozenset({"on_cut", "branches", "branch_at"})
"""Settings that older records lack. Their defaults stay out of the fingerprint, so that those runs resume."""
OF_A_SERVER = frozenset({
    "server_type", "family", "tools", "context_tokens", "temperature", "top_p", "extra_body",
})  # fmt: skip
_NOT_COUNTED = re.compile(r"estimator.*|.*(_s|timeout|_url|key|secret|password|credentials?)")
"""Credit can be recomputed; waits, addresses and secrets do not change recorded values."""
_LONG = 200
_LARGEST_PROGRAM = 1 << 20
_MOST_NAMED = 500
_SYSTEM = tuple(Path(each) for each in ("/proc", "/sys", "/dev", "/etc", "/usr/share", "/usr/lib"))
_WRITTEN, _GONE = "written by a run", "gone"
"""Replace a digest: a file that a run writes is determined by its writer."""
_INSTEAD = "put the file back, start over with --fresh, or go on all the same with --accept"


def origin_of(
    env: AgentEnv, *, evaluation: bool = False, more_files: Mapping[str, Path] | None = None
) -> RunOrigin:
    """Return the common facts of an open environment's groups, for its record and its outbox.

    `more_files` are counted too: files that another process with this environment has loaded.
    """
    config, parts = env.config, env.lifecycle.parts
    settings = _settings(config)
    if evaluation:
        settings = {
            name: text
            for name, text in settings.items()
            if name not in ("group_size", "min_group_size", "branches", "branch_at")
        }
        counted = {"eval_rollouts": config.eval_rollouts, "pass_score": config.pass_score}
        settings |= {"evaluation": "true", **{name: stable_text(each) for name, each in counted.items()}}
    tools = {
        f"tool {spec.name}": digest(orjson.dumps(spec.to_openai(), option=orjson.OPT_SORT_KEYS))
        for spec in env.toolset.specs
    }
    second_models = {
        f"{server.section} {name}": stable_text(getattr(server, name))[:_LONG]
        for server in parts.second_servers
        for name in ("temperature", "top_p", "max_tokens", "extra_body")
    } | {
        f"{server.section} model_name": stable_text(parts.second_models.name_of(server.section))[:_LONG]
        for server in parts.second_servers
    }
    dataset = config.dataset_path
    # A dataset that the environment generates is covered by its code and items.
    is_local = dataset is not None and Path(dataset).is_file()
    return RunOrigin(
        env=env.name,
        policy=env.policy_name,
        estimator=env.estimator,
        estimator_params=recorded_params(
            env.estimator, preset=config.estimator_preset, params=parts.estimator_params
        ),
        experiment={
            "turnwise": turnwise_version(),
            "class": type(env).__qualname__,
            "system prompt": digest((env.system_prompt or "").encode("utf-8", "surrogatepass")),
            **settings,
            # A class's own choices count like settings.
            **env.lifecycle.facts(),
            **_servers(env.servers),
            **({} if parts.constraints == "ask" else {"constraints": parts.constraints}),
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
        beside = {program.with_name(f"{name}.py") for name in _read(program)[1]} - files
        left += [each for each in beside if each.is_file()]
        files |= set(left)
    names = [Path(each).name for each in command.argv]
    how = [*names, command.where, command.prompt, *command.read_only, *["share_home"] * command.share_home]
    facts = {"agent": stable_text(how), "agent's env": digest(stable_text(dict(command.env)).encode())}
    return facts | {f"agent's {each.name}": file_digest(each) for each in sorted(files)}


def _size(path: str) -> float:
    return Path(path).stat().st_size if Path(path).is_file() else math.inf


def turnwise_version() -> str:
    try:
        return version("turnwise")
    except PackageNotFoundError:
        return "unknown"


def _settings(config: AgentEnvConfig) -> dict[str, str]:
    """Return the settings that count; text of an environment's own settings may be secret and is hashed."""
    facts: dict[str, str] = {}
    for name, field in type(config).model_fields.items():
        if name in NOT_COUNTED or _NOT_COUNTED.fullmatch(name) or not field.repr:
            continue
        value = getattr(config, name)
        if name in ADDED and value == field.default:
            continue
        text = without_credentials(stable_text(value))
        plain = isinstance(value, int | float | None) or value in get_args(field.annotation)
        known = plain or name in AgentEnvConfig.model_fields
        facts[name] = text if known and len(text) <= _LONG else digest(text.encode("utf-8", "surrogatepass"))
    return facts


def _servers(servers: Sequence[ServerConfig]) -> dict[str, str]:
    return {
        name if len(servers) == 1 else f"{name} of server {index}": stable_text(getattr(server, name))[:_LONG]
        for index, server in enumerate(servers)
        for name in sorted(OF_A_SERVER & server.model_fields_set)
        if getattr(server, name) != ServerConfig.model_fields[name].default
    }


def environment_files(env: AgentEnv) -> dict[str, Path]:
    """Return the files of the fingerprint, such as `code of env.py` or `data of users.jsonl`."""
    opened = env.lifecycle.opened_files
    return counted_files(type(env), opened=opened.read, written=opened.written, apart=_find_excluded(env))


def _find_excluded(env: AgentEnv) -> list[Path]:
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
    modules, apart = _module_files(), list(apart)
    code: dict[str, Path] = {}
    own = {file.parent: file for cls in reversed(_classes(env_cls)) if (file := _file_of(cls.__module__))}
    for folder, file in own.items():
        start = f"{folder}{os.sep}"  # `each.parents` takes long where thousands are loaded
        beside = {*_code_beside(file), *(each for each in modules if str(each).startswith(start))}
        for each in _own_files(beside, folder, apart):
            name = f"code of {each.relative_to(folder).as_posix()}"
            code[name if code.get(name, each) == each else f"{name} in {folder.name}"] = each
    scratch = _scratch_folder()
    temporary = {path for each in written if (path := Path(each).resolve()).is_relative_to(scratch)}
    named = {file for each in getattr(env_cls, "data", ()) for file in _files_at(_home_of(env_cls) / each)}
    data = {*(Path(each).resolve() for each in opened), *named} - temporary - {*code.values()}
    found = _data_by_name(env_cls, data - modules, apart)
    return code | {f"data of {name}": path for name, path in found.items()}


def code_facts(env_cls: type, files: Mapping[str, Path] | None = None) -> dict[str, str]:
    """Return a digest per file: of code without comments and layout, of data as it is.

    A class without a file counts by its functions, tools and states, and by functions of its module that they
    name. `files` defaults to the code of the class (see `counted_files`).
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
    return _read(file)[0]


def has_file(cls: type) -> bool:
    return _file_of(cls.__module__) is not None


def _read(file: Path) -> tuple[str, frozenset[str]]:
    stat = file.stat()
    return _parse(file, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=4096)
def _parse(file: Path, _mtime_ns: int, _size: int) -> tuple[str, frozenset[str]]:
    """Return a file's digest and, for code, its imported modules; cached, since each group needs both."""
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
    """Return the classes that Turnwise's version does not cover; shipped environments are included."""
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
    return _resolve_file(file) if isinstance(file, str) else None


def _module_files() -> set[Path]:
    # `__mp_main__` is the program in processes of multiprocessing and Ray.
    names = [each for each in list(sys.modules) if each not in ("__main__", "__mp_main__")]
    return {file for name in names if (file := _file_of(name))}


@cache
def _resolve_file(file: str) -> Path | None:
    path = _resolve_folder(os.path.dirname(file)) / os.path.basename(file)  # noqa: PTH119, PTH120  # thousands of modules: a `Path` of each takes longer
    return path if os.path.isfile(path) else None  # noqa: PTH113  # likewise


@cache
def _resolve_folder(folder: str) -> Path:
    return Path(folder).resolve()


@cache
def _foreign_folders() -> tuple[Path, ...]:
    source = Path(__file__).resolve().parents[2]
    paths = {sys.prefix, *sysconfig.get_paths().values()}
    return (*_SYSTEM, *(Path(path).resolve() for path in paths), *(source / name for name in OWN_PACKAGES))


def _data_by_name(env_cls: type, files: Iterable[Path], apart: Iterable[Path]) -> dict[str, Path]:
    home = _home_of(env_cls)
    data = [path for path in files if path.suffix != ".pyc" and path.is_file()]
    return {Path(os.path.relpath(path, home)).as_posix(): path for path in _own_files(data, home, apart)}


def _own_files(files: Iterable[Path], folder: Path, apart: Iterable[Path]) -> list[Path]:
    left_out = [*(path.resolve() for path in apart), *_foreign_folders()]
    counted: list[Path] = []
    for file in sorted(files):
        is_below = file.is_relative_to(folder)
        parts = (file.relative_to(folder) if is_below else file).parts
        hidden = [part for part in parts if part[0] == "." or part.endswith(("__pycache__", "-packages"))]
        # The environment may itself lie in an installed package.
        outside = (each for each in left_out if not (is_below and folder.is_relative_to(each)))
        if not hidden and not any(file.is_relative_to(each) for each in outside):
            counted.append(file)
    return counted


def _code_beside(file: Path) -> Iterator[Path]:
    folder = file.parent
    if (folder / "__init__.py").is_file():
        yield from folder.rglob("*.py")
        return
    found, waiting = set[Path](), [file]
    while waiting:
        each = waiting.pop()
        if each not in found:
            found.add(each)
            for name in _read(each)[1]:
                waiting += _files_at(folder / f"{name}.py")
                waiting += [path for path in _files_at(folder / name) if path.suffix == ".py"]
    yield from found


def _files_at(path: Path) -> list[Path]:
    try:
        if path.is_file():
            return [path.resolve()]
        return [each.resolve() for each in path.rglob("*") if each.is_file()] if path.is_dir() else []
    except OSError:
        return []


def _class_text(cls: type, seen: set[object]) -> str:
    values = {name: value for name, value in vars(cls).items() if not name.startswith("__")}
    return "\n".join(f"{name}={_value_text(value, seen)}" for name, value in sorted(values.items()))


def _value_text(value: object, seen: set[object]) -> str:
    """Return a value as text; for a function its code and that of functions of its module that it names."""
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
    """Data that rollouts read after the fingerprint was made."""

    def __init__(self, env: AgentEnv, recorder: Recorder, *, accept: bool) -> None:
        self.opened = OpenedFiles(in_hooks=True)
        self._env_cls, self._accept, self._record = type(env), accept, recorder.path
        self._covered = frozenset(environment_files(env).values())
        self._excluded = [*_find_excluded(env), _scratch_folder()]
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
        """Return digests of files read since the last call that the record lacks.

        Raises OtherRunError if a file changed.
        """
        facts, self._unrecorded = self._unrecorded, {}
        if self.opened.read or self.opened.written:
            files = {os.path.realpath(path) for path in take_paths(self.opened.read)}
            if new := {Path(file) for file in files - self._names.keys()} - self._covered:
                found = _data_by_name(self._env_cls, new, self._excluded)
                modules = _module_files() if found else ()
                self._names |= {str(path): name for name, path in found.items() if path not in modules}
            known = {self._names[file]: file for file in files if file in self._names}
            now = {name: value for name, file in known.items() if (value := self._digest_of(file))}
            # After the digests, so that each write they include is known.
            written = {self._names.get(os.path.realpath(path)) for path in take_paths(self.opened.written)}
            now |= dict.fromkeys({*now, *self._digests} & written, _WRITTEN)
            facts |= self._changes(now)
        return {f"{LATER}{name}": value for name, value in facts.items()}

    def _digest_of(self, file: str) -> str | None:
        path = Path(file)
        try:
            stat = path.stat()
            is_new = max(stat.st_mtime_ns, stat.st_ctime_ns) >= self._since
            counts = path.is_file() and (self._names[file] in self._digests or not is_new)
            return file_digest(path) if counts else None
        except OSError:
            return None

    def _changes(self, now: Mapping[str, str]) -> dict[str, str]:
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
    """While entered, the record notes the files that rollouts read and refuses changed ones.

    Raises OtherRunError if a file that its groups have read changed.
    """
    later = LaterFiles(env, recorder, accept=accept)
    with later.opened.watch():
        recorder.more_facts = later.facts
        yield


def take_paths(paths: dict[str, None]) -> list[str]:
    """Empty a dict of paths that other threads may fill meanwhile, and return them."""
    found = list(paths)
    for path in found:
        del paths[path]
    return found
