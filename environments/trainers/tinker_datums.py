"""Credited groups as Tinker's `Datum`s, which tinker-cookbook's `train_step` takes."""
# Tinker is not locked, so its names have no types.
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false

from typing import Any

import tinker

from environments.trainers.completion_columns import shifted_rows
from environments.trainers.settings import Exact, check_settings
from environments.trajectory import CreditedGroup


def check_config(config: Any, *, exact: Exact | None = None) -> None:
    """Check the cookbook's `Config`; raise ConfigError if a setting changes the step."""
    check_settings("tinker-cookbook", config, exact=exact)


def datums(credited: CreditedGroup) -> list[tinker.Datum]:
    """Return one datum per token row with trained tokens, with an advantage per target token.

    A group that a trainer cannot use gives none, and a warning.

    Raises:
        WireError: if a log-probability is unknown.
    """
    return [
        tinker.Datum(
            model_input=tinker.ModelInput.from_ints(row.input_ids),
            loss_fn_inputs={
                "target_tokens": tinker.TensorData(
                    data=row.target_ids, dtype="int64", shape=[len(row.target_ids)]
                ),
                "logprobs": _floats(row.logprobs),
                "advantages": _floats(row.advantages),
                "mask": _floats(row.mask),
            },
        )
        for row in shifted_rows(credited)
    ]


def _floats(values: list[float] | list[int]) -> tinker.TensorData:
    return tinker.TensorData(data=values, dtype="float32", shape=[len(values)])
