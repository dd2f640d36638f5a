"""What a server sent, in one short line for people."""

_LONGEST = 300


def one_line(text: str) -> str:
    """The text without line breaks, cut where it gets long."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"


def start_of(content: bytes) -> str:
    """The beginning of an answer."""
    return one_line(content.decode("utf-8", "replace")) or "(empty)"
