"""Choosing this machine's isolation tier by trying."""

import logging
import os
import socket
import threading
from collections.abc import Mapping
from functools import cache, partial

from tools.errors import IsolationError, SandboxCreateError
from tools.sandbox.base import SandboxLimits
from tools.sandbox.host.silence import SilentStartError, examine
from tools.sandbox.inside.messages import Done, RunProgram, encode
from tools.sandbox.local import launch, tiers
from tools.sandbox.local.session import receive, stop
from tools.sandbox.local.tiers import Tier, narrow_limits

_LOOK = "cat /proc/self/status; echo; cat /proc/net/dev; echo works > probe; cat probe"
_LOOK_S = 20.0
_FIX = (
    "allow user namespaces (`sysctl -w kernel.unprivileged_userns_clone=1` on old Debian, `sysctl -w "
    "kernel.apparmor_restrict_unprivileged_userns=0` on Ubuntu, `user.max_user_namespaces` above 0, "
    "`docker run --privileged` for a container around this); or run each sandbox in a container with "
    "`--env.sandbox docker`"
)
_DELEGATED = "a delegated control group (`systemd-run --user --scope -p Delegate=yes`)"
_LOG = logging.getLogger(__name__)
_lock = threading.Lock()


def choose_tier(limits: SandboxLimits, *, tier: Tier | None = None, allow_unsafe: bool = False) -> Tier:
    """Return the strongest tier that works here; blocks at first.

    Raises:
        IsolationError: if none works, or a tier could not be examined; a weaker one is never used instead.
    """
    obstacles = tuple[str, ...]()
    if tier is None:
        with _lock:
            tier, obstacles = _best_tier()
    unmet = {} if tier is None else tiers.unmet(tier, limits)
    if tier is not None and (allow_unsafe or not unmet):
        return tier
    if allow_unsafe:
        return "D"
    narrow = narrow_limits()
    in_the_way, ways_out = "; ".join([*obstacles, *unmet.values(), *narrow]), _ways_out(tier, unmet)
    raise IsolationError(
        f"this machine cannot isolate the agent's code as asked: {in_the_way}. To fix it, "
        f"{'raise these limits; if that is not enough, ' * bool(narrow)}{ways_out}"
    )


def _ways_out(tier: Tier | None, unmet: Mapping[str, str]) -> str:
    ways = ["run as root"] if os.geteuid() and ("network" not in unmet or tiers.root_can_mount()) else []
    if tier != "B":
        ways.append(_FIX)
    if "network" in unmet:
        grouped = f", in {_DELEGATED}" if "pids" in unmet else ""
        ways.append(f"let the agent have the network with `--env.sandbox_network full`{grouped}")
    elif unmet:
        ways.append(f"run in {_DELEGATED}")
    accept = "run the agent's code unisolated" if tier is None else "accept what is missing"
    return "; or ".join([*ways, f"{accept} with `--env.allow_unsafe_sandbox`"])


def check(tier: Tier, limits: SandboxLimits) -> None:
    """Start a sandbox and check what its agent can do; raise SandboxCreateError if that is too much."""
    session = launch.start(tier, limits)
    try:
        seen = _look(tier, session.channel)
    finally:
        stop(session)
    own, _, rest = seen.partition("\n\n")
    status = dict(line.split(":", 1) for line in own.splitlines())
    if not rest or "CapEff" not in status:
        raise SilentStartError(
            f"no sandbox of tier {tier}: the output of its probe is incomplete: {seen[-200:]!r}"
        )
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
    """Return the tier, and why stronger ones do not work."""
    reasons: list[str] = []
    tiers: tuple[Tier, ...] = ("B", "C")
    for tier in tiers:
        try:
            examine("this machine's isolation", partial(check, tier, SandboxLimits()))
        except SandboxCreateError as error:
            reasons.append(str(error))
        except IsolationError as error:
            narrow = "; ".join(narrow_limits())
            raise IsolationError(f"{error}{narrow and ' To fix it, raise these limits: '}{narrow}") from error
        else:
            if reasons:
                _LOG.warning("sandboxes have Landlock alone (tier C), for want of namespaces: %s", reasons[0])
            return tier, tuple(reasons)
    return None, tuple(reasons)


def _look(tier: Tier, channel: socket.socket) -> str:
    request = RunProgram(("/bin/sh", "-c", _LOOK), (), "", b"", _LOOK_S, 1 << 16)
    try:
        channel.sendall(encode(request))
        reply = receive(channel)
    except OSError as error:
        raise SilentStartError(f"no sandbox of tier {tier}: it does not answer: {error}") from error
    if not isinstance(reply, Done) or not reply.stdout:
        is_done = isinstance(reply, Done) and not reply.timed_out and reply.exit_code < 128
        said = reply.stderr.decode("utf-8", "replace").strip() if isinstance(reply, Done) else ""
        kind = SandboxCreateError if is_done else SilentStartError
        raise kind(f"no sandbox of tier {tier}: it cannot run a command{said and f': {said}'}")
    return reply.stdout.decode("utf-8", "replace")
