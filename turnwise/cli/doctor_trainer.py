"""`turnwise doctor trainer`: checks a trainer's step against the gradient of per-turn credit."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from environments.run.loading import load
from environments.wire.views import VIEWS, Divisor
from tools.errors import ConfigError
from turnwise.lab.probe.diagnosis import StepVerdict
from turnwise.lab.probe.trainer_probe import (
    DIVISOR,
    Probe,
    ProbeRequest,
    begin_probe,
    open_probe,
    probe_trainer,
    serve_canaries,
)

_WRONG_EXIT = 1
_FOLDER = click.Path(path_type=Path, file_okay=False)
_lr = click.option(
    "--lr",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    show_default=True,
    help="Learning rate of the step.",
)
_json = click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON.")
_gradient = click.option(
    "--gradient", "is_gradient", is_flag=True, help="What is read is the gradient of the loss, not weights."
)


@click.group("trainer")
def command() -> None:
    """Find out whether a trainer takes the policy gradient of per-turn credit.

    It takes one step on canaries, groups with known advantages, with a tiny model. The step is compared
    with the gradient of advantage times log-probability, and what differs is named: turns weighed by
    1/length, negative advantages left out, tool output trained, … A step of plain SGD is read from the
    weights, one of Adam from the optimizer's state. Exit code 0: exact, 1: wrong, 2: wrong use.
    """


@command.command()
@click.argument("folder", type=_FOLDER)
@click.option("--api", "api_url", metavar="URL", help="The trajectory API to serve the canaries at.")
@click.option("--api-token", default="", help="Bearer token for it, as --env.rollout_server_token.")
@click.option(
    "--view", type=click.Choice(list(VIEWS)), help="What the trainer reads there, as --env.credit_view."
)
@click.option(
    "--score-divisor",
    default=str(DIVISOR),
    show_default=True,
    help="Of turn_rows and prefix_rows: a number, or own_length.",
)
@_lr
def begin(folder: Path, api_url: str | None, api_token: str, score_divisor: str, **request: Any) -> None:
    """Write the canary model and the canaries into FOLDER; serve them until a trainer has fetched them."""
    if (api_url is None) != (request["view"] is None):
        raise click.UsageError("--api and --view belong together")
    divisor: Divisor = "own_length"
    if score_divisor != "own_length":
        if not score_divisor.isascii() or not score_divisor.isdigit() or int(score_divisor) == 0:
            raise ConfigError(
                f"--score-divisor is a whole number above 0, or own_length, not {score_divisor!r}"
            )
        divisor = int(score_divisor)
    probe = begin_probe(folder, ProbeRequest(divisor=divisor, **request))
    click.echo(
        f"train {probe.model} for exactly one step, learning rate {probe.lr:g}, float32, no warm-up, no "
        f"dropout; then save it: after plain SGD the weights, after Adam the optimizer's state as well"
    )
    if api_url is not None:
        asyncio.run(serve_canaries(probe, api_url, click.echo, api_token))
        click.echo("taken")
    else:
        click.echo(
            f"the canaries are a record, {folder / 'canaries.jsonl'}: `turnwise export` writes every view"
        )
    click.echo(f"when the trainer has saved: turnwise doctor trainer read {folder} CHECKPOINT")


@command.command()
@click.argument("folder", type=_FOLDER)
@click.argument("checkpoint", type=click.Path(path_type=Path, exists=True))
@_gradient
@_json
def read(folder: Path, checkpoint: Path, *, is_gradient: bool, as_json: bool) -> int:
    """Say what the step is that CHECKPOINT, a folder or a file, holds.

    It is safetensors, what torch.save wrote, or lm_head.weight as .npy. Where there is a state of Adam
    (optimizer.pt in the folder), that is read.
    """
    return _exit_code(open_probe(folder).verdict(checkpoint, is_gradient=is_gradient), as_json)


@command.command()
@click.argument("function", metavar="FILE.py:FUNCTION")
@_lr
@_gradient
@_json
def step(function: str, lr: float, *, is_gradient: bool, as_json: bool) -> int:
    """Let FUNCTION take the step: it gets a probe, and returns what holds the step.

    That is the model, its state dict, a checkpoint's path, or the optimizer where it is Adam.
    FUNCTION is path/to/file.py:name or package.module:name; see docs/trainers.md.
    """
    source, _, name = function.rpartition(":")
    if not source:
        raise ConfigError(f"{function!r} names no function; give path/to/file.py:name or package.module:name")
    found: Callable[[Probe], Any] | None = getattr(load(source), name, None)
    if not callable(found):
        raise ConfigError(f"{source} has no function {name!r}")
    return _exit_code(probe_trainer(found, lr=lr, is_gradient=is_gradient), as_json)


def _exit_code(verdict: StepVerdict, as_json: bool) -> int:
    click.echo(json.dumps(asdict(verdict)) if as_json else str(verdict))
    return 0 if verdict.exact else _WRONG_EXIT
