"""What a server sent, in one short line for people."""

from environments.plain_text import printable

_LONGEST = 300


def one_line(text: str) -> str:
    """The text without line breaks and what would steer a terminal, cut where it gets long."""
    line = " ".join(text[: 100 * _LONGEST].split())
    line = line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"
    return printable(line, "\N{REPLACEMENT CHARACTER}")


def start_of(content: bytes) -> str:
    """The beginning of an answer."""
    return one_line(content[: 400 * _LONGEST].decode("utf-8", "replace")) or "(empty)"


def reason_of_loss(error: Exception) -> str:
    """What a library says of a request that got no answer; aiohttp's `ssl:default` says nothing."""
    return str(error).replace(" ssl:default", "") or type(error).__name__
