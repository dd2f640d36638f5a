"""CPU that a turn costs with `fit_context`, over the same turn without a condenser.

    python -m tests.benchmarks.bench_counting [--tokens 2048 8192 32768] [--cycles 3] [--family qwen3]

A turn adds some 150 tokens. Compared are turns whose prompts fill between 60 % and all of a budget: of a
session that has just grown to it, and of one that `fit_context` has cut down `cycles` times. The policy
answers at once, so that what is measured is ours: rendering, counting, condensing, rows. It counts with
the format of a family (`family`) or our own (`chatml`); or it does not count, and gives ids (`ids`) or text
(`text`).
`one` is the most that a single turn took, which is one with a cut.
"""

import argparse
import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace

from environments.containment.abandoned import Abandoned
from environments.containment.hook_calls import HookCalls
from environments.containment.in_flight import InFlight
from environments.policy.base import CompletionRequest
from environments.policy.rendering.chatml import ChatMLRenderer
from environments.policy.rendering.family_renderer import FamilyRenderer, text_reader
from environments.policy.rendering.long_text import rendered
from environments.policy.rendering.renderer import Renderer
from environments.policy.rendering.tokenizer_files import load_tokenizer
from environments.policy.row_prompt import prompt_of
from environments.policy.scripted import call
from environments.rollout.agent_loop import AgentLoop
from environments.rollout.context import Condenser, fit_context
from environments.trajectory import Completion, Message, Turn
from tests.benchmarks.bench_sessions import budget, look
from tools.registry import Toolset

OURS = ChatMLRenderer.embedded()
SAID = call("look", {"path": "values.py", "line": 1}, content="I look further.")


class Answering:
    """Says the same at each turn, with the ids of one renderer."""

    name = "answering"

    def __init__(self, renderer: Renderer, sampled: tuple[int, ...], *, exact: bool = True) -> None:
        self._renderer = renderer
        self._sampled = sampled
        self._exact = exact

    async def complete(self, request: CompletionRequest) -> Completion:
        prompt = prompt_of(request, self._renderer)
        named = replace(SAID.tool_calls[0], id=f"call_{request.number}")
        before = len(request.row.token_ids) if prompt.extends_row and request.row is not None else 0
        return Completion(
            message=replace(SAID, tool_calls=(named,)),
            finish_reason="tool_calls",
            prompt_ids=prompt.prompt_ids,
            extends_row=prompt.extends_row,
            token_ids=self._sampled,
            logprobs=(-1.0,) * len(self._sampled) if self._exact else None,
            exact=self._exact,
            prompt_tokens=None if self._exact else before + len(prompt.prompt_ids),
        )


class Counting(Answering):
    """It counts, too, as policies do that send ids."""

    async def prompt_tokens(self, request: CompletionRequest) -> int:
        def tokens() -> int:
            prompt = prompt_of(request, self._renderer)
            before = len(request.row.token_ids) if prompt.extends_row and request.row is not None else 0
            return before + len(prompt.prompt_ids)

        return await rendered(tokens, self._renderer, request.messages[-3:], max_tokens=None)


def policies(family: str) -> dict[str, Answering]:
    tokenizer = load_tokenizer("embedded")
    tokenizer.add_tokens(list(text_reader(family).markers))
    other = FamilyRenderer(family, tokenizer)
    question, answer = Message(role="user", content="?"), Message(role="tool", content=".", tool_call_id="")
    begun = len(other.prompt_ids((question,), ()))
    said = other.prompt_ids((question, SAID, answer), ())[begun:]
    sampled = said[: next(index for index, each in enumerate(said) if each in other.stop_ids) + 1]
    ours = OURS.completion_ids(SAID)
    return {
        "chatml": Counting(OURS, ours),
        "family": Counting(other, sampled),
        "ids": Answering(OURS, ours),
        "text": Answering(OURS, ours, exact=False),
    }


async def session(policy: Answering, turns: int, condensers: Sequence[Condenser]) -> list[tuple[Turn, float]]:
    """Turns and the CPU seconds of each."""
    spent: list[tuple[Turn, float]] = []
    with HookCalls(InFlight(item_id="long", sibling=0), Abandoned(), hook_timeout_s=60) as calls:
        loop = AgentLoop(
            policy=policy,
            toolset=Toolset("files", (look,)),
            sandbox=None,  # pyright: ignore[reportArgumentType]  # the tool uses none
            messages=(Message(role="system", content="Fix the bug."), Message(role="user", content="Begin.")),
            budget=budget(turns),
            seed=1,
            calls=calls,
            condensers=condensers,
        )
        before = time.process_time()
        async for turn in loop.turns():
            now = time.process_time()
            spent.append((turn, now - before))
            before = now
    assert len(spent) == turns, loop.stop_reason
    return spent


async def compare(policy: Answering, tokens: int, cycles: int) -> tuple[float, float, float, int]:
    """Milliseconds of a turn without a condenser and with one, the most of one, and how many were cut."""
    first = await session(policy, 8, ())
    step = (first[-1][0].span.end - first[3][0].span.end) // 4
    grown = await session(policy, tokens // step, ())
    plain = [spent for turn, spent in grown if 0.6 * tokens <= turn.span.start <= tokens]
    long = await session(policy, tokens // step * (1 + cycles), [fit_context(tokens)])
    cut = next(turn.index for turn, _ in long if turn.condensed is not None)
    condensed = [spent for turn, spent in long if turn.index >= cut]
    cuts = sum(turn.condensed is not None for turn, _ in long)
    return (
        1e3 * sum(plain) / len(plain),
        1e3 * sum(condensed) / len(condensed),
        1e3 * max(condensed),
        cuts,
    )


async def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, nargs="+", default=[2_048, 8_192, 32_768])
    parser.add_argument("--cycles", type=int, default=3)
    parser.add_argument("--family", default="qwen3")
    options = parser.parse_args()
    print("policy   tokens  plain ms  fitted ms  ratio  one ms  cuts")
    for name, policy in policies(options.family).items():
        for tokens in options.tokens:
            plain, fitted, one, cuts = await compare(policy, tokens, options.cycles)
            ratio = fitted / plain
            print(f"{name:<8} {tokens:>6} {plain:9.2f} {fitted:10.2f} {ratio:6.2f} {one:7.1f} {cuts:5}")


if __name__ == "__main__":
    asyncio.run(main())
