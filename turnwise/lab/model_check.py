"""Checks of a model server by a short conversation through the policies of a run."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from tokenizers import Tokenizer

from environments.config import ServerConfig
from environments.policy.base import CompletionRequest, OpenRow
from environments.policy.chat import ChatPolicy
from environments.policy.inference.http_client import IncompleteError, NoAnswerError
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
_SHORT = 16
"""Tokens of a reply whose text is not needed, so that a slow model answers soon."""
_PARSER = (
    "start vLLM with --enable-auto-tool-choice --tool-call-parser NAME, SGLang with --tool-call-parser NAME"
)
_FORMAT = "another --openai.family or --env.tokenizer_name"
_IDS = "Exact tokens, sent and given as ids"
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
    settings: ServerConfig = field(default_factory=ServerConfig)
    renderer: Renderer | None = None
    """The model's chat format and tokenizer; None if not named or not available."""
    no_renderer: str = ""
    tokenizer: Tokenizer | None = None
    tokenizer_name: str = "embedded"


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


@dataclass(eq=False)
class _Check:
    checked: CheckedModel
    facts: ServerFacts
    findings: dict[str, Finding] = field(default_factory=dict[str, Finding])
    wires: list[tuple[str, str, str | None]] = field(default_factory=list[tuple[str, str, str | None]])
    """Wires that work: kind of server, name, and the cause if rows fork."""
    failure: str | None = None
    """The error that ended the conversation early."""

    def add(self, name: str, verdict: Verdict, seen: str, advice: str = "") -> None:
        self.findings[name] = Finding(name=name, verdict=verdict, seen=seen, advice=advice)

    async def result(self) -> ModelCheck:
        known = self.facts.kind != "unknown"
        seen = (
            f"{self.facts.kind} {self.facts.version or ''}".strip() if known else "it does not say what it is"
        )
        self.add("server", "ok" if known else "not seen", seen)
        given = self.checked.settings
        window = given.context_tokens or self.facts.context_tokens
        by = "--openai.context_tokens says" if given.context_tokens else "the server says"
        seen = f"{window} tokens, as {by}" if window else "the server does not say how much its model takes"
        advice = "--openai.context_tokens N, so that no turn is paid for that does not fit"
        self.add("window", "ok" if window else "not seen", seen, advice)
        policy = ChatPolicy(
            server=self.checked.server,
            model=self.checked.model,
            renderer=ChatMLRenderer.embedded(),
            temperature=given.temperature,
            top_p=given.top_p,
            extra_body=given.extra_body,
            family=given.family,
            tools_in_prompt=given.tools == "prompt",
        )
        opening = await _ask(policy, _OPENING, tries=_TRIES)
        family = None if isinstance(opening, str) else _family_of_calls(opening.message)
        if family is not None:
            policy = replace(policy, family=family)
            opening = await _ask(policy, _OPENING, tries=_TRIES)
        if isinstance(opening, str):
            self.failure = opening
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
            kind, wire, fork = self.wires[0]
            tokenizer = shlex.quote(checked.tokenizer_name)
            default = next(name for of, name in WIRES if of == kind)
            how = [f"--openai.server_type {kind if wire == default else f'{kind}_{wire}'}"]
            how += [f"--openai.family {renderer.name}", f"--env.tokenizer_name {tokenizer}"]
            conclusion = f"{_IDS}{f'.{_FORKS}' if fork else ': a row goes on from what was sampled.'}"
        elif self.failure is not None or isinstance(opening, str):
            tokens, conclusion = "none", f"It cannot be used: {self.failure}"
        elif not opening.exact or opening.logprobs is None:
            tokens, conclusion = "text", f"{_TEXT}{ids_too}"
        else:
            conclusion = f"{_MESSAGES}{_FORKS if self._is_no('prefix') else ''}{ids_too}"
        # Quoted: the server chose the name, and users copy the line into a shell.
        where = [f"--openai.base_url {shlex.quote(checked.server.base_url)}"]
        where += [f"--openai.model_name {shlex.quote(one_line(checked.model))}"]
        return ModelCheck(
            findings=tuple(self.findings.values()),
            tokens=tokens,
            conclusion=conclusion,
            flags=() if tokens == "none" else (*where, *how),
        )

    @property
    def _takes_ids(self) -> bool:
        return self.facts.kind in {kind for kind, _ in WIRES}

    def _is_no(self, name: str) -> bool:
        return name in self.findings and self.findings[name].verdict == "no"

    async def _check_conversation(
        self, policy: ChatPolicy, opening: Completion, *, text_family: str | None
    ) -> None:
        self._check_tokens(opening)
        history, results = _answer(opening.message), opening.message.tool_calls
        # The next prompt begins with a whole turn alone.
        answered = await _ask(policy, *history, max_tokens=1024 if opening.exact else _SHORT, tries=_TRIES)
        later = answered
        if opening.exact and not isinstance(answered, str):
            later = await _ask(policy, *history, answered.message, _MORE, max_tokens=_SHORT)
            if not isinstance(later, str):
                self._check_prefix(opening, answered, later)
        if isinstance(later, str):
            self.failure = f"its first turn is as it should be, a later one fails: {later}"
            self.add("later turns", "no", later)
        if text_family is not None:
            advice = f"--openai.family {text_family} reads them; or {_PARSER}"
            self.add("tool calls", "no", f"as text, in the format {text_family}", advice)
        elif not results:
            advice = f"a model that was taught tools, and a server that reads its calls: {_PARSER}"
            advice = "" if self._is_no("tools") else advice
            self.add("tool calls", "not seen", "the model called nothing", advice)
            return
        else:
            self.add("tool calls", "ok", f"{', '.join(call.name for call in results):.60}")
        if isinstance(answered, str):
            return
        interrupted = await _ask(policy, *history, _MORE, max_tokens=_SHORT)
        if isinstance(interrupted, str):
            advice = "hooks that answer a tool's result with a user message (respond) fail on this server"
            self.add("user after a result", "no", interrupted, advice)
        else:
            self.add("user after a result", "ok", "taken")

    async def _check_tools(self, policy: ChatPolicy, opening: Completion) -> None:
        plain = await _ask(policy, _OPENING, tools=(), max_tokens=_SHORT)
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
            if self._takes_ids:
                advice = "" if self.checked.renderer else "it takes and gives ids: add --tokenizer NAME"
            self.add("token ids", "no", "the replies have text alone", advice)
            return
        counts = f"{len(opening.prompt_ids)} of the prompt, {len(opening.token_ids)} sampled"
        self.add("token ids", "ok", counts)
        if opening.logprobs is None:
            advice = "start vLLM without --max-logprobs 0; a trainer has no importance ratios without them"
            self.add("logprobs", "no", "ids without logprobs", advice)
        else:
            self.add("logprobs", "ok", "finite, one for each sampled id")

    def _check_prefix(self, opening: Completion, answered: Completion, later: Completion) -> None:
        first, second = _fork_of(opening, answered.prompt_ids), _fork_of(answered, later.prompt_ids)
        forks = [first and f"after the first turn {first}", second and f"after a user message {second}"]
        seen = "; ".join(filter(None, forks)) or "each prompt begins with the turn before it"
        advice = "rows fork; send ids: --openai.server_type vllm or sglang, and --env.tokenizer_name"
        self.add("prefix", "no" if any(forks) else "ok", seen, advice)

    async def _check_long_prompt(self, policy: ChatPolicy) -> None:
        name = "long prompt"
        try:
            long = await policy.complete(CompletionRequest(messages=(_LONG,), max_tokens=_SHORT))
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
                temperature=checked.settings.temperature,
                top_p=checked.settings.top_p,
                extra_body=checked.settings.extra_body,
            )
            later = await _ask_later_turn(policy)
            if not isinstance(later, str):
                self.wires.append((kind, name, later.fork))
                forks = f", rows fork: {later.fork}" if later.fork else ""
                self.add(f"ids over {wire.path}", "ok", f"ids taken, ids and logprobs given{forks}")
            elif self.facts.kind == kind:  # an unknown server has the wires of one kind at most
                self.add(f"ids over {wire.path}", "no", later)

    def _check_chat_format(self, opening: Completion | str) -> None:
        renderer = self.checked.renderer
        if renderer is None:
            family = self.checked.settings.family or detect_family(self.checked.model)
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
        alike = calls == theirs and read.content.strip() == text
        seen = f"text and {len(calls)} calls"
        other = f"{len(calls)} calls, the server {len(theirs)}, or other text"
        self.add("read alike", "ok" if alike else "no", seen if alike else other, _FORMAT)


async def _ask(
    policy: ChatPolicy | TokenPolicy,
    *messages: Message,
    tools: tuple[ToolSpec, ...] = (WEATHER,),
    max_tokens: int = 1024,
    tries: int = 1,
    row: OpenRow | None = None,
) -> Completion | str:
    reason = ""
    # Some servers fail at a call that the limit has cut.
    limits = [*[max_tokens] * tries, *([1024] if max_tokens == _SHORT else [])]
    for attempt, limit in enumerate(limits):
        request = CompletionRequest(messages=messages, tools=tools, seed=attempt, max_tokens=limit, row=row)
        try:
            return await policy.complete(request)
        except TurnwiseError as error:
            reason, cause = str(error), error.__cause__
            if isinstance(cause, NoAnswerError) and not isinstance(cause, IncompleteError):
                break  # as slow or as dead for the next
    return reason


async def _ask_later_turn(policy: TokenPolicy) -> Completion | str:
    """Sample two turns by ids, the second after the first; return the second, or the error of either."""
    opening = await _ask(policy, _OPENING, max_tokens=256)
    if isinstance(opening, str):
        return opening
    row = OpenRow()
    row.extend(opening.prompt_ids, opening.token_ids, messages=2)
    try:
        await policy.check_stop_ids()
    except TurnwiseError as error:
        return str(error)
    return await _ask(policy, *_answer(opening.message), max_tokens=_SHORT, row=row)


def _answer(turn: Message) -> list[Message]:
    """Return the conversation after the first turn: its calls have results, or the user goes on."""
    results = [
        Message(role="tool", content=f"{10 + index} °C, sunny", tool_call_id=call.id)
        for index, call in enumerate(turn.tool_calls)
    ]
    return [_OPENING, turn, *(results or [Message(role="user", content="Go on.")])]


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
