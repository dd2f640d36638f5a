"""Weights & Biases, when it is asked for: a few numbers per group."""

import logging
import re
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager

from environments.config import AgentEnvConfig
from environments.extras import needs_extra
from environments.inference.endpoint import without_credentials
from environments.record.aggregates import aggregates, flat
from environments.record.summary import Summary
from environments.trajectory import CreditedGroup
from tools.errors import ConfigError

logger = logging.getLogger(__name__)

MAX_NAMES = 100
"""A chart each; environments name their metrics as they like."""

Track = Callable[[CreditedGroup], None]


def untracked(_: CreditedGroup) -> None:
    """Nobody asked."""


@contextmanager
def tracked(config: AgentEnvConfig, env: str) -> Generator[Track]:
    """A run that `Track` adds groups to; where it goes is wandb's own configuration (WANDB_MODE, login).

    Raises:
        ConfigError: wandb is not installed, or cannot start, for want of a key or of a connection.
    """
    if not config.use_wandb:
        yield untracked
        return
    with needs_extra("wandb", "--env.use_wandb"):
        import wandb  # noqa: PLC0415
    settings = {
        name: without_credentials(value) if isinstance(value, str) else value
        for name, value in config.model_dump(mode="json").items()
    }
    try:
        with _shown_arguments():
            run = wandb.init(project="turnwise", name=config.wandb_name or env, config=settings)
    except wandb.Error as error:
        raise ConfigError(f"--env.use_wandb: {error}") from error
    known: set[str] = set()
    try:
        yield lambda credited: _tolerated(lambda: run.log(few_names(group_numbers(credited), known)))
    finally:
        _tolerated(run.finish)


def _tolerated(report: Callable[[], object]) -> None:
    """A run goes on without those who only watch it."""
    try:
        report()
    except Exception as error:  # noqa: BLE001  # whatever a client of a web service raises
        logger.warning("Weights & Biases: %s: %s", type(error).__name__, error)


@contextmanager
def _shown_arguments() -> Generator[None]:
    """The command line as it can be shown, where wandb keeps a copy of it."""
    arguments = sys.argv
    after_key = [False, *(each.endswith("api_key") for each in arguments)]
    sys.argv = [
        "***" if secret else re.sub("(api_key=).*", r"\1***", without_credentials(each))
        for secret, each in zip(after_key, arguments, strict=False)
    ]
    try:
        yield
    finally:
        sys.argv = arguments


def few_names(numbers: Mapping[str, float], known: set[str]) -> dict[str, float]:
    """The numbers under the first `MAX_NAMES` names that ever came; `known` grows by those that are new."""
    for name in numbers:
        if len(known) < MAX_NAMES:
            known.add(name)
    return {name: value for name, value in numbers.items() if name in known}


def group_numbers(credited: CreditedGroup) -> dict[str, float]:
    """What a group came to; a mean over no trajectories is left out, never 0."""
    summary = Summary()
    summary.add(credited)
    return flat(aggregates(summary), "group")
