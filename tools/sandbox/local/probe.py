"""Which isolation tier this machine gives, found by starting a sandbox and looking around in it."""

import os
import socket
import threading
from functools import cache

from tools.errors import IsolationError, SandboxCreateError
from tools.sandbox.base import Network, SandboxLimits
from tools.sandbox.inside.messages import Done, RunProgram, encode
from tools.sandbox.local import launch
from tools.sandbox.local.session import receive, stop
from tools.sandbox.local.tiers import Tier

_LOOK = "cat /proc/self/status; echo; cat /proc/net/dev; echo works > probe; cat probe"
_LOOK_S = 20.0
_FIX = (
    "run as root, or allow ordinary users to make user namespaces (`sysctl -w "
    "kernel.unprivileged_userns_clone=1` on old Debian, `sysctl -w "
    "kernel.apparmor_restrict_unprivileged_userns=0` on Ubuntu, `user.max_user_namespaces` above 0); or run "
    "each sandbox in a container with `--env.sandbox docker`; or run the agent's code unisolated with "
    "`--env.allow_unsafe_sandbox`"
)
_NO_CUT = "the agent cannot be kept off the network without namespaces (tier C, Landlock alone)"
_CUT = (
    "allow user namespaces (`sysctl -w kernel.apparmor_restrict_unprivileged_userns=0` on Ubuntu, "
    "`docker run --privileged` for a container around this); or run each sandbox in a container with "
    "`--env.sandbox docker`; or let the agent have the network with `--env.sandbox_network full`; or accept "
    "that nothing keeps it off with `--env.allow_unsafe_sandbox`"
)
_lock = threading.Lock()


def best_tier(network: Network, *, allow_unsafe: bool = False) -> Tier:
    """The strongest tier that works here; blocks the first time.

    Args:
        network: what the agent is to have; tier C cannot take it away.
        allow_unsafe: accept a tier that does not keep what was asked for, at last D.

    Raises:
        IsolationError: none does; the message names the fix.
    """
    with _lock:
        tier, reasons = _best_tier()
    if tier == "C" and network == "none" and not allow_unsafe:
        raise IsolationError(
            f"{_NO_CUT}, and nothing better works here: {'; '.join(reasons)}. To fix it, {_CUT}"
        )
    if tier is not None:
        return tier
    if allow_unsafe:
        return "D"
    raise IsolationError(
        f"this machine cannot isolate the agent's code: {'; '.join(reasons)}. To fix it, {_FIX}"
    )


def check_network(tier: Tier, network: Network) -> None:
    """Refuse a tier that was asked for by name and cannot keep the agent off the network.

    Raises:
        IsolationError: it is tier C and there is to be no network.
    """
    if tier == "C" and network == "none":
        raise IsolationError(f"{_NO_CUT}. To fix it, {_CUT}")


def check(tier: Tier, limits: SandboxLimits) -> None:
    """Start a sandbox of this tier and look around in it; blocks.

    Raises:
        SandboxCreateError: it does not start, or the agent would have something it must not have.
    """
    session = launch.start(tier, limits)
    try:
        seen = _look(session.channel)
    finally:
        stop(session)
    own, _, rest = seen.partition("\n\n")
    status = dict(line.split(":", 1) for line in own.splitlines())
    interfaces = {line.split(":")[0].strip() for line in rest.splitlines() if ":" in line}
    wrong = [
        problem
        for problem, found in (
            ("capabilities", int(status["CapEff"], 16) != 0),
            ("privileges to gain", status["NoNewPrivs"].strip() != "1"),
            ("root", os.geteuid() == 0 and status["Uid"].split()[0] == "0"),
            ("network interfaces", tier != "C" and interfaces != {"lo"}),
            ("no writable workspace", not seen.endswith("works\n")),
        )
        if found
    ]
    if wrong:
        raise SandboxCreateError(f"tier {tier} leaves the agent {', '.join(wrong)}")


@cache
def _best_tier() -> tuple[Tier | None, tuple[str, ...]]:
    """The tier, and why the ones before it do not work."""
    reasons: list[str] = []
    tiers: tuple[Tier, ...] = ("B", "C")
    for tier in tiers:
        try:
            check(tier, SandboxLimits())
        except SandboxCreateError as error:
            reasons.append(str(error))
        else:
            return tier, tuple(reasons)
    return None, tuple(reasons)


def _look(channel: socket.socket) -> str:
    request = RunProgram(("/bin/sh", "-c", _LOOK), (), "", b"", _LOOK_S, 1 << 16)
    try:
        channel.sendall(encode(request))
        reply = receive(channel)
    except OSError as error:
        raise SandboxCreateError(f"a new sandbox does not answer: {error}") from error
    if not isinstance(reply, Done):
        raise SandboxCreateError("a new sandbox cannot run a command")
    return reply.stdout.decode("utf-8", "replace")
