"""Connections that are kept open between requests, and used again only while the server has kept silent."""

import select
from typing import TYPE_CHECKING

from aiohttp import TCPConnector

if TYPE_CHECKING:
    from aiohttp.client_reqrep import ConnectionKey
    from aiohttp.connector import Connection
    from aiohttp.tracing import Trace


class KeptConnections(TCPConnector):
    """Uses no connection again on which something came between two requests.

    What came would be taken for the answer to the next request, and each answer for that to a later one
    (https://github.com/aio-libs/aiohttp/issues/13656); proxies say 408 before they close an idle connection.
    """

    async def _get(self, key: "ConnectionKey", traces: list["Trace"]) -> "Connection | None":
        while (kept := await super()._get(key, traces)) is not None:
            if _is_silent(kept):
                return kept
            kept.close()
        return None


def _is_silent(kept: "Connection") -> bool:
    protocol, transport = kept.protocol, kept.transport
    if protocol is None or transport is None or protocol.should_close:
        return False
    readable = select.poll()
    readable.register(transport.get_extra_info("socket"), select.POLLIN)
    return not readable.poll(0)
