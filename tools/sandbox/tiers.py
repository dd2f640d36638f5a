"""The isolation tiers: the command that builds each one, its settings and the limits that hold in it.

A: bubblewrap. B: forked from a warm process into namespaces of its own, the root built by the supervisor.
C: no namespaces; Landlock around the supervisor, see `fenced`. D: no isolation, only on request.
As root the agent gets a host user of its own per sandbox and whole-sandbox bounds by control groups. Without
root it is the caller's user in a user namespace; where no control group can be written, memory is bounded for
each process (`memory_mb_per_process`, RLIMIT_AS) because nothing can bound the sum.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from tools.sandbox import machine, rootfs, seccomp
from tools.sandbox.base import Network, SandboxLimits
from tools.sandbox.cgroup import Group

Tier = Literal["A", "B", "C", "D"]

_NAMESPACED_ID = 1000
"""What bubblewrap calls the agent in a user namespace."""
_NPROC_PER_NAMESPACE = (5, 14)
"""Since this kernel RLIMIT_NPROC counts in the user namespace, not over all processes of the host user."""
_CAPABILITIES = ("CAP_CHOWN", "CAP_KILL", "CAP_SETGID", "CAP_SETUID", "CAP_SYS_RESOURCE")
"""What the supervisor keeps when root starts it, to become the agent's user and to bound and kill it."""
_LACKS: Mapping[Tier, frozenset[str]] = {
    "C": frozenset(("disk_mb", "hidden_processes", "network", "own_tmp")),
    "D": frozenset(("disk_mb", "hidden_processes", "host_files", "kernel_doors", "network", "own_tmp")),
}
_LACKS_WITHOUT_ROOT = frozenset(("file_modes", "unix_sockets"))
"""Of tier C: the agent is the caller's user."""
# Joins the groups as itself, so that nothing it starts is ever outside them.
_JOIN = (
    'echo -900 2>/dev/null >/proc/self/oom_score_adj; n=$1; shift; while [ "$n" -gt 0 ]; '
    'do echo 0 >"$1" || exit 96; shift; n=$((n-1)); done; exec "$@"'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """Who the agent is in one session."""

    root: bool
    """Root starts the session, so the agent is another host user than the supervisor."""
    uid: int
    gid: int


def agent(tier: Tier) -> Agent:
    """The agent of a new session."""
    if os.geteuid() == 0:
        uid = machine.unused_uid()
        return Agent(root=True, uid=uid, gid=uid)
    if tier == "A":
        return Agent(root=False, uid=_NAMESPACED_ID, gid=_NAMESPACED_ID)
    return Agent(root=False, uid=os.getuid(), gid=os.getgid())


def settings(tier: Tier, who: Agent, limits: SandboxLimits, group: Group) -> dict[str, str]:
    """What the supervisor has to know, all but its descriptors."""
    return {
        "drop": "1" if who.root else "0",
        "uid": str(who.uid),
        "gid": str(who.gid),
        "workdir": rootfs.WORKDIR,
        "run_dir": rootfs.RUN_DIR,
        "host_name": rootfs.HOST_NAME,
        "network": limits.network,
        "fsize": str(limits.file_mb << 20),
        "nproc": str(limits.pids) if _counts_processes(tier, who) else "",
        "as": "" if "memory_mb" in group.enforced else str(limits.memory_mb << 20),
        "output": str(limits.output_mb << 20),
        "confine": "1" if tier == "B" else "0",
        "subreaper": "1" if tier == "D" else "0",
    }


def enforced(tier: Tier, who: Agent, group: Group, limits: SandboxLimits) -> frozenset[str]:
    """Names of the limits that hold."""
    names = set(group.enforced) | {"file_mb", "output_mb"}
    if tier in ("A", "B"):
        names |= {"network", "disk_mb"} if limits.network == "none" else {"disk_mb"}
    if tier == "C":
        names.add("disk_mb_watched")
    if "memory_mb" not in names:
        names.add("memory_mb_per_process")
    if _counts_processes(tier, who):
        names.add("pids")
    return frozenset(names)


def lacks(tier: Tier, who: Agent, limits: SandboxLimits) -> frozenset[str]:
    """What a sandbox of another tier, or with other settings, would give."""
    names = _LACKS.get(tier, frozenset())
    if tier == "C" and not who.root:
        names |= _LACKS_WITHOUT_ROOT
    return names if limits.network == "none" else names | {"network"}


def command(
    tier: Tier,
    who: Agent,
    group: Group,
    root: list[rootfs.Step],
    network: Network,
    inherit: Callable[[bytes], int],
) -> list[str]:
    """The program that becomes or starts the supervisor; two descriptors, code and channel, are to be added.

    `inherit` makes a descriptor with some content that the program will have.
    """
    join: list[str] = []
    if group.join_files or who.root:
        join = ["/bin/sh", "-c", _JOIN, "sh", str(len(group.join_files)), *group.join_files]
    supervisor = [machine.interpreter(), "-I", "-S", "-c", machine.BOOTSTRAP]
    if tier == "A":
        return [*join, *_bwrap(who, root, network, inherit), "--", *supervisor]
    return [*join, *supervisor]


def needs_confinement(tier: Tier, who: Agent) -> bool:
    """Whether the supervisor has to close something itself, which costs it an import of ctypes."""
    return tier != "A" or not who.root


def _bwrap(
    who: Agent, root: list[rootfs.Step], network: Network, inherit: Callable[[bytes], int]
) -> list[str]:
    words = ["bwrap", "--as-pid-1", "--unshare-pid", "--unshare-ipc", "--unshare-uts"]
    words += ["--unshare-cgroup-try", "--hostname", rootfs.HOST_NAME]
    words += ["--unshare-net"] if network == "none" else []
    if who.root:
        words += ["--cap-drop", "ALL"]
        for name in _CAPABILITIES:
            words += ["--cap-add", name]
    else:
        words += ["--unshare-user", "--uid", str(who.uid), "--gid", str(who.gid)]
    files = {step.path: inherit(step.data.encode()) for step in root if step.kind == "file"}
    words += rootfs.bwrap_arguments(root, files)
    if filter_program := seccomp.program():
        words += ["--seccomp", str(inherit(filter_program))]
    return [*words, "--chdir", rootfs.WORKDIR]


def _counts_processes(tier: Tier, who: Agent) -> bool:
    if who.root:
        return True
    release = os.uname().release.split("-")[0].split(".")
    return tier in ("A", "B") and tuple(int(part) for part in release[:2]) >= _NPROC_PER_NAMESPACE
