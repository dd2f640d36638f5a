"""What a turn costs that nothing outside the process takes part in: a game in memory, and a free policy.

    python -m tests.benchmarks.bench_free_policy [--groups 16] [--rounds 5] [--cprofile 30]

Nobody waits for anything, so that every µs is ours. Printed are µs of CPU per turn for the scripted agent,
and for a policy that renders its whole prompt at each turn, with the share of that. Then rendering alone,
with the tools of a shop and with none: tools are the same at each turn, and cost nothing after the first.
`--cprofile` lists the parts of a scripted turn.
"""

import argparse
import asyncio
import cProfile
import pstats
import random
import statistics
import time
from collections.abc import Callable, Sequence

from environments.base_env import AgentEnv
from environments.config import AgentEnvConfig
from environments.policy.base import CompletionRequest
from environments.policy.rendering.chatml import ChatMLRenderer
from environments.policy.rendering.family_renderer import text_reader
from environments.policy.scripted import Choice, call, say
from environments.retail_env.env import RetailEnv
from environments.trajectory import Completion, Message
from environments.turn_level_reward import TurnLevelRewardMixin
from tools.registry import tool
from tools.tool_context import State

TURNS = 8
SIGNS = ("one", "two", "file", "list")
KEYS = ("a", "b", "c", "d")


class Panel(State):
    """A row of signs; each has one right key."""

    def __init__(self, signs: Sequence[str]) -> None:
        self.signs = signs
        self.right = 0
        self.pressed = 0

    @tool
    async def press(self, key: str) -> str:
        """Press a key.

        Args:
            key: The key.
        """
        self.right += KEYS[SIGNS.index(self.signs[self.pressed])] == key
        self.pressed += 1
        return f"sign {self.signs[self.pressed]}" if self.pressed < TURNS else "the end"

    @tool
    async def wait(self, seconds: float, reason: str = "") -> str:
        """Wait for a while before the next key.

        Args:
            seconds: How long.
            reason: Why it is worth it, for those who read along.
        """
        return "waited"


class Stations(TurnLevelRewardMixin, AgentEnv):
    """One key for each sign."""

    name = "stations"
    sandbox = "none"
    tools = (Panel,)

    async def load_items(self):
        return [{"id": str(index)} for index in range(1024)]

    def prepare(self, item, sandbox) -> Panel:
        draw = random.Random(item["id"])
        return Panel([draw.choice(SIGNS) for _ in range(TURNS)])

    def format_prompt(self, item):
        return "Press the key of each sign."

    def score_turn(self, item, turn, ctx):
        return 1.0

    def scripted_choices(self, item, messages, tools, skill):
        if sum(message.role == "assistant" for message in messages) >= TURNS:
            return [Choice(probability=1.0, message=say("Done."))]
        return [Choice(probability=0.25, message=call("press", {"key": key})) for key in KEYS]


class Rendering:
    """Samples at no cost, and renders all of its prompt at each turn."""

    name = "rendering"

    def __init__(self, renderer: ChatMLRenderer) -> None:
        self._renderer = renderer
        self._press = [(each := call("press", {"key": key}), renderer.completion_ids(each)) for key in KEYS]
        self._done = (say("Done."), renderer.completion_ids(say("Done.")))
        self.rendering_s = 0.0

    async def complete(self, request: CompletionRequest) -> Completion:
        started = time.perf_counter()
        prompt_ids = self._renderer.prompt_ids(request.messages, request.tools)
        self.rendering_s += time.perf_counter() - started
        over = request.messages[-1].content == "the end"
        message, ids = self._done if over else self._press[(request.seed + request.number) % len(KEYS)]
        return Completion(
            message=message,
            finish_reason="stop" if over else "tool_calls",
            prompt_ids=prompt_ids,
            token_ids=ids,
            logprobs=(0.0,) * len(ids),
            exact=True,
        )


async def cpu_of(groups: int, policy: Rendering | None) -> tuple[float, int]:
    """CPU of the groups, and their turns."""
    config = AgentEnvConfig(group_size=4, max_turns=TURNS + 1)
    async with Stations(config, policy=policy) as env:
        tasks = env.tasks()[:groups]
        started, turns = time.process_time(), 0
        for task in tasks:
            credited = await env.run_group(task)
            assert not credited.group.failures, credited.group.failures
            turns += sum(len(each.turns) for each in credited.group.trajectories)
        return time.process_time() - started, turns


def per_turn(groups: int, rounds: int, *, renders: bool) -> tuple[float, float]:
    """µs of CPU per turn, median of the rounds, and the share of it that built prompts."""
    times: list[float] = []
    shares: list[float] = []
    for _ in range(rounds):
        policy = Rendering(ChatMLRenderer.embedded()) if renders else None
        seconds, turns = asyncio.run(cpu_of(groups, policy))
        times.append(1e6 * seconds / turns)
        shares.append(policy.rendering_s / seconds if policy is not None else 0.0)
    return statistics.median(times), statistics.median(shares)


def us_of(function: Callable[[], object]) -> float:
    """µs of one call, when it has been made before."""
    function()
    started = time.perf_counter()
    for _ in range(500):
        function()
    return 1e6 * (time.perf_counter() - started) / 500


def show_tools() -> None:
    """What tools cost in a prompt whose messages are known, and in what follows a turn."""
    tools = RetailEnv().toolset.specs
    ours, qwen3 = ChatMLRenderer.embedded(), text_reader("qwen3")
    said: list[Message] = [Message(role="user", content="Press the key of each sign.")]
    for index in range(TURNS):
        said += [call("press", {"key": KEYS[index % 4]}), Message(role="tool", content="sign one")]
    sampled = (*qwen3.prompt_ids([say("Done.")], ())[:8], qwen3.stop_ids[0])
    answer = [Message(role="user", content="Go on.")]
    for name, part in (
        ("prompt_ids, chatml", lambda tools: ours.prompt_ids(said, tools)),
        ("extend, qwen3", lambda tools: qwen3.extend(sampled, answer, tools)),
    ):
        with_tools, without = us_of(lambda part=part: part(tools)), us_of(lambda part=part: part(()))
        print(f"{name}: {with_tools:.0f} µs with {len(tools)} tools, {with_tools / without:.2f} of none")


def show_profile(groups: int, rows: int) -> None:
    """The functions of a turn by their own time."""
    profiler = cProfile.Profile()
    profiler.enable()
    asyncio.run(cpu_of(groups, None))
    profiler.disable()
    pstats.Stats(profiler).sort_stats("tottime").print_stats(rows)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--groups", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cprofile", type=int, default=0, metavar="ROWS")
    options = parser.parse_args()
    asyncio.run(cpu_of(2, None))
    scripted, _ = per_turn(options.groups, options.rounds, renders=False)
    rendering, share = per_turn(options.groups, options.rounds, renders=True)
    print(f"scripted agent: {scripted:.0f} µs of CPU a turn")
    print(f"free policy that renders its prompt: {rendering:.0f} µs a turn, {share:.0%} of it the prompt")
    show_tools()
    if options.cprofile:
        show_profile(options.groups, options.cprofile)


if __name__ == "__main__":
    main()
