"""What a page shows of the files that were kept of a rollout: each version that differs from the last."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from posixpath import normpath
from typing import TypedDict

from environments.trajectory import Artefact, Trajectory
from tools.plain_text import utf8_path
from tools.sandbox.archive import ArchivedFile, unpack

LARGEST_SHOWN = 1 << 20
"""Bytes of a file or folder."""
_MOST = 500
"""Versions of a rollout."""

Text = str | Mapping[str, object]
"""As a page has it: a long one is cut."""


class KeptFile(TypedDict):
    """A version of a file."""

    turn: int | None
    path: str
    bytes: int
    note: str
    """`new`, `changed`, or why there is no text."""
    text: Text


def kept_files(trajectory: Trajectory, cut: Callable[[str], Text]) -> list[KeptFile]:
    """The first versions of all files, in the order they were taken; none of a file that stayed as it was."""
    versions: dict[str, bytes | str] = {}
    shown: list[KeptFile] = []
    for each, version in _versions(trajectory):
        before = versions.get(each.path)
        if version == before or len(shown) == _MOST:
            continue
        versions[each.path] = version
        note, text = "new" if before is None else "changed", ""
        if isinstance(version, str):
            note = version
        else:
            with suppress(UnicodeDecodeError):
                text = "" if b"\0" in version else version.decode()
            note += "" if text or not version else ", no text"
        named = KeptFile(turn=each.turn, path=each.path, bytes=each.size, note=note, text=cut(text))
        shown.append(named)
    return shown


def _versions(trajectory: Trajectory) -> Iterator[tuple[Artefact, bytes | str]]:
    """The artefacts with their content or why there is none; in the place of a folder its files."""
    for each in trajectory.artefacts:
        if each.error == "EISDIR":  # which is asked for as one, too
            continue
        data = trajectory.contents.get(each.digest or "")
        if each.error is not None:
            yield each, f"could not be read: {each.error}"
        elif data is None:
            large = "too large to show" if each.size > LARGEST_SHOWN else "missing beside the record"
            yield each, large if each.digest else "left out, see --env.artefacts_mb"
        else:
            try:
                files = unpack(data) if each.is_folder else {"": ArchivedFile(data=data)}
            except OSError as error:
                yield each, f"no folder: {error}"
                continue
            for name, file in files.items():
                path = utf8_path(normpath(f"{each.path}/{name}"))
                yield replace(each, path=path, size=len(file.data)), file.data
