"""What a page shows of the files that were kept of a rollout: each version, with what changed in it."""

import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from posixpath import normpath
from typing import TypedDict

from environments.artefacts import folder_files, utf8_path
from environments.trajectory import Artefact, Trajectory

LARGEST_SHOWN = 64 << 10
"""Bytes of a content."""
_MOST_COMPARED = 1000
"""Lines of a version: comparing may take the square of them."""
_MOST = 500
"""Versions of a rollout."""


class KeptFile(TypedDict):
    """A version of a file."""

    turn: int | None
    path: str
    digest: str | None
    bytes: int
    note: str
    """`new`, `changed`, or why there is no text."""
    text: str | Mapping[str, object]
    """The content, or its difference to the version before; a long one cut."""


def kept_files(trajectory: Trajectory, cut: Callable[[str], str | Mapping[str, object]]) -> list[KeptFile]:
    """The first versions of all files, in the order they were taken; none of a file that stayed as it was."""
    versions: dict[str, Artefact] = {}
    shown: list[KeptFile] = []
    for each in _files(trajectory):
        before = versions.get(each.path)
        if len(shown) < _MOST and (before is None or replace(before, turn=each.turn) != each):
            versions[each.path] = each
            note, text = _note_and_text(each, before, trajectory.contents)
            named = KeptFile(
                turn=each.turn, path=each.path, digest=each.digest, bytes=each.size, note=note, text=cut(text)
            )
            shown.append(named)
    return shown


def _files(trajectory: Trajectory) -> Iterator[Artefact]:
    """The artefacts, and in the place of a folder its files."""
    for each in trajectory.artefacts:
        names = trajectory.contents.get(each.digest or "") if each.is_folder else None
        if names is None:
            yield each
            continue
        for path, digest, size, _ in folder_files(names):
            yield Artefact(
                turn=each.turn, path=utf8_path(normpath(f"{each.path}/{path}")), digest=digest, size=size
            )


def _note_and_text(each: Artefact, before: Artefact | None, contents: Mapping[str, bytes]) -> tuple[str, str]:
    data = contents.get(each.digest or "")
    if data is None:
        unknown = "too large to show" if each.size > LARGEST_SHOWN else "missing beside the record"
        left_out = f"could not be read: {each.error}" if each.error else "left out, see --env.artefacts_mb"
        return unknown if each.digest else left_out, ""
    note = "new" if before is None else "changed"
    if (text := _text(data)) is None:
        return f"{note}, no text", ""
    old = None if before is None else _text(contents.get(before.digest or "", b"\0"))
    lines = [] if old is None else [old.splitlines(), text.splitlines()]
    if not lines or max(map(len, lines)) > _MOST_COMPARED:
        return note, text
    return note, "\n".join(difflib.unified_diff(*lines, "before", "after", lineterm=""))


def _text(data: bytes) -> str | None:
    try:
        return None if b"\0" in data else data.decode()
    except UnicodeDecodeError:
        return None
