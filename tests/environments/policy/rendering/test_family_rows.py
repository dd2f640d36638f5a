import json
import random
from dataclasses import dataclass
from functools import cache

import pytest

from environments.policy.base import CompletionRequest, OpenRow
from environments.policy.mock_server import MockSettings, SampledIds, mock_app
from environments.policy.rendering.chatml import CannotExtendError, ChatMLRenderer
from environments.policy.rendering.family_renderer import _BY_TEMPLATE, library_replies
from environments.trajectory import Message
from tests.environments.policy.rendering.family_formats import (
    JSON_STYLES,
    encoded,
    families,
    renderer_of,
    stop_of,
    written,
)
from tests.environments.policy.token_server import token_policy
from tests.equipment.running_server import running_server
from tools.calls import ToolSpec

TOOLS = (
    ToolSpec(
        name="terminal",
        description="Run a command, e.g. “ls ä”.",
        parameters={
            "type": "object",
            "properties": {
                "command": {"type": "string"},
                "all": {"type": "boolean"},
                "lines": {"type": "integer"},
                "options": {"type": "object"},
            },
        },
    ),
    ToolSpec(
        name="add", description="", parameters={"type": "object", "properties": {"a": {"type": "number"}}}
    ),
)
TEXTS = ("", "ls -la", "naïve 数", "👩‍💻", "a\nb", '{"a": 1}', "x" * 40, "tab\tend", "</s> <b>", "'quoted'")
JSON_FORMATS = (
    "deepseek-v3",
    "deepseek-r1",
    "kimi-k2",
    "kimi-k2.5",
    "qwen3",
    "qwen3-vl",
    "llama-3",
    "inkling",
)

OPENS_REASONING = (
    *("deepseek-r1", "glm-5", "glm-5.1", "glm-5.3", "laguna-s-2.1", "kimi-k2.5", "minimax-m2", "nemotron-3"),
    *("nemotron-3-ultra", "nemotron-3.5", "qwen3.5", "qwen3.6", "qwen3.8"),
)
"""The prompt opens the reasoning there, and a whole rendering drops that of earlier turns."""


class Chat:
    """A random conversation with tools, as a model of the family would have had it."""

    def __init__(self, family, seed, *, style=None, marked=True, thoughts=True):
        self.family, self.rng = family, random.Random(f"{family}:{seed}")
        self.style, self.thoughts, self.called = style, thoughts, 0
        self.texts = [*TEXTS, *(renderer_of(family).markers if marked else ())]
        system = [Message(role="system", content=self.text())] if self.rng.random() < 0.7 else []
        self.prompt = (*system, Message(role="user", content=self.text() or "go"))

    def text(self):
        return "".join(self.rng.choices(self.texts, k=self.rng.randint(0, 3)))

    def turn(self):
        """(content, calls, sampled ids)"""
        rng = self.rng
        calls = [self.call() for _ in range(rng.choice([0, 1, 1, 2]))]
        calls = calls[:1] if self.family == "llama-3" else calls
        content = rng.choice(("", "I look.", "Ich schaue nach: 数")) if calls else "Done."
        content = "" if calls and self.family in ("llama-3", "gemma4") else content
        reasoning = rng.choice((None, "so be it", "erst, dann\nzweitens")) if self.thoughts else None
        style = self.style or rng.choice(list(JSON_STYLES))
        text = written(self.family, content, calls, style, reasoning, first=self.called)
        self.called += len(calls)
        return content, calls, (*encoded(self.family, text), stop_of(self.family, calls))

    def call(self):
        if self.rng.random() < 0.3:
            return ("add", {"a": self.rng.choice((1, 2.5, -3))})
        values = {
            "command": self.rng.choice(("ls", "echo 'ä 数'", "cat <<E\nx\nE", 'grep -n "a\\b" f')),
            "all": self.rng.random() < 0.5,
            "lines": self.rng.randint(0, 99),
        }
        if self.family not in ("gemma4", "prime-qwen3", "qwen3.5") and not self.family.startswith("nemotron"):
            values["options"] = {"deep": [1, {"x": None}], "ü": "}"}
        kept = self.rng.sample(list(values), self.rng.randint(1, len(values)))
        return ("terminal", {key: values[key] for key in kept})

    def answers(self, calls):
        if not calls:
            return [Message(role="user", content=self.text() or "more")]
        return [
            Message(role="tool", content=self.text(), tool_call_id=f"call_{i}") for i in range(len(calls))
        ]


def chats(family, count, **options):
    for seed in range(count):
        chat = Chat(family, seed, **options)
        yield chat, [chat.turn() for _ in range(chat.rng.randint(2, 4))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """A turn, what was read in it, and what followed."""

    content: str
    calls: list
    sampled: tuple
    message: Message
    row: list
    """Before the turn."""
    ids: tuple
    """After it."""
    answers: list
    whole: tuple
    """The grown conversation, rendered."""


@cache
def played(family):
    renderer = renderer_of(family)
    turns = []
    for chat, sampled_turns in chats(family, 20):
        messages = list(chat.prompt)
        row = list(renderer.prompt_ids(messages, TOOLS))
        for content, calls, sampled in sampled_turns:
            answers = chat.answers(calls)
            message = renderer.parse(sampled, TOOLS)
            ids = renderer.extend(sampled, answers, TOOLS)
            messages += [message, *answers]
            whole = renderer.prompt_ids(messages, TOOLS)
            turns.append(
                Played(
                    content=content,
                    calls=calls,
                    sampled=sampled,
                    message=message,
                    row=list(row),
                    ids=ids,
                    answers=answers,
                    whole=whole,
                )
            )
            row += [*sampled, *ids]
    return turns


@pytest.mark.parametrize("family", families())
def test_the_calls_of_sampled_ids_are_read_whatever_their_json_style(family):
    for turn in played(family):
        assert [(c.name, json.loads(c.arguments), c.status) for c in turn.message.tool_calls] == [
            (name, arguments, "ok") for name, arguments in turn.calls
        ]
        assert turn.message.content.strip() == turn.content


@pytest.mark.parametrize("family", families())
def test_the_span_of_a_call_holds_what_was_sampled_of_it(family):
    for turn in played(family):
        for call in turn.message.tool_calls:
            start, end = call.span
            assert 0 <= start < end <= len(turn.sampled)
            text = renderer_of(family).decode(turn.sampled[start:end])
            assert call.name in text
            assert family not in JSON_FORMATS or call.arguments in text


@pytest.mark.parametrize("family", families(lambda each: each not in _BY_TEMPLATE))
def test_what_follows_a_turn_is_the_same_after_the_whole_row_and_after_the_turn_alone(family):
    renderer = renderer_of(family)
    for turn in played(family):
        found = renderer._read(turn.sampled, TOOLS).tool_calls
        bridged = renderer._library.bridge_to_next_turn(
            turn.row,
            list(turn.sampled),
            library_replies(turn.answers, found, renderer._tokenizer.from_message),
            tools=renderer._describe(TOOLS),
        )
        assert bridged.token_ids == [*turn.row, *turn.sampled, *turn.ids]


@pytest.mark.parametrize("family", families())
def test_what_follows_a_turn_is_what_the_whole_conversation_ends_with(family):
    for turn in played(family):
        assert turn.whole[-len(turn.ids) :] == turn.ids


@pytest.mark.parametrize("family", families(lambda each: each not in OPENS_REASONING))
def test_a_row_in_the_formats_own_style_is_what_the_whole_conversation_renders_to(family):
    renderer = renderer_of(family)
    for chat, turns in chats(family, 20, style="own", thoughts=False):
        messages = list(chat.prompt)
        row = list(renderer.prompt_ids(messages, TOOLS))
        for _, calls, sampled in turns:
            answers = chat.answers(calls)
            row += [*sampled, *renderer.extend(sampled, answers, TOOLS)]
            messages += [renderer.parse(sampled, TOOLS), *answers]
        assert tuple(row) == renderer.prompt_ids(messages, TOOLS)


RESULTS_GO_ON_A_TURN = ("gemma4",)
"""A tool's results belong to the model's own turn there, which goes on after them: a row forks instead."""


@pytest.mark.parametrize("family", families())
def test_a_user_who_speaks_right_after_a_tools_results_goes_on_from_the_row(family):
    renderer = renderer_of(family)
    for chat, turns in chats(family, 5, style="own", thoughts=False):
        messages = list(chat.prompt)
        for _, calls, sampled in turns:
            answers = [*chat.answers(calls), Message(role="user", content="And now?")]
            messages += [renderer.parse(sampled, TOOLS), *answers]
            whole = renderer.prompt_ids(messages, TOOLS)
            if calls and family in RESULTS_GO_ON_A_TURN:
                with pytest.raises(CannotExtendError, match="no way to go on after this turn"):
                    renderer.extend(sampled, answers, TOOLS)
                continue
            ids = renderer.extend(sampled, answers, TOOLS)
            assert whole[-len(ids) :] == ids


class Playback:
    """A model that samples what it is told to, and remembers what it saw."""

    def __init__(self):
        self.next_ids = ()
        self.seen = []

    async def sample(self, asked):
        rng = random.Random(len(self.seen))
        logprobs = tuple(-rng.random() for _ in self.next_ids)
        self.seen.append((asked.prompt_ids, self.next_ids, logprobs))
        return SampledIds(token_ids=self.next_ids, logprobs=logprobs)


@pytest.mark.parametrize("family", families())
async def test_a_row_is_the_ids_that_were_sent_and_sampled(family):
    model, renderer = Playback(), renderer_of(family)
    settings = MockSettings(kind="vllm", sampler=model.sample)
    app = mock_app(lambda _: None, skill=1, renderer=ChatMLRenderer.embedded(), settings=settings)
    async with running_server(app) as url:
        policy = token_policy(url, ("vllm", "completions"), renderer=renderer)
        for chat, turns in chats(family, 50):
            row, messages = OpenRow(), chat.prompt
            for _, calls, sampled in turns:
                model.next_ids = sampled
                request = CompletionRequest(messages=messages, tools=TOOLS, row=row)
                completion = await policy.complete(request)
                assert completion.fork is None
                messages = (*messages, completion.message)
                row.extend(completion.prompt_ids, completion.token_ids, messages=len(messages))
                prompt_ids, sampled_ids, logprobs = model.seen[-1]
                assert tuple(row.token_ids) == (*prompt_ids, *sampled_ids)
                assert tuple(row.token_ids[row.sampled_start :]) == sampled
                assert completion.logprobs == logprobs
                spans = [call.span for call in completion.message.tool_calls]
                assert spans == [call.span for call in renderer.parse(sampled, TOOLS).tool_calls]
                messages = (*messages, *chat.answers(calls))
        await policy.aclose()
