"""`turnwise credit`: lists estimators, reports which one suits a record, or recomputes its credit."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from environments.credit import (
    ESTIMATORS,
    PRESETS,
    Advantages,
    CreditChange,
    EstimatorSpec,
    Parameter,
    credit_change,
    describe,
)
from environments.credit.crediting import ANY_GROUP, comparable
from environments.record.diagnosis import Cause, cause_of, diagnosis_by
from environments.record.group_line import decode_group
from environments.record.recorder import (
    Record,
    Recorder,
    groups_of,
    iterate_lines,
    new_record,
    read_contents,
    records_at,
    with_contents,
)
from environments.run.console_streams import robust_console
from environments.run.rescore_run import read_seed, rescore
from environments.run.worker_pool import run_whole
from environments.trajectory import CreditedGroup, Trajectory
from tools.errors import CreditError, UsageError
from turnwise.cli.credit_options import CreditOptions, credit_options
from turnwise.cli.env_command import EnvCall, EnvCommand
from turnwise.cli.main import interrupt_on_sigterm
from turnwise.cli.settings import split_overrides
from turnwise.lab.credit_report.report import CreditReport, credit_report

SHOWN_TURNS = 12
_SETTINGS = "turnwise.credit.settings"
_FIRST = "turn_return"


class CreditCommand(EnvCommand):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_SETTINGS], _ = split_overrides(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        options, settings = dict(ctx.params), ctx.meta[_SETTINGS]
        if options["rewards"] or options["help"] or "help" in settings.of("env"):
            return super().invoke(ctx)
        given = [options.pop(name, None) for name in ("env", "config", "help")]
        if any(given) or settings.sections:
            raise UsageError("an environment and its settings are for --rewards")
        assert self.callback is not None
        return ctx.invoke(self.callback, None, **options)


@click.command("credit", cls=CreditCommand, env_is_option=True)
@click.argument("records", nargs=-1, metavar="[RECORD]...", type=click.Path(path_type=Path))
@credit_options()
@click.option("--rewards", is_flag=True, help="Compute the rewards anew, as --env ENV gives them now.")
@click.option("--write", "out", type=click.Path(path_type=Path), metavar="OUT", help="Write a new record.")
@click.option(
    "--model",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Of the report: measure the gradients of the model that sampled RECORD, a Hugging Face folder.",
)
@click.option("--json", "as_json", is_flag=True, help="Of the report: its rows as one line.")
def command(
    call: EnvCall | None,
    records: Sequence[Path],
    credit: CreditOptions | None,
    rewards: bool,
    **given: Any,
) -> None:
    """Report which estimator suits RECORD, or several; with --estimator, compute its advantages anew.

    The report has a row for each γ with each baseline of turn_return, and for every other estimator: the
    signal of its gradient over its noise (snr, per group), the groups that a step needs for a signal as large
    as the noise, and its bias. Without --model the gradients are a proxy's, made of the record's tokens.

    With --estimator, show how credit moves.

    Groups that failed are copied as they are, but for those that --missing-outcome settles; those that were
    stale (--env.max_staleness) stay without credit.

    With --rewards, compute the rewards anew as well, with the environment's own estimator. ctx.verify and
    ctx.artefact take the files that were kept beside the record; rewards that need the live rollout
    (sandbox, state) are refused.

    Without RECORD, list the estimators, or show the one of --estimator: formula, parameters, known bias,
    source.
    """
    out: Path | None = given["out"]
    is_report = credit is None and call is None
    if (given["model"] or given["as_json"]) and not (records and is_report):
        raise UsageError("--model and --json are of the report on a RECORD, without --estimator or --rewards")
    if not records:
        if rewards or out:
            raise click.UsageError("no record given", click.get_current_context())
        _list_estimators(credit)
    elif call is not None:
        _rescore(call, records, credit, out)
    elif credit is None and out is not None:
        raise UsageError("no estimator given: --estimator NAME; `turnwise credit` lists them")
    elif credit is None:
        with interrupt_on_sigterm():
            report = credit_report(groups_of(records_at(records)), given["model"])
        if given["as_json"]:
            click.echo(json.dumps({"rows": report["rows"]}))
        else:
            _show_credit(report)
    else:
        _recredit(records, credit, out)


def _show_credit(report: CreditReport) -> None:
    console = Console(highlight=False)
    table = Table(box=None, pad_edge=False)
    for title in ("estimator", "γ", "baseline", "snr", "90 %", "groups a step", "bias"):
        table.add_column(title, justify="left" if title in ("estimator", "baseline") else "right")
    for row in sorted(report["rows"], key=lambda row: -row["snr"]):
        table.add_row(
            row["estimator"],
            "" if row["gamma"] is None else f"{row['gamma']:g}",
            row["baseline"] or "",
            f"{row['snr']:.3f}",
            f"{row['snr_low']:.3f} … {row['snr_high']:.3f}",
            "-" if row["groups_per_step"] is None else f"{row['groups_per_step']:,}",
            "-" if row["bias"] is None else f"{row['bias']:.3f}",
        )
    tier = {"proxy": "a proxy made of the record's tokens", "measured": "the model's gradients"}
    with console.capture() as shown:  # rich exits if the reader is gone
        console.print(table)
        console.print(Text(f"{report['groups']:,} groups; {tier[report['rows'][0]['tier']]}"), soft_wrap=True)
        for sentence in report["sentences"]:
            console.print(Text(sentence, style="bold"), soft_wrap=True)
    click.echo(shown.get(), nl=False)


def _rescore(call: EnvCall, records: Sequence[Path], credit: CreditOptions | None, out: Path | None) -> None:
    if credit is not None:
        raise UsageError("with --rewards the estimator is a setting of the environment: --env.estimator")
    if out is None:
        raise UsageError("--rewards writes a new record: --write OUT")
    record = records_at(records)
    contents = read_contents(record)
    env = call.open(flags={"seed": read_seed(contents)})
    run_whole(rescore(env, record, contents, out, Console(highlight=False)))


def _recredit(records: Sequence[Path], credit: CreditOptions, out: Path | None) -> None:
    record = records_at(records)
    writing = nullcontext() if out is None else new_record(out, doing="credit")
    with interrupt_on_sigterm(), writing as recorder:
        done = _rewrite(record, recorder, credit)
    with robust_console():
        before = " and ".join(sorted(done.before))
        _report(Console(highlight=False), credit_change(done.pairs), before=before, after=credit.estimator)
        if done.steps:
            weights = "no weights are named" if done.steps == [None] else "by the weights of the first turn"
            click.echo(f"groups of a step are compared; steps: {len(done.steps)}, {weights}")
        if done.rescued:
            click.echo(f"{done.rescued} groups that had no credit have some now")
        if done.failed:
            click.echo(f"{done.failed} failed groups stay as they are")
        if done.stale:
            click.echo(f"{done.stale} stale groups stay without credit")
        if (found := diagnosis_by(done.causes)).is_nothing:
            click.echo(str(found))
        if out is not None:
            click.echo(str(out))


@dataclass(slots=True, kw_only=True)
class CreditTotals:
    pairs: list[tuple[Advantages, Advantages]] = field(default_factory=list[tuple[Advantages, Advantages]])
    """Advantages of the acts, before and after, of each group that had credit."""
    before: set[str] = field(default_factory=set[str])
    causes: Counter[Cause | None] = field(default_factory=Counter["Cause | None"])
    """Groups by the reason why they have no credit now; None counts those with credit."""
    rescued: int = 0
    """Groups that have credit now, and had none before."""
    failed: int = 0
    stale: int = 0
    steps: list[str | None] = field(default_factory=list["str | None"])
    """First weight version of each training step, for an estimator that compares steps."""


def _rewrite(record: Record, recorder: Recorder | None, credit: CreditOptions) -> CreditTotals:
    done = CreditTotals()
    if recorder is not None:
        recorder.explain(read_contents(record).origins)
    for path, number, old, new in _recompute(record, credit, done):
        try:
            new = _choose_group(old, new, done)
        except CreditError as error:
            raise CreditError(f"{path}, line {number}: {error}") from error
        if not new.group.is_evaluation:
            done.causes[cause_of(new)] += 1
            done.rescued += new.status == "ok" != old.status
        if recorder is not None:
            recorder.append(with_contents(new, path))
    return done


def _recompute(
    record: Record, credit: CreditOptions, done: CreditTotals
) -> Iterator[tuple[Path, int, CreditedGroup, CreditedGroup]]:
    lines = (
        (path, number, decode_group(line, path, number))
        for path, number, line in iterate_lines(record, warn=True)
    )
    if not credit.compares_steps:
        for path, number, old in lines:
            yield path, number, old, credit.credit_groups([old])[0] if _can_be_credited(old) else old
        return
    every = list(lines)
    new = [old for _, _, old in every]
    steps: defaultdict[str | None, list[int]] = defaultdict(list)
    for index, old in enumerate(new):
        if _can_be_credited(old):
            turns = (turn for trajectory in old.group.trajectories for turn in trajectory.turns)
            steps[next((turn.weight_versions[0] for turn in turns), None)].append(index)
    for indices in steps.values():
        for index, group in zip(indices, credit.credit_groups([new[i] for i in indices]), strict=True):
            new[index] = group
    done.steps = [*steps]
    yield from ((*each, group) for each, group in zip(every, new, strict=True))


def _can_be_credited(old: CreditedGroup) -> bool:
    # A missing outcome can be settled afterwards.
    return old.status != "failed" or comparable(old.group, ANY_GROUP)[1] is not None


def _choose_group(old: CreditedGroup, new: CreditedGroup, done: CreditTotals) -> CreditedGroup:
    if old.status == "failed":
        done.failed += new.status == "failed"
        return old if new.status == "failed" else new
    if new.status == "failed":
        raise CreditError(new.reason or "")
    if new.group.stale is not None:
        done.stale += 1
    else:
        done.before.add(old.estimator)
        done.pairs.append((_advantages_of_kept(old, new), _of_acts(new.group.trajectories, new.advantages)))
    return new


def _advantages_of_kept(old: CreditedGroup, new: CreditedGroup) -> Advantages:
    left = {trajectory.sibling for trajectory in new.group.trajectories}
    before = _of_acts(old.group.trajectories, old.advantages)
    return [
        row
        for trajectory, row in zip(old.group.trajectories, before, strict=True)
        if trajectory.sibling in left
    ]


def _of_acts(trajectories: Sequence[Trajectory], advantages: Sequence[Sequence[float]]) -> Advantages:
    """Select the acts: a summary's advantage follows from those of its acts."""
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


def _list_estimators(credit: CreditOptions | None) -> None:
    console = Console(highlight=False)
    names = [_FIRST, *sorted(ESTIMATORS.keys() - {_FIRST})] if credit is None else [credit.estimator]
    with console.capture() as shown:  # rich exits if the reader is gone
        for each in names:
            _show_estimator(console, describe(each))
        if credit is None:
            console.print(Text("r: turn reward · O: outcome · S: score · i, j: trajectories · k, l: turns"))
    click.echo(shown.get(), nl=False)


def _show_estimator(console: Console, spec: EstimatorSpec) -> None:
    presets = sorted(preset for preset, covered in PRESETS.items() if spec.name in covered)
    console.print(Text(spec.name, style="bold"))
    facts = Table.grid(padding=(0, 2))
    facts.add_column(no_wrap=True)
    facts.add_column(overflow="fold")
    for title, text in (
        ("", spec.summary),
        ("formula", spec.formula),
        ("bias", spec.bias),
        ("source", spec.source),
        ("presets", " · ".join(presets)),
    ):
        if text:
            facts.add_row(Text(title), Text(text))
    console.print(Padding(facts, (0, 0, 0, 2)))
    if spec.parameters:
        console.print(Padding(_parameters(spec.parameters), (0, 0, 0, 2)))
    console.print()


def _parameters(parameters: tuple[Parameter, ...]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("parameter", "default", "possible", "meaning"):
        table.add_column(Text(title, style="underline"), overflow="fold")
    for parameter in parameters:
        default = parameter.default
        shown = str(default).lower() if isinstance(default, bool) or default is None else str(default)
        table.add_row(parameter.name, shown, parameter.possible, Text(parameter.description))
    return table
