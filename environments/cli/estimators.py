"""`turnwise estimators`: each advantage estimator with its formula, parameters, known bias and source."""

import click
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from environments.credit import ESTIMATORS, PRESETS, EstimatorSpec, Parameter, describe
from environments.run.loading import load

FIRST = "turn_return"
"""The default, listed first."""


@click.command(name="estimators")
@click.argument("name", required=False)
@click.option("--load", "code", metavar="FILE", help="A Python file or module that registers more of them.")
def command(name: str | None, code: str | None) -> None:
    """Show the advantage estimators, or one of them: formula, parameters, known bias, source."""
    if code is not None:
        load(code)
    console = Console(highlight=False)
    names = [name] if name else sorted(ESTIMATORS, key=lambda each: (each != FIRST, each))
    with console.capture() as shown:  # rich ends the process when nobody reads on
        for each in names:
            _show(console, describe(each))
        if not name:
            console.print(Text("r: turn reward · O: outcome · S: score · i, j: trajectories · k, l: turns"))
    click.echo(shown.get(), nl=False)


def _show(console: Console, spec: EstimatorSpec) -> None:
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
