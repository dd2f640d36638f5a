"""What really holds in a container, as its supervisor found it: limits, privileges, network."""

from dataclasses import dataclass

from tools.sandbox.base import SandboxLimits
from tools.sandbox.host.layout import RESERVED_PIDS
from tools.sandbox.inside.messages import Facts

_ALWAYS = ("disk_mb", "file_mb", "output_mb")
"""Made by file systems and the supervisor; the network is what `problems` checks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerFacts:
    """Read inside, before the agent's first command."""

    memory_bytes: int | None
    pids: int | None
    cpus: float | None
    privileges: tuple[str, str]
    """Effective capabilities, and whether new privileges are refused, as the kernel prints them."""
    devices: tuple[str, ...]
    """Network devices."""
    usable: tuple[str, ...]

    @classmethod
    def of(cls, facts: Facts) -> "ContainerFacts":
        """What these facts mean; what is not there or unlimited is `None`."""
        lines = dict(line.split(":", 1) for line in facts.status.splitlines() if ":" in line)
        quota = facts.cpu.split()
        return cls(
            memory_bytes=_number(facts.memory),
            pids=_number(facts.pids),
            cpus=int(quota[0]) / int(quota[1]) if len(quota) == 2 and quota[0].isdigit() else None,
            privileges=(lines.get("CapEff", "?").strip(), lines.get("NoNewPrivs", "?").strip()),
            devices=tuple(line.split(":")[0].strip() for line in facts.devices.splitlines() if ":" in line),
            usable=tuple(facts.usable.split()),
        )

    def problems(self, limits: SandboxLimits) -> list[str]:
        """What the agent would have and must not have, or lack and needs."""
        capabilities, no_new = self.privileges
        beyond = set(self.devices) - {"lo"}
        wrong = {
            f"capabilities ({capabilities})": capabilities.strip("0") != "",
            "privileges to gain": no_new != "1",
            f"network devices ({', '.join(self.devices)})": limits.network == "none" and bool(beyond),
            "no network, for lack of a bridge (`docker network ls`)": limits.network == "full" and not beyond,
            "no writable workspace": "workdir" not in self.usable,
            "no writable /tmp": "tmp" not in self.usable,
        }
        return [problem for problem, found in wrong.items() if found]

    def enforced(self, limits: SandboxLimits) -> tuple[str, ...]:
        """Names of the limits that hold."""
        holds = {
            "network": limits.network == "none",
            "memory_mb": self.memory_bytes is not None and self.memory_bytes <= limits.memory_mb << 20,
            "pids": self.pids is not None and self.pids <= limits.pids + RESERVED_PIDS,
            "cpus": limits.cpus is not None and self.cpus is not None and self.cpus <= limits.cpus * 1.01,
        }
        return tuple(sorted([*_ALWAYS, *(name for name, found in holds.items() if found)]))


def _number(text: str) -> int | None:
    return int(text) if text.strip().isdigit() else None
