"""Options for credit, of the commands that compute it without rollouts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

import click

from environments.credit import (
    GroupRules,
    credited,
    credited_batch,
    describe,
    missing_outcome_of,
    read_params,
    recorded_params,
)
from environments.credit.estimator_registry import Value
from environments.run.loading import load
from environments.trajectory import CreditedGroup, MissingOutcome, TrajectoryGroup
from tools.errors import CreditError, UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditOptions:
    estimator: str
    preset: str | None
    params: Mapping[str, Value]
    missing_outcome: MissingOutcome | None

    @property
    def compares_steps(self) -> bool:
        return describe(self.estimator).over_step is not None

    @property
    def all_params(self) -> Mapping[str, object]:
        return recorded_params(self.estimator, preset=self.preset, params=self.params)

    def credit_groups(self, groups: Sequence[CreditedGroup]) -> list[CreditedGroup]:
        return credited_batch(
            groups,
            self.estimator,
            preset=self.preset,
            params=self.params,
            rules=GroupRules(missing_outcome=self.missing_outcome),
        )

    def credit_group(
        self, group: TrajectoryGroup, policy: str, *, min_trajectories: int = 0
    ) -> CreditedGroup:
        return credited(
            group,
            self.estimator,
            policy=policy,
            preset=self.preset,
            params=self.params,
            rules=GroupRules(min_trajectories=min_trajectories, missing_outcome=self.missing_outcome),
        )


def _load_code(_: click.Context, __: click.Parameter, code: str | None) -> str | None:
    if code is not None:
        load(code)
    return code


load_option = click.option(
    "--load",
    metavar="FILE",
    help="A Python file or module that registers an estimator.",
    callback=_load_code,
    expose_value=False,
    is_eager=True,
)


def credit_options(*, default: str | None = None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds the options, and passes `credit`: None without an estimator."""
    options = (
        click.option(
            "--estimator",
            default=default,
            show_default=default is not None,
            help="Advantage estimator; `turnwise credit` lists them.",
        ),
        click.option("--preset", default=None, help="Use the constants of this trainer."),
        click.option(
            "--set", "settings", multiple=True, metavar="NAME=VALUE", help="A parameter of the estimator."
        ),
        click.option("--gamma", metavar="X", help="The discount per turn: --set gamma=X."),
        click.option("--baseline", metavar="WHAT", help="The same as --set baseline=WHAT."),
        click.option(
            "--missing-outcome",
            "missing",
            metavar="WHAT",
            show_default="refuse",
            help="Outcome of a rollout without one beside others: refuse, drop or a number.",
        ),
        load_option,
    )

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def command(
            *args: Any,
            estimator: str | None,
            preset: str | None,
            settings: Sequence[str],
            missing: str | None,
            **rest: Any,
        ) -> Any:
            short = {name: rest.pop(name) for name in ("gamma", "baseline")}
            every = [*settings, *(f"{name}={text}" for name, text in short.items() if text is not None)]
            if estimator is None and (preset or every or missing):
                raise UsageError("options of an estimator need one: --estimator NAME")
            if estimator is None:
                return function(*args, credit=None, **rest)
            texts: dict[str, Value] = {}
            for setting in every:
                name, equals, text = setting.partition("=")
                if not equals:
                    raise CreditError(f"--set takes NAME=VALUE, not {setting!r}")
                texts[name] = text
            params = read_params(estimator, preset, texts)
            outcome = None if missing is None else missing_outcome_of(missing, "--missing-outcome")
            credit = CreditOptions(estimator=estimator, preset=preset, params=params, missing_outcome=outcome)
            return function(*args, credit=credit, **rest)

        given: Callable[..., Any] = command
        for option in reversed(options):
            given = option(given)
        return given

    return decorate
