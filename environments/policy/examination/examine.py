"""The examination of a model server: what is asked in which order, and the settings that follow from it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from environments.inference.model_server import ModelServer
from environments.inference.server_kind import ServerFacts, look
from environments.policy.examination.chat_requests import ChatRequests
from environments.policy.examination.findings import Examination, Finding
from environments.policy.examination.sampling_checks import sampling_findings
from environments.policy.examination.token_checks import renderer_findings, wire_findings
from environments.policy.examination.tool_conversation import (
    Conversation,
    converse,
    reasoning_finding,
    token_findings,
    tool_findings,
)
from environments.policy.rendering.families import family_of
from environments.policy.rendering.renderer import Renderer


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """The server that is examined, and what the settings say of its model."""

    server: ModelServer
    model: str
    family: str | None = None
    renderer: Renderer | None = None
    """The model's own chat format and tokenizer; `None`: not named, or not to be had."""
    no_renderer: str = ""
    """Why it is not to be had."""
    tokenizer_name: str = "embedded"
    context_tokens: int | None = None
    extra_body: Mapping[str, Any] = field(default_factory=dict[str, Any])


async def examine(examined: Examined) -> Examination:
    """Ask the server everything; what it does wrong is a finding."""
    facts = await look(examined.server, examined.model)
    requests = ChatRequests(server=examined.server, model=examined.model, extra_body=examined.extra_body)
    talk = await converse(requests, family=examined.family)
    findings = [_server(facts), _window(examined, facts)]
    if talk.opening.message is None:
        findings.append(Finding(name="chat", verdict="no", seen=talk.opening.problem))
    else:
        findings += [*token_findings(talk, requests), *tool_findings(talk), reasoning_finding(talk)]
        findings += await sampling_findings(requests, facts)
    wires, answering, version = await wire_findings(
        examined.server, examined.model, facts, talk, examined.renderer
    )
    findings += [*wires, *_chat_format(examined, talk), _weights(talk, version)]
    return _concluded(examined, facts, talk, tuple(findings), answering)


def _server(facts: ServerFacts) -> Finding:
    if facts.kind == "unknown":
        return Finding(name="server", verdict="not seen", seen="it does not say what it is")
    return Finding(name="server", verdict="ok", seen=f"{facts.kind} {facts.version or ''}".strip())


def _window(examined: Examined, facts: ServerFacts) -> Finding:
    window = examined.context_tokens or facts.context_tokens
    if window is None:
        return Finding(
            name="window",
            verdict="not seen",
            seen="the server does not say how much its model takes",
            advice="--openai.context_tokens N, so that no turn is paid for that does not fit",
        )
    by = "as --openai.context_tokens says" if examined.context_tokens else "as the server says"
    return Finding(name="window", verdict="ok", seen=f"{window} tokens, {by}")


def _chat_format(examined: Examined, talk: Conversation) -> list[Finding]:
    if examined.renderer is not None:
        return renderer_findings(talk, examined.renderer)
    family = examined.family or family_of(examined.model)
    seen = examined.no_renderer or (
        f"{family}, by the model's name" if family else "the model's name does not tell it"
    )
    return [
        Finding(
            name="chat format",
            verdict="no" if examined.no_renderer else "not seen",
            seen=seen,
            advice="--tokenizer NAME (and --family NAME) compares its prompts with the server's",
        )
    ]


def _weights(talk: Conversation, version: str | None) -> Finding:
    version = version or (talk.opening.sampled.weight_version if talk.opening.sampled else None)
    if version is None:
        return Finding(name="weight version", verdict="not seen", seen="no reply names one")
    return Finding(name="weight version", verdict="ok", seen=f"{version:.40}")


def _concluded(
    examined: Examined,
    facts: ServerFacts,
    talk: Conversation,
    findings: tuple[Finding, ...],
    answering: list[tuple[str, str]],
) -> Examination:
    flags = [f"--openai.base_url {examined.server.base_url}", f"--openai.model_name {examined.model}"]
    family = examined.family or (examined.renderer.name if examined.renderer is not None else None)
    tokens = talk.opening.tokens
    if answering and examined.renderer is not None:
        kind, wire = answering[0]
        flags += [f"--openai.server_type {kind}", f"--openai.token_wire {wire}"]
        flags += [f"--openai.family {family}", f"--env.tokenizer_name {examined.tokenizer_name}"]
        conclusion = "Exact tokens, sent and given as ids: a row goes on from what was sampled and never forks there."
        given = "exact"
    elif tokens is not None and tokens.logprobs is not None:
        flags.append("--openai.server_type chat")
        forks = next(each for each in findings if each.name == "prefix").verdict == "no"
        conclusion = "Exact tokens by messages" + (
            ", and rows fork: a trainer gets more rows than sampled tokens need. Ids would not." if forks else "."
        )
        given = "exact"
    elif talk.opening.message is not None:
        flags.append("--openai.server_type chat")
        conclusion = (
            "Text only: records say exact: false, and no trainer can learn from them. Good for evaluation, "
            "judges and data."
        )
        given = "text"
    else:
        return Examination(
            findings=findings,
            tokens="none",
            conclusion=f"It cannot be used: {talk.opening.problem}",
        )
    if given == "text" or not (answering and examined.renderer is not None):
        if talk.text_family is not None:
            flags.append(f"--openai.family {talk.text_family}")
    if examined.context_tokens is not None or facts.context_tokens is None:
        flags += [f"--openai.context_tokens {examined.context_tokens}"] if examined.context_tokens else []
    return Examination(findings=findings, tokens=given, conclusion=conclusion, flags=tuple(flags))
