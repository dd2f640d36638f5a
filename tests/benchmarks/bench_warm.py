"""CPU of a program in a verdict's sandbox: a bare fork, Python warm and Python cold, in turn in one run.

    python -m tests.benchmarks.bench_warm [--sandboxes 40]

A figure is the CPU of all processes of the sandboxes, without that of opening them. Aim: at most two bare
forks for a warm start that ends as the judges do, which leave their memory to the kernel.
"""

import argparse
import asyncio
import os
from pathlib import Path

from tools.sandbox import open_sandbox
from tools.sandbox.base import run_python
from tools.sandbox.inside.warm import COMMAND, IMPORTS
from tools.sandbox.local.fork_server import fork_server


def spent_s() -> float:
    """CPU of the fork server and all sandboxes that have ended."""
    fields = Path(f"/proc/{fork_server().pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


PROGRAMS = {
    "nothing": None,
    "a bare fork": lambda sandbox: run_python(sandbox, "pass", stdin=b"", timeout_s=9),
    "python3, warm": lambda sandbox: sandbox.exec([*COMMAND, f"{IMPORTS}\nimport os; os._exit(0)"]),
    "python3 -c pass, warm": lambda sandbox: sandbox.exec([*COMMAND, f"{IMPORTS}\npass"]),
    "python3, cold": lambda sandbox: sandbox.exec([*COMMAND, f"\n{IMPORTS}\npass"]),
    "python3 -c pass, cold": lambda sandbox: sandbox.exec(["python3", "-c", "pass"]),
}


async def measure(sandboxes: int) -> dict[str, float]:
    costs = dict.fromkeys(PROGRAMS, 0.0)
    for _ in range(sandboxes // 10 + 1):
        for name, run in PROGRAMS.items():
            before = spent_s()
            for _ in range(10):
                async with open_sandbox("local").for_verifier({}) as sandbox:
                    if run is not None:
                        await run(sandbox)
            await asyncio.sleep(0.05)  # until the fork server has reaped the last one
            costs[name] += (spent_s() - before) / (sandboxes // 10 + 1) / 10
    return costs


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sandboxes", type=int, default=40)
    costs = asyncio.run(measure(parser.parse_args().sandboxes))
    empty = costs.pop("nothing")
    for name, cost in costs.items():
        share = (cost - empty) / (costs["a bare fork"] - empty)
        print(f"{name:22} {1000 * (cost - empty):6.2f} ms  {share:5.2f} of a bare fork")


if __name__ == "__main__":
    main()
