"""The body of an HTTP answer, read as it comes and bounded after decoding: whatever a server sends."""

import asyncio
import zlib
from collections.abc import AsyncIterable, Iterator

ACCEPTED_ENCODINGS = "gzip, deflate"
_GZIP_OR_ZLIB = 47
_RAW_DEFLATE = -15
_MOST_MEMBERS = 100
_PIECE_BYTES = 1 << 20


class BodyError(Exception):
    """A body that is too long, or not what its headers say."""


class BrokenOffError(BodyError):
    """A body that ends too early, as when a server is stopped."""


async def read_body(
    chunks: AsyncIterable[bytes], encoding: str | None, *, max_bytes: int, cut: bool = False
) -> bytes:
    """The decoded body.

    Args:
        chunks: as they came over the wire.
        encoding: the header `Content-Encoding`.
        max_bytes: the longest that is read, before and after decoding.
        cut: give the beginning of a longer one, or of one that breaks off.

    Raises:
        BodyError: longer, or malformed.
    """
    decode = _decoder(encoding)
    read, received = bytearray(), 0
    async for chunk in chunks:
        received += len(chunk)
        for piece in decode.pieces(chunk):
            read += piece
            if max(len(read), received) > max_bytes:
                if cut:
                    return bytes(read[:max_bytes])
                raise BodyError(f"the answer is longer than {max_bytes} bytes")
            if len(piece) == _PIECE_BYTES:  # a little that becomes a lot keeps nobody else waiting
                await asyncio.sleep(0)
    if not (cut or decode.complete):
        raise BrokenOffError("the answer breaks off")
    return bytes(read)


class _Plain:
    complete = True

    def pieces(self, chunk: bytes) -> Iterator[bytes]:
        yield chunk


class _Inflate:
    """Decodes gzip, zlib and bare deflate, the members of a gzip body one after the other."""

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(_GZIP_OR_ZLIB)
        self._begun = False
        self._drained = True
        """Whether all that was taken in has come out."""
        self._members = 1

    @property
    def complete(self) -> bool:
        return self._stream.eof or not self._begun

    def pieces(self, chunk: bytes) -> Iterator[bytes]:
        """What a chunk decodes to, bit by bit."""
        try:
            while chunk or not self._drained:
                if self._stream.eof:
                    self._stream = zlib.decompressobj(_GZIP_OR_ZLIB)
                    self._members += 1
                    if self._members > _MOST_MEMBERS:
                        raise BodyError(f"the answer has more than {_MOST_MEMBERS} gzip members")
                elif not self._begun and chunk[0] & 15 != 8 and chunk[0] != 0x1F:
                    self._stream = zlib.decompressobj(_RAW_DEFLATE)
                self._begun = True
                piece = self._stream.decompress(chunk, _PIECE_BYTES)
                chunk = self._stream.unused_data or self._stream.unconsumed_tail
                self._drained = self._stream.eof or len(piece) < _PIECE_BYTES
                yield piece
        except zlib.error as error:
            raise BodyError(f"the answer cannot be decompressed: {error}") from error


def _decoder(encoding: str | None) -> _Plain | _Inflate:
    name = (encoding or "identity").strip().lower()
    if name == "identity":
        return _Plain()
    if name in ("gzip", "x-gzip", "deflate"):
        return _Inflate()
    raise BodyError(f"the answer has the encoding {name[:40]!r}, which was not asked for")
