"""`turnwise serve`: groups to a trainer behind the Atropos trajectory API."""

from pathlib import Path
from typing import Any

import click
from rich.console import Console

from environments.run.open_run import RunOptions
from environments.run.worker_pool import run_whole
from environments.serve.serving import serve
from turnwise.cli.env_command import EnvCall, EnvCommand, gamma_option
from turnwise.cli.worker_options import source_of, worker_options


@click.command("serve", cls=EnvCommand)
@click.option("--outbox", metavar="FILE", help="Where groups wait for the trainer.")
@click.option("--out", metavar="FILE", help="Also record every group; --env.data_path_to_save_groups.")
@click.option("--fresh", is_flag=True, help="Start over: posts that wait are put aside.")
@click.option("--accept", is_flag=True, help="Go on although the experiment has changed.")
@click.option("--send-all", is_flag=True, help="The last run: at the end, wait until the API has all groups.")
@gamma_option
@worker_options
def command(
    call: EnvCall,
    outbox: str | None,
    out: str | None,
    fresh: bool,
    accept: bool,
    send_all: bool,
    **workers: Any,
) -> int:
    """Roll out an environment's items for as long as a trainer takes groups.

    ENV is a name of `turnwise list`, a folder of `turnwise new`, path/to/file.py:Class or
    package.module:Class. The trajectory API is --env.rollout_server_url; what the trainer reads decides
    --env.credit_view. Stop it with SIGTERM: the next serve goes on where this one stopped.
    """
    env = call.open(flags={"data_path_to_save_groups": out})
    path = Path(outbox) if outbox else None
    options = RunOptions(outbox=path, fresh=fresh, accept=accept, send_all=send_all)
    return run_whole(serve(env, Console(), options=options, open_source=source_of(**workers)))
