"""`turnwise evaluate` and `turnwise compare`: statistics of one evaluation, and of two side by side."""

from typing import Any

import click
import orjson
from rich.console import Console

from environments.record.recorder import records_at
from environments.run.evaluation import compare_sides, print_comparison, read_side
from environments.run.evaluation_run import METRICS, evaluate, evaluation_folder
from environments.run.open_run import RunOptions
from environments.run.worker_pool import run_whole
from turnwise.cli.env_command import EnvCall, EnvCommand, with_setting_options
from turnwise.cli.process import open_source_of, worker_options


@with_setting_options
@click.command("evaluate", cls=EnvCommand)
@click.option("--name", metavar="NAME", help="The folder is runs/ENV/eval-NAME [default].")
@click.option("-o", "--out", metavar="DIR", help="Another folder instead; --env.data_dir_to_save_evals.")
@click.option("--fresh", is_flag=True, help="Start over: what is there is put aside.")
@click.option("--accept", is_flag=True, help="Go on although the experiment has changed.")
@worker_options
def evaluate_command(
    call: EnvCall, name: str | None, out: str | None, fresh: bool, accept: bool, **workers: Any
) -> int:
    """Run the evaluation items --env.eval_rollouts times each; report mean score and pass@k.

    ENV is a name of `turnwise list`, a folder of `turnwise new`, path/to/file.py:Class or
    package.module:Class. The same command again resumes an unfinished evaluation. The folder has
    record.jsonl, metrics.json, samples.jsonl and the other files of a run; `turnwise compare` puts two side
    by side.
    """
    env = call.open(flags={"data_dir_to_save_evals": out})
    options = RunOptions(name=name, fresh=fresh, accept=accept, sources=call.sources())
    code = run_whole(evaluate(env, Console(), options=options, open_source=open_source_of(**workers)))
    if code == 0:
        click.echo(evaluation_folder(env.config, env.name, name).path / METRICS)
    return code


@click.command("compare")
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@click.option(
    "--pass-score",
    type=float,
    metavar="N",
    help="For a record without verdicts: the outcome, or score, from which a rollout passed.",
)
@click.option("--items", "all_items", is_flag=True, help="List every item that both sides have.")
@click.option("--json", "as_json", is_flag=True, help="Exact numbers as JSON, for programs.")
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Of the intervals' resampling [0].")
def compare_command(
    a: str, b: str, pass_score: float | None, all_items: bool, as_json: bool, seed: int
) -> int:
    """Put two runs, evaluations or records side by side.

    A and B are rollout JSONLs, folders of runs, or ENV/NAME of one below runs/, or of all its shards. Items
    are paired by id and content; differences are over the pairs, with 95 % intervals.
    """
    sides = [read_side(place, records_at(place), pass_score=pass_score) for place in (a, b)]
    numbers = compare_sides(*sides, seed=seed, all_items=all_items)
    if as_json:
        click.echo(orjson.dumps(numbers, option=orjson.OPT_INDENT_2))
    else:
        print_comparison(Console(), numbers)
    return 0
