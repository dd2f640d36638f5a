"""`turnwise rescore`: compute a record's rewards anew, without rolling out."""

from pathlib import Path

import click
from rich.console import Console

from environments.cli.settings import EnvCall, EnvCommand
from environments.record.recorder import read_contents
from environments.record.run_folder import record_at
from environments.run.rescore_run import recorded_seed, rescore
from environments.run.whole_run import run_whole


@click.command("rescore", cls=EnvCommand, env_is_option=True)
@click.argument("record", type=click.Path(path_type=Path), required=False)
@click.option("--out", type=click.Path(path_type=Path), help="The new record; unset: RECORD.rescored.jsonl.")
def command(call: EnvCall, record: Path | None, out: Path | None) -> None:
    """Compute the rewards of RECORD as ENV gives them now, and write them to a new record.

    For environments whose rewards need nothing of the live rollout: no sandbox, no state, no ctx.verify.
    Prints how scores moved.
    """
    if record is None:
        raise click.UsageError("no record given", click.get_current_context())
    record = record_at(record)
    contents = read_contents(record)
    env = call.open(flags={"seed": recorded_seed(contents)})
    out = out or record.with_name(f"{record.stem}.rescored.jsonl")
    run_whole(rescore(env, record, contents, out, Console(highlight=False)))
