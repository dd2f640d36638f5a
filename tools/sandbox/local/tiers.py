"""The isolation tiers: the settings of each one, the limits that hold in it and what it lacks.

B: namespaces of its own. C: no namespaces; Landlock around the supervisor. D: no isolation, only on request.
As root the agent gets a host user of its own per sandbox and whole-sandbox bounds by control groups. Without
root it is the caller's user in a user namespace; where no control group can be written, memory is bounded for
each process (`memory_mb_per_process`, RLIMIT_AS) because nothing can bound the sum.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tools.sandbox.base import SandboxLimits
from tools.sandbox.host import seccomp
from tools.sandbox.host.layout import HOST_NAME, RUN_DIR, WORKDIR
from tools.sandbox.local import cgroup, machine
from tools.sandbox.local.cgroup import Group

Tier = Literal["B", "C", "D"]

_NPROC_PER_NAMESPACE = (5, 14)
"""Since this kernel RLIMIT_NPROC counts in the user namespace, not over all processes of the host user."""
_LACKS: Mapping[Tier, frozenset[str]] = {
    "C": frozenset(("disk_mb", "hidden_processes", "network", "own_tmp")),
    "D": frozenset(
        ("disk_mb", "hidden_processes", "host_files", "kernel_doors", "network", "oom_score", "own_tmp")
    ),
}
_LACKS_WITHOUT_ROOT = frozenset(("file_modes", "unix_sockets"))
"""Of tier C: the agent is the caller's user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """Who the agent is in one session."""

    root: bool
    """Root starts the session, so the agent is another host user than the supervisor."""
    uid: int
    gid: int


def agent() -> Agent:
    """The agent of a new session."""
    if os.geteuid() == 0:
        uid = machine.unused_uid()
        return Agent(root=True, uid=uid, gid=uid)
    return Agent(root=False, uid=os.getuid(), gid=os.getgid())


def settings(tier: Tier, who: Agent, limits: SandboxLimits, group: Group) -> dict[str, str]:
    """What the supervisor has to know, all but its descriptors."""
    return {
        "drop": "1" if who.root else "0",
        "uid": str(who.uid),
        "gid": str(who.gid),
        "workdir": WORKDIR,
        "run_dir": RUN_DIR,
        "host_name": HOST_NAME,
        "network": limits.network,
        "fsize": str(limits.file_mb << 20),
        "nproc": str(limits.pids) if _counts_processes(tier, who) else "",
        "as": "" if "memory_mb" in group.enforced else str(limits.memory_mb << 20),
        "output": str(limits.output_mb << 20),
        "confine": "0" if tier == "D" else "1",
        "held": "",
    }


def enforced(tier: Tier, who: Agent, group: Group, limits: SandboxLimits) -> frozenset[str]:
    """Names of the limits that hold."""
    names = set(group.enforced) | {"file_mb", "output_mb"}
    if tier == "B":
        names |= {"network", "disk_mb"} if limits.network == "none" else {"disk_mb"}
    else:
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
    if tier == "D" and not who.root:
        names |= {"verifier_files"}
    if tier != "D" and not seccomp.program():
        names |= {"system_calls"}
    return names if limits.network == "none" else names | {"network"}


def unmet(tier: Tier, limits: SandboxLimits) -> dict[str, str]:
    """What this tier cannot keep of these limits here, in words; it is known before a sandbox starts."""
    who, controllers = agent(), cgroup.controllers()
    problems = {
        "network": (
            tier == "C" and limits.network == "none",
            "the agent cannot be kept off the network without namespaces (tier C, Landlock alone)",
        ),
        "pids": (
            tier != "D" and not _counts_processes(tier, who) and "pids" not in controllers,
            "nothing bounds how many processes it starts without root or a control group",
        ),
        "cpus": (
            limits.cpus is not None and "cpu" not in controllers,
            "there is no quota of processors (`cpus`) without a control group",
        ),
    }
    return {name: words for name, (missing, words) in problems.items() if missing}


def _counts_processes(tier: Tier, who: Agent) -> bool:
    if who.root:
        return True
    release = os.uname().release.split("-")[0].split(".")
    return tier == "B" and tuple(int(part) for part in release[:2]) >= _NPROC_PER_NAMESPACE
