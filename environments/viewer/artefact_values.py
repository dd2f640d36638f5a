"""What a page shows of the files that were kept of a rollout: each version once, with how it differs from the last."""

import difflib
from collections.abc import Iterator
from typing import TypedDict

from environments.artefacts import folder_files, utf8_path
from environments.trajectory import Artefact, Trajectory

LARGEST_SHOWN = 64 << 10
"""Bytes of a content; larger ones stay beside the record."""
_MOST_COMPARED = 1000
"""Lines of a version; the comparison may take the square of them."""
_MOST = 500
"""Versions of a rollout that are shown."""


class KeptFile(TypedDict):
    """A version of a file."""

    turn: int | None
    path: str
    digest: str | None
    bytes: int
    note: str
    """`new`, `changed`, or why there is no text."""
    text: str
    """The content, or how it differs from the version before."""


def kept_files(trajectory: Trajectory) -> list[KeptFile]:
    """The versions of all files, in the order they were taken; none of a file that stayed as it was."""
    versions: dict[str, Artefact] = {}
    shown: list[KeptFile] = []
    for each in _files(trajectory):
        before = versions.get(each.path)
        if before is None or (before.digest, before.error) != (each.digest, each.error):
            versions[each.path] = each
            note, text = _note_and_text(each, before, trajectory)
            shown.append(
                KeptFile(
                    turn=each.turn, path=each.path, digest=each.digest, bytes=each.size, note=note, text=text
                )
            )
    if len(shown) > _MOST:
        more = KeptFile(
            turn=None, path="…", digest=None, bytes=0, note=f"{len(shown) - _MOST:,} more versions", text=""
        )
        return [*shown[:_MOST], more]
    return shown


def _files(trajectory: Trajectory) -> Iterator[Artefact]:
    for each in trajectory.artefacts:
        try:
            names = folder_files(trajectory.contents[each.digest or ""]) if each.is_folder else None
        except (KeyError, ValueError):
            names = None
        if names is None:
            yield each
            continue
        for path, digest, size, _ in names:
            at = path if each.path in (".", "") else f"{each.path.rstrip('/')}/{path}"
            yield Artefact(turn=each.turn, path=utf8_path(at), digest=digest, size=size)


def _note_and_text(each: Artefact, before: Artefact | None, trajectory: Trajectory) -> tuple[str, str]:
    if each.error is not None:
        return f"could not be read: {each.error}", ""
    if each.digest is None:
        return "left out: --env.artefacts_mb", ""
    if each.size > LARGEST_SHOWN:
        return "too large to be shown", ""
    data = trajectory.contents.get(each.digest)
    if data is None:
        return "missing beside the record", ""
    if (text := _text(data)) is None:
        return "no text", ""
    old = None if before is None else _text(trajectory.contents.get(before.digest or "", b"\0"))
    if old is None:
        return "new" if before is None else "changed", text
    one, two = old.splitlines(), text.splitlines()
    if max(len(one), len(two)) > _MOST_COMPARED:
        return "changed, shown as a whole", text
    return "changed", "\n".join(difflib.unified_diff(one, two, "before", "after", lineterm=""))


def _text(data: bytes) -> str | None:
    try:
        return None if b"\0" in data else data.decode()
    except UnicodeDecodeError:
        return None
