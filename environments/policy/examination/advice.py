"""What follows from an examination: which tokens a run would record, and the settings to use."""

import shlex
from collections.abc import Sequence

from environments.inference.server_text import one_line
from environments.policy.examination.findings import Examination, Examined, Finding
from environments.policy.examination.token_checks import READ_ALIKE
from environments.policy.examination.tool_conversation import Conversation

_SENT = "Exact tokens, sent and given as ids: a row goes on from what was sampled."
_ASKED = "Exact tokens, asked by messages"
_FORKING = ", and rows fork: a trainer gets more rows, and more tokens, than were sampled."
_NAME_A_TOKENIZER = " It takes ids, too: with --tokenizer NAME of the model rows go on from what was sampled."
_TEXT = (
    "Text only: the record says exact: false, and no trainer can learn from it. Good for evaluation, judges "
    "and data."
)


def concluded(
    examined: Examined,
    talk: Conversation,
    findings: tuple[Finding, ...],
    wires: Sequence[tuple[str, str]],
) -> Examination:
    """The examination with its end.

    Args:
        examined: the server.
        talk: what it was asked.
        findings: all of them.
        wires: those that answer, by kind of server and name.
    """
    # The server's own word, in a line that is copied into a shell.
    model = shlex.quote(one_line(examined.model))
    where = [f"--openai.base_url {shlex.quote(examined.server.base_url)}", f"--openai.model_name {model}"]
    window = [] if examined.context_tokens is None else [f"--openai.context_tokens {examined.context_tokens}"]
    alike = all(each.verdict != "no" for each in findings if each.name == READ_ALIKE)
    if wires and examined.renderer is not None and alike:
        kind, wire = wires[0]
        how = [
            f"--openai.server_type {kind}",
            f"--openai.token_wire {wire}",
            f"--openai.family {examined.renderer.name}",
            f"--env.tokenizer_name {shlex.quote(examined.tokenizer_name)}",
        ]
        return Examination(findings=findings, tokens="exact", conclusion=_SENT, flags=(*where, *how, *window))
    if talk.opening.message is None:
        why = f"It cannot be used: {talk.opening.problem}"
        return Examination(findings=findings, tokens="none", conclusion=why)
    how = ["--openai.server_type chat"]
    if talk.text_family is not None:
        how.append(f"--openai.family {talk.text_family}")
    exact = {each.name for each in findings if each.verdict == "ok"} >= {"token ids", "logprobs"}
    return Examination(
        findings=findings,
        tokens="exact" if exact else "text",
        conclusion=_exact_by_messages(findings, ids_too=bool(wires)) if exact else _TEXT,
        flags=(*where, *how, *window),
    )


def _exact_by_messages(findings: Sequence[Finding], *, ids_too: bool) -> str:
    forks = any(each.name == "prefix" and each.verdict == "no" for each in findings)
    return f"{_ASKED}{_FORKING if forks else '.'}{_NAME_A_TOKENIZER if ids_too else ''}"
