"""What an examination of a model server found: one value per question."""

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "no", "not seen"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The answer to one question."""

    name: str
    verdict: Verdict
    """`not seen`: nothing that was asked showed it."""
    seen: str
    """What the server gave, in a few words."""
    advice: str = ""
    """What to do about it, in a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """All that was found about one server."""

    findings: tuple[Finding, ...]
    tokens: Literal["exact", "text", "none"]
    """What a run against it records: tokens as they were sampled, tokens made from text, or nothing."""
    conclusion: str
    """What that means, in a line."""
    flags: tuple[str, ...] = ()
    """The settings to use, as arguments of a command."""
