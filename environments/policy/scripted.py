"""The scripted policy: it samples from a script's weighted messages, with exact log-probabilities.

A script is a plain function, so that an environment runs without a model. Its weighted messages define a
distribution over tokens; ids and logprobs are those that a model server with this distribution would return.
"""

import inspect
import json
import math
import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from typing import Any, cast

from environments.policy.base import CompletionRequest, Policy
from environments.policy.rendering.chatml import ChatMLRenderer, run_rendering
from environments.policy.row_prompt import count_tokens, end_of_stop, name_calls, new_messages, render_prompt
from environments.trajectory import Completion, Message, TextScore
from tools.calls import ToolCall, ToolSpec
from tools.errors import ConfigError

_DEEPEST = 8


def example_of(schema: Mapping[str, Any]) -> Any:
    """Return a value for a JSON schema: its first example, enum entry or default, else a minimal value.

    Patterns, formats and conditions are ignored.
    """
    return _example(schema, schema.get("$defs", {}), _DEEPEST)


def _example(schema: Mapping[str, Any], definitions: Mapping[str, Any], depth: int) -> Any:
    if depth == 0:
        return None
    for key in ("examples", "enum"):
        if schema.get(key):
            return schema[key][0]
    for key in ("default", "const"):
        if key in schema:
            return schema[key]
    if "$ref" in schema:
        name = str(schema["$ref"]).rpartition("/")[2]
        return _example(definitions.get(name, {}), definitions, depth - 1)
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key):
            return _example(schema[key][0], definitions, depth - 1)
    return _minimal_value(schema, definitions, depth)


def _minimal_value(schema: Mapping[str, Any], definitions: Mapping[str, Any], depth: int) -> Any:
    kind = schema.get("type", "object" if "properties" in schema else "string")
    if not isinstance(kind, str):
        kind = kind[0]
    match kind:
        case "object":
            required = schema.get("required", [])
            return {
                name: _example(property_schema, definitions, depth - 1)
                for name, property_schema in schema.get("properties", {}).items()
                if name in required or "examples" in property_schema
            }
        case "array":
            count = int(schema.get("minItems", 0))
            return [_example(schema.get("items", {}), definitions, depth - 1) for _ in range(count)]
        case "integer" | "number":
            lowest = schema.get("minimum", schema.get("exclusiveMinimum", -math.inf) + 1)
            highest = schema.get("maximum", schema.get("exclusiveMaximum", math.inf) - 1)
            return max(lowest, min(0, highest))
        case "boolean":
            return False
        case "null":
            return None
        case _:
            text = "example".ljust(int(schema.get("minLength", 0)), "e")
            return text[: int(schema.get("maxLength", len(text)))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One possible next message of the agent."""

    probability: float
    message: Message


_SUMMARY_CHARS = 200
_REFUSED = ("Error:", "There is no tool", "The call was not run:")

Script = Callable[
    [Sequence[Message], Sequence[ToolSpec], float], Sequence[Choice] | Awaitable[Sequence[Choice]]
]
"""Maps (conversation, offered tools, skill from 0 to 1) to choices with probabilities that sum to 1."""


def say(content: str, *, reasoning: str | None = None) -> Message:
    """Return an assistant message without tool calls, which ends a rollout."""
    return Message(role="assistant", content=content, reasoning=reasoning)


def choices(*parts: tuple[float, Sequence[Message]]) -> list[Choice]:
    """Return choices; the messages of a part share its probability evenly."""
    return [
        Choice(probability=probability / len(messages), message=message)
        for probability, messages in parts
        for message in messages
    ]


def mostly(p_right: float, right: Sequence[Message], *others: Sequence[Message]) -> list[Choice]:
    """Return choices with probability `p_right` for the right messages; other kinds share the rest."""
    return choices((p_right, right), *(((1 - p_right) / len(others), each) for each in others))


def call(name: str, arguments: Mapping[str, Any] | str, *, content: str = "") -> Message:
    """Return an assistant message that calls one tool; text arguments are sent verbatim."""
    text = arguments if isinstance(arguments, str) else json.dumps(dict(arguments), ensure_ascii=False)
    return Message(
        role="assistant", content=content, tool_calls=(ToolCall(id="", name=name, arguments=text),)
    )


def calls_that_ran(messages: Sequence[Message]) -> Iterator[tuple[ToolCall, str]]:
    waiting: list[ToolCall] = []
    for message in messages:
        if message.role != "tool":
            waiting = list(message.tool_calls)
            continue
        # Some servers repeat ids in each reply, so only this turn's calls are searched.
        tool_call = next((each for each in waiting if each.id == message.tool_call_id), None)
        if tool_call is None:
            continue
        waiting.remove(tool_call)
        if not message.content.startswith(_REFUSED) and " was not run. " not in message.content:
            yield tool_call, message.content


class PlaysByScript(ABC):
    @property
    @abstractmethod
    def name(self) -> str:
        pass

    @abstractmethod
    def playing_by_script(self, script: Script, summary: Script, skill: float) -> Policy:
        pass

    async def complete(self, request: CompletionRequest) -> Completion:
        raise ConfigError(f"{self.name!r} plays by an environment's scripted_choices: give it to AgentEnv")


class ScriptedPolicy:
    """Samples from a script without state: equal requests give equal completions."""

    def __init__(
        self, script: Script, *, skill: float, renderer: ChatMLRenderer, summary: Script | None = None
    ) -> None:
        if not 0 <= skill <= 1:
            raise ConfigError(f"skill is {skill}; it goes from 0 (clumsy) to 1 (flawless)")
        self._script = script
        self._summary = summary or generic_summary
        self._skill = skill
        self._renderer = renderer

    @property
    def name(self) -> str:
        return f"scripted:{self._skill:g}"

    @property
    def vocabulary_size(self) -> int:
        return self._renderer.vocabulary_size

    async def complete(self, request: CompletionRequest) -> Completion:
        """Sample one message; the logprobs sum to the log of its probability.

        Messages with equal tokens count as one. For a cut message, it is the probability of that prefix.
        """
        choices = _constrain(await self.choices(request), request)
        return await run_rendering(
            partial(self._sample, choices, request),
            self._renderer,
            (*new_messages(request), *(choice.message for choice in choices)),
            max_tokens=request.max_row_tokens,
        )

    async def choices(self, request: CompletionRequest) -> Sequence[Choice]:
        script, hook = self._script, "scripted_choices"
        if request.kind == "summary":
            script, hook = self._summary, "scripted_summary"
        given = script(request.messages, request.tools, self._skill)
        return _validate_choices(await given if inspect.isawaitable(given) else given, hook)

    async def score(self, request: CompletionRequest, text: str) -> TextScore:
        """Score a text that messages of the script begin with.

        Raises:
            ConfigError: if the script never writes it there.
        """
        ids, mixture = self._renderer.text_ids(text), self._mixture(await self.choices(request))
        if not any(known[: len(ids)] == ids for known in mixture):
            raise ConfigError(
                f"the script never begins a message with {text!r:.100} after {len(request.messages)} "
                f"messages, so that its log-probability is -inf; add a Choice that does"
            )
        return TextScore(logprobs=_logprobs(ids, mixture))

    async def prompt_tokens(self, request: CompletionRequest) -> int:
        prompt = await run_rendering(
            partial(render_prompt, request, self._renderer),
            self._renderer,
            new_messages(request),
            max_tokens=request.max_row_tokens,
        )
        return count_tokens(prompt, request)

    def _sample(self, choices: Sequence[Choice], request: CompletionRequest) -> Completion:
        mixture = self._mixture(choices)
        weights = [choice.probability for choice in mixture.values()]
        sampled = random.Random(f"{request.seed}:{request.number}").choices(list(mixture), weights)[0]
        token_ids = sampled[: request.max_tokens]
        message, is_cut = mixture[sampled].message, len(token_ids) < len(sampled)
        if stop := end_of_stop(token_ids, request.stops, self._renderer.decode):
            token_ids = token_ids[: stop[0]]
        if len(token_ids) < len(sampled):
            message = self._cut_message(token_ids)
        finish_reason = "length" if is_cut and not stop else "tool_calls" if message.tool_calls else "stop"
        prompt = render_prompt(request, self._renderer)
        return Completion(
            message=name_calls(message, request, is_cut=False),
            finish_reason=finish_reason,
            prompt_ids=prompt.prompt_ids,
            extends_row=prompt.extends_row,
            fork=prompt.fork,
            token_ids=token_ids,
            logprobs=_logprobs(token_ids, mixture),
            exact=True,
        )

    def _cut_message(self, token_ids: Sequence[int]) -> Message:
        message = self._renderer.parse(token_ids)
        whole = tuple(call for call in message.tool_calls if call.status == "ok")
        start = next((call.span[0] for call in message.tool_calls if call not in whole and call.span), None)
        if start is None:
            return message
        between = "\n" if message.content and not whole else ""
        cut = between + self._renderer.decode(token_ids[start:])
        return replace(message, content=message.content + cut, tool_calls=whole)

    def _mixture(self, choices: Sequence[Choice]) -> dict[tuple[int, ...], Choice]:
        mixture: dict[tuple[int, ...], Choice] = {}
        for choice in choices:
            ids = self._renderer.completion_ids(choice.message)
            same = mixture.get(ids)
            sofar = 0.0 if same is None else same.probability
            mixture[ids] = replace(same or choice, probability=sofar + choice.probability)
        return mixture


def generic_script(messages: Sequence[Message], tools: Sequence[ToolSpec], skill: float) -> Sequence[Choice]:
    tried = sum(1 for message in messages if message.tool_calls)
    p_done = (0.0, 0.5, 0.75)[tried] if tools and tried < 3 else 1.0
    choices = [Choice(probability=p_done, message=say("I have done what I could."))]
    if p_done < 1:
        well_formed = (1 - p_done) * (0.5 + 0.5 * skill)
        broken = (1 - p_done - well_formed) / 2
        for tool in tools:
            arguments = json.dumps(example_of(tool.parameters), ensure_ascii=False)
            share = 1 / len(tools)
            choices += [
                Choice(probability=well_formed * share, message=call(tool.name, arguments)),
                Choice(probability=broken * share, message=call(tool.name, arguments[:-1] + ",")),
                Choice(probability=broken * share, message=call(f"{tool.name}_now", arguments)),
            ]
    return choices


def generic_summary(messages: Sequence[Message], tools: Sequence[ToolSpec], skill: float) -> Sequence[Choice]:
    heard = [message.content[:_SUMMARY_CHARS] for message in messages[1:-1] if message.role != "assistant"]
    kept = Choice(probability=skill, message=say("\n".join(["What I know:", *heard])))
    lost = Choice(probability=1 - skill, message=say("I have forgotten what was said."))
    return [kept, lost]


def _validate_choices(given: Any, hook: str) -> Sequence[Choice]:
    choices = list(cast("Sequence[Any]", given)) if isinstance(given, list | tuple) else []
    if not choices or not all(isinstance(each, Choice) for each in choices):
        raise ConfigError(
            f"{hook} gave {given!r:.200}; give one Choice(probability=…, message=say(…)) or more, in a list"
        )
    for choice in cast("list[Choice]", choices):
        if not (math.isfinite(choice.probability) and choice.probability >= 0):
            raise ConfigError(f"{hook} gave the probability {choice.probability}; give a number from 0 to 1")
        if choice.message.role != "assistant":
            raise ConfigError(f"{hook} gave a message with role {choice.message.role!r}; give 'assistant'")
    total = math.fsum(choice.probability for choice in choices)
    if abs(total - 1) > 1e-6:
        raise ConfigError(
            f"the probabilities of {hook} sum to {total:.9g} over {len(choices)} choices; make it 1"
        )
    return [choice for choice in choices if choice.probability > 0]


def _constrain(choices: Sequence[Choice], request: CompletionRequest) -> Sequence[Choice]:
    """Return the choices that satisfy the request's constraint, else one example that does."""
    if (constraint := request.constraint) is None:
        return choices
    if constraint.tool is None:
        kept = [each for each in choices if each.message.tool_calls or _is_json(each.message.content)]
        example = say(json.dumps(example_of(constraint.schema or {})))
    else:
        tools = {tool.name: tool for tool in request.tools if constraint.tool in ("", tool.name)}
        kept = [each for each in choices if any(call.name in tools for call in each.message.tool_calls)]
        example = call(next(iter(tools)), example_of(next(iter(tools.values())).parameters))
    total = math.fsum(each.probability for each in kept)
    shares = [replace(each, probability=each.probability / total) for each in kept]
    return shares or [Choice(probability=1.0, message=example)]


def _is_json(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def _logprobs(token_ids: tuple[int, ...], mixture: Mapping[tuple[int, ...], Choice]) -> tuple[float, ...]:
    """Return log(mass of messages that agree up to this token / mass that agreed before it) per token."""
    agreeing = [
        (
            sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(token_ids, ids, strict=False))),
            each.probability,
        )
        for ids, each in mixture.items()
    ]
    forks = {length for length, _ in agreeing}
    mass = math.fsum(probability for _, probability in agreeing)
    logprobs: list[float] = []
    for position in range(len(token_ids)):
        if position not in forks:
            logprobs.append(0.0)
            continue
        left = math.fsum(probability for length, probability in agreeing if length > position)
        logprobs.append(math.log(left / mass))
        mass = left
    return tuple(logprobs)
