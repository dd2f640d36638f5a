"""`turnwise recredit`: compute a record's advantages anew, without a model, and say how credit moved."""

from collections.abc import Callable, Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from environments.cli.credit_options import CreditOptions, credit_options
from environments.credit import Advantages, CreditChange, credit_change
from environments.credit.comparable import ANY_GROUP, comparable
from environments.record.recorder import Recorder, new_record, read_contents, read_groups
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

    Groups that failed are copied as they are, but for those that --missing-outcome settles. Prints how
    credit moved from the recorded estimator's to the new one's.
    """
    record = record_at(record)
    with new_record(out, doing="recredit") as recorder:
        change, names, failed = _rewrite(record, recorder, lambda old: credit.credited(old.group, old.policy))
    with outlived_console():  # the work is done, whoever reads of it
        _report(Console(highlight=False), change, before=" and ".join(sorted(names)), after=credit.estimator)
        if failed:
            click.echo(f"{failed} failed groups were copied as they are")
        click.echo(str(out))


def _rewrite(
    record: Path, recorder: Recorder, anew: Callable[[CreditedGroup], CreditedGroup]
) -> tuple[CreditChange, set[str], int]:
    """Write every group anew; how credit moved, the estimators before, and how many groups had failed."""
    pairs: list[tuple[Advantages, Advantages]] = []
    names: set[str] = set()
    failed = 0
    recorder.explain(read_contents(record).origins)
    for number, old in enumerate(read_groups(record), start=1):
        try:
            new = anew(old) if old.status != "failed" or _missed_outcomes(old) else old
        except CreditError as error:
            raise CreditError(f"{record}, line {number}: {error}") from error
        if old.status == "failed":
            failed += new.status == "failed"
            recorder.append(old if new.status == "failed" else new)
            continue
        if new.status == "failed":
            raise CreditError(f"{record}, line {number}: {new.reason}")
        recorder.append(new)
        names.add(old.estimator)
        pairs.append((_of_the_left(old, new), _of_acts(new.group.trajectories, new.advantages)))
    return credit_change(pairs), names, failed


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
