"""Credited groups as Tinker's `Datum`s: what tinker-cookbook's `train_step` takes."""
# Tinker is in no lock, so that its types are unknown where it is not installed.
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false

from typing import Any

import tinker

from environments.trainers.completion_columns import shifted_rows
from environments.trainers.settings import Exact, check_settings
from environments.trajectory import CreditedGroup


def check_config(config: Any, *, exact: Exact | None = None) -> None:
    """Hold the cookbook's `Config` to what is known about its settings.

    Raises:
        ConfigError: a setting is refused.
    """
    check_settings("tinker-cookbook", config, exact=exact)


def datums(credited: CreditedGroup) -> list[tinker.Datum]:
    """One datum per token row in which something is trained, with an advantage per target token.

    There is none, and a warning, of a group that a trainer cannot take. The cookbook's own
    `trajectory_to_data` has the same fields, with one advantage for all of a trajectory.

    Raises:
        WireError: a log-probability is unknown.
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
