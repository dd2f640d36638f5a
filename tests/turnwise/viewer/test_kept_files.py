"""Files that were kept of a rollout, as a page shows them."""

import hashlib
from dataclasses import replace

from environments.testing import group_of
from environments.trajectory import Artefact
from tests.turnwise.viewer.pages import page, recorded
from tools.plain_text import utf8_text
from tools.sandbox.archive import ArchivedFile, pack
from turnwise.viewer.page_values import LARGEST_SHOWN, collect_kept_files

GROUP = group_of([[1.0, 0.0], [0.5, 0.5]])


def kept(*taken):
    """A trajectory from which these were taken: turn, path, and a content or the files of a folder."""
    artefacts, contents = [], {}
    for turn, path, data in taken:
        is_folder = isinstance(data, dict)
        data = pack({name: ArchivedFile(data=each) for name, each in data.items()}) if is_folder else data
        digest = hashlib.sha256(data).hexdigest()
        contents[digest] = bytes(data)
        artefacts.append(Artefact(turn=turn, path=path, digest=digest, size=len(data), is_folder=is_folder))
    return replace(GROUP.trajectories[0], artefacts=tuple(artefacts), contents=contents)


def shown(trajectory):
    return [
        (each["turn"], each["path"], each["note"], each["text"])
        for each in collect_kept_files(trajectory, str)
    ]


def test_each_version_is_shown_whole():
    versions = kept((0, "a.py", b"x = 1\ny = 2\n"), (1, "a.py", b"x = 1\ny = 3\n"))
    first, second = shown(versions)
    assert first == (0, "a.py", "new", "x = 1\ny = 2\n")
    assert second == (1, "a.py", "changed", "x = 1\ny = 3\n")


def test_a_file_that_stayed_as_it_was_is_shown_once_also_in_a_folder():
    versions = kept((0, ".", {"a": b"1", "b": b"1"}), (1, ".", {"a": b"1", "b": b"2"}), (None, "a", b"1"))
    assert [each[:3] for each in shown(versions)] == [(0, "a", "new"), (0, "b", "new"), (1, "b", "changed")]


def test_what_is_no_text_and_what_is_not_there_says_so_and_shows_nothing():
    whole = kept((0, "binary", b"\0\1"), (0, "latin", b"\xe9"), (0, "large", b"x"), (0, "gone", b"g"))
    binary, latin, large, gone = whole.artefacts
    large = replace(large, size=LARGEST_SHOWN + 1)
    others = (Artefact(turn=0, path="refused", error="EACCES"), Artefact(turn=0, path="left", size=9))
    contents = {each.digest: whole.contents[each.digest] for each in (binary, latin)}
    some = replace(whole, artefacts=(binary, latin, large, gone, *others), contents=contents)
    assert shown(some) == [
        (0, "binary", "new, no text", ""),
        (0, "latin", "new, no text", ""),
        (0, "large", "too large to show", ""),
        (0, "gone", "missing beside the record", ""),
        (0, "refused", "could not be read: EACCES", ""),
        (0, "left", "left out, see --env.artefacts_mb", ""),
    ]


def test_a_folder_that_is_none_is_named_and_breaks_no_page():
    trajectory = kept((0, "pkg", b"no archive"))
    (artefact,) = trajectory.artefacts
    ((_, path, note, _),) = shown(replace(trajectory, artefacts=(replace(artefact, is_folder=True),)))
    assert (path, note.partition(":")[0]) == ("pkg", "no folder")


def test_names_of_a_folder_that_no_json_has_can_be_shown():
    ((_, path, *_),) = shown(kept((0, "odd", {"\udcff\n": b"1"})))
    assert path == utf8_text("odd/\udcff\n")


def test_files_stand_at_the_turn_that_they_were_taken_in(tmp_path):
    taken = kept((0, "a", b"1"), (1, "a", b"2"), (None, "report", b"text"))
    group = replace(GROUP, trajectories=(taken, *GROUP.trajectories[1:]))
    block = page(recorded(tmp_path / "r.jsonl", group))["g1r0p0"]
    assert [[each["note"] for each in turn["artefacts"]] for turn in block["turns"]] == [["new"], ["changed"]]
    assert [(each["path"], each["text"]) for each in block["artefacts"]] == [("report", "text")]
