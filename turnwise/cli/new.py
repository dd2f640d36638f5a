"""`turnwise new`: a folder with an environment to change, its data, its test and its README."""

from pathlib import Path

import click

from environments.run.loading import SHIPPED
from turnwise.scaffold.new_environment import KINDS, make_environment


@click.command("new")
@click.argument("name")
@click.option(
    "--kind",
    type=click.Choice(list(KINDS)),
    default="turns",
    show_default=True,
    help="turns: tools, a sandbox and a reward for every turn. scalar: one reward at the end. chat: a "
    "simulated user answers. game: a world with a state. judge: a second model scores. agent: an agent "
    "that owns its loop is recorded.",
)
def command(name: str, kind: str) -> None:
    """Make a folder NAME with an environment that runs: code, data, test and README.

    NAME may be a path; its last part is the name of the package and of the environment.
    """
    folder = Path(name)
    made = make_environment(folder, kind, shipped=SHIPPED)
    click.echo(f"{folder}: {', '.join(map(str, made))}")
    click.echo(f"\nNext:\n  turnwise check {folder}\n  turnwise process {folder}")
    click.echo(f"  turnwise view {folder.name}/default\n  python -m pytest {folder}")
    click.echo(f"Then change {folder / folder.name / 'env.py'}.")
