"""The examination of a model server: what is asked in which order, and the settings that follow from it."""

from environments.inference.server_check import model_names
from environments.inference.server_kind import ServerFacts, look
from environments.inference.server_text import one_line
from environments.policy.examination.advice import concluded
from environments.policy.examination.chat_requests import ChatRequests
from environments.policy.examination.findings import Examination, Examined, Finding
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


async def examine(examined: Examined) -> Examination:
    """Ask the server everything; what it does wrong is a finding."""
    facts = await look(examined.server, examined.model)
    requests = ChatRequests(server=examined.server, model=examined.model, extra_body=examined.extra_body)
    talk = await converse(requests, family=examined.family)
    findings = [_server(facts), await _models(examined), _window(examined, facts)]
    if talk.opening.message is None:
        advice = "is it the right --model?" if "404" in talk.opening.problem else ""
        findings.append(Finding(name="chat", verdict="no", seen=talk.opening.problem, advice=advice))
    else:
        sampling = await sampling_findings(requests, facts)  # asked first: every reply is held to its tokens
        findings += [
            *token_findings(talk, requests),
            *tool_findings(talk),
            reasoning_finding(talk),
            *sampling,
        ]
    wires, answering, version = await wire_findings(
        examined.server, examined.model, facts, talk, examined.renderer
    )
    findings += [*wires, *_chat_format(examined, talk), _weights(talk, version)]
    return concluded(examined, talk, tuple(findings), answering)


def _server(facts: ServerFacts) -> Finding:
    if facts.kind == "unknown":
        return Finding(name="server", verdict="not seen", seen="it does not say what it is")
    return Finding(name="server", verdict="ok", seen=f"{facts.kind} {facts.version or ''}".strip())


async def _models(examined: Examined) -> Finding:
    names = await model_names(examined.server)
    if not names:
        return Finding(name="models", verdict="not seen", seen=f"no list of them; asked for {examined.model}")
    others = f", one of {len(names)}" if len(names) > 1 else ""
    return Finding(name="models", verdict="ok", seen=f"{one_line(examined.model)}{others}")


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
