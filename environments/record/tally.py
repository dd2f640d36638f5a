"""Counts of texts that nobody bounds: few of them are kept, whatever comes."""

from collections import Counter

MAX_TEXTS = 20
"""Distinct texts that a tally keeps; later ones count as `other`."""
TEXT_CHARS = 160
OTHER = "other"


def tally(counter: Counter[str], text: str, *, otherwise: str = OTHER) -> None:
    """Count a text; beyond `MAX_TEXTS` different ones its kind, and beyond twice as many only that."""
    for line, most in ((" ".join(text.split())[:TEXT_CHARS], MAX_TEXTS), (otherwise, 2 * MAX_TEXTS)):
        if line in counter or len(counter) < most:
            counter[line] += 1
            return
    counter[OTHER] += 1


def counts(counter: Counter[str], before: str = "", after: str = "") -> str:
    """`name 3, other 1`, the most frequent first; empty when nothing was counted."""
    text = ", ".join(f"{name} {count:,}" for name, count in _most(counter))
    return f"{before}{text}{after}" if text else ""


def lines(counter: Counter[str]) -> str:
    """A line for each text, the most frequent first."""
    return "\n".join(f"{count}x {text}" for text, count in _most(counter))


def _most(counter: Counter[str]) -> list[tuple[str, int]]:
    return sorted(counter.items(), key=lambda entry: (-entry[1], entry[0]))
