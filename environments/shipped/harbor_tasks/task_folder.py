"""Task folders in Harbor's format: those that can run, and reasons against the others."""

import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from environments.shipped.harbor_tasks.compose_file import COMPOSE_FILES, read_service
from environments.shipped.harbor_tasks.task_toml import TaskTable, fill_variables, read_table
from environments.shipped.harbor_tasks.terminal_bench import Parser, read_solution, read_task_yaml
from tools.errors import DatasetError
from tools.plain_text import printable, utf8_text
from tools.sandbox.archive import ArchivedFile

Images = tuple[tuple[str, tuple[str, ...]], ...]
"""Sources of a machine, best first, each with the images that the engine needs for it."""
_MOST_BYTES = 128 << 20
_MOST_FILES, _MOST_CONTEXT = 100_000, 2 << 30
_MOST_TEXT = 1 << 18
_MOST_STARS = 4
_MOST_WORDS = 20
_MARKS = frozenset({"task.toml", "task.yaml", "instruction.md", "run-tests.sh"})
"""Names of which a task's folder has at least one."""
_HARBOR_PARTS = ("task.toml", "instruction.md", "tests", "solution", "environment")
_LONGEST_NAME = 512
_HERE_DOCUMENT = re.compile(r"<<-?([\"']?)(\w+)\1")
_ARGUMENT = re.compile(r"\$\{?(\w+)(?::-([^}]*))?\}?")


@dataclass(frozen=True, slots=True, kw_only=True)
class HarborTask:
    task_id: str
    folder: Path
    instruction: str
    table: TaskTable
    has_image: bool
    """Whether it names an image or has a Dockerfile; otherwise it runs in the local sandbox."""
    context: Path
    """The folder of the Dockerfile, or of files for the local sandbox."""
    tests: tuple[Path, ...]
    """What the sandbox gets as `/tests`: a file as it is, a folder by its content."""
    script: str
    """Name of the file in `/tests` that runs all tests, such as `test.sh`."""
    solution: Path
    solve: str | None
    """The commands of the solution, whose files are in `{}`."""
    parser: Parser | None
    """The format of the results that the tests print; None: the tests write a reward."""
    unset: frozenset[str]
    """Names of the host's variables that stay empty; nothing but the solution may read them."""

    @property
    def images(self) -> Images:
        return _images(self.table.environment.docker_image, self.context)

    @property
    def verifier_images(self) -> Images:
        if not self.table.is_separate:
            return ()
        machine = self.table.verifier.environment
        return _images(None if machine is None else machine.docker_image, self.folder / "tests")


def find_tasks(
    root: Path, granted: Mapping[str, str] = MappingProxyType({})
) -> tuple[list[HarborTask], dict[str, str]]:
    """Return the tasks below a folder, and a reason against each other folder that has parts of one."""
    tasks, refused = list[HarborTask](), dict[str, str]()
    for folder in sorted(_task_folders(root, refused)):
        below = folder.relative_to(root).as_posix() if folder != root else folder.resolve().name
        name = utf8_text(below)
        try:
            if name != below:
                raise DatasetError("its name is not UTF-8")
            tasks.append(_read(folder, name, granted))
        except (DatasetError, OSError, RuntimeError, UnicodeDecodeError) as error:  # links in circles, say
            reason = f"it is not UTF-8: {error}" if isinstance(error, UnicodeDecodeError) else str(error)
            refused[name] = in_short(reason.replace(f"{folder}/", ""))
    return tasks, refused


def refusal_lines(refused: Mapping[str, str]) -> Iterator[str]:
    """Yield a line per cause, with the number and the names of its folders."""
    by_cause = defaultdict[str, list[str]](list)
    for name, reason in sorted(refused.items()):
        cause, _, detail = reason.partition(": ")
        by_cause[cause].append(f"{name} ({detail})" if detail not in ("", "not supported") else name)
    for cause, names in sorted(by_cause.items(), key=lambda each: -len(each[1])):
        count = "1 task is" if len(names) == 1 else f"{len(names)} tasks are"
        yield printable(f"{count} left out, {cause}: {', '.join(names)}")


def files_below(folder: Path) -> dict[str, ArchivedFile]:
    """Return all files below a folder, by their paths relative to it. A file is returned by its name."""
    found, size = dict[str, ArchivedFile](), 0
    for path in [folder] if folder.is_file() else sorted(folder.rglob("*")):
        if path.is_file():
            status = path.stat()
            size += status.st_size
            if size > _MOST_BYTES:
                raise DatasetError(f"{folder.name}/ has more than {_MOST_BYTES >> 20} MB")
            name = path.name if path == folder else path.relative_to(folder).as_posix()
            found[name] = ArchivedFile(data=path.read_bytes(), mode=status.st_mode & 0o777)
    return found


def base_images(dockerfile: str) -> tuple[str, ...]:
    stages, arguments, found = {"scratch"}, dict[str, str](), list[str]()
    for kind, words in _instructions(dockerfile):
        named = [word for word in words if not word.startswith("--")]
        if kind == "ARG" and named and not found:
            name, _, default = named[0].partition("=")
            arguments[name] = default.strip("\"'")[:_LONGEST_NAME]
        elif kind == "FROM" and named:
            found.append(_ARGUMENT.sub(lambda each: arguments.get(each[1]) or each[2] or each[0], named[0]))
            stages |= {named[2].lower()} if len(named) > 2 else set()
        elif kind == "COPY":
            found += [word.removeprefix("--from=") for word in words if word.startswith("--from=")]
    return tuple(dict.fromkeys(name for name in found if name.lower() not in stages and not name.isdigit()))


def _task_folders(root: Path, refused: dict[str, str]) -> Iterator[Path]:
    def refuse(error: OSError) -> None:
        refused[os.path.relpath(error.filename, root)] = f"it cannot be read: {error.strerror}"

    for folder, below, files in os.walk(root, onerror=refuse):
        below[:] = [name for name in below if not name.startswith(".")]
        if not _MARKS.isdisjoint([*files, *below]):
            below.clear()
            yield Path(folder)
        for link in (path for path in map(Path(folder).joinpath, below) if path.is_symlink()):
            if any((link / mark).exists() for mark in _MARKS):
                refused[os.path.relpath(link, root)] = "it is a link to a task: not followed"


def _read(folder: Path, name: str, granted: Mapping[str, str]) -> HarborTask:
    if (folder / "task.toml").exists():
        parts, context, solution = _HARBOR_PARTS, folder / "environment", folder / "solution"
        script, solve_script = folder / "tests/test.sh", solution / "solve.sh"
        tests = (folder / "tests",)
    else:
        parts, context, solution = (".",), folder, folder / "solution.sh"
        script, solve_script = folder / "run-tests.sh", solution
        tests = (folder / "tests", script)
    for part in parts:
        _check_part(folder, part)
    table, instruction, parser = _read_tables(folder)
    if file := next((context / each for each in COMPOSE_FILES if (context / each).exists()), None):
        service = read_service(_text(file), file=file.name)
        table = table.model_copy(update={"environment": service.on(table.environment)})
        context = service.context(context)
    if not instruction.strip():
        raise DatasetError("the instruction is empty: the agent would be asked nothing")
    if not script.is_file():
        raise DatasetError(f"it has no {script.relative_to(folder)}: nothing would give the verdict")
    has_image = bool(_images(table.environment.docker_image, context))
    if not has_image and (parser or table.is_separate):
        raise DatasetError("it needs an image or a Dockerfile")
    if table.is_separate:
        _images(None, folder / "tests")
    solve = f"bash {{}}/{solve_script.name}" if solve_script.is_file() else None
    if solve is None and parser and (typed := folder / "solution.yaml").is_file():
        solve = read_solution(_text(typed))
    read = context / "Dockerfile" if parser else context  # the other files there are tests and solution
    table, unset = fill_variables(table, granted, tests=tests, context=read)
    return HarborTask(
        task_id=name, folder=folder, instruction=instruction, table=table, context=context,
        has_image=has_image, tests=tests, script=script.name, solution=solution, solve=solve, parser=parser,
        unset=unset,
    )  # fmt: skip


def _read_tables(folder: Path) -> tuple[TaskTable, str, Parser | None]:
    if (folder / "task.toml").exists():
        if any((folder / "tests" / each).exists() for each in COMPOSE_FILES):
            raise DatasetError("several containers (tests/ has a compose file): not supported")
        return read_table(_text(folder / "task.toml")), _text(folder / "instruction.md"), None
    if not (folder / "task.yaml").is_file():
        raise DatasetError("it has neither task.toml nor task.yaml")
    bench = read_task_yaml(_text(folder / "task.yaml"))
    return bench.table, bench.text, bench.parser_name


def in_short(reason: str) -> str:
    words = reason.split()
    return " ".join(words if len(words) <= _MOST_WORDS else [*words[: _MOST_WORDS - 1], "…"])


def _text(path: Path) -> str:
    if not path.exists():
        raise DatasetError(f"it has no {path.name}")
    if not (path.is_file() and path.stat().st_size <= _MOST_TEXT):
        raise DatasetError(f"{path.name} is not a file of at most {_MOST_TEXT >> 10} kB")
    return path.read_text("utf-8-sig")


def _check_part(folder: Path, part: str) -> None:
    root, size = folder.resolve(), 0
    for count, path in enumerate((folder / part, *(folder / part).rglob("*"))):
        if path.is_symlink() and not path.resolve().is_relative_to(root):
            raise DatasetError(f"{path.relative_to(folder)} is a link out of the task's folder")
        size += path.lstat().st_size if path.is_file() else 0
        if size > _MOST_CONTEXT or count > _MOST_FILES:
            raise DatasetError(f"{part}/ has more than {_MOST_CONTEXT >> 30} GB or {_MOST_FILES} files")


def _images(named: str | None, folder: Path) -> Images:
    file, ignored = folder / "Dockerfile", folder / ".dockerignore"
    patterns = _text(ignored).splitlines() if ignored.exists() else ()
    if any(pattern.count("*") > _MOST_STARS for pattern in patterns):
        raise DatasetError(f"{folder.name}/.dockerignore has a pattern with more than {_MOST_STARS} stars")
    built = ((str(folder.resolve()), base_images(_text(file))),) if file.is_file() else ()
    return ((named, (named,)), *built) if named else built


def _instructions(dockerfile: str) -> Iterator[tuple[str, list[str]]]:
    lines = iter(re.sub(r"^[ \t]*#.*\n", "", dockerfile + "\n", flags=re.MULTILINE).splitlines())
    for line in lines:
        while line.rstrip().endswith("\\"):
            line = line.rstrip()[:-1] + next(lines, "")
        for _, end in _HERE_DOCUMENT.findall(line):
            while (body := next(lines, None)) is not None and body.strip() != end:
                pass
        if words := line.split():
            yield words[0].upper(), words[1:]
