"""What an evaluation does otherwise than training: its items, its sampling, and what has passed."""

from typing import Self

from pydantic import Field, model_validator

from environments.config_section import Section


class EvaluationConfig(Section):
    """Settings of `evaluate`, as an environment's config has them."""

    eval_share: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="Share of the items, chosen by their ids, that only evaluate rolls out: process and "
        "serve leave it out.",
    )
    eval_rollouts: int = Field(default=4, ge=1, le=1024, description="Rollouts per evaluation item.")
    eval_temperature: float | None = Field(
        default=None, ge=0, le=2, description="evaluate: sampling temperature; unset: as in training."
    )
    eval_top_p: float | None = Field(
        default=None, gt=0, le=1, description="evaluate: nucleus sampling; unset: as in training."
    )
    eval_max_turns: int | None = Field(
        default=None, ge=1, le=10_000, description="evaluate: model calls per rollout; unset: as in training."
    )
    eval_dataset_path: str | None = Field(
        default=None, description="evaluate: local file of items; unset: the dataset of training."
    )
    eval_dataset_name: str | None = Field(
        default=None, description="evaluate: Hugging Face hub dataset; unset: the dataset of training."
    )
    eval_dataset_split: str | None = Field(
        default=None, description="evaluate: split of the hub dataset; unset: that of training."
    )
    pass_score: float = Field(
        default=1.0,
        allow_inf_nan=False,
        description="Outcome, or score where there is none, from which a rollout counts as passed.",
    )

    @model_validator(mode="after")
    def _evaluates_one_set_of_items(self) -> Self:
        places = ("eval_share", "eval_dataset_path", "eval_dataset_name")
        given = " and ".join(f"--env.{name}" for name in places if getattr(self, name))
        if " and " in given:
            raise ValueError(f"evaluation items come from one place; give one of {given}")
        return self

    def for_evaluation(self) -> Self:
        """The settings of an evaluation: what `eval_…` says stands in the place of training's."""
        own = {name: getattr(self, f"eval_{name}") for name in ("temperature", "top_p", "max_turns")}
        own["dataset_split"] = self.eval_dataset_split
        update = {name: value for name, value in own.items() if value is not None}
        if self.eval_dataset_path is not None or self.eval_dataset_name is not None:
            update |= {"dataset_path": self.eval_dataset_path, "dataset_name": self.eval_dataset_name}
        return self.model_copy(update=update)
