"""`turnwise recredit`: compute a record's advantages anew, without a model, and say how credit moved."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from environments.cli.credit_options import CreditOptions, credit_options
from environments.cli.terminated import terminated_as_interrupted
from environments.cli.user_code import load
from environments.credit import Advantages, CreditChange, credit_change
from environments.credit.comparable import ANY_GROUP, comparable
from environments.record.credit_patch import with_credit
from environments.record.group_line import SCHEMA, encode_group, group_of_fields, parse_line, with_origin
from environments.record.line_fields import LineFields
from environments.record.recorder import Recorder, new_record
from environments.record.run_folder import record_at
from environments.run.console_streams import outlived_console
from environments.run.line_pass import results
from environments.trajectory import CreditedGroup, Trajectory
from tools.errors import CreditError

SHOWN_TURNS = 12


@click.command(name="recredit")
@click.argument("record", type=click.Path(path_type=Path))
@credit_options()
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The new record.")
def command(record: Path, credit: CreditOptions, out: Path) -> None:
    """Recompute the advantages of RECORD and write them to a new record.

    Groups that failed are copied as they are, but for those that --missing-outcome settles; those that were
    stale (--env.max_staleness) stay without credit. Prints how
    credit moved from the recorded estimator's to the new one's.
    """
    record = record_at(record)
    with terminated_as_interrupted(), new_record(out, doing="recredit") as recorder:
        change, names, failed, stale = _rewrite(record, recorder, Recredit(credit=credit))
    with outlived_console():  # the work is done, whoever reads of it
        _report(Console(highlight=False), change, before=" and ".join(sorted(names)), after=credit.estimator)
        if failed:
            click.echo(f"{failed} failed groups were copied as they are")
        if stale:
            click.echo(f"{stale} stale groups stay without credit")
        click.echo(str(out))


@dataclass(slots=True, kw_only=True)
class Recredited:
    """Some lines of the new record, and how credit moved in them."""

    content: bytes = b""
    groups: int = 0
    pairs: list[tuple[Advantages, Advantages]] = field(default_factory=list[tuple[Advantages, Advantages]])
    names: set[str] = field(default_factory=set[str])
    """Estimators before."""
    failed: int = 0
    stale: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Recredit:
    """Gives lines of a record the credit of an estimator, see `environments.run.line_pass`."""

    credit: CreditOptions

    def prepare(self) -> None:
        """Load the user's estimator."""
        if self.credit.code is not None:
            load(self.credit.code)

    def __call__(self, path: Path, number: int, lines: Sequence[bytes]) -> Recredited:
        """The lines anew.

        Raises:
            RecordError: a line is malformed.
            CreditError: a group cannot be credited.
        """
        done = Recredited()
        content: list[bytes] = []
        for at, line in enumerate(lines, start=number):
            try:
                content.append(self._anew(parse_line(line, path, at), done) or line.rstrip(b"\n") + b"\n")
            except CreditError as error:
                raise CreditError(f"{path}, line {at}: {error}") from error
            done.groups += 1
        done.content = b"".join(content)
        return done

    def _anew(self, fields: LineFields, done: Recredited) -> bytes | None:
        """The line of a group anew; `None`: as it is."""
        # Estimators of ours look at no token ids.
        old = group_of_fields(fields, rows=self.credit.code is not None)
        if old.status == "failed" and not _missed_outcomes(old):
            new = old
        else:
            new = self.credit.credited(old.group, old.policy)
        if old.status == "failed":
            done.failed += new.status == "failed"
            is_same = new.status == "failed" and fields.value("schema") == SCHEMA
            return None if is_same else _encoded(fields, None if new.status == "failed" else self.credit)
        if new.status == "failed":
            raise CreditError(new.reason or "")
        if new.group.stale is not None:
            done.stale += 1
            return with_credit(fields, new) or _encoded(fields, self.credit)
        done.names.add(old.estimator)
        done.pairs.append((_of_the_left(old, new), _of_acts(new.group.trajectories, new.advantages)))
        patched = with_credit(fields, new) if new.group is old.group else None
        return patched or _encoded(fields, self.credit)


def _rewrite(record: Path, recorder: Recorder, work: Recredit) -> tuple[CreditChange, set[str], int, int]:
    """Write every group anew; how credit moved, the estimators before, how many had failed or were stale."""
    pairs: list[tuple[Advantages, Advantages]] = []
    names: set[str] = set()
    failed = stale = 0
    for each in results(record, work):
        recorder.append_lines(each.content, groups=each.groups)
        pairs += each.pairs
        names |= each.names
        failed += each.failed
        stale += each.stale
    return credit_change(pairs), names, failed, stale


def _encoded(fields: LineFields, credit: CreditOptions | None) -> bytes:
    """The line of a group that is another one now, or that another version wrote."""
    old = group_of_fields(fields)
    new = old if credit is None else credit.credited(old.group, old.policy)
    origin = fields.value("origin")
    return encode_group(new) if origin is None else with_origin(encode_group(new), origin)


def _missed_outcomes(group: CreditedGroup) -> bool:
    """Whether a group failed because its siblings cannot be compared, which can be settled afterwards."""
    return comparable(group.group, ANY_GROUP)[1] is not None


def _of_the_left(old: CreditedGroup, new: CreditedGroup) -> Advantages:
    """The former advantages of the siblings that were not dropped."""
    left = {trajectory.sibling for trajectory in new.group.trajectories}
    before = _of_acts(old.group.trajectories, old.advantages)
    return [
        row
        for trajectory, row in zip(old.group.trajectories, before, strict=True)
        if trajectory.sibling in left
    ]


def _of_acts(trajectories: Sequence[Trajectory], advantages: Sequence[Sequence[float]]) -> Advantages:
    """Without those of summaries, which move as the acts do that they lead to."""
    return [
        [value for value, turn in zip(row, trajectory.turns, strict=True) if turn.kind == "act"]
        for trajectory, row in zip(trajectories, advantages, strict=True)
    ]


def _report(console: Console, change: CreditChange, *, before: str, after: str) -> None:
    rank = "undefined" if change.rank_correlation is None else f"{change.rank_correlation:.3f}"
    console.print(
        Text(
            f"{change.groups} groups, {change.turns} turns; {change.changed} changed, "
            f"{change.flipped} changed sign; rank correlation within groups {rank}"
        ),
        soft_wrap=True,
    )
    table = Table(box=None, pad_edge=False)
    for title in ("turn", "turns", f"mean {before}", f"mean {after}", "change"):
        table.add_column(title, justify="right")
    for row in change.by_turn[:SHOWN_TURNS]:
        means = (f"{row.mean_before:+.4f}", f"{row.mean_after:+.4f}", f"{row.mean_change:+.4f}")
        table.add_row(str(row.turn + 1), str(row.count), *means)
    console.print(table)
    if len(change.by_turn) > SHOWN_TURNS:
        console.print(Text(f"… and {len(change.by_turn) - SHOWN_TURNS} more turn indices"))
