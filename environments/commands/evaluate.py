"""`turnwise evaluate`: the evaluation items several times each, then statistics."""

import asyncio

import click

from environments.commands.env_command import EnvCall, EnvCommand


@click.command("evaluate", cls=EnvCommand)
@click.option(
    "--out", metavar="DIR", help="Folder for metrics.json and samples.jsonl; --env.data_dir_to_save_evals."
)
def command(call: EnvCall, out: str | None) -> int:
    """Run the evaluation items --env.eval_rollouts times each; report mean score and pass@k.

    ENV is a shipped name (see `turnwise list`), path/to/file.py:Class or package.module:Class.
    """
    env = call.open(
        defaults={"data_dir_to_save_evals": f"data/{call.env_cls.name}_eval"},
        flags={"data_dir_to_save_evals": out},
    )
    return asyncio.run(env.evaluate())
