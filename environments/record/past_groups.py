"""What came out of the groups of a record, for who decides what comes next."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from environments.data.run_history import PastGroup
from environments.record.entries import whole_lines
from environments.record.group_line import parse_line
from tools.errors import RecordError

_NEEDED = ("item_id", "epoch", "status", "trajectories", "failures")


def past_groups(path: Path) -> Iterator[PastGroup]:
    """The groups of a record in the order they ended; of each, only what is needed is read.

    Raises:
        RecordError: unreadable, or a line is malformed.
    """
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(whole_lines(lines), start=1):
                yield _past_group(parse_line(line, path, number).parsed(_NEEDED))
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror}") from error


def _past_group(fields: dict[str, Any]) -> PastGroup:
    rewards = [trajectory.get("rewards") for trajectory in fields["trajectories"]]
    return PastGroup(
        item_id=fields["item_id"],
        epoch=fields["epoch"],
        status=fields["status"],
        scores=tuple(None if each is None else each.get("score") for each in rewards),
        lost=len(fields["failures"]),
    )
