"""Process 1 of a sandbox: takes requests from the host, runs one command at a time, reaps everything."""

from __future__ import annotations

import errno
import os
import select

from tools.sandbox.inside import archives, files, frames
from tools.sandbox.inside.account import Account
from tools.sandbox.inside.boot import Config, read_exactly
from tools.sandbox.inside.capture import Capture
from tools.sandbox.inside.job import Job, Limits
from tools.sandbox.inside.processes import Census, kill_new
from tools.sandbox.inside.shell import Shell
from tools.sandbox.inside.signals import ordinary_interrupts, wake_on_child
from tools.sandbox.inside.spawn import (
    Program,
    StartError,
    fork,
    only_stdio,
    own_descriptor_limit,
    pipe_for_output,
    start,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_REQUEST_BYTES = 1 << 16
"""More would be a mapping made and taken away again for each request."""


def enter(control: int) -> None:
    """Start where namespaces, mounts and privileges are already right."""
    config = Config(control)
    serve(control, config)


def serve(control: int, config: Config) -> None:
    """Serve until the host closes the channel or dies, then end the process."""
    try:
        ordinary_interrupts()
        own_descriptor_limit()
        supervisor = Supervisor(control, config.settings, config.env)
        supervisor.serve()
    finally:
        # As process 1 the exit takes everything along; elsewhere it has to be done by hand.
        if os.getpid() != 1:
            kill_new(set())
        os._exit(0)


class Supervisor:
    """The event loop of a sandbox."""

    def __init__(self, control: int, settings: dict[str, str], env: dict[str, str]) -> None:
        self._control = control
        self._reply = int(settings.get("reply_fd", control))
        self._account = Account(settings, env)
        self._account.own(self._account.workdir)
        self._output_limit = int(settings["output"])
        self._run_dir = settings["run_dir"]
        self._oom_fd = int(settings["oom_fd"])
        self._inbox = b""
        self._census = Census()
        self._poll = select.poll()
        self._handlers: dict[int, Callable[[], None]] = {}
        self._job: Job | None = None
        self._shell: Shell | None = None
        self._shell_lost = settings.get("shell_lost") == "1"
        self._open = True
        self._watch_children()
        self._watch(control, self._receive)
        if int(settings["guard_fd"]) >= 0:
            self._watch(int(settings["guard_fd"]), self._host_died)

    def serve(self) -> None:
        """Handle events until the host is gone."""
        self._send(frames.pack(frames.READY))
        while self._open:
            wait_ms = -1 if self._job is None else int(self._job.next_tick_s() * 1000) + 1
            for fd, _ in self._poll.poll(wait_ms):
                handler = self._handlers.get(fd)
                if handler is not None:
                    handler()
            if self._job is not None:
                self._job.tick()

    # The host.

    def _receive(self) -> None:
        data = os.read(self._control, _REQUEST_BYTES)
        if not data:
            self._open = False
        self._inbox = self._inbox + data if self._inbox else data
        while len(self._inbox) >= frames.HEADER_BYTES:
            end = frames.HEADER_BYTES + int.from_bytes(self._inbox[: frames.HEADER_BYTES], "big")
            if len(self._inbox) < end:
                self._inbox += read_exactly(self._control, end - len(self._inbox))
            kind, fields = frames.unpack(self._inbox[frames.HEADER_BYTES : end])
            self._inbox = self._inbox[end:]
            self._handle(kind, fields)

    def _handle(self, kind: bytes, fields: list[bytes]) -> None:
        if kind == frames.CANCEL:
            if self._job is not None:
                self._job.end()
            return
        start = {
            frames.EXEC: self._exec, frames.SHELL: self._run_in_shell,
            frames.READ: self._read_file, frames.WRITE: self._write_file,
            frames.PACK: self._pack, frames.UNPACK: self._unpack,
        }[kind]  # fmt: skip
        cap = int(fields[1])
        # What our own file operations send is bounded by what was asked for.
        output = max(cap, self._output_limit) if kind in frames.FILE_KINDS else self._output_limit
        limits = Limits(int(fields[0]) / 1e6, cap, output)
        job = Job(limits, self._census.taken(), self._oom_count)
        try:
            start(job, fields[2:])
        except StartError as error:
            self._refuse(kind, job, error)
        except OSError as error:
            # The shell's own files are within the agent's reach: what it did to them is its result.
            step = "shell" if kind == frames.SHELL else "cwd"
            self._refuse(kind, job, StartError(step, error.errno or errno.EIO))

    def _host_died(self) -> None:
        self._open = False

    def _send(self, frame: bytes) -> None:
        view = memoryview(frame)
        try:
            while view:
                view = view[os.write(self._reply, view) :]
        except BrokenPipeError:
            self._open = False

    # Commands.

    def _exec(self, job: Job, fields: list[bytes]) -> None:
        cwd, stdin, env_size, *rest = fields
        pairs = [os.fsdecode(item).partition("=") for item in rest[: int(env_size)]]
        env = self._account.environment({name: value for name, _, value in pairs})
        argv = [os.fsdecode(item) for item in rest[int(env_size) :]]
        cwd_path = os.path.join(self._account.workdir, os.fsdecode(cwd))
        program = Program(argv, env, cwd_path)
        self._start(job, lambda stdio: start(self._account, stdio, program), stdin)

    def _read_file(self, job: Job, fields: list[bytes]) -> None:
        path, max_bytes = self._path(fields[0]), int(fields[1])
        self._operate(job, lambda: files.read(path, max_bytes), b"")

    def _write_file(self, job: Job, fields: list[bytes]) -> None:
        path, mode = self._path(fields[0]), int(fields[1])
        self._operate(job, lambda: files.write(path, mode), fields[2])

    def _pack(self, job: Job, fields: list[bytes]) -> None:
        path, max_bytes = self._path(fields[0]), int(fields[1])
        self._operate(job, lambda: archives.pack(path, max_bytes), b"")

    def _unpack(self, job: Job, fields: list[bytes]) -> None:
        path = self._path(fields[0])
        self._operate(job, lambda: archives.unpack(path), fields[1])

    def _operate(self, job: Job, operation: Callable[[], int], stdin: bytes) -> None:
        action = only_stdio(operation)
        self._start(job, lambda stdio: fork(self._account, stdio, action, bounded=False), stdin)

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
            self._watch(job.stdin_fd, lambda: self._feed(job), select.POLLOUT)
        else:
            os.close(job.stdin_fd)
        self._follow(job)

    def _run_in_shell(self, job: Job, fields: list[bytes]) -> None:
        self._reap()
        if self._shell is None:
            self._shell = Shell(self._account, self._run_dir)
            self._watch(self._shell.status_fd, self._shell_status)
            job.restarted, self._shell_lost = self._shell_lost, False
        job.shell = self._shell
        job.pid = self._shell.pid
        job.attach(*self._shell.run(fields[0]))
        self._follow(job)

    def _follow(self, job: Job) -> None:
        self._job = job
        for stream in (job.out, job.err):
            self._watch(stream.fd, lambda stream=stream: self._collect(stream))

    def _collect(self, stream: Capture) -> None:
        stream.read()
        if stream.closed:
            self._unwatch(stream.fd)
            os.close(stream.fd)

    def _feed(self, job: Job) -> None:
        if not job.feed():
            self._unwatch(job.stdin_fd)
            os.close(job.stdin_fd)

    def _shell_status(self) -> None:
        shell, job = self._shell, self._job
        if shell is None:
            return
        code = shell.status()
        if code is not None and job is not None and job.shell is shell:
            self._finish(job, code)

    def _finish(self, job: Job, code: int) -> None:
        self._job = None
        answer = job.result(code)
        if job.stdin_fd in self._handlers:
            self._unwatch(job.stdin_fd)
            os.close(job.stdin_fd)
        for stream in (job.out, job.err):
            # An open stream belongs to a job in the background and is drained for as long as it lives.
            if stream.closed and stream.fd in self._handlers:
                self._unwatch(stream.fd)
                os.close(stream.fd)
        self._send(answer)
        self._prepare()

    def _prepare(self) -> None:
        """Do now, while the host thinks, what the next command would have to wait for."""
        self._census.taken()
        if self._shell is not None:
            try:
                self._shell.prepare()
            except OSError:
                return  # the next command meets it again, and says so

    def _refuse(self, kind: bytes, job: Job, error: StartError) -> None:
        if error.step == "cwd" or kind in frames.FILE_KINDS:
            self._send(frames.pack(frames.REFUSED, b"%d" % error.code))
            return
        job.out.closed = job.err.closed = True
        message = f"cannot start: {os.strerror(error.code)}\n".encode()
        self._send(job.result(127 if error.code == errno.ENOENT else 126, message))

    # Processes.

    def _watch_children(self) -> None:
        reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        wake_on_child(writer)
        self._watch(reader, lambda: self._woken(reader))

    def _woken(self, reader: int) -> None:
        os.read(reader, 4096)
        self._reap()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._ended(pid, os.waitstatus_to_exitcode(status))

    def _ended(self, pid: int, code: int) -> None:
        code = 128 - code if code < 0 else code
        job = self._job
        if self._shell is not None and pid == self._shell.pid:
            self._unwatch(self._shell.status_fd)
            self._shell.close()
            self._shell, self._shell_lost = None, True
            if job is not None and job.pid == pid:
                job.restarted, self._shell_lost = True, False
        if job is not None and pid == job.pid:
            self._finish(job, code)

    # Small things.

    def _oom_count(self) -> int:
        if self._oom_fd < 0:
            return 0
        for line in os.pread(self._oom_fd, 4096, 0).split(b"\n"):
            if line.startswith(b"oom_kill "):
                return int(line.split()[1])
        return 0

    def _path(self, path: bytes) -> str:
        return os.path.join(self._account.workdir, os.fsdecode(path))

    def _watch(self, fd: int, handler: Callable[[], None], events: int = select.POLLIN) -> None:
        self._handlers[fd] = handler
        self._poll.register(fd, events)

    def _unwatch(self, fd: int) -> None:
        self._handlers.pop(fd, None)
        self._poll.unregister(fd)
