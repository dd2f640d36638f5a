"""`turnwise` and `run-api`, as tests start them, are forked from interpreters that have made their imports.

A start is a second of CPU, four fifths of it imports, and tests start hundreds. `install` puts a class in the
place of `subprocess.Popen` that forks such a start: a child of the process that asked, with a pid, signals,
streams and an exit code of its own. Any other command, and one with other settings of Python or a terminal,
is started as ever; so is what has the fixture `real_starts`.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

from tools.sandbox.host.warm_python import ProgramStart, WarmPython

ROOT = str(Path(__file__).parents[2])
SCRIPTS = Path(sys.executable).parent
IMPORTED = {
    "turnwise": (
        "turnwise", "turnwise.cli.main", "turnwise.cli.process", "environments.serve.serving",
        "tools.sandbox.local.backend",
    ),
    "run-api": ("atroposlib.api", "uvicorn.loops.auto", "uvicorn.protocols.http.auto"),
}  # fmt: skip
"""By command: what its process imports, nothing of which starts a thread."""
_PROGRAM = """
import os, runpy, sys
session, name, folder, *sys.argv = sys.argv[1:]
if session:
    os.setsid()
sys.path[:0] = [folder, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
if sys.argv[0] == "turnwise":
    runpy.run_module("turnwise", run_name=name, alter_sys=True)
else:
    runpy.run_path(sys.argv[0], run_name=name)
"""
_ENVIRON = dict(os.environ)
plain = subprocess.Popen
_pythons = {}
_lock = threading.Lock()


def _fork(command, arguments, cwd, env, streams):
    """The pid of a new child of this process."""
    program = ProgramStart(arguments=arguments, env=env, cwd=cwd, folder=None, modules_file=None)
    with _lock:
        if command in _pythons:
            with contextlib.suppress(ConnectionError):  # tests that end children of their process end it, too
                return _pythons[command].fork(program, streams)
            _pythons[command].close()
        env = {name: value for name, value in _ENVIRON.items() if name != "PYTHONPATH"}
        _pythons[command] = WarmPython([sys.executable, "-P", "-c", _PROGRAM], env)
        _pythons[command].load(IMPORTED[command], ())
        return _pythons[command].fork(program, streams)


class Popen(plain):
    def _execute_child(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo,
                       creationflags, shell, *rest):  # fmt: skip
        streams, (_, gid, gids, uid, umask, start_new_session, process_group) = rest[:6], rest[6:]
        given, _, _, out, _, error = streams
        ends = [end if end != -1 else number for number, end in enumerate((given, out, error))]
        special = (executable, preexec_fn, pass_fds, shell, gid, gids, uid, umask + 1, process_group + 1)
        cwd = os.fsdecode(cwd or Path.cwd())
        found = None if any([*special, *map(os.isatty, ends)]) else _command(args, env, cwd)
        if found is None:
            return super()._execute_child(args, executable, preexec_fn, close_fds, pass_fds, cwd, env,
                                          startupinfo, creationflags, shell, *rest)  # fmt: skip
        command, folder, argv, environ = found
        arguments = ["session" if start_new_session else "", "__main__", folder, *argv]
        self.pid = _fork(command, arguments, cwd, environ, ends)
        self._child_created = True
        self._close_pipe_fds(*streams)
        return None


def _command(args, env, cwd):
    """What is to be forked: its command, first path, arguments and variables; `None`: no import would do."""
    environ = dict(os.environ if env is None else env)
    if isinstance(args, str | bytes | os.PathLike) or not Path(cwd).is_dir():
        return None
    argv = [os.fsdecode(each) for each in args]
    if [each for each in argv[:4] if each != "-P"][:3] == [sys.executable, "-m", "turnwise"]:
        found = "turnwise", cwd, argv[argv.index("-m") + 1 :], environ
    elif argv[0] in (str(SCRIPTS / each) for each in IMPORTED):
        found = Path(argv[0]).name, str(SCRIPTS), argv, environ
    else:
        return None
    usual = {"", ROOT, *_ENVIRON.get("PYTHONPATH", "").split(os.pathsep)}
    as_ours = {*environ.get("PYTHONPATH", "").split(os.pathsep)} <= usual
    return found if as_ours and _python_settings(environ) == _python_settings(_ENVIRON) else None


def _python_settings(environ):
    """What a running interpreter cannot change."""
    return {name: environ[name] for name in environ if name.startswith("PYTHON") and name != "PYTHONPATH"}


def install():
    """From now on such commands are forked."""
    if hasattr(os, "pidfd_open"):
        subprocess.Popen = Popen


_CLIENT = f"""#!{sys.executable} -ISE
import json, os, signal, socket, sys
argv, name = [{str(SCRIPTS / "turnwise")!r}, *sys.argv[1:]], "__main__"
if os.path.basename(sys.argv[0]) != "turnwise":
    argv, name = sys.argv[1:2], sys.argv[2]
request = [["", name, os.path.dirname(argv[0]), *argv], os.getcwd(), dict(os.environ)]
asked = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
asked.connect(os.path.join(os.path.dirname(sys.argv[0]), "socket"))
socket.send_fds(asked, [json.dumps(request).encode()], [0, 1, 2])
pid = int(asked.recv(100))
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, lambda number, _: os.kill(pid, number))
code = os.waitstatus_to_exitcode(int(asked.recv(100)))
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


@contextlib.contextmanager
def shell_commands(folder):
    """A folder for a shell's PATH with `turnwise`, and `run SCRIPT NAME` for `runpy.run_path`."""
    for name in ("turnwise", "run"):
        (folder / name).write_text(_CLIENT)
        (folder / name).chmod(0o755)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(folder / "socket"))
        listener.listen()
        listening = threading.Thread(target=_listen, args=[listener])
        listening.start()
        yield folder
        listener.shutdown(socket.SHUT_RDWR)
        listening.join()


def _listen(listener):
    with contextlib.suppress(OSError):  # shut down
        while True:
            threading.Thread(target=_answer, args=[listener.accept()[0]], daemon=True).start()


def _answer(asked):
    with asked:
        content, streams, _, _ = socket.recv_fds(asked, 1 << 18, 3)
        pid = _fork("turnwise", *json.loads(content), streams)
        for each in streams:
            os.close(each)
        asked.send(str(pid).encode())
        asked.send(str(os.waitpid(pid, 0)[1]).encode())
