"""`turnwise compare`: two runs, evaluations or records side by side."""

import click
import orjson
from rich.console import Console

from environments.record.recorder import records_at
from environments.run.evaluation import compare_sides, print_comparison, read_side


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
def command(a: str, b: str, pass_score: float | None, all_items: bool, as_json: bool, seed: int) -> int:
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
