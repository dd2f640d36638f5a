"""Commands that tests start as processes are forked from one that has imported what they import.

A start of `turnwise` or `run-api` is a second of CPU, four fifths of it imports, and tests start hundreds.
`install` puts a class in the place of `subprocess.Popen` that has a server fork in the place of such a start.
What comes of it is a child of the process that asked, with a pid, signals, streams and an exit code of its
own. Any other command, and one with other settings of Python, is started as ever; so is what has the fixture
`real_starts`. That real starts work is held by `tests/turnwise`, `tests/test_docs.py` and `test_start.py`.
"""

import ctypes
import gc
import io
import json
import os
import platform
import runpy
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

ROOT = str(Path(__file__).parents[2])
SCRIPTS = Path(sys.executable).parent
IMPORTED = {
    "turnwise": (
        "turnwise", "environments.cli.main", "environments.cli.process", "environments.cli.serve",
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
            if command not in self._sockets:
                ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                argv = [sys.executable, "-P", __file__, command, str(theirs.fileno())]
                with theirs:
                    server = plain(argv, env=_ENVIRON, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
                self._processes.append(server)
                self._sockets[command] = ours
            asked = self._sockets[command]
            socket.send_fds(asked, [request], streams)
            return int(asked.recv(100))


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
    if argv[:3] == [sys.executable, "-m", "turnwise"]:
        name, script, argv = "turnwise", None, argv[2:]
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


# In the server.


def _serve(command, asked):
    """Forks for each request; comes back in the child."""
    for module in IMPORTED[command]:
        __import__(module)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.collect()
    gc.freeze()
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
    first = request["cwd"] if script is None else str(SCRIPTS)
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
    asked = socket.socket(fileno=int(sys.argv[2]))
    request = _serve(sys.argv[1], asked)
    if request["script"] is None:
        runpy.run_module("turnwise", run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(request["script"], run_name="__main__")


if __name__ == "__main__":
    main()
