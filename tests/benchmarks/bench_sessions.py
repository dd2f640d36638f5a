"""CPU that each turn of a long session costs us, beside the model server.

    python -m tests.benchmarks.bench_sessions [--turns 10 100 400 1000] [--paths chat text tokens] [--profile]

Every session goes through the rollout loop, a tool and real HTTP; the server is a process of its own. It is
asked by messages, and gives token ids (chat) or text alone (text), or is asked by token ids (tokens). A turn
adds some 130 tokens. `first` and `last` are the medians of a session's first and last tenth.
"""

import argparse
import asyncio
import cProfile
import pstats
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import fmean, median

from environments.containment.abandoned import Abandoned
from environments.containment.hook_calls import HookCalls
from environments.containment.in_flight import InFlight
from environments.inference.model_server import ModelServer
from environments.inference.token_wires import WIRES
from environments.policy.base import Policy
from environments.policy.chat import ChatPolicy
from environments.policy.rendering.chatml import ChatMLRenderer
from environments.policy.token_policy import TokenPolicy
from environments.rollout.agent_loop import AgentLoop
from environments.rollout.rollout_budget import Budget
from environments.trajectory import Message
from tools.registry import Toolset, tool
from tools.sandbox.base import Sandbox

RESULT = "    def value(self, index: int) -> float:\n        return self._values[index % 7]\n" * 4


@tool
async def look(sandbox: Sandbox, path: str, line: int) -> str:
    """Show a part of a file.

    Args:
        path: The file.
        line: Where to begin.
    """
    return RESULT


def budget(turns: int) -> Budget:
    return Budget(
        max_turns=turns,
        max_tokens_per_turn=1_000,
        token_budget=10**9,
        max_row_tokens=10**9,
        timeout_s=3_600,
        tool_timeout_s=60,
        tool_output_chars=10_000,
    )


async def session(policy: Policy, turns: int, seed: int) -> list[float]:
    """CPU seconds of each turn."""
    spent: list[float] = []
    with HookCalls(InFlight(item_id="long", sibling=0), Abandoned(), hook_timeout_s=60) as calls:
        loop = AgentLoop(
            policy=policy,
            toolset=Toolset("files", (look,)),
            sandbox=None,  # pyright: ignore[reportArgumentType]  # the tool uses none
            messages=(Message(role="system", content="Fix the bug."), Message(role="user", content="Begin.")),
            budget=budget(turns),
            seed=seed,
            calls=calls,
        )
        before = time.process_time()
        async for _ in loop.turns():
            now = time.process_time()
            spent.append(now - before)
            before = now
        rows = loop.rows
    assert len(rows) == 1, f"{len(rows)} rows"
    assert len(spent) == turns, loop.stop_reason
    return spent


@contextmanager
def model_server() -> Iterator[str]:
    """The base URL of a server in a process of its own."""
    command = [sys.executable, "-m", "tests.benchmarks.session_server"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def policy_of(path: str, base_url: str) -> ChatPolicy | TokenPolicy:
    server = ModelServer(base_url=base_url, api_key="none")
    renderer = ChatMLRenderer.embedded()
    if path in ("chat", "text"):
        return ChatPolicy(server=server, model=path, renderer=renderer)
    return TokenPolicy(server=server, model="m", renderer=renderer, wire=WIRES["vllm", "completions"])


async def measured(paths: list[str], lengths: list[int], base_url: str) -> None:
    print(f"{'path':8}{'turns':>6}{'first ms':>10}{'last ms':>10}{'last/first':>12}{'mean ms':>10}")
    seed = 0
    for path in paths:
        policy = policy_of(path, base_url)
        await session(policy, 20, seed)  # what is loaded and compiled once
        for turns in lengths:
            seed += 1
            spent = await session(policy, turns, seed)
            tenth = max(1, turns // 10)
            first, last = (1e3 * median(each) for each in (spent[:tenth], spent[-tenth:]))
            mean = 1e3 * fmean(spent)
            print(f"{path:8}{turns:6}{first:10.2f}{last:10.2f}{last / first:12.2f}{mean:10.2f}")
        await policy.aclose()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, nargs="+", default=[10, 100, 400, 1000])
    parser.add_argument("--paths", nargs="+", default=["chat", "text", "tokens"])
    parser.add_argument("--profile", action="store_true", help="where the time goes")
    options = parser.parse_args()
    profile = cProfile.Profile()
    with model_server() as base_url:
        if options.profile:
            profile.enable()
        asyncio.run(measured(options.paths, options.turns, base_url))
        profile.disable()
    if options.profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()
