"""What starting costs, in CPU seconds and as a multiple of a bare interpreter that loads pydantic.

python -m tests.benchmarks.bench_start [RUNS]
"""

import os
import statistics
import subprocess
import sys
import tempfile

COMMANDS = {
    "python, pydantic": ["-c", "import pydantic, asyncio"],
    "import turnwise": ["-c", "import turnwise"],
    "import environments.base_env": ["-c", "import environments.base_env"],
    "turnwise process nosuch": ["-m", "turnwise", "process", "nosuch"],
    "turnwise process code_debug --help": ["-m", "turnwise", "process", "code_debug", "--help"],
}
BUDGETS_S = {
    "import environments.base_env": 0.5,
    "turnwise process nosuch": 0.6,
    "turnwise process code_debug --help": 0.6,
}


def cpu_s(arguments):
    with tempfile.TemporaryFile() as output:
        started = subprocess.Popen([sys.executable, *arguments], stdout=output, stderr=output)
        _, _, usage = os.wait4(started.pid, 0)
        started.returncode = 0
    return usage.ru_utime + usage.ru_stime


def main():
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    measured = {name: [] for name in COMMANDS}
    for turn in range(runs + 1):
        for name, arguments in COMMANDS.items():
            seconds = cpu_s(arguments)
            if turn:  # the first writes bytecode
                measured[name].append(seconds)
    bare = statistics.median(measured["python, pydantic"])
    for name, seconds in measured.items():
        median = statistics.median(seconds)
        budget = f"  budget {BUDGETS_S[name]} s" if name in BUDGETS_S else ""
        print(f"{name:<36} {median:.3f} s CPU  {median / bare:.2f} x{budget}")


if __name__ == "__main__":
    main()
