"""The files of an environment, one digest each: of code without comments and layout."""

import ast
import filecmp
import hashlib
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from os.path import abspath, isdir, isfile
from pathlib import Path
from types import CodeType, FunctionType
from typing import cast

from environments.python_syntax import parse_python
from environments.record.origin import digest
from tools.registry import Tool, Toolset

_TURNWISE = ("environments", "tools", "turnwise")
_DATA = frozenset({".csv", ".json", ".jsonl", ".md", ".sql", ".toml", ".tsv", ".txt", ".yaml", ".yml"})
"""Suffixes of files that code reads beside itself."""
_LONGEST_PATH = 200
"""Of a file that code names, in characters; a prompt is longer."""


def code_facts(env_cls: type, *, apart: Iterable[Path] = ()) -> dict[str, str]:
    """A digest for each file of an environment's: what is loaded, or imported anywhere, below its folder.

    Files of data count where the code names them (`"users.jsonl"`, `"prompts/judge.md"`), but for those
    `apart`, which a run writes or which count by their items.

    The folder is the outermost package around the class's file, or else the file's own folder; so for every
    class that it inherits from. Docstrings count: they are prompts. A class without a file (a notebook, a
    REPL) counts by its functions, tools and states, and by functions of the same module that they name.
    """
    facts = {
        f"code of class {cls.__qualname__}": digest(_class_text(cls, set()).encode())
        for cls in _classes(env_cls)
        if _file_of(cls.__module__) is None
    }
    for root, code_of in _code_by_root(env_cls, apart).items():
        for file, code in code_of.items():
            kind = "data" if file.suffix in _DATA else "code"
            name = f"{kind} of {file.relative_to(root).as_posix()}"
            # Classes from two folders may have files of one name.
            facts[name] = digest((facts.get(name, "") + code).encode())
    return facts


def code_files(env_cls: type, *, apart: Iterable[Path] = ()) -> dict[str, Path]:
    """The files that `code_facts` is of, by the names of a copy that Python could import from."""
    named: dict[str, Path] = {}
    for root, code_of in _code_by_root(env_cls, apart).items():
        top = root.parent if (root / "__init__.py").is_file() else root
        for file in code_of:
            name = file.relative_to(top).as_posix()
            named[name if name not in named else f"{len(named)}/{name}"] = file
    return named


def same_code(one: Path, other: Path) -> bool:
    """Whether two files differ in nothing that counts."""
    return filecmp.cmp(one, other, shallow=False) or _source_of(one).code == _source_of(other).code


def _classes(env_cls: type) -> list[type]:
    return [
        cls for cls in env_cls.__mro__ if cls.__module__ != "builtins" and not _is_turnwise(cls.__module__)
    ]


def _code_by_root(env_cls: type, apart: Iterable[Path]) -> dict[Path, dict[Path, str]]:
    """By the folder that each class of an environment's stands in, what counts of the files below it."""
    files = {file for cls in _classes(env_cls) if (file := _file_of(cls.__module__)) is not None}
    left_out = {path.resolve() for path in apart}
    return {root: _code_below(root, files, left_out) for root in sorted({_root(file) for file in files})}


def has_file(cls: type) -> bool:
    """Whether a class was loaded from a file."""
    return _file_of(cls.__module__) is not None


def _is_turnwise(module: str) -> bool:
    """Whether Turnwise's version says all about a module; that of a shipped environment counts itself."""
    first, *rest = module.split(".")
    return first in _TURNWISE and not (len(rest) > 1 and rest[0].endswith("_env"))


def _file_of(module: str) -> Path | None:
    file = getattr(sys.modules.get(module), "__file__", None)
    if not isinstance(file, str) or not isfile(file):  # noqa: PTH113  # a path of each takes longer
        return None
    return _resolved(abspath(file))  # noqa: PTH100  # likewise


@cache
def _resolved(file: str) -> Path:
    """Once for each module of a process: there are thousands, in few folders."""
    path = Path(file)
    there = _resolved_folder(path.parent) / path.name
    return there.resolve() if there.is_symlink() else there


@cache
def _resolved_folder(folder: Path) -> Path:
    return folder.resolve()


def _root(file: Path) -> Path:
    """The outermost package around a file, or else its folder: the same however it was loaded."""
    folder = file.parent
    while (folder / "__init__.py").is_file() and (folder.parent / "__init__.py").is_file():
        if folder.parent in _turnwise_folders():
            break
        folder = folder.parent
    return folder


def _turnwise_folders() -> list[Path]:
    return [Path(__file__).resolve().parents[2] / name for name in _TURNWISE]


def _code_below(root: Path, files: set[Path], left_out: set[Path]) -> dict[Path, str]:
    """The code of `files` and of loaded modules below a folder, and of all that they import or name there."""
    installed = [Path(path).resolve() for path in {sys.prefix, *sysconfig.get_paths().values()}]
    others = (*installed, *_turnwise_folders(), *left_out)
    apart = [each for each in others if each != root and each.is_relative_to(root)]

    def counts(file: Path) -> bool:
        if not _is_below(file, root) or any(_is_below(file, each) for each in apart):
            return False
        parts = file.parts[len(root.parts) :]
        return not any(part.startswith(".") or part.endswith("-packages") for part in parts)

    # Whoever starts the run is not the environment, unless a class of it is there.
    loaded = {file for name in list(sys.modules) if name != "__main__" and (file := _file_of(name))}
    waiting = [file for file in files | loaded if counts(file)]
    found: dict[Path, str] = {}
    files_of = cache(_files_of)  # of this walk alone: files come and go, and most import the same
    while waiting:
        file = waiting.pop()
        if file not in found:
            source = _source_of(file)
            found[file] = source.code
            meant = (each for where in _imported(source, file, root) for each in files_of(*where))
            reached = (*meant, *_named(source, file, root))
            waiting += [each for each in reached if counts(each)]
    return dict(sorted(found.items()))


def _is_below(file: Path, folder: Path) -> bool:
    return file.parts[: len(folder.parts)] == folder.parts  # `is_relative_to` makes a path of each


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """What counts of a file."""

    code: str
    """Without comments and layout, or a digest of a file that is not Python text."""
    imports: tuple[tuple[int, tuple[str, ...]], ...] = ()
    """Of each import statement the level and the modules that it may mean."""
    texts: tuple[str, ...] = ()
    """Those in it that may be paths."""


def _source_of(file: Path) -> _Source:
    stat = file.stat()
    return _read(file, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=4096)
def _read(file: Path, _mtime_ns: int, _size: int) -> _Source:
    """Parsed once while the file stays as it is: a process may begin many runs."""
    if file.suffix != ".py":
        return _Source(code=_content(file))
    data = file.read_bytes()
    try:
        tree = parse_python(data)
    except (SyntaxError, ValueError, RecursionError):
        return _Source(code=digest(data))
    return _Source(
        code=ast.unparse(tree), imports=tuple(_import_statements(tree)), texts=tuple(sorted(_texts(tree)))
    )


def _content(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _texts(tree: ast.Module) -> set[str]:
    constants = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    texts = {each for each in constants if isinstance(each, str)}
    return {each for each in texts if 0 < len(each) <= _LONGEST_PATH and each.isprintable()}


def _import_statements(tree: ast.Module) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Those in functions, too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield 0, tuple(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            of = node.module or ""
            yield node.level, (of, *(f"{of}.{alias.name}".removeprefix(".") for alias in node.names))


def _imported(source: _Source, file: Path, root: Path) -> Iterator[tuple[Path, str]]:
    """The modules that a file's import statements may mean: a folder, and a dotted name below it."""
    for level, names in source.imports:
        folders = [root, root.parent, file.parent]
        if level:
            folders = [[file, *file.parents][level]] if level < len(file.parents) else []
        for folder in folders:
            yield from ((folder, name) for name in names)


def _named(source: _Source, file: Path, root: Path) -> Iterator[Path]:
    """The files of data that code names: in its own folder, in the root, or in a folder that it names."""
    names = [each for each in source.texts if Path(each).suffix in _DATA]
    below = [file.parent, root]
    # Not `Path.is_dir`, which raises where a folder may not be read.
    below += [each / text for each in below for text in source.texts if names and isdir(each / text)]  # noqa: PTH112
    paths = (folder / name for folder in below for name in names)
    yield from (path.resolve() for path in paths if isfile(path))  # noqa: PTH113  # likewise


def _files_of(folder: Path, name: str) -> tuple[Path, ...]:
    """The files of a dotted module and of the packages around it."""
    found: list[Path] = []
    below = str(folder)
    for part in filter(None, name.split(".")):
        below = f"{below}/{part}"
        found += [Path(file).resolve() for file in (f"{below}.py", f"{below}/__init__.py") if isfile(file)]  # noqa: PTH113  # likewise
        if not isdir(below):  # noqa: PTH112  # likewise
            break
    return tuple(found)


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
