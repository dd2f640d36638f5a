"""Checks of a model server by a short conversation through the policies of a run."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from tokenizers import Tokenizer

from environments.policy.base import CompletionRequest
from environments.policy.chat import ChatPolicy
from environments.policy.inference.model_server import ModelServer
from environments.policy.inference.server_kind import (
    TEXTS,
    ServerFacts,
    examine_server,
    refuse_other_tokenizer,
)
from environments.policy.inference.token_wires import WIRES
from environments.policy.rendering.chatml import ChatMLRenderer, Renderer
from environments.policy.rendering.families import detect_family, family_names, read_text_calls
from environments.policy.row_prompt import TOOLS_IN_PROMPT, dropped_tools
from environments.policy.token_policy import TokenPolicy
from environments.trajectory import Completion, Message
from tools.calls import ToolSpec
from tools.errors import ConfigError, ContextOverflow, TurnwiseError
from tools.plain_text import one_line

Verdict = Literal["ok", "no", "not seen"]

WEATHER = ToolSpec(
    name="get_weather",
    description="The weather in a city now.",
    parameters={
        "type": "object",
        "properties": {"city": {"type": "string", "description": "its name"}},
        "required": ["city"],
    },
)
_OPENING = Message(role="user", content="What is the weather in Paris? Call get_weather.")
_MORE = Message(role="user", content="Thank you. Is that warm? Answer in one word.")
_LONG_WORDS = 8000
_LONG = Message(role="user", content=f"{'many ' * _LONG_WORDS}\nWhat is the word above? Answer in one word.")
_TRIES = 3
_PARSER = (
    "start vLLM with --enable-auto-tool-choice --tool-call-parser NAME, SGLang with --tool-call-parser NAME"
)
_FORMAT = "another --openai.family or --env.tokenizer_name"
_IDS = "Exact tokens, sent and given as ids: a row goes on from what was sampled."
_MESSAGES = "Exact tokens, asked by messages."
_FORKS = " Rows fork: a trainer gets more rows, and more tokens, than were sampled."
_TAKES_IDS = " It takes ids, too: with --tokenizer NAME of the model rows go on from what was sampled."
_TEXT = (
    "Text only: the record says exact: false, and no trainer can learn from it. Good for evaluation, judges "
    "and data."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedModel:
    server: ModelServer
    model: str
    family: str | None = None
    renderer: Renderer | None = None
    """The model's chat format and tokenizer; None if not named or not available."""
    no_renderer: str = ""
    tokenizer: Tokenizer | None = None
    tokenizer_name: str = "embedded"
    context_tokens: int | None = None
    tools_in_prompt: bool = False
    extra_body: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def chat(self) -> ChatPolicy:
        return ChatPolicy(
            server=self.server,
            model=self.model,
            renderer=ChatMLRenderer.embedded(),
            extra_body=self.extra_body,
            family=self.family,
            tools_in_prompt=self.tools_in_prompt,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    name: str
    verdict: Verdict
    """`not seen` if no request could show it."""
    seen: str
    advice: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCheck:
    findings: tuple[Finding, ...]
    tokens: Literal["exact", "text", "none"]
    """The tokens that a run records: as sampled, made from text, or none."""
    conclusion: str
    flags: tuple[str, ...] = ()


async def check_model(checked: CheckedModel) -> ModelCheck:
    """Run all checks; a failure of the server is a finding, not an exception."""
    return await _Check(checked, await examine_server(checked.server, checked.model)).result()


class _Check:
    def __init__(self, checked: CheckedModel, facts: ServerFacts) -> None:
        self.checked = checked
        self.facts = facts
        self.findings: dict[str, Finding] = {}
        self.wires: list[tuple[str, str]] = []
        """(kind of server, name) of the wires that work."""

    def add(self, name: str, verdict: Verdict, seen: str, advice: str = "") -> None:
        self.findings[name] = Finding(name=name, verdict=verdict, seen=seen, advice=advice)

    async def result(self) -> ModelCheck:
        if self.facts.kind == "unknown":
            self.add("server", "not seen", "it does not say what it is")
        else:
            self.add("server", "ok", f"{self.facts.kind} {self.facts.version or ''}".strip())
        self._check_window()
        policy = self.checked.chat()
        opening = await _ask(policy, _OPENING, tries=_TRIES)
        family = None if isinstance(opening, str) else _family_of_calls(opening.message)
        if family is not None:
            policy = replace(self.checked, family=family).chat()
            opening = await _ask(policy, _OPENING, tries=_TRIES)
        if isinstance(opening, str):
            self.add("chat", "no", opening, "is it the right --model?" if "404" in opening else "")
        else:
            await self._check_tools(policy, opening)
            await self._check_conversation(policy, opening, text_family=family)
            await self._check_long_prompt(policy)
        await self._check_tokenizer()
        if self.checked.renderer is not None and not self._is_no("tokenizer"):
            await self._check_token_wires(self.checked.renderer)
        self._check_chat_format(opening)
        return self._conclude(opening, family)

    def _conclude(self, opening: Completion | str, text_family: str | None) -> ModelCheck:
        checked, renderer = self.checked, self.checked.renderer
        tokens: Literal["exact", "text", "none"] = "exact"
        how = ["--openai.server_type chat", *([f"--openai.family {text_family}"] if text_family else [])]
        how += ["--openai.tools prompt"] if self._is_no("tools") else []
        ids_too = _TAKES_IDS if self._takes_ids else ""
        if self.wires and renderer is not None and not self._is_no("read alike"):
            kind, wire = self.wires[0]
            tokenizer = shlex.quote(checked.tokenizer_name)
            default = next(name for of, name in WIRES if of == kind)
            how = [f"--openai.server_type {kind if wire == default else f'{kind}_{wire}'}"]
            how += [f"--openai.family {renderer.name}", f"--env.tokenizer_name {tokenizer}"]
            conclusion = _IDS
        elif isinstance(opening, str):
            tokens, conclusion = "none", f"It cannot be used: {opening}"
        elif not opening.exact or opening.logprobs is None:
            tokens, conclusion = "text", f"{_TEXT}{ids_too}"
        else:
            conclusion = f"{_MESSAGES}{_FORKS if self._is_no('prefix') else ''}{ids_too}"
        # Quoted: the server chose the name, and users copy the line into a shell.
        where = [f"--openai.base_url {shlex.quote(checked.server.base_url)}"]
        where += [f"--openai.model_name {shlex.quote(one_line(checked.model))}"]
        limit = [f"--openai.context_tokens {checked.context_tokens}"] if checked.context_tokens else []
        return ModelCheck(
            findings=tuple(self.findings.values()),
            tokens=tokens,
            conclusion=conclusion,
            flags=() if tokens == "none" else (*where, *how, *limit),
        )

    @property
    def _takes_ids(self) -> bool:
        return self.facts.kind in {kind for kind, _ in WIRES}

    def _is_no(self, name: str) -> bool:
        return name in self.findings and self.findings[name].verdict == "no"

    def _check_window(self) -> None:
        window = self.checked.context_tokens or self.facts.context_tokens
        if window is None:
            advice = "--openai.context_tokens N, so that no turn is paid for that does not fit"
            self.add("window", "not seen", "the server does not say how much its model takes", advice)
        else:
            by = "--openai.context_tokens says" if self.checked.context_tokens else "the server says"
            self.add("window", "ok", f"{window} tokens, as {by}")

    async def _check_conversation(
        self, policy: ChatPolicy, opening: Completion, *, text_family: str | None
    ) -> None:
        self._check_tokens(opening)
        turn = opening.message
        results = [
            Message(role="tool", content=f"{10 + index} °C, sunny", tool_call_id=call.id)
            for index, call in enumerate(turn.tool_calls)
        ]
        history = [_OPENING, turn, *(results or [Message(role="user", content="Go on.")])]
        answered = await _ask(policy, *history)
        if opening.exact and isinstance(answered, str):
            self.add("prefix", "not seen", answered)
        elif opening.exact and not isinstance(answered, str):
            later = await _ask(policy, *history, answered.message, _MORE)
            self._check_prefix(opening, answered, None if isinstance(later, str) else later)
        if text_family is not None:
            advice = f"--openai.family {text_family} reads them; or {_PARSER}"
            self.add("tool calls", "no", f"as text, in the format {text_family}", advice)
        elif not results:
            advice = f"a model that was taught tools, and a server that reads its calls: {_PARSER}"
            advice = "" if self._is_no("tools") else advice
            self.add("tool calls", "not seen", "the model called nothing", advice)
            return
        else:
            self.add("tool calls", "ok", f"{', '.join(call.name for call in turn.tool_calls):.60}")
        interrupted = await _ask(policy, *history, _MORE)
        if isinstance(answered, str):
            self.add("tool results", "no", answered, "the server cannot play a rollout with tools")
        elif isinstance(interrupted, str):
            advice = "hooks that answer a tool's result with a user message (respond) fail on this server"
            self.add("user after a result", "no", interrupted, advice)
        else:
            self.add("user after a result", "ok", "taken")

    async def _check_tools(self, policy: ChatPolicy, opening: Completion) -> None:
        plain = await _ask(policy, _OPENING, tools=(), max_tokens=16)
        counts = [_prompt_tokens(each) for each in (opening, plain) if not isinstance(each, str)]
        if len(counts) < 2 or None in counts:
            self.add("tools", "not seen", "the server does not count the tokens of a prompt")
        elif counts[0] == counts[1]:
            self.add("tools", "no", dropped_tools(counts[0] or 0), TOOLS_IN_PROMPT)
        else:
            self.add("tools", "ok", f"{counts[0]} prompt tokens with a tool, {counts[1]} without")

    def _check_tokens(self, opening: Completion) -> None:
        if not opening.exact:
            advice = "vLLM from 0.10.2 on and SGLang from 0.5.13 on give them; for others see docs/models.md"
            advice = "it takes and gives ids: add --tokenizer NAME" if self._takes_ids else advice
            self.add("token ids", "no", "the replies have text alone", advice)
            return
        counts = f"{len(opening.prompt_ids)} of the prompt, {len(opening.token_ids)} sampled"
        self.add("token ids", "ok", counts)
        if opening.logprobs is None:
            advice = "start vLLM without --max-logprobs 0; a trainer has no importance ratios without them"
            self.add("logprobs", "no", "ids without logprobs", advice)
        else:
            self.add("logprobs", "ok", "finite, one for each sampled id")

    def _check_prefix(self, opening: Completion, answered: Completion, later: Completion | None) -> None:
        forks = {"after the first turn": _fork_of(opening, answered.prompt_ids)}
        if later is not None:
            forks["after a user message"] = _fork_of(answered, later.prompt_ids)
        if not any(forks.values()):
            self.add("prefix", "ok", "each prompt begins with the turn before it")
            return
        seen = "; ".join(f"{when} {fork}" for when, fork in forks.items() if fork)
        advice = "rows fork; send ids: --openai.server_type vllm or sglang, and --env.tokenizer_name"
        self.add("prefix", "no", seen, advice)

    async def _check_long_prompt(self, policy: ChatPolicy) -> None:
        name = "long prompt"
        try:
            long = await policy.complete(CompletionRequest(messages=(_LONG,), max_tokens=16))
        except ContextOverflow:
            return self.add(name, "ok", f"{_LONG_WORDS} words are refused as too long")
        except TurnwiseError as error:
            return self.add(name, "no", str(error))
        counted = _prompt_tokens(long)
        if counted is None:
            return self.add(name, "not seen", "taken; the server does not count its tokens")
        if counted >= _LONG_WORDS:
            return self.add(name, "ok", f"taken whole, {counted} tokens")
        window = f" of {self.facts.context_tokens}" if self.facts.context_tokens else ""
        advice = (
            f"raise the server's window{window} (ollama: OLLAMA_CONTEXT_LENGTH), or stay below it: "
            f"--openai.context_tokens {counted}"
        )
        return self.add(name, "no", f"cut in silence: {counted} tokens of {_LONG_WORDS} words", advice)

    async def _check_tokenizer(self) -> None:
        of = self.checked
        try:
            if of.tokenizer and await refuse_other_tokenizer(
                of.server, of.model, self.facts.kind, of.tokenizer
            ):
                self.add("tokenizer", "ok", f"{len(TEXTS)} texts have the server's ids")
        except TurnwiseError as error:
            self.add("tokenizer", "no", str(error))

    async def _check_token_wires(self, renderer: Renderer) -> None:
        checked = self.checked
        for (kind, name), wire in WIRES.items():
            if self.facts.kind not in (kind, "unknown"):
                continue
            policy = TokenPolicy(
                server=checked.server,
                model=checked.model,
                renderer=renderer,
                wire=wire,
                extra_body=checked.extra_body,
            )
            reply = await _ask(policy, _OPENING, max_tokens=256)
            if not isinstance(reply, str):
                self.wires.append((kind, name))
                self.add(f"ids over {wire.path}", "ok", "ids taken, ids and logprobs given")
            elif self.facts.kind == kind:  # an unknown server has the wires of one kind at most
                self.add(f"ids over {wire.path}", "no", reply)

    def _check_chat_format(self, opening: Completion | str) -> None:
        renderer = self.checked.renderer
        if renderer is None:
            family = self.checked.family or detect_family(self.checked.model)
            by_name = f"{family}, by the model's name" if family else "the model's name does not show it"
            advice = "--tokenizer NAME (and --family NAME) compares its prompts with the server's"
            why = self.checked.no_renderer
            self.add("chat format", "no" if why else "not seen", why or by_name, advice)
            return
        name = f"chat format {renderer.name}"
        if isinstance(opening, str) or not opening.exact:
            self.add(name, "not seen", "no ids of the server's to compare with")
            return
        try:
            ours = renderer.prompt_ids([_OPENING], [WEATHER])
            read = renderer.parse(opening.token_ids, [WEATHER])
        except Exception as error:  # noqa: BLE001  # ids of another tokenizer
            self.add("read alike", "no", f"our parser fails: {error}", _FORMAT)
            return
        index = _first_difference(ours, opening.prompt_ids)
        if index is None:
            self.add(name, "ok", "our prompt is the server's, token for token")
        else:
            seen = f"our prompt and the server's part at token {index} of {len(opening.prompt_ids)}"
            self.add(name, "no", seen, f"{_FORMAT}, unless the server's template is not the model's own")
        calls = [call.name for call in read.tool_calls if call.status == "ok"]
        text = opening.message.content.rpartition("</think>")[2].strip()
        theirs = [call.name for call in opening.message.tool_calls]
        if calls == theirs and read.content.strip() == text:
            self.add("read alike", "ok", f"text and {len(calls)} calls")
        else:
            self.add(
                "read alike", "no", f"{len(calls)} calls, the server {len(theirs)}, or other text", _FORMAT
            )


async def _ask(
    policy: ChatPolicy | TokenPolicy,
    *messages: Message,
    tools: tuple[ToolSpec, ...] = (WEATHER,),
    seed: int = 0,
    max_tokens: int = 1024,
    tries: int = 1,
) -> Completion | str:
    reason = ""
    for attempt in range(tries):
        request = CompletionRequest(
            messages=messages, tools=tools, seed=seed + attempt, max_tokens=max_tokens
        )
        try:
            return await policy.complete(request)
        except TurnwiseError as error:
            reason = str(error)
    return reason


def _prompt_tokens(completion: Completion) -> int | None:
    return len(completion.prompt_ids) if completion.exact else completion.prompt_tokens


def _family_of_calls(message: Message) -> str | None:
    """Return the chat format of a tool call that the server left as text, or None."""
    for family in family_names() if not message.tool_calls else ():
        try:
            _, calls = read_text_calls(message.content, family, [WEATHER])
        except ConfigError:  # needs a package that is not installed
            continue
        if any(call.status == "ok" and call.name == WEATHER.name for call in calls):
            return family
    return None


def _fork_of(before: Completion, after: Sequence[int]) -> str | None:
    """Say why the next prompt does not begin with a turn's prompt and sampled tokens, or None."""
    row = (*before.prompt_ids, *before.token_ids)
    index = _first_difference(row, after[: len(row)])
    if index is None:
        return None
    if index < len(before.prompt_ids):
        what = "writes earlier messages otherwise once more follow"
    elif before.message.reasoning or "</think>" in before.message.content:
        what = "drops the reasoning, or writes it otherwise"
    else:
        what = "writes the turn otherwise than the model did"
    return f"its template {what} (token {index} of {len(row)})"


def _first_difference(ours: Sequence[int], theirs: Sequence[int]) -> int | None:
    pairs = zip(ours, theirs, strict=False)
    shorter = min(len(ours), len(theirs)) if len(ours) != len(theirs) else None
    return next((index for index, (one, other) in enumerate(pairs) if one != other), shorter)
