"""`turnwise process`: items in, rollout JSONL out."""

from typing import Any

import click
from rich.console import Console

from environments.cli.settings import EnvCall, EnvCommand
from environments.cli.worker_options import source_of, worker_options
from environments.run.open_run import RunOptions
from environments.run.process_run import process
from environments.run.whole_run import run_whole


@click.command("process", cls=EnvCommand)
@click.option("--name", metavar="NAME", help="The run's folder is runs/ENV/NAME [default].")
@click.option("--out", metavar="FILE", help="A plain file instead; --env.data_path_to_save_groups.")
@click.option("--fresh", is_flag=True, help="Start over: what is there is put aside.")
@click.option("--accept", is_flag=True, help="Go on although the experiment has changed.")
@worker_options
def command(
    call: EnvCall, name: str | None, out: str | None, fresh: bool, accept: bool, **workers: Any
) -> int:
    """Roll out an environment's items into the record of a run.

    ENV is a name of `turnwise list`, a folder of `turnwise new`, path/to/file.py:Class or
    package.module:Class. The same command again goes on where the last one stopped. Beside record.jsonl
    the run's folder has its settings, its source, its log and a summary; --out writes a rollout JSONL with
    nothing beside it.
    """
    env = call.open(flags={"data_path_to_save_groups": out})
    options = RunOptions(name=name, fresh=fresh, accept=accept, sources=call.sources())
    return run_whole(process(env, Console(), options=options, open_source=source_of(**workers)))
