"""The files that an experiment is told apart by: an environment's code, and the data that it loads."""

import ast
import hashlib
import os
import sys
import sysconfig
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache, lru_cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import cast

from environments.python_syntax import parse_python
from environments.record.origin import digest
from tools.registry import Tool, Toolset

_TURNWISE = ("environments", "tools", "turnwise")
_MOST_NAMED = 500
"""Files of data that are named one by one; more are named by their folders."""
_SYSTEM = tuple(Path(each) for each in ("/proc", "/sys", "/dev", "/etc", "/usr/share", "/usr/lib"))


def code_facts(env_cls: type, files: Mapping[str, Path] | None = None) -> dict[str, str]:
    """A digest for each file that counts: of code without comments and layout, of data as it is.

    Args:
        env_cls: the environment's class. One without a file (a notebook, a REPL) counts by its functions,
            tools and states, and by functions of the same module that they name.
        files: see `counted_files`; unset: the code of the class.
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


def counted_files(
    env_cls: type, *, opened: Iterable[str] = (), written: Iterable[str] = (), apart: Iterable[Path] = ()
) -> dict[str, Path]:
    """The files by name: `code of env.py`, `data of ../corpus/a.txt`, from the folder of the class on.

    Args:
        env_cls: the environment's class.
        opened: paths that were opened for reading while it was set up and its items were loaded.
        written: paths that were opened for writing, too.
        apart: what runs write, or what counts by its items.
    """
    own = {file.parent: file for cls in reversed(_classes(env_cls)) if (file := _file_of(cls.__module__))}
    left_out = [*(path.resolve() for path in apart), *_installed()]
    modules = {file for name in list(sys.modules) if name != "__main__" and (file := _file_of(name))}
    found: dict[str, Path] = {}
    for folder, file in own.items():
        for each in sorted({*_code_beside(file), *(each for each in modules if folder in each.parents)}):
            if _counts(each, folder, left_out):
                name = f"code of {each.relative_to(folder).as_posix()}"
                found[name if found.get(name, each) == each else f"{name} in {folder.name}"] = each
    home = home_of(env_cls)
    scratch = scratch_folder()
    written = {os.path.realpath(path) for path in written}
    named = (file for each in getattr(env_cls, "data", ()) for file in _files_at(home / each))
    for path in sorted({*(Path(each).resolve() for each in opened), *named}):
        is_scratch = str(path) in written and path.is_relative_to(scratch)
        is_code = path.suffix == ".pyc" or path in modules or path in found.values()
        if not is_scratch and not is_code and path.is_file() and _counts(path, home, left_out):
            found[f"data of {Path(os.path.relpath(path, home)).as_posix()}"] = path
    return found


def later_data(
    env_cls: type, opened: Iterable[str], *, counted: Collection[Path], apart: Iterable[Path]
) -> dict[str, Path]:
    """The data among files that rollouts opened, by its path from the folder of the class on.

    Args:
        env_cls: the environment's class.
        opened: paths that were opened for reading.
        counted: files that the fingerprint covers.
        apart: what runs write, or what counts by its items.
    """
    home = home_of(env_cls)
    left_out = [*(path.resolve() for path in apart), scratch_folder(), *_installed()]
    files = [path for path in map(Path, opened) if path.suffix != ".pyc" and path not in counted]
    files = [path for path in files if path.is_file() and _counts(path, home, left_out)]
    if not files:
        return {}
    modules = {_file_of(name) for name in list(sys.modules)}
    return {Path(os.path.relpath(path, home)).as_posix(): path for path in files if path not in modules}


def home_of(env_cls: type) -> Path:
    """The folder of an environment's class; the current one where it has no file."""
    return next((file.parent for cls in _classes(env_cls) if (file := _file_of(cls.__module__))), Path.cwd())


def scratch_folder() -> Path:
    """Where temporary files lie."""
    return Path(tempfile.gettempdir()).resolve()


def file_digest(file: Path) -> str:
    """Equal for files of equal content; of code, comments and layout are no content."""
    stat = file.stat()
    return _digest_of(file, stat.st_mtime_ns, stat.st_size)


def has_file(cls: type) -> bool:
    """Whether a class was loaded from a file."""
    return _file_of(cls.__module__) is not None


@lru_cache(maxsize=4096)
def _digest_of(file: Path, _mtime_ns: int, _size: int) -> str:
    """Read once while the file stays as it is: a process may begin many runs."""
    if file.suffix == ".py":
        data = file.read_bytes()
        try:
            return digest(ast.unparse(parse_python(data)).encode("utf-8", "surrogatepass"))
        except (SyntaxError, ValueError, RecursionError):
            return digest(data)
    with file.open("rb") as opened:
        return f"sha256:{hashlib.file_digest(opened, 'sha256').hexdigest()[:16]}"


def _classes(env_cls: type) -> list[type]:
    """Those whose code is not Turnwise's, about which its version says all; a shipped environment counts."""
    return [
        cls
        for cls in env_cls.__mro__
        if (parts := cls.__module__.split("."))[0] != "builtins"
        and (parts[0] not in _TURNWISE or (len(parts) > 2 and parts[1].endswith("_env")))
    ]


def _file_of(module: str) -> Path | None:
    file = getattr(sys.modules.get(module), "__file__", None)
    return _resolved(file) if isinstance(file, str) else None


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
    """Where Python, its packages and Turnwise lie."""
    source = Path(__file__).resolve().parents[2]
    paths = {sys.prefix, *sysconfig.get_paths().values()}
    return (*_SYSTEM, *(Path(path).resolve() for path in paths), *(source / name for name in _TURNWISE))


def _counts(file: Path, folder: Path, left_out: Iterable[Path]) -> bool:
    """Whether a file is the environment's: not hidden, and no part of what is left out."""
    is_below = file.is_relative_to(folder)
    parts = (file.relative_to(folder) if is_below else file).parts
    if any(part.startswith(".") or part == "__pycache__" or part.endswith("-packages") for part in parts):
        return False
    # What is installed around the environment does not take it out: a package may be one.
    return not any(
        file.is_relative_to(each) and not (is_below and folder.is_relative_to(each)) for each in left_out
    )


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
            names = _imported(each, each.stat().st_mtime_ns)
            waiting += [path for name in names for path in _files_at(folder / f"{name}.py")]
            waiting += [path for name in names for path in _files_at(folder / name) if path.suffix == ".py"]
    yield from found


@lru_cache(maxsize=4096)
def _imported(file: Path, _mtime_ns: int) -> frozenset[str]:
    """The modules and packages that import statements of a file name, those in functions, too."""
    try:
        nodes = list(ast.walk(parse_python(file.read_bytes())))
    except (SyntaxError, ValueError, RecursionError):
        return frozenset()
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
    return frozenset(name.partition(".")[0] for name in names)


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
    value = getattr(value, "__func__", getattr(value, "fget", value))
    value = value.tools if isinstance(value, Toolset) else value
    value = value.function if isinstance(value, Tool) else value
    if isinstance(value, FunctionType):
        return _function_text(value, seen)
    if isinstance(value, frozenset | set):
        return repr(sorted(map(repr, cast("frozenset[object]", value))))
    if isinstance(value, CodeType):
        consts = [_value_text(each, seen) for each in value.co_consts]
        return f"{value.co_code.hex()} {value.co_names} {value.co_varnames} {consts}"
    if isinstance(value, str | int | float | bytes | None):
        return repr(value)
    if isinstance(value, tuple | list):
        return repr([_value_text(each, seen) for each in cast("list[object]", value)])
    if isinstance(value, type) and not has_file(value) and value not in seen:
        seen.add(value)
        return "\n".join(_class_text(each, seen) for each in value.__mro__ if not has_file(each))
    return type(value).__qualname__


def _function_text(function: FunctionType, seen: set[object]) -> str:
    """The function's code, and that of functions of its module that it names."""
    if function.__code__ in seen:
        return ""
    seen.add(function.__code__)
    named = [function.__globals__.get(name) for name in function.__code__.co_names]
    own = [
        each for each in named if isinstance(each, FunctionType) and each.__module__ == function.__module__
    ]
    return _value_text(function.__code__, seen) + "".join(_function_text(each, seen) for each in own)
