"""What the record costs: CPU of a group's line, and memory of its rows.

    python -m tests.benchmarks.bench_record [--rollouts 8] [--turns 20] [--tokens 500]

The line is compared with `orjson.dumps` of what it holds. Aims: at most 0.4 ms per 1,000 sampled tokens, and
24 bytes of memory a token.
"""

import argparse
import gc
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import orjson

from environments.record.group_line import decode_group, encode_group
from environments.trajectory import (
    NOT_SAMPLED,
    CreditedGroup,
    Message,
    Rewards,
    Span,
    TokenRow,
    Trajectory,
    TrajectoryGroup,
    Turn,
)
from tools.calls import ToolCall, ToolResult

SEEN = 100
"""Tokens of what answers a turn."""


def sampled_group(rollouts: int, turns: int, tokens: int, *, seen: int = SEEN) -> CreditedGroup:
    """A group of agents with a terminal, each turn with its text, its reward and its advantage."""
    rng = Random(0)
    trajectories = tuple(_trajectory(rng, sibling, turns, tokens, seen) for sibling in range(rollouts))
    return CreditedGroup(
        group=TrajectoryGroup(group_id="g", env="e", item_id="a", item={"q": "x"}, trajectories=trajectories),
        advantages=tuple(tuple(rng.gauss(0, 1) for _ in each.turns) for each in trajectories),
        policy="p",
        estimator="turn_return",
    )


def _trajectory(rng: Random, sibling: int, turns: int, tokens: int, seen: int) -> Trajectory:
    ids: list[int] = []
    logprobs: list[float] = []
    taken: list[Turn] = []
    for index in range(turns):
        ids += [rng.randrange(150_000) for _ in range(seen + tokens)]
        logprobs += [NOT_SAMPLED] * seen + [-rng.expovariate(2) for _ in range(tokens)]
        call = ToolCall(id=f"c{index}", name="terminal", arguments='{"command": "ls"}')
        taken.append(
            Turn(
                index=index,
                message=Message(role="assistant", content="word" * tokens, tool_calls=(call,)),
                tool_results=(ToolResult(call_id=call.id, name=call.name, content="word" * SEEN),),
                span=Span(row=0, start=len(ids) - tokens, end=len(ids)),
                finish_reason="tool_calls",
                weight_version="v1",
                sampling={"temperature": 1.0, "top_p": 1.0},
            )
        )
    return Trajectory(
        item_id="a",
        sibling=sibling,
        prompt=(Message(role="system", content="word" * SEEN), Message(role="user", content="word" * SEEN)),
        turns=tuple(taken),
        rows=(TokenRow(token_ids=ids, logprobs=logprobs),),
        rewards=Rewards(turns=tuple(rng.random() for _ in taken), outcome=1.0, score=2.0),
    )


def least_cpu_s(do: Callable[[], object], repeats: int = 10) -> float:
    """CPU seconds of the fastest of several."""
    taken: list[float] = []
    for _ in range(repeats):
        started = time.process_time()
        do()
        taken.append(time.process_time() - started)
    return min(taken)


def bytes_a_token(line: bytes) -> float:
    """Memory of the rows of a line that was read."""
    tracemalloc.start()
    try:
        read = decode_group(line, Path("record"), 1)
        gc.collect()
        whole = tracemalloc.get_traced_memory()[0]
        tokens = sum(len(row.token_ids) for each in read.group.trajectories for row in each.rows)
        bare = tuple(replace(each, rows=()) for each in read.group.trajectories)
        read = replace(read, group=replace(read.group, trajectories=bare))
        gc.collect()
        return (whole - tracemalloc.get_traced_memory()[0]) / tokens
    finally:
        tracemalloc.stop()


def main() -> None:
    """Run once and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rollouts", type=int, default=8)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=500)
    options = parser.parse_args()
    group = sampled_group(options.rollouts, options.turns, options.tokens)
    line = encode_group(group)
    fields = orjson.loads(line)
    thousands = options.rollouts * options.turns * options.tokens / 1000
    encoded, dumped = least_cpu_s(lambda: encode_group(group)), least_cpu_s(lambda: orjson.dumps(fields))
    decoded = least_cpu_s(lambda: decode_group(line, Path("record"), 1))
    print(f"line       {len(line) / 1e6:.1f} MB")
    print(f"written    {1000 * encoded / thousands:.2f} ms of CPU per 1,000 sampled tokens")
    print(f"           {encoded / dumped:.1f} times orjson.dumps of the same")
    print(f"read       {1000 * decoded / thousands:.2f} ms of CPU per 1,000 sampled tokens")
    print(f"memory     {bytes_a_token(line):.0f} bytes a token of a row")


if __name__ == "__main__":
    main()
