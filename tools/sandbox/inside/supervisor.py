"""The supervisor: handles requests, runs one command at a time, reaps children."""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
from collections.abc import Callable
from typing import cast

from tools.sandbox.inside import file_operations, messages
from tools.sandbox.inside.account import Account, Configuration, keep_score_open
from tools.sandbox.inside.job import Job, Watch
from tools.sandbox.inside.kernel import adopt_orphans, filter_calls, hide_process, no_new_privileges
from tools.sandbox.inside.processes import Pause, kill_new, snapshot
from tools.sandbox.inside.shell import GONE, Shell
from tools.sandbox.inside.spawn import StartError, own_descriptor_limit, pipe_for_output
from tools.sandbox.inside.warm import WarmInterpreter, can_be_warm, fork_interpreter, is_warm_program

_WORDS = 2000
_PAUSED_MS = 10
_REQUEST_BYTES = 1 << 16
"""Larger buffers would be mapped anew for each request."""


def prepare_signals(on_child: Callable[[int, object], None]) -> None:
    """Set signal handlers, best before forking, to save memory in children."""
    # By default, SIGINT ends any process but process 1.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # Without a Python handler, no byte is written to the wakeup descriptor.
    signal.signal(signal.SIGCHLD, on_child)


def serve(control: int, config: Configuration) -> str:
    """Serve until the host closes the channel. In a warm interpreter's process, return its program."""
    warm = fork_interpreter(config) if can_be_warm(config) else None
    if isinstance(warm, str):
        return warm
    try:
        own_descriptor_limit()
        supervisor = Supervisor(control, config.settings, config.env, warm)
        supervisor.serve()
    except Exception as error:  # noqa: BLE001  # the host gets the reason
        reply = int(config.settings.get("reply_fd", control))
        os.write(reply, messages.encode(messages.Died(repr(error)[:_WORDS])))
    finally:
        # When process 1 ends, the kernel kills the others.
        if os.getpid() != 1:
            kill_new(set())
        os._exit(0)


_OOM_FILES = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")
"""Files with a line `oom_kill N`, of control groups version 2 and 1."""


def serve_in_container(control: int, reply: int) -> None:
    config = Configuration.read(control)
    settings = config.settings
    os.write(reply, messages.encode(_facts(settings["workdir"])))
    settings["reply_fd"] = str(reply)
    settings["oom_fd"] = str(_open_first(_OOM_FILES))
    keep_score_open(settings)
    adopt_orphans()
    no_new_privileges()
    if config.seccomp:
        filter_calls(config.seccomp)
    hide_process()
    prepare_signals(lambda _number, _frame: None)
    serve(control, config)


def _facts(workdir: str) -> messages.Facts:
    usable = [name for name, path in (("workdir", workdir), ("tmp", "/tmp")) if os.access(path, os.W_OK)]
    usable += ["bash"] if os.access("/bin/bash", os.X_OK) else []
    return messages.Facts(
        memory=_first("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"),
        pids=_first("/sys/fs/cgroup/pids.max", "/sys/fs/cgroup/pids/pids.max"),
        cpu=_first("/sys/fs/cgroup/cpu.max")
        or _first("/sys/fs/cgroup/cpu/cpu.cfs_quota_us") + _first("/sys/fs/cgroup/cpu/cpu.cfs_period_us"),
        status=_first("/proc/self/status"),
        devices=_first("/proc/net/dev"),
        usable=" ".join(usable),
    )


def _first(*paths: str) -> str:
    fd = _open_first(paths)
    if fd < 0:
        return ""
    try:
        return os.read(fd, 1 << 16).decode("utf-8", "replace")
    finally:
        os.close(fd)


def _open_first(paths: tuple[str, ...]) -> int:
    for path in paths:
        try:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
    return -1


class Supervisor:
    def __init__(
        self, control: int, settings: dict[str, str], env: dict[str, str], warm: WarmInterpreter | None = None
    ) -> None:
        self._control = control
        self._reply = int(settings.get("reply_fd", control))
        self._account = Account(settings, env)
        if settings.get("workdir_owner") != "root":
            self._account.own(self._account.workdir)
        self._output_limit = int(settings["output"])
        self._run_dir = settings["run_dir"]
        self._oom_fd = int(settings["oom_fd"])
        self._inbox = messages.Inbox()
        self._watch = Watch()
        self._job: Job | None = None
        self._pause: Pause | None = None
        self._warm = warm
        self._shell: Shell | None = None
        self._shell_lost = settings.get("shell_lost") == "1"
        self._open = True
        reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        self._watch.on(reader, lambda: self._reap(reader))
        self._watch.on(control, self._receive)
        if int(settings["guard_fd"]) >= 0:
            self._watch.on(int(settings["guard_fd"]), self._host_died)

    def serve(self) -> None:
        self._send(messages.Ready())
        while self._open:
            wait_ms = -1 if self._job is None else int(self._job.next_tick_s() * 1000) + 1
            if self._pause is not None:
                wait_ms = _PAUSED_MS if wait_ms < 0 else min(wait_ms, _PAUSED_MS)
                self._pause.hold()
            self._watch.wait(wait_ms)
            if self._job is not None:
                self._job.tick()

    def _receive(self) -> None:
        data = os.read(self._control, _REQUEST_BYTES)
        if not data:
            self._open = False
        self._inbox.add(data)
        while (message := self._inbox.next()) is not None:
            if isinstance(message, messages.Listen):
                self._pass_listener()
            elif not isinstance(message, messages.Cancel):
                self._handle(cast("messages.Request", message))
            elif self._job is not None:
                self._job.end()

    def _handle(self, request: messages.Request) -> None:
        output = self._output_limit
        if isinstance(request, messages.OWN_REQUESTS):
            # The request bounds the output of our own operations.
            output = max(request.max_output_bytes, output)
        warm = self._take_warm(request)
        before = {each for each in snapshot() if warm is None or each[0] != warm.pid}
        job = Job(request, output, before, self._oom_count)
        try:
            if isinstance(request, messages.SetPause):
                if self._pause is not None:
                    self._pause.end()
                self._pause = Pause() if request.on else None
                job.out.closed = job.err.closed = True
                self._send(job.result(0))
            elif isinstance(request, messages.RunInShell):
                self._run_in_shell(job, os.fsencode(request.command))
            elif isinstance(request, messages.RunProgram):
                self._start(job, *file_operations.program(self._account, request, warm))
            elif isinstance(request, messages.RunPython):
                self._start(job, *file_operations.python(self._account, request))
            else:
                self._start(job, *file_operations.on_files(self._account, request))
        except StartError as error:
            self._refuse(request, job, error)
        except OSError as error:
            # The agent can break the shell's files: that is a result.
            step = "shell" if isinstance(request, messages.RunInShell) else "supervisor"
            self._refuse(request, job, StartError(step, error.errno or errno.EIO))

    def _take_warm(self, request: messages.Request) -> WarmInterpreter | None:
        """Return the warm interpreter for a program that it can run; end it before any other program."""
        if self._warm is None or isinstance(request, messages.FILE_REQUESTS):
            return None
        warm, self._warm = self._warm, None
        if is_warm_program(request):
            return warm
        warm.end()
        return None

    def _pass_listener(self) -> None:
        try:
            with socket.socket() as listener, socket.fromfd(self._control, socket.AF_UNIX, 1) as host:
                listener.bind(("127.0.0.1", 0))
                listener.listen()
                socket.send_fds(host, [messages.encode(messages.Listen())], [listener.fileno()])
        except OSError as error:
            self._send(messages.Refused(error.errno or errno.EIO))

    def _host_died(self) -> None:
        self._open = False

    def _send(self, message: messages.Message) -> None:
        view = memoryview(messages.encode(message))
        try:
            while view:
                view = view[os.write(self._reply, view) :]
        except BrokenPipeError:
            self._open = False

    def _start(self, job: Job, begin: Callable[[tuple[int, int, int]], int], stdin: bytes) -> None:
        stdin_end, job.stdin_fd = os.pipe2(os.O_CLOEXEC)
        out, out_end = pipe_for_output()
        err, err_end = pipe_for_output()
        job.attach(out, err)
        try:
            job.pid = begin((stdin_end, out_end, err_end))
        except StartError:
            for fd in (out, err, job.stdin_fd):
                os.close(fd)
            raise
        finally:
            for fd in (stdin_end, out_end, err_end):
                os.close(fd)
        os.set_blocking(job.stdin_fd, False)
        job.stdin = memoryview(stdin)
        if stdin:
            self._watch.on(job.stdin_fd, lambda: self._feed(job), select.POLLOUT)
        else:
            os.close(job.stdin_fd)
        self._follow(job)

    def _run_in_shell(self, job: Job, command: bytes) -> None:
        self._reap()
        if self._shell is None:
            self._shell = Shell(self._account, self._run_dir)
            job.restarted, self._shell_lost = self._shell_lost, False
        if self._pause is not None:
            self._pause.release(self._shell.pid)
        job.attach(*self._shell.run(command))
        self._follow(job, self._shell)

    def _follow(self, job: Job, shell: Shell | None = None) -> None:
        self._job = job
        if shell is not None:
            job.shell, job.pid = shell, shell.pid
            self._watch.on(shell.status_fd, self._shell_status)
        for stream in (job.out, job.err):
            self._watch.collect(stream)

    def _feed(self, job: Job) -> None:
        if not job.feed():
            self._watch.close(job.stdin_fd)

    def _shell_status(self) -> None:
        job = self._job
        if job is not None and job.shell is not None:
            try:
                code = job.shell.status()
            except EOFError:
                # The shell was replaced by exec; the command ends with its process.
                self._watch.off(job.shell.status_fd)
                return
            if code is not None:
                self._finish(job, code)

    def _finish(self, job: Job, code: int) -> None:
        self._job = None
        if job.shell is not None:
            if self._pause is not None:
                self._pause.extend()
            self._watch.off(job.shell.status_fd)
        answer = job.result(code)
        self._watch.close(job.stdin_fd)
        for stream in (job.out, job.err):
            # Open streams belong to background jobs and are drained.
            if stream.closed:
                self._watch.close(stream.fd)
        self._send(answer)

    def _refuse(self, request: messages.Request, job: Job, error: StartError) -> None:
        """Report that nothing started: an error of the host's request, otherwise a result."""
        asked_for_cwd = isinstance(request, messages.RunProgram) and request.cwd != "" and error.step == "cwd"
        if asked_for_cwd or error.step == "supervisor" or isinstance(request, messages.OWN_REQUESTS):
            self._send(messages.Refused(error.code))
            return
        job.out.closed = job.err.closed = True
        where = f" in {self._account.workdir}" if error.step == "cwd" else ""
        message = f"cannot start{where}: {os.strerror(error.code)}\n".encode()
        self._send(job.result(127 if error.code == errno.ENOENT and not where else 126, message))

    def _reap(self, woken_by: int = -1) -> None:
        if woken_by >= 0:
            os.read(woken_by, 4096)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._on_exit(pid, os.waitstatus_to_exitcode(status))

    def _on_exit(self, pid: int, code: int) -> None:
        code = 128 - code if code < 0 else code
        job = self._job
        if self._warm is not None and pid == self._warm.pid:
            self._warm = None
        if self._shell is not None and pid == self._shell.pid:
            # Without a status this is never success.
            code = code or GONE
            self._watch.off(self._shell.status_fd)
            self._shell.close()
            self._shell, self._shell_lost = None, True
            if job is not None and job.pid == pid:
                job.restarted, self._shell_lost = True, False
        if job is not None and pid == job.pid:
            self._finish(job, code)

    def _oom_count(self) -> int:
        lines = b"" if self._oom_fd < 0 else os.pread(self._oom_fd, 4096, 0)
        counts = [line.split()[1] for line in lines.split(b"\n") if line.startswith(b"oom_kill ")]
        return int(counts[0]) if counts else 0
