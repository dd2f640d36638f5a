"""`turnwise process`: items in, rollout JSONL out."""

import click
from rich.console import Console

from environments.cli.env_command import EnvCall, EnvCommand
from environments.run.process_run import process
from environments.run.whole_run import run_whole


@click.command("process", cls=EnvCommand)
@click.option("--out", metavar="FILE", help="The rollout JSONL; --env.data_path_to_save_groups.")
@click.option("--fresh", is_flag=True, help="Start the file over instead of resuming it; --env.fresh.")
def command(call: EnvCall, out: str | None, fresh: bool) -> int:
    """Roll out an environment's items into a rollout JSONL.

    ENV is a shipped name (see `turnwise list`), path/to/file.py:Class or package.module:Class. The same
    command again goes on where the last one stopped.
    """
    env = call.open(
        defaults={"data_path_to_save_groups": f"data/{call.env_cls.name}.jsonl"},
        flags={"data_path_to_save_groups": out, "fresh": fresh or None},
    )
    return run_whole(process(env, Console()))
