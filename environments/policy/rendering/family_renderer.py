"""Chat formats of model families, by the `renderers` library: this is the border to it."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, cached_property
from importlib import import_module
from typing import Any

from tokenizers import Tokenizer

from environments.extras import needs_extra
from environments.policy.rendering.chatml_turn import THINK
from environments.policy.rendering.dsml_turn import DsmlTurn, read_dsml
from environments.policy.rendering.family_calls import deepseek_call, leaves_open, llama_message, tool_call
from environments.policy.rendering.family_messages import call_id, given_answers, given_messages
from environments.policy.rendering.family_tokenizer import FamilyTokenizer, byte_tokenizer
from environments.policy.rendering.renderer import CannotExtendError
from environments.policy.rendering.tool_descriptions import ToolDescriptions
from environments.trajectory import Message
from tools.calls import ToolSpec
from tools.errors import ConfigError, PolicyError

_BY_TEMPLATE = frozenset({"deepseek-v4", "laguna-m.1", "laguna-xs.2"})
"""Where the library's own way to go on refuses several results, or loses what stands after a turn."""

_SHORT = 1_000
"""Ids that are read in no time, whatever they are."""


class FamilyRenderer:
    """Renders with the format of one family; reasoning stays in the row, so that a row only grows.

    Where a prompt is rendered whole (the first one, and after a fork), the family's template decides what
    becomes of earlier reasoning.
    """

    def __init__(self, family: str, tokenizer: Tokenizer, *, model_name: str = "") -> None:
        """Use the format of `family` with the ids of `tokenizer`.

        Args:
            family: a name of the library.
            tokenizer: of the model; it is copied.
            model_name: some formats differ between models of a family.

        Raises:
            ConfigError: the library is not installed, or the tokenizer lacks tokens of the format.
        """
        self._family = family
        self._tokenizer = FamilyTokenizer(tokenizer, name_or_path=model_name)
        self._descriptions = ToolDescriptions(self._tokenizer.from_message)
        self._library = _created(family, self._tokenizer)
        question = [{"role": "user", "content": "?"}]
        self._opening: list[int] = self._library.render_ids(question, add_generation_prompt=True)
        self.stop_ids: tuple[int, ...] = tuple(dict.fromkeys(self._library.get_stop_token_ids()))
        """Every id that ends an assistant turn."""
        self.vocabulary_size = self._tokenizer.vocabulary_size()
        """One more than the largest id of the tokenizer."""

    @property
    def name(self) -> str:
        """The family's name."""
        return self._family

    @cached_property
    def longest_token(self) -> int:
        """Characters of the longest token that text can become, at most."""
        return self._tokenizer.longest_token()

    @property
    def markers(self) -> Mapping[str, int]:
        """Control tokens of the tokenizer, by their text."""
        return self._tokenizer.markers

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, control tokens included."""
        return self._tokenizer.decode(ids)

    def prompt_ids(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> tuple[int, ...]:
        """The whole conversation, up to where the next assistant message begins.

        Calls that the format cannot write (no JSON object, or several where it has room for one) are text.

        Raises:
            PolicyError: the format has no way to write this conversation.
        """
        described = self._descriptions.of(tools)
        try:
            given = given_messages(messages, self._tokenizer.from_message)
            return tuple(self._library.render_ids(given, tools=described, add_generation_prompt=True))
        except (ValueError, TypeError, NotImplementedError):
            given = given_messages(messages, self._tokenizer.from_message, calls_as_text=True)
        try:
            return tuple(self._library.render_ids(given, tools=described, add_generation_prompt=True))
        except (ValueError, TypeError, NotImplementedError) as error:
            raise PolicyError(f"the chat format {self._family} cannot write this: {error}") from error

    def extend(
        self, sampled: Sequence[int], messages: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> tuple[int, ...]:
        """What follows a sampled turn, up to where the next assistant message begins.

        The library is shown the turn after a short opening instead of all that came before: what follows
        does not depend on it, and the cost stays flat.

        Raises:
            CannotExtendError: the format has no way to go on, or would drop what was sampled.
        """
        stopped_at = next((i for i, token_id in enumerate(sampled) if token_id in self.stop_ids), None)
        if stopped_at is not None and stopped_at < len(sampled) - 1:
            raise CannotExtendError("tokens after a stop token")
        read = self._read(sampled, tools)
        if read.reasoning_complete is False and stopped_at is not None:
            raise CannotExtendError("stopped inside reasoning")
        given = given_answers(messages, read.tool_calls, self._tokenizer.from_message)
        if self._family in _BY_TEMPLATE:
            return self._after_template(given, read, closed=stopped_at is not None)
        before = [*self._opening, *sampled]
        bridged = self._library.bridge_to_next_turn(
            self._opening, list(sampled), given, tools=self._descriptions.of(tools)
        )
        if bridged is None:
            raise CannotExtendError("no way to go on after this turn")
        ids: list[int] = bridged.token_ids
        if ids[: len(before)] != before:
            raise CannotExtendError("the format drops what was sampled")
        return tuple(ids[len(before) :])

    def parse(self, token_ids: Sequence[int], tools: Sequence[ToolSpec]) -> Message:
        """The assistant message that sampled ids hold; its calls carry status and span."""
        return self._message(self._read(token_ids, tools), token_ids, tools)

    def parse_text(self, text: str, tools: Sequence[ToolSpec]) -> Message:
        """The message in the text of an answer; what looks like a marker in it is one."""
        ids = self._tokenizer.encode(text)
        return self._message(self._read_by_library(ids, tools, prompt_ids=None), ids, tools)

    def _read(self, token_ids: Sequence[int], tools: Sequence[ToolSpec]) -> Any:
        """What is read in a sampled turn; what stands in its reasoning is no call."""
        read = self._read_by_library(token_ids, tools, prompt_ids=self._opening)
        end = self._reasoning_end(token_ids, read.tool_calls)
        if end is None:
            return read
        rest = self._read_by_library(token_ids[end:], tools, prompt_ids=self._opening)
        thought = self.decode(token_ids[:end]).strip()
        calls = [replace(each, token_span=_shifted(each.token_span, end)) for each in rest.tool_calls]
        thought = thought.removeprefix(self._think[0]).strip()
        return replace(rest, reasoning_content=thought, tool_calls=calls)

    def _read_by_library(
        self, token_ids: Sequence[int], tools: Sequence[ToolSpec], *, prompt_ids: list[int] | None
    ) -> Any:
        if self._family == "deepseek-v4":
            return self._read_dsml(token_ids)
        if len(token_ids) > _SHORT and leaves_open(text := self.decode(token_ids)):
            return DsmlTurn(content=text, reasoning_content=None, tool_calls=[], reasoning_complete=True)
        described = [tool.to_openai() for tool in tools] or None
        return self._library.parse_response(list(token_ids), tools=described, prompt_ids=prompt_ids)

    def _read_dsml(self, token_ids: Sequence[int]) -> DsmlTurn:
        stop = next((i for i, token_id in enumerate(token_ids) if token_id in self.stop_ids), len(token_ids))
        thinks = {
            self.markers[text]: name for text, name in zip(self._think, ("think", "think_end"), strict=True)
        }
        opened = self._opening[-1:] == [self.markers[self._think[0]]]
        return read_dsml(token_ids[:stop], self.decode, thinks=thinks, thinking=opened)

    def _reasoning_end(self, token_ids: Sequence[int], calls: Sequence[Any]) -> int | None:
        """Where reasoning ends that the library took for calls; `None`: in no such place.

        The library lets a call end the reasoning. Where that is closed after it, the call was only thought
        of; a marker inside a call is a part of what it holds.
        """
        marker = self.markers.get(self._think[1])
        spans = [call.token_span for call in calls if call.token_span is not None]
        if not spans or marker is None:
            return None
        closings = (index for index, token_id in enumerate(token_ids) if token_id == marker)
        end = next((i for i in closings if not any(start < i < after for start, after in spans)), None)
        return end if end is not None and spans[0][0] < end else None

    @cached_property
    def _think(self) -> tuple[str, str]:
        """What reasoning stands between."""
        return ("<think:opensource>", "</think:opensource>") if self._family == "hy3" else THINK

    def _message(self, read: Any, token_ids: Sequence[int], tools: Sequence[ToolSpec]) -> Message:
        calls = tuple(tool_call(found, index, tools) for index, found in enumerate(read.tool_calls))
        content: str = read.content
        if self._family in ("deepseek-v3", "deepseek-r1"):
            calls = tuple(
                deepseek_call(call, self.decode(token_ids[slice(*(call.span or ()))])) for call in calls
            )
        elif self._family == "llama-3" and not calls:
            content, calls = llama_message(content, token_ids, self.stop_ids, tools)
        return Message(
            role="assistant",
            content=content.rstrip("\n") if calls else content,
            reasoning=read.reasoning_content or None,
            tool_calls=calls,
        )

    def _after_template(self, given: list[dict[str, Any]], read: Any, *, closed: bool) -> tuple[int, ...]:
        """What the template writes after a turn with the same calls; the turn itself stays as it was."""
        answered: dict[str, Any] = {"role": "assistant", "content": "."}
        if read.tool_calls:
            answered["tool_calls"] = [
                {"id": call_id(found, index), "function": {"name": found.name or "?", "arguments": "{}"}}
                for index, found in enumerate(read.tool_calls)
            ]
        question = {"role": "user", "content": "?"}
        turn = self._library.render_ids([question, answered])
        grown: list[int] = self._library.render_ids([question, answered, *given], add_generation_prompt=True)
        stops = set(self.stop_ids)
        close = max((index for index, token_id in enumerate(turn) if token_id in stops), default=None)
        if close is None or grown[: close + 1] != turn[: close + 1]:
            raise CannotExtendError("no way to go on after this turn")
        start = close + 1 if closed else close
        if not closed and read.reasoning_complete is False:
            raise CannotExtendError("cut inside reasoning")
        return tuple(grown[start:])


def _shifted(span: tuple[int, int] | None, by: int) -> tuple[int, int] | None:
    return None if span is None else (span[0] + by, span[1] + by)


@cache
def text_reader(family: str) -> FamilyRenderer:
    """Reads text of a family's format without its model's tokenizer: bytes, and the format's markers.

    Raises:
        ConfigError: the library is not installed, or needs more than that for this family.
    """
    tokenizer = FamilyTokenizer(byte_tokenizer(()))
    return FamilyRenderer(family, byte_tokenizer(_lacking(family, tokenizer)))


def _created(family: str, tokenizer: FamilyTokenizer) -> Any:
    """The library's renderer.

    Raises:
        ConfigError: as for `FamilyRenderer`.
    """
    create, config = _library_parts(family)
    try:
        return create(tokenizer, config)
    except Exception as error:
        lacking = ", ".join(_lacking(family, tokenizer))
        reason = f"the tokenizer lacks {lacking}" if lacking else " ".join(str(error).split())[:200]
        raise ConfigError(
            f"the chat format {family} cannot be used with this tokenizer: {reason}; "
            f"give --env.tokenizer_name of a {family} model, or another --openai.family"
        ) from error


def _lacking(family: str, tokenizer: FamilyTokenizer) -> list[str]:
    """Markers that the library asks for and that a tokenizer has no token for."""
    create, config = _library_parts(family)
    tokenizer.missing = []
    with suppress(Exception):  # it says at most one of them; what it looked up tells all
        create(tokenizer, config)
    lacking, tokenizer.missing = list(dict.fromkeys(tokenizer.missing)), None
    return lacking


def _library_parts(family: str) -> tuple[Any, Any]:
    with needs_extra("families", f"the chat format {family}"):
        create: Any = import_module("renderers").create_renderer  # slow to import
        config_from_name: Any = import_module("renderers.configs").config_from_name
    # Thinking stays: a row that only grows is what a policy is trained on.
    return create, type(config_from_name(family))(thinking_retention="all")
