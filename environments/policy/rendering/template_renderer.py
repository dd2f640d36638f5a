"""Chat formats by a model's own chat template, for models of no known family."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from os.path import commonprefix
from typing import Any, Final

from tokenizers import Tokenizer

from environments.policy.rendering.chat_template import ChatTemplate, TemplateRefusal
from environments.policy.rendering.chatml import THINK, CannotExtendError, TokenizerError, first_stop
from environments.policy.rendering.family_renderer import TokenizerRenderer, is_object, map_text
from environments.policy.rendering.hermes import read_hermes_calls
from environments.policy.rendering.tools_in_prompt import write_calls, write_tools
from environments.trajectory import Message
from tools.calls import ToolCall, ToolSpec
from tools.errors import PolicyError

_TURN: Final = "\ufdd0\ufdd3"
"""Placeholder for a sampled turn. Guarded message text never contains it: each \\ufdd0 there is replaced."""
_SYSTEM: Final = Message(role="system", content="vexq0")
_USER: Final = Message(role="user", content="vexq1")
_LATER_USER: Final = Message(role="user", content="vexq2")
_ANSWER: Final = Message(role="assistant", content="vexq3")
_OPENING: Final = (_SYSTEM, _USER)
_TOOL: Final = ToolSpec(
    name="vexq4",
    description="vexq5",
    parameters={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)
_CALL: Final = ToolCall(id="call_0", name="vexq4", arguments='{"city": "Rome"}')
_RESULT: Final = Message(role="tool", content="vexq6", tool_call_id="call_0")
_LEAVES_OUT: Final = "leaves it out"
_ADVICE: Final = "name the model's --openai.family, or --env.tokenizer_name of a folder with another template"

ReadCalls = Callable[[str, Sequence[ToolSpec]], tuple[str, tuple[ToolCall, ...]]]
FindReader = Callable[[str, ToolCall, ToolSpec], ReadCalls | None]


class TemplateRenderer(TokenizerRenderer):
    """Renders with a model's chat template; a row continues with what the template writes behind a turn."""

    name = "template"

    def __init__(
        self, template: ChatTemplate, tokenizer: Tokenizer, *, find_reader: FindReader | None = None
    ) -> None:
        """Examine the template; without a reader of the calls that it writes, tools are in the prompt.

        Raises:
            TokenizerError: if it raises or leaves out messages, or no token ends a turn.
        """
        super().__init__(tokenizer)
        self._template = template
        self._takes_system = self._takes_later_system = self._takes_users_in_a_row = True
        self._takes_objects = True
        self._examine_roles()
        self.stop_ids: tuple[int, ...] = self._find_stop_ids()
        self._stops = tuple(text for text, each in self._tokenizer.markers.items() if each in self.stop_ids)
        reader = None if find_reader is None else self._find_reader(find_reader)
        self.tools_in_prompt = reader is None
        self._read_calls: ReadCalls = reader or read_hermes_calls
        self._opens_thought = self._open(()).rstrip().endswith(THINK[0])

    def prompt_ids(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> tuple[int, ...]:
        if self.tools_in_prompt:
            messages, tools = write_tools(messages, tools), ()
        problem: TemplateRefusal | None = None
        for each in (messages, write_calls(messages)):
            try:
                return tuple(self._tokenizer.encode(self._render(self._describe(each), tools, opened=True)))
            except TemplateRefusal as error:
                problem = problem or error
        raise PolicyError(f"the chat template of {self._template.source} raises: {problem}") from problem

    def extend(
        self, sampled: Sequence[int], messages: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> tuple[int, ...]:
        stopped_at = first_stop(sampled, self.stop_ids)
        if stopped_at is not None and stopped_at < len(sampled) - 1:
            raise CannotExtendError("tokens after a stop token")
        if self.tools_in_prompt:
            messages, tools = write_calls(messages), ()
        calls = self.parse(sampled, tools).tool_calls if messages and messages[0].role == "tool" else ()
        for given in ((calls, messages), ((), write_calls(messages))):
            with suppress(TemplateRefusal):
                closing, text = self._suffix(*given, tools)
                break
        else:
            raise CannotExtendError("the template refuses what follows the turn")
        if stopped_at is None:
            return tuple(self._tokenizer.encode(closing + text))
        if closing:  # encoded with it, since some tokenizers drop white space behind a marker
            return tuple(self._tokenizer.encode(closing + text)[1:])
        ids = self._tokenizer.encode(text.lstrip())
        return tuple(ids[1:] if ids[:1] == [sampled[-1]] else self._tokenizer.encode(text))

    def parse(self, token_ids: Sequence[int], tools: Sequence[ToolSpec]) -> Message:
        content, reasoning = self.decode(token_ids[: first_stop(token_ids, self.stop_ids)]), None
        if self._opens_thought or content.lstrip().startswith(THINK[0]):
            reasoning, _, content = content.lstrip().removeprefix(THINK[0]).partition(THINK[1])
            reasoning, content = reasoning.strip("\n"), content.removeprefix("\n\n")
        content, calls = self._read_calls(content, tools) if tools else (content, ())
        return Message(role="assistant", content=content, reasoning=reasoning or None, tool_calls=calls)

    def _suffix(
        self, calls: Sequence[ToolCall], messages: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> tuple[str, str]:
        """Return (text of the token that ends a turn, if any, text between it and the next turn)."""
        turn = Message(
            role="assistant", tool_calls=tuple(replace(each, arguments="{}", status="ok") for each in calls)
        )
        ids = iter([each.id for each in calls])
        messages = [
            replace(each, tool_call_id=next(ids, each.tool_call_id)) if each.role == "tool" else each
            for each in messages
        ]
        described = self._describe([*_OPENING, turn, *messages])
        at = next(index for index, each in enumerate(described) if each["role"] == "assistant")
        if calls:
            function = described[at]["tool_calls"][-1]["function"]
            function["arguments"] = self._as_arguments({"x": _TURN})
        else:
            described[at]["content"] = _TURN
        before, found, after = self._render(described, tools, opened=True).partition(_TURN)
        alone = self._render(described[: at + 1], tools, opened=False).partition(_TURN)[2]
        if not found:
            raise CannotExtendError("the template leaves out the turn")
        if not before.startswith(_common_start(self._open(tools), self._open(tools, opened=False))):
            raise CannotExtendError("the template rewrites what stands before the turn")
        same = _common_start(after, alone)
        end, closing = max(((same.rfind(stop), stop) for stop in self._stops), default=(-1, ""))
        if end >= 0:
            return closing, after[end + len(closing) :]
        return "", after[len(same) if calls else 0 :]

    def _open(self, tools: Sequence[ToolSpec], *, opened: bool = True) -> str:
        return self._render(self._describe(_OPENING), tools, opened=opened)

    def _render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[ToolSpec], *, opened: bool
    ) -> str:
        described = [map_text(tool.to_openai(), self._tokenizer.from_message) for tool in tools]
        return self._template.render(messages, described, opened=opened)

    def _describe(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        as_text = self._tokenizer.from_message
        named: dict[str | None, tuple[str, str]] = {}
        described: list[dict[str, Any]] = []
        for message in self._fit(messages):
            fields: dict[str, Any] = {"role": message.role, "content": as_text(message.content)}
            if message.reasoning:
                fields["reasoning_content"] = as_text(message.reasoning)
            if message.role == "tool":
                call_id, name = named.get(message.tool_call_id, (message.tool_call_id or "", ""))
                fields |= {"tool_call_id": as_text(call_id), "name": as_text(name)}
            for call in message.tool_calls:
                named[call.id] = f"call{len(named):05}", call.name  # some templates accept only such ids
                if not is_object(call):
                    raise TemplateRefusal("the arguments of a call are not an object")
                arguments = self._as_arguments(map_text(json.loads(call.arguments or "{}"), as_text))
                function = {"name": as_text(call.name), "arguments": arguments}
                written = {"id": named[call.id][0], "type": "function", "function": function}
                fields.setdefault("tool_calls", []).append(written)
            described.append(fields)
        return described

    def _as_arguments(self, arguments: Mapping[str, Any]) -> Any:
        return arguments if self._takes_objects else json.dumps(arguments, ensure_ascii=False)

    def _fit(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages as the template accepts them: roles replaced, user messages joined."""
        fitted: list[Message] = []
        for index, message in enumerate(messages):
            takes_system = self._takes_later_system if index else self._takes_system
            role = "user" if message.role == "system" and not takes_system else message.role
            joins = not self._takes_users_in_a_row or (index == 1 and messages[0].role == "system")
            if joins and role == "user" and fitted and fitted[-1].role == "user":
                joined = f"{fitted[-1].content}\n\n{message.content}"
                fitted[-1] = replace(fitted[-1], content=joined)
            else:
                fitted.append(replace(message, role=role))
        return fitted

    def _examine_roles(self) -> None:
        user, system = self._problem(_USER), self._problem(_SYSTEM, _USER)
        answer = self._problem(_USER, _ANSWER) or self._problem(_USER, _ANSWER, opened=False)
        needed = {"a user": user, "an assistant": answer, "a system": system if system == _LEAVES_OUT else ""}
        if role := next((role for role, problem in needed.items() if problem), None):
            given = f"the chat template of {self._template.source}, given {role} message"
            raise TokenizerError(f"{given}, {needed[role]}; {_ADVICE}")
        self._takes_users_in_a_row = not self._problem(_USER, _LATER_USER)
        self._takes_system = not system
        self._takes_later_system = not self._problem(_USER, _ANSWER, _SYSTEM)

    def _find_reader(self, find_reader: FindReader) -> ReadCalls | None:
        """Return the reader of the calls that the template writes, None if it has no place for tools."""
        called = Message(role="assistant", tool_calls=(_CALL,))
        for self._takes_objects in (True, False):
            with suppress(TemplateRefusal):
                opening = self._open([_TOOL])
                answered = self._render(self._describe([*_OPENING, called, _RESULT]), [_TOOL], opened=True)
                written = self._render(self._describe([*_OPENING, called]), [_TOOL], opened=False)
                text = written.removeprefix(_common_start(written, opening))
                for stop in self._stops:
                    text = text.replace(stop, "")
                reader = find_reader(text, _CALL, _TOOL)
                if reader and _TOOL.description in opening and _RESULT.content in answered:
                    return reader
        return None

    def _problem(self, *messages: Message, opened: bool = True) -> str:
        try:
            text = self._render(self._describe(messages), (), opened=opened)
        except TemplateRefusal as error:
            return f"raises {str(error)!r}"
        return "" if all(each.content in text for each in messages) else _LEAVES_OUT

    def _find_stop_ids(self) -> tuple[int, ...]:
        given = self._describe([*_OPENING, _ANSWER])
        _, _, behind = self._render(given, (), opened=False).rpartition(_ANSWER.content)
        written = [text for text, is_marker in self._tokenizer.in_encoded.pieces(behind) if is_marker][:1]
        texts = [*written, self._template.tokens.get("eos_token", "")]
        known = [self.markers[text] for text in texts if text in self.markers]
        ids = tuple(dict.fromkeys([*known, *self._template.end_ids]))
        if not ids:
            raise TokenizerError(
                f"no token of {self._template.source} ends a turn: its chat template writes none behind an "
                f"assistant message, and neither eos_token in tokenizer_config.json nor eos_token_id in "
                f"generation_config.json is one"
            )
        if max(ids) >= self.vocabulary_size:
            raise TokenizerError(
                f"generation_config.json of {self._template.source} has the end token {max(ids)}, and its "
                f"tokenizer only {self.vocabulary_size} tokens; give --env.tokenizer_name of the same model"
            )
        return ids


def _common_start(text: str, other: str) -> str:
    return commonprefix([text, other])  # noqa: RUF071 - of text, not of paths
