"""`turnwise process`: items in, rollout JSONL out."""

from typing import Any

import click
from rich.console import Console

from environments.record.run_folder import Shard
from environments.run.open_run import RunOptions
from environments.run.process_run import process
from environments.run.worker_pool import run_whole
from tools.errors import ConfigError
from turnwise.cli.env_command import EnvCall, EnvCommand, gamma_option
from turnwise.cli.worker_options import source_of, worker_options


@click.command("process", cls=EnvCommand)
@click.option("--name", metavar="NAME", help="The run's folder is runs/ENV/NAME [default].")
@click.option("--out", metavar="FILE", help="A plain file instead; --env.data_path_to_save_groups.")
@click.option("--fresh", is_flag=True, help="Start over: what is there is put aside.")
@click.option("--accept", is_flag=True, help="Go on although the experiment has changed.")
@click.option("--shard", metavar="K/N", help="Only every N-th group, from K = 0 on: runs/ENV/NAME.K-of-N.")
@gamma_option
@worker_options
def command(
    call: EnvCall,
    name: str | None,
    out: str | None,
    fresh: bool,
    accept: bool,
    shard: str | None,
    **workers: Any,
) -> int:
    """Roll out an environment's items into the record of a run.

    ENV is a name of `turnwise list`, a folder of `turnwise new`, path/to/file.py:Class or
    package.module:Class. The same command again goes on where the last one stopped. Beside record.jsonl
    the run's folder has its settings, its source, its log and a summary; --out writes a rollout JSONL with
    nothing beside it.
    """
    part = None if shard is None else Shard.parse(shard)
    if shard is not None and part is None:
        raise ConfigError(f"--shard {shard!r:.40}: give K/N with K from 0 to N - 1, such as 0/4")
    env = call.open(flags={"data_path_to_save_groups": out})
    options = RunOptions(name=name, shard=part, fresh=fresh, accept=accept, sources=call.sources())
    return run_whole(process(env, Console(), options=options, open_source=source_of(**workers)))
