"""Groups for the tests of the record."""

from dataclasses import replace

from environments.record.group_line import with_crc
from environments.testing import group_of
from environments.trajectory import CreditedGroup


def credited(group, item_id="a", epoch=0, status="ok"):
    return CreditedGroup(
        group=replace(group, item_id=item_id, epoch=epoch, env="toy", group_id=f"{item_id}-{epoch}"),
        advantages=tuple(tuple(0.5 for _ in t.turns) for t in group.trajectories),
        policy="scripted:0.6",
        estimator="turn_return",
        estimator_params={"gamma": 1.0},
        status=status,
    )


def edit(path, old, new):
    """Replace bytes of a record, each line of which has its own CRC-32 afterwards."""
    bare = b"".join(b"%s}\n" % line.rpartition(b',"crc32":')[0] for line in path.read_bytes().splitlines())
    assert old in bare
    path.write_bytes(b"".join(map(with_crc, bare.replace(old, new).splitlines(keepends=True))))


TWO = group_of([[1.0, None], [0.0]], outcomes=[2.0, None])
