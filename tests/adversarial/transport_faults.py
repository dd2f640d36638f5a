"""Faults below the body of an answer: status lines, headers, framing, encodings, resets and slowness."""

import asyncio
import gzip
import socket
import struct
import zlib
from functools import cache

from tests.adversarial.fault_kinds import LOST, READ, RETRIED, Kinds
from tests.adversarial.hostile_server import OK, answer, gzip_bomb

MEBIBYTES = 80
"""More than a client takes in."""


def kinds():
    table = Kinds()
    _status_lines(table)
    _lengths(table)
    _chunks(table)
    _encodings(table)
    _resets(table)
    _slowness(table)
    _connections(table)
    return table.faults


def _status_lines(table):
    table.raw("100 continue, then the answer", lambda c: _interim(100) + answer(c), READ, runs=1)
    table.raw(
        "101 another protocol", b"HTTP/1.1 101 X\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n", RETRIED
    )
    table.raw("no http", b"SSH-2.0-OpenSSH_9\r\n\r\n", RETRIED)


def _interim(status):
    return f"HTTP/1.1 {status} X\r\n\r\n".encode()


def _lengths(table):
    table.raw("no length, then the end", lambda c: OK + b"Connection: close\r\n\r\n" + c, READ, runs=1)
    broken = {
        "length too large": lambda c: OK + b"Content-Length: 999999\r\n\r\n" + c,
        "length negative": lambda c: OK + b"Content-Length: -1\r\n\r\n" + c,
        "two lengths": lambda c: OK + b"Content-Length: 2\r\n" + _length(c) + c,
        "length and chunks": lambda c: OK + b"Transfer-Encoding: chunked\r\n" + _length(c) + c,
        "headers without end": lambda c: OK + b"X-A: b\r\n",
        "20,000 headers": lambda c: OK + b"".join(b"X-%d: y\r\n" % n for n in range(20_000)) + _length(c) + c,
    }
    for name, make in broken.items():
        table.raw(name, make, RETRIED)
    table.raw("length too small", lambda c: OK + b"Content-Length: 10\r\n\r\n" + c, RETRIED)


def _length(content):
    return f"Content-Length: {len(content)}\r\n\r\n".encode()


def _chunked(content, size=100):
    parts = [content[at : at + size] for at in range(0, len(content), size)]
    return b"".join(f"{len(part):x}\r\n".encode() + part + b"\r\n" for part in parts)


def _chunks(table):
    chunked = OK + b"Transfer-Encoding: chunked\r\n\r\n"
    table.raw("chunks", lambda c: chunked + _chunked(c) + b"0\r\n\r\n", READ, runs=1)
    broken = {
        "a chunk size that is none": lambda c: chunked + b"zz\r\n" + c,
        "chunks without a last one": lambda c: chunked + _chunked(c),
    }
    for name, make in broken.items():
        table.raw(name, make, RETRIED)


def _encodings(table):
    def encoded(name, encoding, make, expected, **fields):
        head = [f"Content-Encoding: {encoding}"]
        table.raw(name, lambda c: answer(make(c), headers=head), expected, **fields)

    encoded("gzip", "gzip", gzip.compress, READ, runs=1)
    encoded("bare deflate", "deflate", lambda c: zlib.compress(c, wbits=-15), READ, runs=1)
    encoded("gzip that is none", "gzip", lambda c: c, RETRIED)
    encoded(
        "cut gzip", "gzip", lambda c: gzip.compress(c)[:-20], RETRIED
    )  # its end is not looked for: what there is is not JSON
    encoded("gzip twice", "gzip, gzip", lambda c: gzip.compress(gzip.compress(c)), RETRIED)
    encoded("50,000 empty members", "gzip", lambda c: gzip.compress(b"") * 50_000, RETRIED)
    encoded("a gzip bomb", "gzip", lambda c: _bomb(gzip_bomb), LOST, heavy=True)
    table.raw("80 MB of blanks", lambda c: answer(b" " * (MEBIBYTES << 20)), LOST, heavy=True)


@cache
def _bomb(make):
    return make(MEBIBYTES)


def _resets(table):
    async def nothing(exchange):
        pass

    async def half_a_body(exchange):
        await exchange.send(answer(exchange.content)[:-30])

    async def rst_within(exchange):
        await exchange.send(answer(exchange.content)[:-30])
        _reset(exchange.writer)

    for play in (nothing, half_a_body, rst_within):
        table.add(f"hangs up: {play.__name__.replace('_', ' ')}", play, RETRIED)


def _reset(writer):
    """End a connection with RST."""
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def _slowness(table):
    async def drip(exchange):
        """Within every limit."""
        content = exchange.content
        await exchange.send(OK + _length(content))
        size = len(content) // 10 + 1
        for at in range(0, len(content), size):
            await exchange.send(content[at : at + size])
            await asyncio.sleep(0.002)
        return True

    table.add("drips within the limits", drip, READ, runs=1)

    async def stall(exchange):
        await exchange.send(answer(exchange.content)[:-30])
        await exchange.reader.read()

    async def drip_for_ever(exchange):
        await exchange.send(OK)
        while not exchange.gone:
            await exchange.send(b"X-A: b\r\n")
            await asyncio.sleep(0.02)

    table.add("stalls in a body", stall, RETRIED, stalls=True)
    table.add("drips headers for ever", drip_for_ever, RETRIED, stalls=True)


def _connections(table):
    def kept(name, make, expected=READ):
        async def play(exchange):
            await exchange.send(make(exchange.content))
            return True

        table.add(name, play, expected, runs=int(expected == READ))

    kept("garbage after the answer", lambda c: answer(c) + b"garbage\r\n\r\n", RETRIED)
    kept("an answer more than was asked for", lambda c: answer(c) + answer(b"{}"))
