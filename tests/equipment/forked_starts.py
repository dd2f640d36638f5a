"""Commands that tests start as processes are forked from one that has imported what they import.

A start of `turnwise` or `run-api` is a second of CPU, four fifths of it imports, and tests start hundreds.
`install` puts a class in the place of `subprocess.Popen` that has a server fork in the place of such a start.
What comes of it is a child of the process that asked, with a pid, signals, streams and an exit code of its
own. Any other command, and one with other settings of Python, is started as ever; so is what has the fixture
`real_starts`. That real starts work is held by `tests/turnwise`, `tests/test_docs.py` and `test_start.py`.
"""

import contextlib
import ctypes
import gc
import io
import json
import os
import platform
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

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
_CLONE_PARENT = 0x8000
_CLONE = {"x86_64": 56, "aarch64": 220}.get(platform.machine())
_MOST_BYTES = 100_000
_ENVIRON = dict(os.environ)
plain = subprocess.Popen


class Servers:
    """The processes to fork from, each started when it is first needed."""

    def __init__(self):
        self._sockets, self._processes = {}, []
        self._lock = threading.Lock()

    def fork(self, command, request, streams):
        """The pid of a new child of this process."""
        with self._lock:
            asked = self._sockets.get(command) or self._started(command)
            try:
                socket.send_fds(asked, [request], streams)
            except BrokenPipeError:  # tests that end children of their process end the server, too
                asked = self._started(command)
                socket.send_fds(asked, [request], streams)
            return int(asked.recv(100))

    def _started(self, command):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        argv = [sys.executable, "-P", __file__, command, str(theirs.fileno())]
        with theirs:
            server = plain(argv, env=_ENVIRON, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        self._processes.append(server)
        self._sockets[command] = ours
        return ours


_servers = Servers()


class Popen(plain):
    def _execute_child(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo,
                       creationflags, shell, *rest):  # fmt: skip
        streams, (_, gid, gids, uid, umask, start_new_session, process_group) = rest[:6], rest[6:]
        special = (executable, preexec_fn, pass_fds, shell, gid, gids, uid, umask + 1, process_group + 1)
        found = None if any(special) else _command(args, env, cwd or Path.cwd())
        if found is None:
            return super()._execute_child(args, executable, preexec_fn, close_fds, pass_fds, cwd, env,
                                          startupinfo, creationflags, shell, *rest)  # fmt: skip
        command, request = found
        request |= {"session": start_new_session}
        given, _, _, out, _, error = streams
        ends = [end if end != -1 else number for number, end in enumerate((given, out, error))]
        self.pid = _servers.fork(command, json.dumps(request).encode(), ends)
        self._child_created = True
        self._close_pipe_fds(*streams)
        return None


def _command(args, env, cwd):
    """What is to be forked and what to ask for it; `None`: nothing that was imported would do."""
    environ = os.environ if env is None else env
    if isinstance(args, str | bytes | os.PathLike) or not Path(os.fsdecode(cwd)).is_dir():
        return None
    argv = [os.fsdecode(each) for each in args]
    started = [each for each in argv[:4] if each != "-P"][:3]
    if started == [sys.executable, "-m", "turnwise"]:
        name, script, argv = "turnwise", None, argv[argv.index("-m") + 1 :]
    elif argv[0] in (str(SCRIPTS / each) for each in IMPORTED):
        name, script = Path(argv[0]).name, argv[0]
    else:
        return None
    paths = [each for each in environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    request = {
        "argv": argv, "script": script, "cwd": os.fsdecode(cwd), "environ": dict(environ), "paths": paths,
    }  # fmt: skip
    usual = _python_settings(environ) == _python_settings(_ENVIRON) and {*paths} <= {ROOT, *_usual_paths()}
    return (name, request) if usual and len(json.dumps(request)) < _MOST_BYTES else None


def _python_settings(environ):
    """What a running interpreter cannot change; of streams, it can."""
    changed = ("PYTHONPATH", "PYTHONIOENCODING")
    return {name: environ[name] for name in environ if name.startswith("PYTHON") and name not in changed}


def _usual_paths():
    return [each for each in _ENVIRON.get("PYTHONPATH", "").split(os.pathsep) if each]


def install():
    """From now on such commands are forked."""
    if _CLONE is not None:
        subprocess.Popen = Popen


_CLIENT = f"""#!{sys.executable} -ISE
import json, os, signal, socket, sys
argv, script, name = list(sys.argv), {str(SCRIPTS / "turnwise")!r}, "__main__"
if os.path.basename(argv[0]) != "turnwise":
    script, name, argv = argv[1], argv[2], argv[1:2]
paths = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
request = {{"argv": argv, "script": script, "name": name, "cwd": os.getcwd(), "environ": dict(os.environ)}}
request |= {{"session": False, "paths": paths}}
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
    argv = [sys.executable, "-P", __file__, "turnwise", str(folder / "socket")]
    with plain(argv, env=_ENVIRON, stdin=subprocess.PIPE) as server:
        while not (folder / "socket").exists():
            assert server.poll() is None
            time.sleep(0.01)
        yield folder
        server.stdin.close()


# In the server.


def _serve(command, asked):
    """Forks for each request; comes back in the child."""
    _load(command)
    while True:
        content, streams, _, _ = socket.recv_fds(asked, 2 * _MOST_BYTES, 3)
        if not content:
            os._exit(0)
        if (pid := _sibling()) == 0:
            asked.close()
            _become(json.loads(content), streams)
            return json.loads(content)
        for each in streams:
            os.close(each)
        asked.send(str(pid).encode())


def _listen(path):
    """Forks for each that connects, whose command a process of its own waits for; comes back in the child."""
    _load("turnwise")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(f"{path}.new")
    listener.listen()
    Path(f"{path}.new").rename(path)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        if 0 in select.select([0, listener], [], [])[0]:
            os._exit(0)
        asked, _ = listener.accept()
        if os.fork() == 0:
            break
        asked.close()
    listener.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    content, streams, _, _ = socket.recv_fds(asked, 2 * _MOST_BYTES, 3)
    if (pid := os.fork()) == 0:
        asked.close()
        _become(json.loads(content), streams)
        return json.loads(content)
    for each in (0, 1, 2, *streams):
        os.close(each)
    asked.send(str(pid).encode())
    asked.send(str(os.waitpid(pid, 0)[1]).encode())
    os._exit(0)


def _load(command):
    for module in IMPORTED[command]:
        __import__(module)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.collect()
    gc.freeze()


def _sibling():
    """As `os.fork`, but the new process is a child of the one that started this one."""
    api = ctypes.pythonapi
    api.PyOS_BeforeFork()
    pid = ctypes.PyDLL(None).syscall(_CLONE, _CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)
    if pid:
        api.PyOS_AfterFork_Parent()
        assert pid > 0
    else:
        api.PyOS_AfterFork_Child()
    return pid


def _become(request, streams):
    if request["session"]:
        os.setsid()
    for number, each in enumerate(streams):
        os.dup2(each, number)
    os.closerange(3, 1000)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environ"])
    script, argv = request["script"], request["argv"]
    first = request["cwd"] if script is None else str(Path(script).parent)
    usual = _usual_paths()
    sys.argv[:] = argv
    sys.path[:] = [first, *request["paths"], *(each for each in sys.path if each not in usual)]
    encoding, _, errors = os.environ.get("PYTHONIOENCODING", "").partition(":")
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        mode = "rb" if name == "stdin" else "wb"
        raw = io.open(number, mode, buffering=-1, closefd=False)  # noqa: UP020, SIM115
        shown = io.TextIOWrapper(
            raw, encoding or "utf-8", errors or ("backslashreplace" if name == "stderr" else "strict"),
            line_buffering=name == "stderr" or os.isatty(number), write_through=False,
        )  # fmt: skip
        setattr(sys, name, shown)
        setattr(sys, f"__{name}__", shown)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def main():
    command, where = sys.argv[1:]
    request = _serve(command, socket.socket(fileno=int(where))) if where.isdigit() else _listen(where)
    if request["script"] is None:
        runpy.run_module("turnwise", run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(request["script"], run_name=request.get("name", "__main__"))


if __name__ == "__main__":
    main()
