"""Bodies of requests, joined from JSON that is there already: a turn writes only what is new."""

from collections.abc import Iterable, Mapping
from typing import Any

import orjson


def request_body(fields: Mapping[str, Any], lists: Mapping[str, Iterable[bytes]]) -> bytes:
    """A JSON object.

    Args:
        fields: its values.
        lists: more of them, each a list of what is JSON already.
    """
    # Joined once: a long conversation is as large as all the rest, and every copy of it costs.
    parts = [b"{", orjson.dumps(dict(fields))[1:-1]]
    for name, items in lists.items():
        parts += (b"," if parts[1] else b"", b'"%b":[' % name.encode(), b",".join(items), b"]")
    return b"".join((*parts, b"}"))
