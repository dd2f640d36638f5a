"""What `long_math` comes to by condenser and skill, and what its summaries and notes are credited with.

python -m tests.benchmarks.condensed_audits [--items 32] [--rollouts 4]
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

from environments.long_math_env import LongMathEnv
from environments.long_math_env.env import LongMathConfig
from environments.trajectory import CreditedGroup

SKILLS = (0.0, 0.6, 1.0)
CONDENSED = (
    "--env.condenser none",
    "--env.condenser none --env.max_token_length 8192",
    "--env.condenser trim_tool_output --env.condenser_tool_tokens 32",
    "--env.condenser keep_last_turns --env.condenser_turns 4",
    "--env.condenser fit_context",
    "--env.condenser summarise",
    "--env.condenser summarise_by_model",
)
"""Flags, each a row of the table."""


def evaluated(flags: str, skill: float, *, items: int, rollouts: int) -> str:
    """`overflowed / solved` of `turnwise evaluate`, as shares of its rollouts."""
    numbers = f"--env.ledgers {items} --env.eval_rollouts {rollouts} --env.scripted_skill {skill}"
    with tempfile.TemporaryDirectory() as folder:
        command = ["evaluate", "long_math", *flags.split(), *numbers.split(), "--out", folder]
        subprocess.run([sys.executable, "-m", "turnwise", *command], check=True, capture_output=True)
        lines = (Path(folder) / "samples.jsonl").read_text().splitlines()
    samples = [json.loads(line) for line in lines]
    overflowed = fmean(sample["stop_reason"] == "context_overflow" for sample in samples)
    return f"{overflowed:.2f} / {fmean(sample['passed'] for sample in samples):.2f}"


async def played(**settings: object) -> list[CreditedGroup]:
    """A group of each ledger."""
    async with LongMathEnv(LongMathConfig(**settings)) as env:
        return [await env.run_group(task) for task in env.tasks()]


def credited_writing(groups: Sequence[CreditedGroup], kind: str) -> Iterator[tuple[int, float]]:
    """For each turn of a kind, how many stores it names the stock of, and its advantage."""
    for credited in groups:
        for trajectory, advantages in zip(credited.group.trajectories, credited.advantages, strict=True):
            for turn, advantage in zip(trajectory.turns, advantages, strict=True):
                if turn.kind == kind:
                    text = turn.message.content
                    yield text.count(",") + 1 if text.startswith("After page") else 0, advantage


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--items", type=int, default=32)
    parser.add_argument("--rollouts", type=int, default=4)
    options = parser.parse_args()
    print("overflowed / solved, as shares of the rollouts\n")
    print(
        "| " + " | ".join(["`turnwise evaluate long_math`", *(f"skill {skill:g}" for skill in SKILLS)]) + " |"
    )
    print("|---" * (1 + len(SKILLS)) + "|")
    for flags in CONDENSED:
        shares = [evaluated(flags, skill, items=options.items, rollouts=options.rollouts) for skill in SKILLS]
        print(f"| `{flags}` | {' | '.join(shares)} |")
    print("\nmean advantage of what was written, by stores whose stock it names\n")
    for condenser, kind in (("summarise", "summary"), ("fit_context", "act")):
        groups = asyncio.run(played(condenser=[condenser], ledgers=options.items, group_size=8))
        written = list(credited_writing(groups, kind))
        by_stores = [
            (stores, [advantage for named, advantage in written if named == stores])
            for stores in sorted({named for named, _ in written})
        ]
        found = ", ".join(f"{stores}: {fmean(given):+.3f} ({len(given)})" for stores, given in by_stores)
        print(f"{condenser}, turns of kind {kind}: {found}")


if __name__ == "__main__":
    main()
