"""`turnwise evaluate`: the evaluation items several times each, then statistics."""

import tempfile
from pathlib import Path

import click
from rich.console import Console

from environments.cli.env_command import EnvCall, EnvCommand
from environments.run.evaluation_run import evaluate
from environments.run.whole_run import run_whole
from tools.errors import ConfigError


@click.command("evaluate", cls=EnvCommand)
@click.option(
    "--out", metavar="DIR", help="Folder for metrics.json and samples.jsonl; --env.data_dir_to_save_evals."
)
def command(call: EnvCall, out: str | None) -> int:
    """Run the evaluation items --env.eval_rollouts times each; report mean score and pass@k.

    ENV is a name of `turnwise list`, a folder of `turnwise new`, path/to/file.py:Class or
    package.module:Class.
    """
    env = call.open(
        defaults={"data_dir_to_save_evals": f"data/{call.env_cls.name}_eval"},
        flags={"data_dir_to_save_evals": out},
    )
    folder = Path(str(env.config.data_dir_to_save_evals))
    _check_writable(folder)
    code = run_whole(evaluate(env, Console()))
    if code == 0:
        click.echo(folder / "metrics.json")
    return code


def _check_writable(folder: Path) -> None:
    """Fail before the rollouts rather than after them."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ConfigError(f"cannot write into {folder}: {error.strerror or error}") from None
