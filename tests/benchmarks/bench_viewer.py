"""How long a page takes to make, how much memory that needs, and how large it is.

python -m tests.benchmarks.bench_viewer [--keep FOLDER]
"""

import argparse
import random
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import orjson

from environments.credit import credited
from environments.record.recorder import new_record
from environments.testing import group_of

WORDS = ("value", "list", "index", "return", "test", "fails", "first", "last", "item", "empty", "range")
PAGE = """
import sys, time, resource
from pathlib import Path
from environments.cli.main import main
began = time.perf_counter()
code = main(["view", sys.argv[1], "--max-size", "2000"])
print(code, time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def text(choices, words):
    return " ".join(choices.choices(WORDS, k=words))


def filled(group, choices, *, words):
    """The group with texts of so many words in messages and in results."""
    siblings = []
    for trajectory in group.trajectories:
        turns = [
            replace(
                turn,
                message=replace(turn.message, content=text(choices, words // 4)),
                tool_results=tuple(replace(each, content=text(choices, words)) for each in turn.tool_results),
            )
            for turn in trajectory.turns
        ]
        siblings.append(replace(trajectory, turns=tuple(turns)))
    return replace(group, trajectories=tuple(siblings))


def write(path, count, make):
    with new_record(path, doing="the benchmark") as recorder:
        for number in range(count):
            group = replace(make(number), item_id=str(number), group_id=f"{number}-0", env="bench")
            recorder.append(credited(group, "turn_return", policy="scripted"))


def rollouts_2000(number):
    """A group of 8 rollouts of 4 to 12 turns; 250 of them are 2,000 rollouts."""
    choices = random.Random(number)
    lengths = [choices.randint(4, 12) for _ in range(8)]
    rewards = [[choices.choice([None, 0.0, 0.5, 1.0]) for _ in range(turns)] for turns in lengths]
    sampled = [[choices.randint(20, 120) for _ in range(turns)] for turns in lengths]
    group = group_of(rewards, outcomes=[float(choices.random() < 0.5) for _ in lengths], lengths=sampled)
    return filled(group, choices, words=120)


def rollout_of_100_mb(_):
    """Two siblings, one of them with 1,000 turns and 100 kB of text in each."""
    choices = random.Random(0)
    group = group_of([[0.1] * 1000, [1.0]], lengths=[[100] * 1000, [100]])
    return filled(group, choices, words=20_000)


def measure(name, record, groups, make):
    write(record, groups, make)
    done = subprocess.run([sys.executable, "-c", PAGE, record], capture_output=True, text=True, check=True)
    code, seconds, memory = done.stdout.splitlines()[-1].split()
    page = record.with_suffix(".html")
    began = time.perf_counter()
    for line in record.open("rb"):
        orjson.loads(line)
    parsing = time.perf_counter() - began
    print(
        f"{name}: record {record.stat().st_size / 1e6:,.1f} MB, page {page.stat().st_size / 1e6:,.2f} MB, "
        f"{float(seconds):.1f} s ({float(seconds) / parsing:.0f} times its JSON's parsing), "
        f"{float(memory):,.0f} MB of memory at most, exit code {code}"
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--keep", type=Path)
    keep = parser.parse_args().keep
    with nullcontext(keep) if keep else tempfile.TemporaryDirectory() as folder:
        Path(folder).mkdir(exist_ok=True)
        measure("2,000 rollouts", Path(folder, "rollouts.jsonl"), 250, rollouts_2000)
        measure("a rollout of 100 MB", Path(folder, "large.jsonl"), 1, rollout_of_100_mb)


if __name__ == "__main__":
    main()
