"""Task folders in Harbor's format: those that can run, and reasons against the others."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from environments.shipped.harbor_tasks.task_toml import TaskTable, read_table
from tools.errors import DatasetError
from tools.sandbox.archive import ArchivedFile

Images = tuple[tuple[str, tuple[str, ...]], ...]
"""Sources of a machine, best first, each with the images that the engine needs for it."""
_MOST_BYTES = 128 << 20
_MOST_FILES, _MOST_CONTEXT = 100_000, 2 << 30
_MOST_TEXT = 1 << 18
_MOST_STARS = 4
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

    @property
    def images(self) -> Images:
        return _images(self.table.environment.docker_image, self.folder / "environment")

    @property
    def verifier_images(self) -> Images:
        if not self.table.is_separate:
            return ()
        machine = self.table.verifier.environment
        return _images(None if machine is None else machine.docker_image, self.folder / "tests")

    @property
    def solve(self) -> Path | None:
        path = self.folder / "solution" / "solve.sh"
        return path if path.is_file() else None


def find_tasks(root: Path) -> tuple[list[HarborTask], dict[str, str]]:
    tasks, refused = list[HarborTask](), dict[str, str]()
    for folder in sorted(_task_folders(root)):
        name = folder.relative_to(root).as_posix() if folder != root else folder.name
        try:
            tasks.append(_read(folder, name))
        except (DatasetError, OSError, RuntimeError, UnicodeDecodeError) as error:  # links in circles, say
            reason = f"it is not UTF-8: {error}" if isinstance(error, UnicodeDecodeError) else str(error)
            refused[name] = " ".join(reason.replace(f"{folder}/", "").split())
    return tasks, refused


def files_below(folder: Path) -> dict[str, ArchivedFile]:
    found, size = dict[str, ArchivedFile](), 0
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            status = path.stat()
            size += status.st_size
            if size > _MOST_BYTES:
                raise DatasetError(f"{folder.name}/ has more than {_MOST_BYTES >> 20} MB")
            found[path.relative_to(folder).as_posix()] = ArchivedFile(
                data=path.read_bytes(), mode=status.st_mode & 0o777
            )
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


def _task_folders(root: Path) -> Iterator[Path]:
    for folder, below, files in os.walk(root):
        below[:] = [name for name in below if not name.startswith(".")]
        if "task.toml" in files:
            below.clear()
            yield Path(folder)


def _read(folder: Path, name: str) -> HarborTask:
    for part in ("task.toml", "instruction.md", "tests", "solution", "environment"):
        _check_part(folder, part)
    table = read_table(_text(folder / "task.toml"))
    for composed in ("docker-compose.yaml", "docker-compose.yml"):
        if (folder / "environment" / composed).exists() or (folder / "tests" / composed).exists():
            raise DatasetError(f"several containers ({composed}): not supported")
    instruction = _text(folder / "instruction.md")
    if not instruction.strip():
        raise DatasetError("instruction.md is empty: the agent would be asked nothing")
    if not (folder / "tests" / "test.sh").is_file():
        raise DatasetError("it has no tests/test.sh: nothing would give the verdict")
    has_image = bool(_images(table.environment.docker_image, folder / "environment"))
    if table.is_separate:
        _images(None, folder / "tests")
        if not has_image:
            raise DatasetError("a verifier with a machine of its own needs an image or a Dockerfile")
    return HarborTask(task_id=name, folder=folder, instruction=instruction, table=table, has_image=has_image)


def _text(path: Path) -> str:
    if path.exists() and not (path.is_file() and path.stat().st_size <= _MOST_TEXT):
        raise DatasetError(f"{path.name} is not a file of at most {_MOST_TEXT >> 10} kB")
    return path.read_text("utf-8")


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
