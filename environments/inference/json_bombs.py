"""JSON that is small to send and large to hold: refused before it is parsed, which stops every thread."""

_SMALL_BYTES = 100_000
_STEP_BYTES = 4 << 20
_DENSE = 400_000
_MOST_CONTAINERS = 1_500_000
"""Lists and objects: 131,072 tokens have 650,000 with logprobs and a `top_logprobs`; texts count, too."""
_BYTES_EACH = 6
"""At least, in an answer of more than `_DENSE`: an entry of logprobs has 20, and dense code."""
_MOST_VALUES = 4_000_000


def bomb_in(content: bytes) -> str | None:
    """Why an answer is not parsed: 64 MB of empty lists take 10 s and 2 GB; `None` when it can be."""
    containers = values = 0
    most = min(_MOST_CONTAINERS, max(_DENSE, len(content) // _BYTES_EACH))
    for start in range(0, len(content), _STEP_BYTES) if len(content) > _SMALL_BYTES else ():
        end = start + _STEP_BYTES
        containers += content.count(b"[", start, end) + content.count(b"{", start, end)
        values += content.count(b",", start, end)
        if containers > most:
            return f"the answer has more than {most} lists and objects"
        if values > _MOST_VALUES:
            return f"the answer has more than {_MOST_VALUES} values"
    return None
