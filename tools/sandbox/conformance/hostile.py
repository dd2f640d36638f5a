"""Archives that nobody may unpack as they are, made by the standard library rather than by our own writer."""

import io
import tarfile
from collections.abc import Mapping
from functools import cache

_CONTENT = b"escaped"


@cache
def hostile_archives() -> Mapping[str, bytes]:
    """Archives by what is wrong with them."""
    return {
        "`..`": _plain("../escaped"),
        "`..` further down": _plain("a/../../escaped"),
        "an absolute path": _plain("/tmp/escaped"),
        "an absolute path in a header": _plain("fine", path="/tmp/escaped"),
        "`..` in a header": _plain("fine", path="../escaped"),
        "a symbolic link": _archive(("escaped", tarfile.SYMTYPE, "/etc/passwd")),
        "a file behind its own link": _archive(
            ("way", tarfile.SYMTYPE, "/tmp"), ("way/escaped", tarfile.REGTYPE, "")
        ),
        "a hard link": _archive(("escaped", tarfile.LNKTYPE, "harmless")),
        "a character device": _archive(("escaped", tarfile.CHRTYPE, "")),
        "a block device": _archive(("escaped", tarfile.BLKTYPE, "")),
        "a FIFO": _archive(("escaped", tarfile.FIFOTYPE, "")),
        "a sparse file": _plain("escaped", GNU_sparse_major="1", GNU_sparse_realsize=str(1 << 40)),
        "a sparse file of the old kind": _archive(("escaped", tarfile.GNUTYPE_SPARSE, "")),
        "a huge header": _plain("escaped", comment="x" * (1 << 20)),
        "a huge name": _plain("escaped/" * 2000),
        "a huge size": _with_size(b"\x80" + b"\x7f" * 11),
        "a size beyond its end": _with_size(b"77777777777\0"),
        "a negative size": _with_size(b"-0000000001\0"),
        "a name with a NUL byte": _plain("fine", path="escaped\0"),
        "a file twice": _archive(("escaped", tarfile.REGTYPE, ""), ("./escaped", tarfile.REGTYPE, "")),
        "a file that is a folder too": _archive(
            ("escaped", tarfile.REGTYPE, ""), ("escaped/x", tarfile.REGTYPE, "")
        ),
        "too many members": _archive(
            *((f"escaped{number}", tarfile.REGTYPE, "") for number in range(10_001))
        ),
        "its end cut off": _plain("escaped")[: 512 * 3 + 3],
        "nothing in it": b"",
        "other content": b"PK\x03\x04" + bytes(2048),
    }


def _archive(*members: tuple[str, bytes, str], headers: Mapping[str, str] | None = None) -> bytes:
    """An archive with a harmless file first; each member is a name, a kind and where a link leads."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(_file("harmless"), io.BytesIO(_CONTENT))
        for name, kind, link in members:
            member = _file(name)
            member.type, member.linkname, member.pax_headers = kind, link, dict(headers or {})
            member.size = len(_CONTENT) if kind == tarfile.REGTYPE else 0
            archive.addfile(member, io.BytesIO(_CONTENT))
    return target.getvalue()


def _file(name: str) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size = len(_CONTENT)
    return member


def _with_size(text: bytes) -> bytes:
    """An archive whose second member says that it has this size."""
    archive = bytearray(_archive(("escaped", tarfile.REGTYPE, "")))
    at = 1024
    archive[at + 124 : at + 136] = text
    archive[at + 148 : at + 156] = b" " * 8
    archive[at + 148 : at + 156] = b"%06o\0 " % sum(archive[at : at + 512])
    return bytes(archive)


def _plain(name: str, **headers: str) -> bytes:
    return _archive(
        (name, tarfile.REGTYPE, ""), headers={key.replace("_", "."): headers[key] for key in headers}
    )
