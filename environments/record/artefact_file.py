"""Contents of artefacts beside their record: a ZIP file a group, in which each is named by its digest."""

import hashlib
import io
import zipfile
import zlib
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

from environments.trajectory import CreditedGroup, TrajectoryGroup

_LARGEST = 1 << 30
"""Bytes of one content, as of all those of a group that are read."""
_TIME = (1980, 1, 1, 0, 0, 0)
"""Equal contents give equal files."""
_UNREADABLE = (OSError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError, KeyError)


def artefacts_of(record: Path) -> Path:
    """The folder of a record's artefacts; no other folder has such a name, as `--fresh` empties it."""
    return record.with_name(f"{record.name}.artefacts")


def file_of(folder: Path, group_id: str) -> Path:
    """The file of a group, which may be called what no file can be."""
    return folder / f"{quote(group_id, safe='')}.zip"


def packed_artefacts(group: TrajectoryGroup) -> bytes | None:
    """The file of a group; `None`: nothing of it is kept."""
    named = [(each.digest or "", t.contents) for t in group.trajectories for each in t.artefacts]
    contents = {digest: contents[digest] for digest, contents in named if digest in contents}
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as packed:
        for digest, data in contents.items():
            packed.writestr(zipfile.ZipInfo(digest, _TIME), data, zipfile.ZIP_DEFLATED)
    return file.getvalue() if contents else None


def with_contents(credited: CreditedGroup, record: Path, *, max_bytes: int = _LARGEST) -> CreditedGroup:
    """The group of a record with the contents of its artefacts, each of at most `max_bytes`.

    One that is not there, or is not what the record names, is left out.
    """
    group = credited.group
    wanted = {each.digest: each.size for t in group.trajectories for each in t.artefacts if each.digest}
    path = file_of(artefacts_of(record), group.group_id)
    if not wanted or not path.is_file():  # to open a FIFO would wait for ever
        return credited
    known: dict[str, bytes] = {}
    try:
        with zipfile.ZipFile(path) as packed:
            left = _LARGEST
            for digest, size in wanted.items():
                if (data := _content(packed, digest, min(size, max_bytes, left))) is not None:
                    known[digest] = data
                    left -= len(data)
    except _UNREADABLE:
        return credited
    trajectories = [
        replace(t, contents={a.digest: known[a.digest] for a in t.artefacts if a.digest in known})
        for t in group.trajectories
    ]
    return replace(credited, group=replace(group, trajectories=tuple(trajectories)))


def _content(packed: zipfile.ZipFile, digest: str, max_bytes: int) -> bytes | None:
    try:
        member = packed.getinfo(digest)
        # As we write it; what else there is would be unpacked without a bound.
        is_ours = member.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
        data = packed.read(member) if is_ours and member.file_size <= max_bytes else b""
    except _UNREADABLE:
        return None
    return data if hashlib.sha256(data).hexdigest() == digest else None
