"""The program behind `MathChecker`: compares mathematical texts, each pair in a forked process.

Every check arrives as a socket over standard input. The program writes `START` to it, `EXPECTED` once the
expected answer is read, and then the result; a socket that closes without one means a lost check.
"""

import contextlib
import json
import logging
import os
import resource
import select
import signal
import socket
import sys
from typing import Any, cast

from math_verify import parse, verify

START, EXPECTED = b"s", b"e"
EQUAL, DIFFERENT, UNREADABLE, EXHAUSTED, LOST = b"=", b"!", b"?", b"x", b"-"
ENDS = (EQUAL, DIFFERENT, UNREADABLE, EXHAUSTED)
_MAX_MEMORY_BYTES = 1 << 30
_MAX_WALL_S = 60
_CAUSED_BY_ANSWER = (
    signal.SIGXCPU,
    signal.SIGSEGV,
    signal.SIGABRT,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGILL,
)
_USUAL = (r"\frac{1}{2} + x^{2}", "3.5", "(1, 2)")
_DELIMITERS = ("$", "\\(", "\\[", "\\boxed", "\\begin{")


def main(cpu_s: int, at_once: int) -> None:
    logging.disable()
    # Hide the parser's complaints about an answer.
    os.dup2(os.open(os.devnull, os.O_RDWR), 2)
    for text in _USUAL:
        # Build the tables of the parser and of sympy once, before the forks.
        verify(expressions(text), expressions("1/2"), timeout_seconds=0)
    running = 0
    with socket.socket(fileno=0) as control:
        while True:
            if running == at_once:
                os.wait()
                running -= 1
            _, sockets, _, _ = socket.recv_fds(control, 1, 1)
            if not sockets:
                break
            if os.fork() == 0:
                try:
                    control.close()
                    with socket.socket(fileno=sockets[0]) as connection:
                        supervise(connection, cpu_s)
                finally:
                    os._exit(0)  # also after the parent has closed the pipe
            running += 1
            os.close(sockets[0])
    os.killpg(0, signal.SIGKILL)


def supervise(connection: socket.socket, cpu_s: int) -> None:
    connection.sendall(START)
    with connection.makefile("rb") as stream:
        request = stream.readline()
    if not request:
        return
    ended, until_end = os.pipe()
    checker = os.fork()
    if checker == 0:
        status: bytes = EXHAUSTED
        try:
            expected, answer = json.loads(request)
            status = check(connection, expected, answer, cpu_s)
        except (MemoryError, RecursionError):
            pass
        finally:
            os._exit(ENDS.index(status))
    os.close(until_end)
    if ended not in select.select([ended, connection], [], [])[0]:
        os.kill(checker, signal.SIGKILL)
    _, code = os.waitpid(checker, 0)
    if os.WIFEXITED(code):
        connection.sendall(ENDS[os.WEXITSTATUS(code)])
    else:
        connection.sendall(EXHAUSTED if os.WTERMSIG(code) in _CAUSED_BY_ANSWER else LOST)


def check(connection: socket.socket, expected: str, answer: str, cpu_s: int) -> bytes:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError, ValueError):  # not on every system
        resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY_BYTES, _MAX_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
    signal.alarm(_MAX_WALL_S)
    right = expressions(expected)
    if not right:
        return UNREADABLE
    connection.sendall(EXPECTED)
    return EQUAL if verify(right, expressions(answer), timeout_seconds=0) else DIFFERENT


def expressions(text: str) -> list[Any]:
    whole = text if any(mark in text for mark in _DELIMITERS) else f"${text}$"
    return cast("list[Any]", parse(whole, parsing_timeout=0))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
