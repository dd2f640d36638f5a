"""`turnwise list`: the environments that are shipped, and those of installed packages, one line each."""

from collections import Counter

import click

from environments.run.loading import SHIPPED, InstalledEnvironment, installed_environments
from tools.plain_text import one_line


@click.command("list")
def command() -> None:
    """Name the environments: those that are shipped, and those that installed packages register.

    Nothing of a package is run for it. Where one gives the name of a shipped one, the shipped one has it.
    """
    installed = installed_environments()
    names = [one_line(each.name) for each in installed]
    width = max(map(len, [*SHIPPED, *names]))
    for name, description in SHIPPED.items():
        click.echo(f"{name:<{width}}  {description}")
    times = Counter(each.name for each in installed)
    for name, each in zip(names, installed, strict=True):
        click.echo(f"{name:<{width}}  {_line(each, times[each.name])}")


def _line(environment: InstalledEnvironment, packages: int) -> str:
    """What it is, whose it is, and why its name does not find it, where it does not."""
    of = f"[{one_line(environment.package)}]"
    target = one_line(environment.target)
    if environment.name in SHIPPED:
        return f"{of} hidden by the shipped one of that name; give {target}"
    if packages > 1:
        return f"{of} one of {packages} packages that have this name; give {target}"
    return f"{one_line(environment.summary)} {of}".strip()
