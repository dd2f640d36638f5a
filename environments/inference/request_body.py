"""Bodies of requests, joined from JSON that is there already: a turn writes only what is new."""

from collections.abc import Iterable, Mapping
from typing import Any

import orjson


def request_body(fields: Mapping[str, Any], ready: Mapping[str, bytes]) -> bytes:
    """A JSON object.

    Args:
        fields: its values.
        ready: more of them, as JSON.
    """
    written = [orjson.dumps(dict(fields))[1:-1]] if fields else []
    return b"{%b}" % b",".join(
        [*written, *(b'"%b":%b' % (name.encode(), json) for name, json in ready.items())]
    )


def json_list(items: Iterable[bytes]) -> bytes:
    """A JSON list of what is JSON."""
    return b"[%b]" % b",".join(items)
