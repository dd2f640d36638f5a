"""A conversation of given turns in a real loop, of which the model sees what condensers leave."""

import asyncio
from dataclasses import dataclass, field

from environments.policy.scripted import Choice, ScriptedPolicy, say
from environments.rollout.agent_loop import AgentLoop
from environments.rollout.model_calls import Budget
from environments.trajectory import Message
from tests.environments.rollout.looped import RENDERER, looped
from tools.calls import ToolCall
from tools.registry import Toolset, tool

BUDGET = Budget(
    max_turns=20,
    max_tokens_per_turn=400,
    token_budget=100_000,
    max_row_tokens=20_000,
    timeout_s=60,
    tool_timeout_s=10,
    tool_output_chars=100_000,
)
OPENING = (Message(role="system", content="Be brief."), Message(role="user", content="Read it all."))


@dataclass(frozen=True, kw_only=True)
class Step:
    """One act: what it says, what its calls answer, and what the world replies."""

    text: str = ""
    results: tuple[str, ...] = ()
    reply: str | None = None


@dataclass(kw_only=True)
class Play:
    loop: AgentLoop
    turns: list = field(default_factory=list)
    requests: list = field(default_factory=list)
    """What the policy was asked, one for each turn."""

    @property
    def acts(self):
        return [turn for turn in self.turns if turn.kind == "act"]

    @property
    def seen(self):
        return [request.messages for request in self.requests if request.kind == "act"]

    @property
    def conversation(self):
        return (*self.loop.messages, *(message for turn in self.turns for message in turn.messages))


class Recorded:
    """A policy that notes what it is asked."""

    def __init__(self, steps, summaries):
        self.requests = []
        self.acts = 0
        self._steps, self._summaries = steps, list(summaries)
        self._policy = ScriptedPolicy(self._act, skill=1.0, renderer=RENDERER, summary=self._summary)
        self.name = "recorded"
        self.prompt_tokens = self._policy.prompt_tokens

    async def complete(self, request):
        completion = await self._policy.complete(request)
        self.requests.append(request)
        self.acts += request.kind == "act"
        return completion

    def _act(self, messages, tools, skill):
        if self.acts >= len(self._steps):
            return [Choice(probability=1.0, message=say("done"))]
        step = self._steps[self.acts]
        calls = tuple(ToolCall(id="", name="read", arguments="{}") for _ in step.results)
        return [
            Choice(probability=1.0, message=Message(role="assistant", content=step.text, tool_calls=calls))
        ]

    def _summary(self, messages, tools, skill):
        text = self._summaries.pop(0) if len(self._summaries) > 1 else self._summaries[0]
        message = text if isinstance(text, Message) else say(text)
        return [Choice(probability=1.0, message=message)]


async def played(
    *condensers, steps, opening=OPENING, budget=BUDGET, summaries=("All read.",), summariser=None, policy=None
):
    """The rollout; what breaks it is raised."""
    policy = policy or Recorded(steps, summaries)
    left = [result for step in steps for result in step.results]

    @tool
    def read() -> str:
        """Read on."""
        return left.pop(0)

    async def respond(turn):
        acts = policy.acts - 1
        reply = steps[acts].reply if acts < len(steps) else None
        return () if reply is None else (Message(role="user", content=reply),)

    loop, turns = await looped(
        policy,
        Toolset("reading", (read,)),
        messages=opening,
        budget=budget,
        respond=respond,
        condensers=condensers,
        **({} if summariser is None else {"summariser": summariser}),
    )
    return Play(loop=loop, turns=turns, requests=policy.requests)


def play(*condensers, **options):
    """The same, for tests that are no coroutines."""
    return asyncio.run(played(*condensers, **options))


def as_seen(turn, conversation, before):
    """The messages of a turn's context, or else all `before` it."""
    if turn.context is None:
        return conversation[:before]
    seen = []
    for part in turn.context:
        seen += [part] if isinstance(part, Message) else conversation[part.start : part.end]
    return tuple(seen)
