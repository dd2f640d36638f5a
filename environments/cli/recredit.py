"""`turnwise recredit`: compute a record's advantages anew, without a model, and say how credit moved."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from environments.cli.credit_options import CreditOptions, credit_options
from environments.cli.main import terminated_as_interrupted
from environments.credit import Advantages, CreditChange, credit_change
from environments.credit.crediting import ANY_GROUP, comparable
from environments.record.group_line import decode_group
from environments.record.recorder import Recorder, new_record, numbered_lines, read_contents
from environments.record.run_folder import record_at
from environments.run.console_streams import outlived_console
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
        done = _rewrite(record, recorder, credit)
    with outlived_console():  # the work is done, whoever reads of it
        before = " and ".join(sorted(done.before))
        _report(Console(highlight=False), credit_change(done.pairs), before=before, after=credit.estimator)
        if done.failed:
            click.echo(f"{done.failed} failed groups were copied as they are")
        if done.stale:
            click.echo(f"{done.stale} stale groups stay without credit")
        click.echo(str(out))


@dataclass(slots=True, kw_only=True)
class Recredited:
    """How credit moved."""

    pairs: list[tuple[Advantages, Advantages]] = field(default_factory=list[tuple[Advantages, Advantages]])
    """Of the acts of each group that had credit, before and after."""
    before: set[str] = field(default_factory=set[str])
    """Their estimators."""
    failed: int = 0
    stale: int = 0


def _rewrite(record: Path, recorder: Recorder, credit: CreditOptions) -> Recredited:
    """Write every group anew.

    Raises:
        RecordError: a line is malformed.
        CreditError: a group cannot be credited.
    """
    done = Recredited()
    recorder.explain(read_contents(record).origins)
    for number, line in numbered_lines(record, warn=True):
        old = decode_group(line, record, number)
        try:
            recorder.append(_recredited(old, credit, done))
        except CreditError as error:
            raise CreditError(f"{record}, line {number}: {error}") from error
    return done


def _recredited(old: CreditedGroup, credit: CreditOptions, done: Recredited) -> CreditedGroup:
    if old.status == "failed":
        # What siblings that cannot be compared missed can be settled afterwards.
        can_be_settled = comparable(old.group, ANY_GROUP)[1] is not None
        settled = credit.credited(old.group, old.policy) if can_be_settled else old
        done.failed += settled.status == "failed"
        return old if settled.status == "failed" else settled
    new = credit.credited(old.group, old.policy)
    if new.status == "failed":
        raise CreditError(new.reason or "")
    if new.group.stale is not None:
        done.stale += 1
    else:
        done.before.add(old.estimator)
        done.pairs.append((_of_the_left(old, new), _of_acts(new.group.trajectories, new.advantages)))
    return new


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
