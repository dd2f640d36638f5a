"""A short conversation with tools: who reads calls, and whether a prompt goes on from the one before."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from environments.inference.chat_reply import call_id
from environments.inference.reply_tokens import SampledTokens
from environments.policy.examination.chat_requests import Asked, ChatRequests
from environments.policy.examination.findings import Finding
from environments.policy.rendering.families import family_names, family_of
from environments.policy.rendering.text_calls import read_text_calls
from environments.trajectory import Message
from tools.calls import ToolCall, ToolSpec
from tools.errors import ConfigError

WEATHER = ToolSpec(
    name="get_weather",
    description="The weather in a city now.",
    parameters={
        "type": "object",
        "properties": {"city": {"type": "string", "description": "its name"}},
        "required": ["city"],
    },
)
_OPENING = Message(
    role="user",
    content="What is the weather in Paris, in Oslo and in Lima? Call get_weather for each of the three, all "
    "of them at once.",
)
_OPENINGS = 3
_MORE = Message(role="user", content="Thank you. In which of these cities is it warmest? Answer in one word.")
_PARSER = (
    "start vLLM with --enable-auto-tool-choice --tool-call-parser NAME, SGLang with --tool-call-parser NAME"
)
_FORKS = (
    "send ids instead: --openai.server_type vllm or sglang, with --env.tokenizer_name and --openai.family"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """What was said, turn by turn."""

    opening: Asked
    calls: tuple[ToolCall, ...]
    """Of the opening, read by the server or in its text."""
    text_family: str | None
    """The chat format that the calls in its text are in; `None`: it has none there."""
    answered: Asked
    """After the tools' results."""
    later: Asked
    """After another message of the user."""
    interrupted: Asked
    """After a message of the user that follows the tools' results at once."""

    @property
    def messages(self) -> tuple[Message, ...]:
        """What the opening was asked with."""
        return (_OPENING,)


async def _opened(requests: ChatRequests) -> Asked:
    """The first opening that is answered: one odd failure says nothing of a server."""
    opening = Asked()
    for seed in range(_OPENINGS):
        if opening.message is None:
            opening = await requests.ask((_OPENING,), tools=[WEATHER], seed=seed)
    return opening


async def converse(requests: ChatRequests, *, family: str | None) -> Conversation:
    """Talk to the server.

    Args:
        requests: how it is asked.
        family: the model's chat format, looked for first where calls are text.
    """
    opening = await _opened(requests)
    nothing = Asked(problem="the opening was not answered")
    if opening.message is None:
        return Conversation(
            opening=opening, calls=(), text_family=None, answered=nothing, later=nothing, interrupted=nothing
        )
    turn, text_family = _with_calls(opening.message, [family, family_of(requests.model)])
    said = [_OPENING, turn]
    said += [
        Message(role="tool", content=f"{10 + index} °C, sunny", tool_call_id=call.id)
        for index, call in enumerate(turn.tool_calls)
    ] or [Message(role="user", content="Go on.")]
    answered = await requests.ask(said, tools=[WEATHER])
    later = nothing
    if answered.message is not None:
        later = await requests.ask([*said, answered.message, _MORE], tools=[WEATHER])
    interrupted = nothing
    if turn.tool_calls:
        interrupted = await requests.ask([*said, _MORE], tools=[WEATHER])
    return Conversation(
        opening=opening,
        calls=turn.tool_calls,
        text_family=text_family,
        answered=answered,
        later=later,
        interrupted=interrupted,
    )


def tool_findings(talk: Conversation) -> list[Finding]:
    """Who reads calls, how many come at once, and what may follow a tool's result."""
    return [_parser(talk), _parallel(talk), _after_results(talk)]


def reasoning_finding(talk: Conversation) -> Finding:
    """In which field reasoning comes."""
    for asked in (talk.opening, talk.answered, talk.later):
        if asked.sampled is None:
            continue
        message = asked.sampled.message
        if message.reasoning is not None:
            name = asked.sampled.reasoning_field or "a part of the content"
            return Finding(name="reasoning", verdict="ok", seen=f"in {name}")
        if "<think>" in message.content or "</think>" in message.content:
            return Finding(
                name="reasoning",
                verdict="no",
                seen="in the text of the answer",
                advice="start vLLM or SGLang with --reasoning-parser NAME, or send ids",
            )
    return Finding(name="reasoning", verdict="not seen", seen="no answer had any")


def token_findings(talk: Conversation, requests: ChatRequests) -> list[Finding]:
    """Token ids, their logprobs, and whether a prompt goes on from the turn before it."""
    tokens = talk.opening.tokens
    if tokens is None or requests.token_problem:
        why = requests.token_problem or "the replies have text alone"
        advice = "vLLM from 0.10.2 on and SGLang from 0.5.13 on give them; for others see docs/models.md"
        return [
            Finding(name="token ids", verdict="no", seen=why, advice=advice),
            Finding(name="logprobs", verdict="no", seen="none without ids"),
            Finding(name="prefix", verdict="not seen", seen="it takes the ids of every reply to see it"),
        ]
    return [
        Finding(
            name="token ids",
            verdict="ok",
            seen=f"{len(tokens.prompt_ids)} of the prompt, {len(tokens.token_ids)} sampled",
        ),
        _logprobs(tokens),
        _prefix(talk),
    ]


def fork_of(before: SampledTokens, message: Message, after: Sequence[int]) -> str | None:
    """Why the next prompt does not begin with a turn's prompt and what was sampled; `None`: it does."""
    row = (*before.prompt_ids, *before.token_ids)
    following = tuple(after)
    if following[: len(row)] == row:
        return None
    pairs = zip(row, following, strict=False)  # the shorter one ends the comparison
    at = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(row), len(following)))
    where = f"token {at} of {len(row)}"
    if at < len(before.prompt_ids):
        return f"its template writes earlier messages otherwise once more follow ({where})"
    if at == len(row) - 1:
        return f"its template writes another token than the sampled one that ended the turn ({where})"
    if message.reasoning or "</think>" in message.content:
        return f"its template drops the reasoning, or writes it otherwise ({where})"
    if message.tool_calls:
        return f"its template writes the calls otherwise than the model did ({where})"
    return f"the text becomes other tokens than the sampled ones ({where})"


def _with_calls(message: Message, families: Sequence[str | None]) -> tuple[Message, str | None]:
    """A turn as the next prompt has it, and the chat format that calls in its text are in."""
    if message.tool_calls:
        return message, None
    likely = [family for family in families if family is not None]
    for family in dict.fromkeys([*likely, *family_names()]):
        try:
            rest, calls = read_text_calls(message.content, family, [WEATHER])
        except ConfigError:  # read by a package that is not installed
            continue
        if any(call.status == "ok" and call.name == WEATHER.name for call in calls):
            named = tuple(replace(call, id=call_id("check-model", i)) for i, call in enumerate(calls))
            return replace(message, content=rest, tool_calls=named), family
    return message, None


def _parser(talk: Conversation) -> Finding:
    if talk.opening.message is None:
        return Finding(name="tool calls", verdict="no", seen=talk.opening.problem)
    if talk.text_family is not None:
        return Finding(
            name="tool calls",
            verdict="no",
            seen=f"as text, in the format {talk.text_family}",
            advice=f"--openai.family {talk.text_family} reads them; or {_PARSER}",
        )
    if talk.calls:
        names = ", ".join(dict.fromkeys(call.name for call in talk.calls))
        return Finding(name="tool calls", verdict="ok", seen=f"read by the server ({names:.60})")
    advice = f"a model that was taught tools, and a server that reads its calls: {_PARSER}"
    return Finding(name="tool calls", verdict="not seen", seen="the model called nothing", advice=advice)


def _parallel(talk: Conversation) -> Finding:
    name, count = "parallel calls", len(talk.calls)
    if count > 1:
        return Finding(name=name, verdict="ok", seen=f"{count} in one turn")
    if count == 1:
        return Finding(name=name, verdict="not seen", seen="one call, where three were asked for")
    return Finding(name=name, verdict="not seen", seen="no call")


def _after_results(talk: Conversation) -> Finding:
    name = "user after a result"
    if not talk.calls:
        return Finding(name=name, verdict="not seen", seen="no call")
    if talk.answered.message is None:
        return Finding(
            name=name,
            verdict="no",
            seen=f"not even the result is taken: {talk.answered.problem}",
            advice="the server cannot play a rollout with tools",
        )
    if talk.interrupted.message is None:
        return Finding(
            name=name,
            verdict="no",
            seen=talk.interrupted.problem,
            advice="hooks that answer a tool's result with a user message (respond) fail on this server",
        )
    return Finding(name=name, verdict="ok", seen="taken")


def _logprobs(tokens: SampledTokens) -> Finding:
    if tokens.logprobs is None:
        return Finding(
            name="logprobs",
            verdict="no",
            seen="ids without logprobs",
            advice="start vLLM without --max-logprobs 0; without logprobs a trainer has no importance ratios",
        )
    return Finding(name="logprobs", verdict="ok", seen="finite, one for each sampled id")


def _prefix(talk: Conversation) -> Finding:
    """Whether rows fork, after tools' results and after a message of the user."""
    forks: list[str] = []
    for what, before, after in (
        ("after tools' results" if talk.calls else "after a message", talk.opening, talk.answered),
        ("after a user message", talk.answered, talk.later),
    ):
        if before.tokens is None or before.message is None or after.tokens is None:
            continue
        fork = fork_of(before.tokens, before.message, after.tokens.prompt_ids)
        if fork is None:
            continue
        forks.append(f"{what} {fork}")
    if forks:
        return Finding(name="prefix", verdict="no", seen="; ".join(forks), advice=f"rows fork; {_FORKS}")
    if talk.answered.tokens is None:
        return Finding(name="prefix", verdict="not seen", seen=talk.answered.problem or "a reply without ids")
    return Finding(name="prefix", verdict="ok", seen="each prompt begins with the turn before it")
