"""Time and memory of `turnwise import`: memory must not grow with the file, only with its number of sessions.

python -m tests.benchmarks.bench_import [SESSIONS…]
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random

SESSIONS = (2_000, 20_000, 200_000)
PER_OPENING = 4
WORDS = ["order", "price", "refund", "please", "tomorrow", "the", "and", "blue", "cannot", "thanks"]


def write_sessions(path, count):
    """Chats of three turns, the sessions of one opening far apart in the file."""
    random = Random(0)
    openings = max(1, count // PER_OPENING)
    with path.open("w") as file:
        for number in range(count):
            said = [{"role": "user", "content": f"question {number % openings}: {text(random)}"}]
            said[0]["content"] = f"question {number % openings}"
            for _ in range(3):
                vote = random.choice([None, None, 1, -1])
                said.append({"role": "assistant", "content": text(random), "vote": vote})
                said.append({"role": "user", "content": text(random)})
            file.write(json.dumps({"id": number, "messages": said, "outcome": number % 2}) + "\n")


def text(random):
    return " ".join(random.choices(WORDS, k=40))


def measured(command):
    """Seconds and peak memory (MB) of a command."""
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0
    return time.perf_counter() - started, usage.ru_maxrss / 1024


def main():
    print("sessions     file MB   seconds   sessions/s   peak MB")
    with tempfile.TemporaryDirectory() as folder:
        for count in map(int, sys.argv[1:] or SESSIONS):
            logged, out = Path(folder, f"{count}.jsonl"), Path(folder, f"{count}.out.jsonl")
            write_sessions(logged, count)
            command = [sys.executable, "-m", "turnwise", "import", str(logged), "--out", str(out)]
            seconds, peak = measured(command)
            size = logged.stat().st_size / 1e6
            print(f"{count:8,} {size:11.1f} {seconds:9.1f} {count / seconds:12,.0f} {peak:9.0f}")
            out.unlink()
            logged.unlink()


if __name__ == "__main__":
    main()
