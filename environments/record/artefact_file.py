"""Contents of artefacts beside their record: a ZIP file a group, in which each is named by its digest."""

import io
import re
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from environments.artefacts import FolderFile, folder_files, sha256
from environments.record.private_file import write_private
from environments.record.run_folder import RECORD
from environments.trajectory import CreditedGroup, Trajectory, TrajectoryGroup
from tools.errors import RecordError

LARGEST = 1 << 30
"""Bytes of one content, as of all those of a rollout."""
_GROUP_ID = re.compile(r"[\w-]{1,100}")
_TIME = (1980, 1, 1, 0, 0, 0)
"""Equal contents give equal files."""
_UNREADABLE = (
    OSError,
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    RuntimeError,
    NotImplementedError,
    ValueError,
)


def artefacts_of(record: Path) -> Path:
    """The folder of a record's artefacts: `artefacts` in a run's, `FILE.artefacts` beside a plain file."""
    return record.with_name("artefacts" if record.name == RECORD else f"{record.name}.artefacts")


def packed_artefacts(group: TrajectoryGroup) -> bytes | None:
    """The file of a group; `None`: nothing of it is kept."""
    contents = {digest: data for each in group.trajectories for digest, data in each.contents.items()}
    if not contents:
        return None
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as packed:
        for digest, data in contents.items():
            packed.writestr(zipfile.ZipInfo(digest, _TIME), data, zipfile.ZIP_DEFLATED)
    return file.getvalue()


def write_artefacts(folder: Path, group_id: str, packed: bytes, *, on_disk: bool) -> None:
    """Writes the file of a group.

    Raises RecordError if it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise RecordError(f"cannot write {folder}: {error.strerror}") from error
    write_private(folder / f"{group_id}.zip", packed, on_disk=on_disk)


def with_contents(credited: CreditedGroup, record: Path, *, max_bytes: int = LARGEST) -> CreditedGroup:
    """The group of a record with the contents of its artefacts, each of at most `max_bytes`.

    One that is not there, or is not what the record names, is left out.
    """
    group = credited.group
    if not any(each.artefacts for each in group.trajectories) or not _GROUP_ID.fullmatch(group.group_id):
        return credited
    try:
        with zipfile.ZipFile(artefacts_of(record) / f"{group.group_id}.zip") as packed:
            known: dict[str, bytes] = {}
            trajectories = [
                replace(each, contents=dict(_contents(each, packed, known, max_bytes)))
                for each in group.trajectories
            ]
    except _UNREADABLE:
        return credited
    return replace(credited, group=replace(group, trajectories=tuple(trajectories)))


def _contents(
    trajectory: Trajectory, packed: zipfile.ZipFile, known: dict[str, bytes], max_bytes: int
) -> Iterator[tuple[str, bytes]]:
    for each in trajectory.artefacts:
        if (
            each.digest is None
            or (data := _content(packed, each.digest, each.size, known, max_bytes)) is None
        ):
            continue
        yield each.digest, data
        for _, digest, size, _ in _files(data) if each.is_folder else ():
            if (data := _content(packed, digest, size, known, max_bytes)) is not None:
                yield digest, data


def _files(names: bytes) -> list[FolderFile]:
    try:
        return folder_files(names)
    except ValueError:
        return []


def _content(
    packed: zipfile.ZipFile, digest: str, size: int, known: dict[str, bytes], max_bytes: int
) -> bytes | None:
    if digest not in known and size <= max_bytes:
        try:
            member = packed.getinfo(digest)
            data = packed.read(member) if member.file_size == size else b""
        except (KeyError, *_UNREADABLE):
            return None
        if sha256(data) != digest:
            return None
        known[digest] = data
    return known.get(digest)
