"""Python commands that are forked from an interpreter that has made their imports."""

import ast
import fcntl
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from tools.json_input import read_json
from tools.sandbox.host.warm import MAX_REPORT_BYTES, VARIABLE

_HOOK = str(Path(__file__).with_name("warm"))
_IMPORT_S = 120.0
_PIPE_BYTES = 1 << 20
_MAX_LINE_BYTES = 4096
_OPTION = re.compile(
    r"-(?P<flags>[bBdOPqsuv]*)(?:(?P<program>[cm])(?P<code>.*)|[WX](?P<value>.*))?", re.DOTALL
)
"""Options of an interpreter that can be warm: it must read `PYTHONPATH` and run a program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportReport:
    reads: Mapping[str, Sequence[str]]
    """Of the variables that differ between rollouts, those that imports read, with the importing modules."""
    threaded: str
    """Name of the module whose import left a thread running."""
    opened: Sequence[tuple[str, str]]
    """Files that the imports left open, by descriptor."""
    cpu_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramStart:
    arguments: Sequence[str]
    """Arguments that follow those of the command."""
    env: Mapping[str, str]
    cwd: str
    folder: str | None
    """What the program's guards remove if this process ends first; without one the program has no guards."""
    modules_file: str | None
    """The file into which the program writes, at its end, which installed modules it imported."""


class WarmPython:
    """An interpreter that stops before its program; `fork` runs the program in a child of this process."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str]) -> None:
        """Start `argv`; it forks programs after `load`.

        Raises:
            OSError: if the interpreter cannot be started.
            ValueError: if the command cannot be stopped before its program.
        """
        self._first_path = first_path(argv, env)
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(_IMPORT_S)
        self._lock = threading.Lock()
        self._output, output = os.pipe()
        fcntl.fcntl(output, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        os.set_blocking(self._output, False)
        path = env.get("PYTHONPATH")
        hook = {
            "PYTHONPATH": os.pathsep.join(filter(None, [_HOOK, path])),
            VARIABLE: json.dumps([theirs.fileno(), os.getpid(), path]),
        }
        try:
            self._process = subprocess.Popen(
                argv, env={**env, **hook}, pass_fds=[theirs.fileno()], start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip
        except OSError:
            self._socket.close()
            os.close(self._output)
            raise
        finally:
            os.close(output)
            theirs.close()

    def load(self, modules: Sequence[str], differing: Sequence[str]) -> ImportReport:
        """Import modules, and return which of the `differing` variables they read, and what was left open.

        Raises:
            OSError: if the interpreter ends, or imports for longer than two minutes.
        """
        request = {"modules": modules, "differing": differing, "first_path": self._first_path}
        return ImportReport(**read_json(self._ask(request, [])))

    def fork(self, program: ProgramStart, streams: Sequence[int]) -> int:
        """Fork a process that runs the program, and return the pid to wait for: its guard's, if it has one.

        Raises:
            OSError: if the interpreter has ended.
        """
        return int(self._ask(asdict(program), streams))

    def kill(self) -> None:
        """End the interpreter and, with an OSError, a call that waits for it."""
        self._process.kill()

    def close(self) -> None:
        self._socket.close()
        self._process.kill()
        self._process.wait()
        with suppress(OSError):
            os.close(self._output)

    def _ask(self, request: Mapping[str, object], streams: Sequence[int]) -> bytes:
        with self._lock, tempfile.TemporaryFile() as file:
            file.write(json.dumps(request).encode())
            file.seek(0)
            with suppress(ConnectionError):
                socket.send_fds(self._socket, [b"."], [file.fileno(), *streams])
                if answer := self._socket.recv(MAX_REPORT_BYTES):
                    return answer
        raise ConnectionResetError(f"its interpreter ended: {self.printed[-500:].decode(errors='replace')}")

    @property
    def printed(self) -> bytes:
        with suppress(BlockingIOError):
            return os.read(self._output, _PIPE_BYTES)
        return b""


def first_path(argv: Sequence[str], env: Mapping[str, str]) -> str | None:
    """Return what the interpreter of a Python command puts first on `sys.path`, if anything.

    Raises:
        ValueError: if the command cannot be stopped before its program.
    """
    kind, program, is_safe = _find_program(argv, env)
    if is_safe or kind == "c":
        return None if is_safe else ""
    return str(Path.cwd() if kind == "m" else Path(program).resolve().parent)


def read_imports(argv: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """Return the modules that the code of a Python command and of the files beside it names in its imports.

    Raises:
        OSError, SyntaxError, ValueError: if there is no such code.
    """
    kind, program, _ = _find_program(argv, env)
    folder = Path(program).resolve().parent if not kind else Path.cwd()
    path = folder.joinpath(*program.split(".")).with_suffix(".py") if kind == "m" else Path(program)
    codes = [program if kind == "c" else path.read_bytes()]
    names: dict[str, None] = {}
    for code in codes:
        for node in ast.parse(code).body:
            found = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found = [node.module, *(f"{node.module}.{each.name}" for each in node.names)]
            for name in found:
                beside = folder.joinpath(*name.split(".")).with_suffix(".py")
                if name not in names and beside.is_file():
                    codes.append(beside.read_bytes())
                names[name] = None
    tops = {name: folder / name.split(".")[0] for name in names}
    return [name for name, top in tops.items() if not (top.is_dir() or top.with_suffix(".py").is_file())]


def _find_program(argv: Sequence[str], env: Mapping[str, str]) -> tuple[str, str, bool]:
    """Return the option that names the program (`c`, `m` or none), its value, and whether paths are safe."""
    found = shutil.which(argv[0], path=env.get("PATH")) or argv[0]
    words = iter(argv[1:] if _is_python(found) else [*_interpreter_options(found), found])
    is_safe = bool(env.get("PYTHONSAFEPATH"))
    for word in words:
        if not word.startswith("-"):
            return "", word, is_safe
        option = _OPTION.fullmatch(word)
        if option is None:
            break
        is_safe |= "P" in option["flags"]
        if option["program"]:
            return option["program"], option["code"] or next(words, ""), is_safe
        if option["value"] == "":
            next(words, None)
    raise ValueError(f"no Python program: {shlex.join(argv)}")


def _is_python(path: str) -> bool:
    return re.fullmatch(r"python[\d.]*", Path(path).name) is not None


def _interpreter_options(script: str) -> list[str]:
    with Path(script).open("rb") as file:
        first = file.readline(_MAX_LINE_BYTES).decode(errors="replace")
    words = first.removeprefix("#!").split() if first.startswith("#!") else [""]
    words = words[1:] if Path(words[0]).name == "env" else words
    if not words or not _is_python(words[0]):
        raise ValueError(f"no Python script: {script}")
    return words[1:]
