"""`turnwise evaluate`: the evaluation items several times each, then statistics."""

from typing import Any

import click
from rich.console import Console

from environments.run.evaluation_run import METRICS, evaluate, evaluation_folder
from environments.run.open_run import RunOptions
from environments.run.worker_pool import run_whole
from turnwise.cli.env_command import EnvCall, EnvCommand
from turnwise.cli.worker_options import source_of, worker_options


@click.command("evaluate", cls=EnvCommand)
@click.option("--name", metavar="NAME", help="The folder is runs/ENV/eval-NAME [default].")
@click.option("--out", metavar="DIR", help="Another folder instead; --env.data_dir_to_save_evals.")
@click.option("--fresh", is_flag=True, help="Start over: what is there is put aside.")
@click.option("--accept", is_flag=True, help="Go on although the experiment has changed.")
@worker_options
def command(
    call: EnvCall, name: str | None, out: str | None, fresh: bool, accept: bool, **workers: Any
) -> int:
    """Run the evaluation items --env.eval_rollouts times each; report mean score and pass@k.

    ENV is a name of `turnwise list`, a folder of `turnwise new`, path/to/file.py:Class or
    package.module:Class. The same command again goes on where the last one stopped. The folder has
    record.jsonl, metrics.json, samples.jsonl, and what the folder of a run has; `turnwise compare` puts two
    of them side by side.
    """
    env = call.open(flags={"data_dir_to_save_evals": out})
    options = RunOptions(name=name, fresh=fresh, accept=accept, sources=call.sources())
    code = run_whole(evaluate(env, Console(), options=options, open_source=source_of(**workers)))
    if code == 0:
        click.echo(evaluation_folder(env.config, env.name, name).path / METRICS)
    return code
