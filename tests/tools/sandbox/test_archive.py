"""Archives on the host: what is written is read by others, what is read is refused unless it is harmless."""

import io
import os
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tables import cases
from tools.sandbox.archive import ArchivedFile, check, pack, unpack
from tools.sandbox.conformance.file_safety import hostile_archives

NAMES = st.lists(
    st.binary(min_size=1, max_size=60).filter(
        lambda name: not {0, 47} & set(name) and name not in (b".", b"..")
    ),
    min_size=1,
    max_size=4,
).map(lambda parts: os.fsdecode(b"/".join(parts)))
FILES = st.dictionaries(
    NAMES, st.builds(ArchivedFile, data=st.binary(max_size=1100), mode=st.sampled_from([0o644, 0o755, 0o444]))
)


def is_a_tree(files):
    return not any(path.startswith(f"{other}/") for path in files for other in files)


def by_tarfile(form, members):
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=form) as archive:
        for path, data in members.items():
            info = tarfile.TarInfo(path)
            info.size, info.mtime, info.uname = len(data), 1.5, "someone"
            archive.addfile(info, io.BytesIO(data))
    return target.getvalue()


@given(FILES.filter(is_a_tree))
def test_what_is_packed_comes_out_unchanged(files):
    assert unpack(bytes(pack(files))) == files


@given(FILES.filter(is_a_tree))
def test_what_is_packed_is_read_by_the_standard_library(files):
    with tarfile.open(fileobj=io.BytesIO(pack(files))) as archive:
        found = {info.name: archive.extractfile(info).read() for info in archive if info.isfile()}
    assert found == {path: file.data for path, file in files.items()}


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_what_the_standard_library_packs_is_read(form):
    members = {"a": b"", "b/c": b"x" * 512, f"{'d' * 90}/{'e' * 90}": b"y" * 513}
    if form != tarfile.USTAR_FORMAT:
        members |= {f"{'f' * 200}/{'g' * 200}": b"z", "ü/日本": b"n"}
    assert {path: file.data for path, file in unpack(by_tarfile(form, members)).items()} == members


@cases("archive", hostile_archives().values(), ids=hostile_archives())
def test_an_archive_that_nobody_may_unpack_is_refused(archive):
    with pytest.raises(OSError, match="not taken from an archive"):
        check(archive)


@cases("path", ["../a", "/a", "a/../b", "a\0", "", "x" * 256, "a/" * 101 + "b"])
def test_a_path_that_leads_elsewhere_is_not_packed(path):
    with pytest.raises(OSError, match="not taken from an archive"):
        pack({path: ArchivedFile(data=b"")})


def test_a_file_below_a_file_is_not_packed():
    with pytest.raises(OSError, match="'a' is a file: 'a/b/c'"):
        pack({"a/b/c": ArchivedFile(data=b""), "a": ArchivedFile(data=b"")})


def test_more_files_than_are_read_are_not_packed():
    files = {str(number): ArchivedFile(data=b"") for number in range(10_001)}
    assert len(unpack(bytes(pack(dict(list(files.items())[:-1]))))) == 10_000
    with pytest.raises(OSError, match="more than 10000 members: '10000'"):
        pack(files)


@pytest.mark.parametrize(
    "known",
    [
        pack({"a/./b": ArchivedFile(data=b"1", mode=0o4755)}),
        check(by_tarfile(tarfile.GNU_FORMAT, {"a/b": b"1"})),
    ],
)
def test_an_archive_is_read_once(known):
    assert check(known) is known
    assert unpack(known) == unpack(bytes(known))


@given(st.data())
def test_a_broken_archive_is_refused_or_harmless(data):
    members = {"a/b": b"x" * 700, "c" * 120: b"y", "ü": b""}
    archive = bytearray(
        by_tarfile(data.draw(st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])), members)
    )
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(archive) - 1))
        archive[at] = data.draw(st.integers(0, 255))
        # Most changes would only be found by the checksum: let them pass it.
        block = at - at % 512
        archive[block + 148 : block + 156] = b" " * 8
        archive[block + 148 : block + 156] = b"%06o\0 " % sum(archive[block : block + 512])
    try:
        files = unpack(bytes(archive))
    except OSError:
        return
    for path in files:
        assert not path.startswith("/")
        assert not {"", ".", ".."} & set(path.split("/"))
        assert "\0" not in path
