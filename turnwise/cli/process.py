"""`turnwise process` and `turnwise serve`, and the options of commands that workers can roll out for."""

import re
from collections.abc import Callable, Sequence
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console

from environments.record.recorder import groups_of
from environments.record.run_folder import RunFolder, Shard
from environments.run.console_streams import robust_console
from environments.run.open_run import OpenSource, RunOptions, in_this_process, place_of
from environments.run.process_run import process
from environments.run.worker_pool import run_whole
from tools.errors import ConfigError, CreditError
from turnwise.cli.env_command import EnvCall, EnvCommand, with_setting_options

_MIN_GROUPS = 20
_MAX_GROUPS, _MAX_BYTES = 300, 16_000_000
"""Size of a record whose report takes a second."""
_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
Command = TypeVar("Command", bound=Callable[..., Any])


def worker_options(command: Command) -> Command:
    for option in (
        click.option(
            "--worker-memory", metavar="SIZE", help="Memory that one worker may have, such as 4GiB."
        ),
        click.option(
            "--worker-env", multiple=True, metavar="NAME", help="A variable that workers of --ray get."
        ),
        click.option(
            "--ray", metavar="HOST:PORT", help="Workers on this Ray cluster; auto: that of this machine."
        ),
        click.option("--workers", type=int, metavar="N", help="Roll out in N worker processes, on Ray."),
    ):
        command = option(command)
    return command


@with_setting_options
@click.command("process", cls=EnvCommand)
@click.option("--name", metavar="NAME", help="The run's folder is runs/ENV/NAME [default].")
@click.option("-o", "--out", metavar="FILE", help="A plain file instead; --env.data_path_to_save_groups.")
@click.option("--fresh", is_flag=True, help="Start over: what is there is put aside.")
@click.option("--accept", is_flag=True, help="Go on although the experiment has changed.")
@click.option("--shard", metavar="K/N", help="Only every N-th group, from K = 0 on: runs/ENV/NAME.K-of-N.")
@worker_options
def process_command(
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
    package.module:Class. The same command again resumes an unfinished run. Beside record.jsonl the run's
    folder has its settings, its source, its log and a summary; --out writes only a rollout JSONL.
    """
    part = None if shard is None else Shard.parse(shard)
    if shard is not None and part is None:
        raise ConfigError(f"--shard {shard!r:.40}: give K/N with K from 0 to N - 1, such as 0/4")
    env = call.open(flags={"data_path_to_save_groups": out})
    options = RunOptions(name=name, shard=part, fresh=fresh, accept=accept, sources=call.sources())
    code = run_whole(process(env, Console(), options=options, open_source=open_source_of(**workers)))
    place = place_of(env.config, env.name, options)
    if code == 0 and (decision := _decide_credit(place.record if isinstance(place, RunFolder) else place)):
        with robust_console():
            click.echo(decision)
    return code


@with_setting_options
@click.command("serve", cls=EnvCommand)
@click.option("--outbox", metavar="FILE", help="Where groups wait for the trainer.")
@click.option("-o", "--out", metavar="FILE", help="Also record every group; --env.data_path_to_save_groups.")
@click.option("--fresh", is_flag=True, help="Start over: posts that wait are put aside.")
@click.option("--accept", is_flag=True, help="Go on although the experiment has changed.")
@click.option("--send-all", is_flag=True, help="The last run: at the end, wait until the API has all groups.")
@worker_options
def serve_command(
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
    --env.credit_view. Stop it with SIGTERM: the next serve resumes there.
    """
    from environments.serve.serving import serve  # noqa: PLC0415  # slow

    env = call.open(flags={"data_path_to_save_groups": out})
    path = Path(outbox) if outbox else None
    options = RunOptions(outbox=path, fresh=fresh, accept=accept, send_all=send_all)
    return run_whole(serve(env, Console(), options=options, open_source=open_source_of(**workers)))


def open_source_of(
    *, workers: int | None, ray: str | None, worker_env: Sequence[str], worker_memory: str | None
) -> OpenSource:
    if workers is None and ray is None:
        if worker_env or worker_memory:
            flag = "--worker-env" if worker_env else "--worker-memory"
            raise ConfigError(f"{flag} is for workers: give --workers N, or --ray")
        return in_this_process
    from environments.run.workers.workers import OnWorkers  # noqa: PLC0415  # slow

    split = [name for each in worker_env for name in each.split(",") if name]
    on = OnWorkers(count=workers, ray=ray, variables=split, max_memory=_parse_size(worker_memory))
    # A missing Ray or cluster is told before a record is opened.
    ray_workers = import_module("environments.run.workers.ray_workers")
    if ray is not None:
        ray_workers.refuse_unreachable(ray)
    return on.open


def _decide_credit(record: Path) -> str | None:
    """Return the decision of the credit report, or its command where it takes more than a second."""
    if not record.is_file():  # a pipe
        return None
    with record.open("rb") as file:
        groups = sum(1 for _ in islice(file, _MAX_GROUPS + 1))
    if groups < _MIN_GROUPS:
        return None
    if groups > _MAX_GROUPS or record.stat().st_size > _MAX_BYTES:
        return f"which credit suits these rollouts: turnwise credit {record}"
    from turnwise.lab.credit_report.report import credit_report  # noqa: PLC0415  # slow

    try:
        report = credit_report(groups_of(record))
    except CreditError:  # no tokens are recorded
        return None
    return report["sentences"][0] if report["groups"] >= _MIN_GROUPS else None


def _parse_size(text: str | None) -> int | None:
    if text is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?) *([kmgt]?)(?:i?b)?", text.strip().lower())
    if found is None or not (size := int(float(found[1]) * _UNITS[found[2]])):
        raise ConfigError(f"--worker-memory {text!r:.40}: give a size such as 4GiB or 512MB")
    return size
