"""Whether a server samples as it is asked to: seed, temperature, tool choice; and takes a long prompt."""

from collections.abc import Sequence

from environments.inference.server_kind import ServerFacts
from environments.policy.examination.chat_requests import Asked, ChatRequests
from environments.policy.examination.findings import Finding
from environments.policy.examination.tool_conversation import WEATHER
from environments.trajectory import Message

_RANDOM = (Message(role="user", content="Write ten words that have nothing to do with one another."),)
_SHARPER = {"temperature": 0.5, "top_p": 0.9}
_LONG_WORDS = 8000
_LONG = (
    Message(role="user", content=f"{'many ' * _LONG_WORDS}\nWhat is the word above? Answer in one word."),
)
_UNLIKE_NATS = 0.05
"""Between logprobs of one token in two requests: servers do not compute the same twice to the last bit."""
_TELLING_NATS = 0.3
"""A token that was nearly certain has the same logprob at every temperature."""


async def sampling_findings(requests: ChatRequests, facts: ServerFacts) -> list[Finding]:
    """Ask the same few times, with one thing changed."""
    same = [await requests.ask(_RANDOM, seed=seed, max_tokens=64) for seed in (7, 7, 8)]
    sharper = await requests.ask(_RANDOM, seed=7, max_tokens=64, fields=_SHARPER)
    forced = await requests.ask(
        (Message(role="user", content="Say hello."),),
        tools=[WEATHER],
        max_tokens=256,
        fields={"tool_choice": {"type": "function", "function": {"name": WEATHER.name}}},
    )
    long = await requests.ask(_LONG, max_tokens=16)
    return [
        _seed(requests, same),
        _temperature(requests, sharper),
        _logprobs_mode(facts, same, sharper),
        _tool_choice(requests, forced),
        _long_prompt(facts, long),
    ]


def _seed(requests: ChatRequests, asked: Sequence[Asked]) -> Finding:
    name = "seed"
    first, again, other = (each.message for each in asked)
    if "seed" in requests.dialect.refused:
        return Finding(
            name=name,
            verdict="no",
            seen="refused",
            advice="siblings differ all the same, but no run can be repeated",
        )
    if first is None or again is None or other is None:
        return Finding(
            name=name, verdict="not seen", seen=next(each.problem for each in asked if each.problem)
        )
    if first != again:
        return Finding(
            name=name,
            verdict="no",
            seen="equal seeds gave other words",
            advice="no run can be repeated exactly",
        )
    if first == other:
        return Finding(
            name=name,
            verdict="no",
            seen="another seed gave the same words",
            advice="siblings may be equal: look for a cache, or a temperature that the server sets itself",
        )
    return Finding(name=name, verdict="ok", seen="equal seeds, equal words; another seed, other words")


def _temperature(requests: ChatRequests, sharper: Asked) -> Finding:
    name = "temperature, top_p"
    refused = requests.dialect.refused & _SHARPER.keys()
    if sharper.message is None:  # a value that matters is refused by name
        refused |= {each for each in _SHARPER if f"refuses {each}" in sharper.problem}
    if refused:
        return Finding(
            name=name,
            verdict="no",
            seen=f"{' and '.join(sorted(refused))} refused",
            advice="leave --env.temperature and --env.top_p at 1: they are not sent then",
        )
    if sharper.message is None:
        return Finding(name=name, verdict="not seen", seen=sharper.problem)
    return Finding(name=name, verdict="ok", seen="taken")


def _logprobs_mode(facts: ServerFacts, same: Sequence[Asked], sharper: Asked) -> Finding:
    """Whether the logprobs of a token move with the temperature."""
    name = "logprobs follow sampling"
    unlike = [gap for asked in same for gap in _gaps(asked, sharper)]
    said = f"; it says {facts.logprobs_mode}" if facts.logprobs_mode else ""
    if not unlike:
        return Finding(name=name, verdict="not seen", seen=f"no token to compare{said}")
    if max(unlike) > _UNLIKE_NATS:
        return Finding(name=name, verdict="ok", seen=f"they move with temperature and top_p{said}")
    return Finding(
        name=name,
        verdict="no",
        seen=f"they are those before temperature and top_p{said}",
        advice="sample at temperature 1 and top_p 1, or start vLLM with --logprobs-mode processed_logprobs",
    )


def _gaps(plain: Asked, sharper: Asked) -> list[float]:
    """How far the logprobs of equal tokens after equal tokens are apart, where they tell something."""
    if plain.tokens is None or sharper.tokens is None:
        return []
    if plain.tokens.logprobs is None or sharper.tokens.logprobs is None:
        return []
    gaps: list[float] = []
    pairs = zip(plain.tokens.token_ids, sharper.tokens.token_ids, strict=False)  # up to the shorter one
    for index, (one, other) in enumerate(pairs):
        if one != other:
            break
        if plain.tokens.logprobs[index] < -_TELLING_NATS:
            gaps.append(abs(plain.tokens.logprobs[index] - sharper.tokens.logprobs[index]))
    return gaps


def _tool_choice(requests: ChatRequests, forced: Asked) -> Finding:
    name = "tool_choice"
    if forced.message is None or "tool_choice" in requests.dialect.refused:
        return Finding(name=name, verdict="no", seen=forced.problem or "refused", advice="do without it")
    if forced.message.tool_calls:
        return Finding(name=name, verdict="ok", seen="a call that was asked for came")
    return Finding(
        name=name,
        verdict="no",
        seen="taken, and no call came",
        advice="do not rely on extra_body.tool_choice",
    )


def _long_prompt(facts: ServerFacts, long: Asked) -> Finding:
    """Whether a prompt is taken whole, or refused where it does not fit: never cut in silence."""
    name = "long prompt"
    if long.too_long:
        return Finding(name=name, verdict="ok", seen=f"{_LONG_WORDS} words are refused as too long")
    if long.message is None:
        return Finding(name=name, verdict="no", seen=long.problem)
    counted = len(long.tokens.prompt_ids) if long.tokens is not None else long.usage.get("prompt_tokens")
    if not isinstance(counted, int):
        return Finding(name=name, verdict="not seen", seen="taken; the server does not count its tokens")
    if counted < _LONG_WORDS:
        window = f" of {facts.context_tokens}" if facts.context_tokens else ""
        return Finding(
            name=name,
            verdict="no",
            seen=f"cut in silence: {counted} tokens of {_LONG_WORDS} words",
            advice=f"raise the server's window{window} (ollama: OLLAMA_CONTEXT_LENGTH), or stay below it: "
            f"--openai.context_tokens {counted}",
        )
    return Finding(name=name, verdict="ok", seen=f"taken whole, {counted} tokens")
