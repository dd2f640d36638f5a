"""Which isolation tier this machine gives, found by starting a sandbox and looking around in it."""

import os
import socket
import threading
from functools import cache

from tools.errors import IsolationError, SandboxCreateError
from tools.sandbox import launch
from tools.sandbox.base import SandboxLimits
from tools.sandbox.inside import frames
from tools.sandbox.tiers import Tier

_LOOK = "cat /proc/self/status; echo; cat /proc/net/dev; echo works > probe; cat probe"
_LOOK_S = 20.0
_FIX = (
    "install bubblewrap (`apt-get install bubblewrap`); as an ordinary user also allow user namespaces "
    "(`sysctl -w kernel.unprivileged_userns_clone=1` on old Debian, "
    "`sysctl -w kernel.apparmor_restrict_unprivileged_userns=0` on Ubuntu, `user.max_user_namespaces` above "
    "0); "
    "or run the agent's code unisolated with `--env.allow_unsafe_sandbox`"
)
_lock = threading.Lock()


def best_tier() -> Tier:
    """The strongest tier that works here; blocks the first time.

    Raises:
        IsolationError: none does; the message names the fix.
    """
    with _lock:
        return _best_tier()


def check(tier: Tier, limits: SandboxLimits) -> None:
    """Start a sandbox of this tier and look around in it; blocks.

    Raises:
        SandboxCreateError: it does not start, or the agent would have something it must not have.
    """
    session = launch.start(tier, limits)
    try:
        seen = _look(session.channel)
    finally:
        launch.stop(session)
    status = dict(line.split(":", 1) for line in seen.partition("\n\n")[0].splitlines())
    interfaces = [
        line.split(":")[0].strip() for line in seen.splitlines() if ":" in line and "bytes" not in line
    ]
    wrong = [
        problem
        for problem, found in (
            ("capabilities", int(status["CapEff"], 16) != 0),
            ("privileges to gain", status["NoNewPrivs"].strip() != "1"),
            ("root", os.geteuid() == 0 and status["Uid"].split()[0] == "0"),
            (
                "network interfaces",
                "lo" not in interfaces or any(name.startswith("eth") for name in interfaces),
            ),
            ("no writable workspace", not seen.endswith("works\n")),
        )
        if found
    ]
    if wrong:
        raise SandboxCreateError(f"tier {tier} leaves the agent {', '.join(wrong)}")


@cache
def _best_tier() -> Tier:
    reasons: list[str] = []
    # Both protect from the same; B starts in a third of the time and takes half the memory.
    tiers: tuple[Tier, ...] = ("B", "A")
    for tier in tiers:
        try:
            check(tier, SandboxLimits())
        except SandboxCreateError as error:
            reasons.append(str(error))
        else:
            return tier
    raise IsolationError(
        f"this machine cannot isolate the agent's code: {'; '.join(reasons)}. To fix it, {_FIX}"
    )


def _look(channel: socket.socket) -> str:
    fields = (b"%d" % int(_LOOK_S * 1e6), b"65536", b"", b"", b"0", b"/bin/sh", b"-c", _LOOK.encode())
    try:
        channel.sendall(frames.pack(frames.EXEC, *fields))
        header = channel.recv(frames.HEADER_BYTES, socket.MSG_WAITALL)
        body = channel.recv(int.from_bytes(header, "big"), socket.MSG_WAITALL)
    except OSError as error:
        raise SandboxCreateError(f"a new sandbox does not answer: {error}") from error
    kind, answer = frames.unpack(body)
    if kind != frames.DONE:
        raise SandboxCreateError("a new sandbox cannot run a command")
    return answer[5].decode("utf-8", "replace")
