"""The token ids of what was rendered last, for any thread."""

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock


class TokenCache:
    """Keeps what was used last, bounded by the tokens it holds."""

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._tokens = 0
        self._entries: OrderedDict[Hashable, tuple[int, ...]] = OrderedDict()
        self._lock = Lock()

    def __contains__(self, key: Hashable) -> bool:
        """Whether its ids are here."""
        return key in self._entries

    def get(self, key: Hashable) -> tuple[int, ...] | None:
        """The ids; from now on they are those used last."""
        with self._lock:
            ids = self._entries.get(key)
            if ids is not None:
                self._entries.move_to_end(key)
        return ids

    def put(self, key: Hashable, ids: tuple[int, ...]) -> tuple[int, ...]:
        """Keep `ids` and give them back."""
        with self._lock:
            if key not in self._entries:
                self._entries[key] = ids
                self._tokens += len(ids) + 1
            while self._tokens > self._max_tokens:
                _, dropped = self._entries.popitem(last=False)
                self._tokens -= len(dropped) + 1
        return ids
