"""Strict tar archives: plain files and folders only."""

from __future__ import annotations

from collections.abc import Callable, Iterator

END = bytes(1024)
MAX_MEMBERS = 10_000
MAX_DEPTH = 100
_BLOCK = 512
_CHUNK_BYTES = 1 << 18
_MAX_NAME_BYTES, _MAX_PATH_BYTES = 255, 4095
_MAX_HEADER_BYTES = 1 << 16
_MAX_HEADERS = 4
"""Most headers before one member: a global one and its own, in POSIX and GNU format."""
_SHORT_NAME = 100
_FILES, _FOLDER = (b"0", b"\0"), b"5"
_LINKS = (b"1", b"2")
_POSIX, _GLOBAL, _LONG_NAME, _LONG_LINK = b"x", b"g", b"L", b"K"
_REFUSED = {
    b"1": "a hard link", b"2": "a symbolic link", b"3": "a device", b"4": "a device", b"6": "a FIFO",
    b"7": "a file of an unusual kind", b"S": "a sparse file", b"M": "a part of a file",
}  # fmt: skip


class TarError(Exception):
    def __init__(self, member: bytes, reason: str) -> None:
        super().__init__(member, reason)
        self.member = member
        self.reason = reason


class Member:
    """A file or folder; its clean relative path is `b""` for the root."""

    __slots__ = ("folder", "mode", "name")

    def __init__(self, name: bytes, mode: int, folder: bool) -> None:
        self.name = name
        self.mode = mode
        self.folder = folder


class Reader:
    """Iterates over an archive; read each member's content before the next member."""

    def __init__(self, read: Callable[[int], bytes], *, leaves_out_links: bool = False) -> None:
        """Create a reader; links are refused, or replaced by the root so that they still count."""
        self._read = read
        self._leaves_out_links = leaves_out_links
        self.left = self._padding = 0
        self._name = b""

    def __iter__(self) -> Iterator[Member]:
        files: set[bytes] = set()
        for count, member in enumerate(iter(self._next, None)):
            if count == MAX_MEMBERS:
                raise TarError(member.name, f"more than {MAX_MEMBERS} members")
            if not member.folder:
                if member.name in files:
                    raise TarError(member.name, "it is there twice")
                files.add(member.name)
            yield member

    def content(self) -> Iterator[bytes]:
        while self.left:
            data = self._read(min(self.left, _CHUNK_BYTES))
            if not data:
                raise TarError(self._name, "the archive ends in it")
            self.left -= len(data)
            yield data

    def _next(self) -> Member | None:
        for _ in self.content():
            pass
        self._exactly(self._padding)
        self._padding = 0
        extended: dict[bytes, bytes] = {}
        for _ in range(_MAX_HEADERS):
            block = self._exactly(_BLOCK)
            if block == END[:_BLOCK]:
                return None
            # The field itself counts as spaces.
            if sum(block) - sum(block[148:156]) + 8 * 32 != _number(block, 148, 8, "its checksum"):
                raise TarError(
                    _short_name(block), "a wrong checksum: this is not a tar archive, or a compressed one"
                )
            self._name = _short_name(block)
            kind, size = block[156:157], _number(block, 124, 12, "its size")
            if kind not in (_POSIX, _GLOBAL, _LONG_NAME, _LONG_LINK):
                return self._member(block, kind, size, extended)
            if size > _MAX_HEADER_BYTES:
                raise TarError(self._name, f"a header of {size} bytes")
            data = self._exactly(size)
            self._exactly(-size % _BLOCK)
            if kind != _LONG_LINK:
                extended.update(_extension(kind, data, self._name))
        raise TarError(self._name, "too many headers")

    def _member(self, block: bytes, kind: bytes, size: int, extended: dict[bytes, bytes]) -> Member:
        raw = extended.get(b"path") or _short_name(block)
        if self._leaves_out_links and kind in _LINKS and not size:
            return Member(b"", 0, folder=True)
        if kind not in _FILES and kind != _FOLDER:
            raise TarError(raw, f"{_REFUSED.get(kind, 'a member of unknown kind')}, not a plain file")
        if b"size" in extended:
            size = _decimal(extended[b"size"], raw)
        # Old archives mark folders only by name.
        folder = kind == _FOLDER or raw.endswith(b"/")
        name = clean(raw)
        if folder and size:
            raise TarError(raw, "a folder with content")
        if not folder and not name:
            raise TarError(raw, "a file without a name")
        self._name, self.left, self._padding = raw, size, -size % _BLOCK
        return Member(name, _number(block, 100, 8, "its mode") & 0o777, folder)

    def _exactly(self, count: int) -> bytes:
        parts: list[bytes] = []
        while count:
            data = self._read(count)
            if not data:
                raise TarError(self._name, "the archive ends too early, or is none")
            parts.append(data)
            count -= len(data)
        return b"".join(parts)


def header(name: bytes, mode: int, size: int, folder: bool = False) -> bytes:
    """Return a member's header; `padding` must follow the content."""
    name = clean(name) + (b"/" if folder else b"")
    long = b""
    if len(name) > _SHORT_NAME:
        long = _header(b"././@LongLink", 0, len(name) + 1, _LONG_NAME) + name + b"\0" + padding(len(name) + 1)
    return long + _header(name[:_SHORT_NAME], mode, size, _FOLDER if folder else _FILES[0])


def padding(size: int) -> bytes:
    return bytes(-size % _BLOCK)


def clean(raw: bytes) -> bytes:
    parts = [part for part in raw.split(b"/") if part not in (b"", b".")]
    if raw.startswith(b"/"):
        raise TarError(raw, "an absolute path")
    if b".." in parts:
        raise TarError(raw, "a path with `..`")
    if b"\0" in raw:
        raise TarError(raw, "a NUL byte in its path")
    if (
        len(raw) > _MAX_PATH_BYTES
        or len(parts) > MAX_DEPTH
        or max(map(len, parts), default=0) > _MAX_NAME_BYTES
    ):
        raise TarError(raw[:_SHORT_NAME], "its path is too long")
    return b"/".join(parts)


def _header(name: bytes, mode: int, size: int, kind: bytes) -> bytes:
    block = b"%s%07o\0%07o\0%07o\0%011o\0%011o\0%s%s%sustar  \0%s" % (
        name.ljust(_SHORT_NAME, b"\0"), mode, 0, 0, size, 0, b" " * 8, kind, bytes(100), bytes(247)
    )  # fmt: skip
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]


def _number(block: bytes, at: int, length: int, what: str) -> int:
    text = block[at : at + length].strip(b" \0")
    if not text.isdigit() or b"8" in text or b"9" in text:
        raise TarError(_short_name(block), f"{what} is not a number, or a huge one")
    return int(text, 8)


def _decimal(text: bytes, member: bytes) -> int:
    if not text.isdigit() or len(text) > 15:
        raise TarError(member, "its size is not a number, or a huge one")
    return int(text)


def _short_name(block: bytes) -> bytes:
    name = block[:_SHORT_NAME].partition(b"\0")[0]
    # Only the POSIX format has a prefix there.
    prefix = block[345:500].partition(b"\0")[0] if block[257:263] == b"ustar\0" else b""
    return prefix + b"/" + name if prefix else name


def _extension(kind: bytes, data: bytes, member: bytes) -> dict[bytes, bytes]:
    if kind == _LONG_NAME:
        return {b"path": data.rstrip(b"\0")}
    found: dict[bytes, bytes] = {}
    while data:
        length, _, rest = data.partition(b" ")
        end = _decimal(length, member) if len(length) < 8 else 0
        key, equals, value = data[len(length) + 1 : end].partition(b"=")
        if end <= len(length) or end > len(data) or not equals or not value.endswith(b"\n") or not rest:
            raise TarError(member, "a broken header")
        if key.startswith(b"GNU.sparse.") or (kind == _GLOBAL and key in (b"path", b"size")):
            raise TarError(member, f"a header with {key[:40].decode('utf-8', 'replace')}")
        if key in (b"path", b"size"):
            found[key] = value[:-1]
        data = data[end:]
    return found
