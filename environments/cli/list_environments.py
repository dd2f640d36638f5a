"""`turnwise list`: the shipped environments, one line each."""

import click

from environments.cli.shipped import SHIPPED


@click.command("list")
def command() -> None:
    """Name the shipped environments."""
    width = max(map(len, SHIPPED))
    for name, shipped in SHIPPED.items():
        click.echo(f"{name:<{width}}  {shipped.description}")
