"""JSON that is small to send and large to hold: refused before it is parsed, which stops every thread."""

_SMALL_BYTES = 100_000
_STEP_BYTES = 4 << 20
_MOST_CONTAINERS = 400_000
"""Lists and objects. The logprobs of 130,000 tokens have as many; to parse them takes some 0.2 s."""
_MOST_VALUES = 4_000_000


def bomb_in(content: bytes) -> str | None:
    """Why an answer is not parsed: 64 MB of empty lists take 10 s and 2 GB; `None` when it can be."""
    containers = values = 0
    for start in range(0, len(content), _STEP_BYTES) if len(content) > _SMALL_BYTES else ():
        end = start + _STEP_BYTES
        containers += content.count(b"[", start, end) + content.count(b"{", start, end)
        values += content.count(b",", start, end)
        if containers > _MOST_CONTAINERS:
            return f"the answer has more than {_MOST_CONTAINERS} lists and objects"
        if values > _MOST_VALUES:
            return f"the answer has more than {_MOST_VALUES} values"
    return None
