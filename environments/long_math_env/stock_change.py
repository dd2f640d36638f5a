"""One fact of a ledger: what a page says about a store, written as a sentence and read back from a text."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

COUNTED = "A count found {sacks} sacks in the {store}."
BROUGHT = "{sacks} sacks were brought into the {store}."
SOLD = "{sacks} sacks were sold out of the {store}."
ABOVE = "By evening the {store} held {sacks} sacks more than the {other}."
BELOW = "By evening the {store} held {sacks} sacks fewer than the {other}."
_SENTENCES = (COUNTED, BROUGHT, SOLD, ABOVE, BELOW)


@dataclass(frozen=True, slots=True, kw_only=True)
class StockChange:
    """What happened to one store."""

    sentence: str
    """One of the sentences above."""
    store: str
    sacks: int
    other: str | None = None
    """The store that it is compared with."""

    @property
    def text(self) -> str:
        """As a page says it."""
        return self.sentence.format(store=self.store, sacks=self.sacks, other=self.other)

    def stock(self, known: Mapping[str, int]) -> int | None:
        """Sacks that the store then holds; `None` where what it builds on is not known.

        Args:
            known: sacks before, by store.
        """
        if self.sentence == COUNTED:
            return self.sacks
        before = known.get(self.other or self.store)
        if before is None:
            return None
        return before - self.sacks if self.sentence in (SOLD, BELOW) else before + self.sacks


def change_in(text: str) -> StockChange | None:
    """The fact that stands first in a text; `None` where there is none."""
    found = [(match.start(), sentence, match) for sentence, match in _matches(text)]
    if not found:
        return None
    _, sentence, match = min(found, key=lambda each: each[0])
    parts = match.groupdict()
    return StockChange(
        sentence=sentence, store=parts["store"], sacks=int(parts["sacks"]), other=parts.get("other")
    )


def _matches(text: str) -> list[tuple[str, re.Match[str]]]:
    found = [(sentence, pattern.search(text)) for sentence, pattern in _PATTERNS.items()]
    return [(sentence, match) for sentence, match in found if match is not None]


def _pattern(sentence: str) -> re.Pattern[str]:
    pattern = re.escape(sentence).replace(r"\{sacks\}", r"(?P<sacks>\d{1,6})")
    for name in ("store", "other"):
        pattern = pattern.replace(rf"\{{{name}\}}", rf"(?P<{name}>[a-z]+)")
    return re.compile(pattern)


_PATTERNS: Mapping[str, re.Pattern[str]] = MappingProxyType(
    {sentence: _pattern(sentence) for sentence in _SENTENCES}
)
