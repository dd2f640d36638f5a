"""Wall time of `retail` with and without a sandbox, of which it uses none.

    python -m tests.benchmarks.bench_retail [--repeats 5]

Runs the embedded tasks, four rollouts each, in turns with `--env.sandbox none` and `local`, the scripted
agent playing, inside one process after one round that is not counted. Budget: 2 minutes, two cores.
"""

import argparse
import asyncio
from statistics import median
from time import perf_counter, process_time

from environments.retail_env import RetailEnv
from environments.retail_env.env import RetailConfig


async def wall_and_cpu(sandbox):
    """Seconds of a pass over all tasks, opening the environment included, and rollouts in it."""
    wall, cpu = perf_counter(), process_time()
    async with RetailEnv(RetailConfig(sandbox=sandbox)) as env:
        groups = await asyncio.gather(*(env.run_group(task) for task in env.tasks()))
    rollouts = [one for group in groups for one in group.group.trajectories]
    assert len(rollouts) == 4 * len(groups)
    return perf_counter() - wall, process_time() - cpu, len(rollouts)


def main() -> None:
    """Print medians and the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    measured = {"none": [], "local": []}
    for turn in range(repeats + 1):
        for sandbox, passes in measured.items():
            taken = asyncio.run(wall_and_cpu(sandbox))
            if turn:
                passes.append(taken)
    walls = {sandbox: median(wall for wall, _, _ in passes) for sandbox, passes in measured.items()}
    for sandbox, passes in measured.items():
        cpu, rollouts = median(cpu for _, cpu, _ in passes), passes[0][2]
        spread = f"{min(wall for wall, _, _ in passes):.2f} to {max(wall for wall, _, _ in passes):.2f}"
        print(
            f"--env.sandbox {sandbox:<6} {walls[sandbox]:.2f} s ({spread}) for {rollouts} rollouts, "
            f"{1000 * walls[sandbox] / rollouts:.1f} ms each; our CPU {cpu:.2f} s"
        )
    fastest = {sandbox: min(wall for wall, _, _ in passes) for sandbox, passes in measured.items()}
    print(f"local / none         {walls['local'] / walls['none']:.2f} x of the medians")
    print(f"                     {fastest['local'] / fastest['none']:.2f} x of the fastest")


if __name__ == "__main__":
    main()
