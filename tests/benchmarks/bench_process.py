"""What the main job costs: wall time, CPU per turn spent in our process, peak memory.

    python -m tests.benchmarks.bench_process [--dataset FILE] [--group-size 4]

Runs `turnwise process code_debug` as a child, as a user does, with the scripted policy: every millisecond is
ours. What runs in the sandboxes is in the wall time only. Budget: 3 minutes, 700 MB, two cores.
"""

import argparse
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from time import perf_counter

from environments.record.recorder import read_groups

PROBE = """
import os, resource, sys
from turnwise import main
try:
    main()
finally:
    own = resource.getrusage(resource.RUSAGE_SELF)
    print(own.ru_utime + own.ru_stime, own.ru_maxrss, file=open(os.environ["TURNWISE_BENCH"], "w"))
"""


def main() -> None:
    """Run once and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dataset", default="../shared/data/humanevalpack_python.jsonl")
    parser.add_argument("--group-size", type=int, default=4)
    options = parser.parse_args()
    if not Path(options.dataset).exists():
        sys.exit(f"no dataset at {options.dataset}; name one with --dataset")
    with tempfile.TemporaryDirectory() as folder:
        out, usage = Path(folder) / "rollouts.jsonl", Path(folder) / "usage"
        started = perf_counter()
        subprocess.run(
            [
                *(sys.executable, "-c", PROBE, "process", "code_debug", "--out", str(out)),
                *("--env.dataset_path", options.dataset, "--env.group_size", str(options.group_size)),
            ],
            env={"TURNWISE_BENCH": str(usage), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": folder},
            check=True,
        )
        wall_s = perf_counter() - started
        groups = list(read_groups(out))
        cpu_s, peak_kib = (float(word) for word in usage.read_text().split())
        trajectories = [t for credited in groups for t in credited.group.trajectories]
        turns = sum(len(t.turns) for t in trajectories)
        statuses = Counter(credited.status for credited in groups)
        print(f"groups          {len(groups)} {dict(statuses)}")
        print(f"rollouts        {len(trajectories)}, dropped {sum(len(c.group.failures) for c in groups)}")
        print(f"turns           {turns}")
        print(f"wall            {wall_s:.1f} s")
        print(f"our CPU         {cpu_s:.1f} s, {1000 * cpu_s / turns:.2f} ms per turn (start included)")
        print(f"our peak memory {peak_kib / 1024:.0f} MB")
        print(f"record          {out.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
