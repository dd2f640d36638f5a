"""`turnwise credit`: lists estimators, reports which one suits a record, or recomputes its credit."""

import json
from collections import Counter, defaultdict
from collections.abc import Container, Iterator, Sequence
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
    credit_change,
    describe,
)
from environments.credit.crediting import ANY_GROUP, comparable
from environments.record.diagnosis import Cause, cause_of, diagnosis_by
from environments.record.group_line import decode_group
from environments.record.recorder import (
    Record,
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
from environments.trajectory import CreditedGroup
from tools.errors import CreditError, UsageError
from turnwise.cli.credit_options import CreditOptions, credit_options
from turnwise.cli.env_command import OVERRIDES, EnvCall, EnvCommand
from turnwise.cli.main import interrupt_on_sigterm
from turnwise.lab.credit_report.arms import DEFAULT_ARMS, Arm, all_arms
from turnwise.lab.credit_report.report import COLUMNS, CreditReport, credit_report

SHOWN_TURNS = 12
_FIRST = "turn_return"


class CreditCommand(EnvCommand):
    def invoke(self, ctx: click.Context) -> Any:
        options, settings = dict(ctx.params), ctx.meta[OVERRIDES]
        if options["rewards"] or self.is_help(ctx):
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
@click.option("--all", "all_arms", is_flag=True, help="Of the report: every γ, baseline and estimator.")
@click.option("--arm", "arms", multiple=True, metavar="NAME", help="Of the report: this estimator, too.")
@click.option("--json", "as_json", is_flag=True, help="Of the report: one line of JSON.")
def command(
    call: EnvCall | None,
    records: Sequence[Path],
    credit: CreditOptions | None,
    rewards: bool,
    **given: Any,
) -> None:
    """Report which estimator suits RECORD, or several; with --estimator, compute its advantages anew.

    The report compares γ = 0.7, 0.5 and 0 of turn_return and the scalar rloo with γ = 1: the noise of each
    one's gradient, whether it points the same way, and the groups it needs, with intervals. Without --model
    the gradients are a proxy's, made of the record's tokens.

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
    of_report = [name for name in ("model", "all_arms", "arms", "as_json") if given[name]]
    if of_report and not (records and is_report):
        flag = of_report[0].removeprefix("as_").removesuffix("_arms").removesuffix("s")
        raise UsageError(f"--{flag} is of the report on a RECORD, without --estimator or --rewards")
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
            others = tuple(Arm(estimator=describe(name).name) for name in given["arms"])
            arms = all_arms() if given["all_arms"] else (*DEFAULT_ARMS, *others)
            report = credit_report(groups_of(records_at(records)), given["model"], dict.fromkeys(arms))
        if given["as_json"]:
            click.echo(json.dumps({name: value for name, value in report.items() if name != "table"}))
        else:
            _show_credit(report)
    else:
        _recredit(records, credit, out)


def _show_credit(report: CreditReport) -> None:
    console = Console(highlight=False)
    table = Table(box=None, pad_edge=False)
    for title in COLUMNS:
        table.add_column(title)
    for texts in report["table"]:
        table.add_row(*texts)
    with console.capture() as shown:  # rich exits if the reader is gone
        console.print(table)
        for name, reason in report["left_out"].items():
            console.print(Text(f"left out: {name}: {reason}"), soft_wrap=True)
        console.print(Text(f"{report['groups']:,} groups; {report['gradients']}"), soft_wrap=True)
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
    settings = call.settings({"seed": read_seed(contents)})  # over that of the command line
    env = call.env_of(settings.env, [*settings.servers, *settings.second])
    run_whole(rescore(env, record, contents, out, Console(highlight=False)))


def _recredit(records: Sequence[Path], credit: CreditOptions, out: Path | None) -> None:
    record, done = records_at(records), CreditTotals()
    writing = nullcontext() if out is None else new_record(out, doing="credit")
    with interrupt_on_sigterm(), writing as recorder:
        if recorder is not None:
            recorder.explain(read_contents(record).origins)
        for path, number, old, new in _recompute(record, credit, done):
            if new.status == "failed" != old.status:
                raise CreditError(f"{path}, line {number}: {new.reason or ''}")
            new = _choose_group(old, new, done)
            if recorder is not None:
                recorder.append(with_contents(new, path))
    with robust_console():
        before = " and ".join(sorted(done.before))
        _report(Console(highlight=False), credit_change(done.pairs), before=before, after=credit.estimator)
        if done.steps:
            weights = "no weights are named" if done.steps == [None] else "by the weights of the first turn"
            click.echo(f"groups of a step are compared; steps: {len(done.steps)}, {weights}")
        for count, what in (
            (done.rescued, "groups that had no credit have some now"),
            (done.failed, "failed groups stay as they are"),
            (done.stale, "stale groups stay without credit"),
        ):
            if count:
                click.echo(f"{count} {what}")
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
        new = old if new.status == "failed" else new
    elif new.group.stale is not None:
        done.stale += 1
    else:
        left = {trajectory.sibling for trajectory in new.group.trajectories}
        done.before.add(old.estimator)
        done.pairs.append((_of_acts(old, left), _of_acts(new, left)))
    if not new.group.is_evaluation:
        done.causes[cause_of(new)] += 1
        done.rescued += new.status == "ok" != old.status
    return new


def _of_acts(credited: CreditedGroup, siblings: Container[int]) -> Advantages:
    """Return these siblings' advantages of turns that act; those of summaries follow from them."""
    return [
        [value for value, turn in zip(row, trajectory.turns, strict=True) if turn.kind == "act"]
        for trajectory, row in zip(credited.group.trajectories, credited.advantages, strict=True)
        if trajectory.sibling in siblings
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
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("parameter", "default", "possible", "meaning"):
        table.add_column(Text(title, style="underline"), overflow="fold")
    for each in spec.parameters:
        is_word = isinstance(each.default, bool) or each.default is None
        default = str(each.default).lower() if is_word else str(each.default)
        table.add_row(each.name, default, each.possible, Text(each.description))
    if spec.parameters:
        console.print(Padding(table, (0, 0, 0, 2)))
    console.print()
