"""Where a server goes on from token ids, and whether our chat format makes the ids that it makes."""

from collections.abc import Sequence

import orjson

from environments.inference.http_client import NoAnswerError, StatusError
from environments.inference.model_server import ModelServer
from environments.inference.reply_tokens import ReplyError
from environments.inference.server_kind import TEXT_ONLY, ServerFacts
from environments.inference.token_reply import TokenReply, TokenRequest
from environments.inference.token_wires import WIRES, TokenWire
from environments.policy.examination.findings import Finding
from environments.policy.examination.tool_conversation import WEATHER, Conversation
from environments.policy.rendering.renderer import Renderer
from tools.errors import TurnwiseError

READ_ALIKE = "read alike"
"""The finding without which our ids are not the model's."""
_OTHER = "another --openai.family or --env.tokenizer_name"


async def wire_findings(
    server: ModelServer, model: str, facts: ServerFacts, talk: Conversation, renderer: Renderer | None
) -> tuple[list[Finding], list[tuple[str, str]], str | None]:
    """Ask each wire that a server of its kind may have.

    Returns:
        A finding per wire, the wires that answer, and the version of the weights where one was told.
    """
    prompt = _prompt(talk, renderer)
    if prompt is None:
        advice = "name --env.tokenizer_name and --openai.family: then a prompt of ids can be made"
        seen = "no ids to ask with"
        if facts.kind in TEXT_ONLY:
            return [Finding(name="token wires", verdict="no", seen=f"{facts.kind} has none")], [], None
        return [Finding(name="token wires", verdict="not seen", seen=seen, advice=advice)], [], None
    findings: list[Finding] = []
    answering: list[tuple[str, str]] = []
    version: str | None = None
    for (kind, name), wire in WIRES.items():
        if facts.kind not in (kind, "unknown"):
            continue
        reply, problem = await _ask(server, model, wire, prompt, talk, renderer)
        title = f"ids over {wire.path}"
        if reply is None:
            # A server that does not say what it is has one kind of wires at most.
            if facts.kind == kind:
                findings.append(
                    Finding(name=title, verdict="no", seen=problem, advice=_absent(wire, problem))
                )
            continue
        version = version or reply.weight_version
        answering.append((kind, name))
        findings.append(Finding(name=title, verdict="ok", seen="ids taken, ids and logprobs given"))
    if not findings:
        findings = [Finding(name="token wires", verdict="no", seen="none of vLLM's or SGLang's answers")]
    return findings, answering, version


def renderer_findings(talk: Conversation, renderer: Renderer) -> list[Finding]:
    """Whether our ids are those that the server's template makes, and what we read is what it reads."""
    name = f"chat format {renderer.name}"
    tokens, message = talk.opening.tokens, talk.opening.message
    if tokens is None or message is None:
        return [Finding(name=name, verdict="not seen", seen="no ids of the server's to compare with")]
    try:
        differing = _first_difference(renderer.prompt_ids(talk.messages, [WEATHER]), tokens.prompt_ids)
        read = renderer.parse(tokens.token_ids, [WEATHER])
    except Exception as error:  # noqa: BLE001  # ids of another tokenizer
        return [Finding(name=READ_ALIKE, verdict="no", seen=f"our parser fails: {error}", advice=_OTHER)]
    if differing is None:
        prompt = Finding(name=name, verdict="ok", seen="our prompt is the server's, token for token")
    else:
        prompt = Finding(
            name=name,
            verdict="no",
            seen=f"our prompt and the server's part at token {differing} of {len(tokens.prompt_ids)}",
            advice=f"{_OTHER}, unless the server's template is not the model's own",
        )
    ours = [call.name for call in read.tool_calls if call.status == "ok"]
    theirs = [call.name for call in talk.calls]
    text = message.content.rpartition("</think>")[2].strip()
    alike = ours == theirs and (talk.text_family is not None or read.content.strip() == text)
    return [
        prompt,
        Finding(
            name=READ_ALIKE,
            verdict="ok" if alike else "no",
            seen=f"text and {len(theirs)} calls"
            if alike
            else f"{len(ours)} calls, the server {len(theirs)}, or another text",
            advice="" if alike else _OTHER,
        ),
    ]


def _prompt(talk: Conversation, renderer: Renderer | None) -> Sequence[int] | None:
    """Ids to ask with: the server's own, or ours."""
    if talk.opening.tokens is not None:
        return talk.opening.tokens.prompt_ids
    if renderer is None:
        return None
    try:
        return renderer.prompt_ids(talk.messages, [WEATHER])
    except TurnwiseError:
        return None


async def _ask(
    server: ModelServer,
    model: str,
    wire: TokenWire,
    prompt: Sequence[int],
    talk: Conversation,
    renderer: Renderer | None,
) -> tuple[TokenReply | None, str]:
    """A reply, or why there is none."""
    request = TokenRequest(
        model=model,
        prompt_json=(orjson.dumps(list(prompt))[1:-1],),
        prompt_tokens=len(prompt),
        max_tokens=256,
        seed=0,
        stop_ids=_stop_ids(talk, renderer),
        sampling={"temperature": 1.0, "top_p": 1.0},
    )
    try:
        content = await server.ask(wire.path, wire.body(request), at_root=wire.at_root)
        return wire.read(content, request), ""
    except StatusError as error:
        return None, f"{error.status}: {error.reason}"
    except (NoAnswerError, ReplyError) as error:
        return None, str(error)


def _stop_ids(talk: Conversation, renderer: Renderer | None) -> tuple[int, ...]:
    """What ends a turn: as the chat format has it, or as the turn before was ended."""
    if renderer is not None:
        return renderer.stop_ids
    tokens, sampled = talk.opening.tokens, talk.opening.sampled
    if tokens is None or sampled is None or sampled.finish_reason == "length":
        return ()
    return tokens.token_ids[-1:]


def _absent(wire: TokenWire, problem: str) -> str:
    return wire.absent if problem.startswith(("404", "405")) else ""


def _first_difference(ours: Sequence[int], theirs: Sequence[int]) -> int | None:
    if tuple(ours) == tuple(theirs):
        return None
    pairs = zip(ours, theirs, strict=False)  # the shorter one ends the comparison
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(ours), len(theirs)))
