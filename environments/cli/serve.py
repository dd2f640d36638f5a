"""`turnwise serve`: groups to a trainer behind the Atropos trajectory API."""

import click
from rich.console import Console

from environments.cli.settings import EnvCall, EnvCommand
from environments.run.whole_run import run_whole
from environments.serve.serving import serve


@click.command("serve", cls=EnvCommand)
@click.option("--outbox", metavar="FILE", help="Where groups wait for the trainer; --env.outbox_path.")
@click.option("--out", metavar="FILE", help="Also record every group; --env.data_path_to_save_groups.")
def command(call: EnvCall, outbox: str | None, out: str | None) -> int:
    """Roll out an environment's items for as long as a trainer takes groups.

    ENV is a name of `turnwise list`, a folder of `turnwise new`, path/to/file.py:Class or
    package.module:Class. The trajectory API is --env.rollout_server_url; what the trainer reads decides
    --env.credit_view. Stop it with SIGTERM: the next serve goes on where this one stopped.
    """
    env = call.open(flags={"outbox_path": outbox, "data_path_to_save_groups": out})
    return run_whole(serve(env, Console()))
