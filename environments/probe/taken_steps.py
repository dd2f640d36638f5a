"""What a trainer gives back after its step, in any of the forms that trainers have, as one gradient."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from environments.probe.canary_model import HEAD, NAMES, CanaryModel
from environments.probe.tensor_files import (
    Weights,
    load_torch_file,
    named_tensors,
    read_tensors,
    reading,
    tensor_values,
)
from environments.trainers.canary import VOCABULARY as CANARY_IDS
from tools.errors import ConfigError

_OPTIMIZER_FILES = ("optimizer.pt", "optimizer.bin")
"""Beside the weights, as transformers and accelerate save them."""
_SAME_MODEL = 0.5
"""Cosine from which a head is the canary model's."""
_FLOAT32_ROUNDING = 2.0**-24
"""Of a number, as a share of it."""
_SEEN = 0.01
_ONE_SIZE = 0.02
_NO_MOMENT = (
    f"the optimizer's state has no first moment (exp_avg) of {HEAD}; give back the model after a step of "
    f"plain SGD, or the gradient"
)
_SIGNS_ALONE = (
    "every weight moved by {size:.3g} times the learning rate: a step of Adam or its like, which leaves the "
    "signs alone. The gradient is in the optimizer's first moment: return the optimizer, or read the "
    "checkpoint that has optimizer.pt. Or save the gradient of lm_head.weight as .npy and read it with "
    "--gradient, or take the step with plain SGD"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenStep:
    """The direction a trainer goes in."""

    head: Weights
    """Of `HEAD`, by the learning rate: uphill."""
    source: str
    """What it was read from."""
    whole_norm: float | None = None
    """Of the whole model's step; `None`: the head alone is known."""
    rounding: float = 0.0
    """The norm of what the type of the weights rounds off the head's."""


def taken_step(stepped: object, before: CanaryModel, lr: float, *, is_gradient: bool) -> TakenStep:
    """Read a step.

    Args:
        stepped: a checkpoint's path, a model, a state dict, an optimizer after the step, or the head alone.
        before: the model as it was.
        lr: the learning rate of the step.
        is_gradient: whether it holds the gradient of the loss in the place of weights.

    Raises:
        ConfigError: it has no head of the canary model, or only the signs of a step.
    """
    if stepped is None:
        raise ConfigError(
            "the step gave nothing; return the model, its state dict, the optimizer or a checkpoint's path"
        )
    state = None if is_gradient else _optimizer_state(stepped)
    if state is not None:
        return _first_moment(state, before)
    tensors = _tensors(stepped)
    head = tensors[HEAD]
    if head.shape != before.head.shape:
        raise ConfigError(f"{HEAD} has the shape {head.shape}, that of the canary model {before.head.shape}")
    if is_gradient:
        if _is_canary_model(before, head):
            raise ConfigError("these are weights and no gradient; leave out --gradient")
        return TakenStep(head=-head, source="gradient", whole_norm=_norm_of(tensors.values(), before))
    moved = {
        name: (after - before.weights[name]) / lr
        for name, after in tensors.items()
        if after.shape == before.weights[name].shape
    }
    _refuse_signs(moved[HEAD])
    if not _is_canary_model(before, head):
        raise ConfigError(
            "these are not the weights of the canary model after a step: of another model, after a step that "
            "is too large (a smaller --lr), or the gradient, which --gradient reads"
        )
    rounding = _FLOAT32_ROUNDING * float(np.linalg.norm(before.head)) / lr
    return TakenStep(
        head=moved[HEAD],
        source="weights",
        whole_norm=_norm_of(moved.values(), before),
        rounding=rounding,
    )


def _optimizer_state(stepped: object) -> Mapping[str, Any] | None:
    """The state dict of an optimizer with moments; `None`: there is none."""
    if not isinstance(stepped, str | Path):
        held = _state_dict(stepped)
        return None if held is None else _with_moments(held)
    path = Path(stepped)
    files = [path] if path.is_file() else [path / name for name in _OPTIMIZER_FILES]
    for file in files:
        if file.is_file() and file.suffix not in {".npy", ".safetensors"}:
            with reading(file):
                return _with_moments(load_torch_file(file))
    return None


def _with_moments(held: Mapping[str, Any]) -> Mapping[str, Any] | None:
    if "state" in held and "param_groups" in held:
        entries = held["state"].values()
        return held if any("exp_avg" in entry for entry in entries) else None
    # A checkpoint of someone's own has it beside the model's.
    inner = [cast("Mapping[str, Any]", each) for each in held.values() if isinstance(each, Mapping)]
    return next(filter(None, map(_with_moments, inner)), None)


def _first_moment(state: Mapping[str, Any], before: CanaryModel) -> TakenStep:
    """After one step the mean of gradients is (1 - beta1) of the first."""
    betas = {
        index: group.get("betas", (0.9,))[0]
        for group in state["param_groups"]
        for index in cast("Sequence[Any]", group["params"])
    }
    gradients: dict[Any, Weights] = {}
    for index, entry in state["state"].items():
        steps = float(entry.get("step", 1))
        if steps != 1:
            raise ConfigError(f"the optimizer took {steps:g} steps; take one, with all canaries in it")
        moment = tensor_values(entry["exp_avg"], f"exp_avg of {index}")
        gradients[index] = moment / (1 - betas.get(index, 0.9))
    heads = [gradient for index, gradient in gradients.items() if _is_head(index, gradient, before)]
    if len(heads) != 1:
        raise ConfigError(_NO_MOMENT)
    norm = math.sqrt(sum(float((each**2).sum()) for each in gradients.values()))
    return TakenStep(head=-heads[0], source="Adam's first moment", whole_norm=norm)


def _is_head(index: Any, gradient: Weights, before: CanaryModel) -> bool:
    if isinstance(index, str):
        return HEAD in named_tensors({index: np.zeros(1)}, (HEAD,), "the optimizer's state")
    if gradient.shape != before.head.shape:
        return False
    # The embedding is as large, but nothing of a loss reaches its rows of ids that no canary has.
    unused = before.embedding[CANARY_IDS:]
    decay = float((gradient[CANARY_IDS:] * unused).sum() / (unused**2).sum())
    rest = gradient[CANARY_IDS:] - decay * unused
    return float(np.linalg.norm(rest)) > _SEEN * float(np.linalg.norm(gradient[CANARY_IDS:]))


def _tensors(stepped: object) -> dict[str, Weights]:
    if isinstance(stepped, str | Path):
        return read_tensors(Path(stepped), NAMES)
    held = _state_dict(stepped)
    if held is None:
        return {HEAD: tensor_values(stepped, HEAD)}
    found = named_tensors(held, NAMES, "what the step gave")
    if {"state", "param_groups"} <= held.keys():
        raise ConfigError(_NO_MOMENT)
    if HEAD not in found:
        raise ConfigError(f"no {HEAD} among what the step gave: {sorted(map(str, held))[:5]}")
    return found


def _state_dict(stepped: object) -> Mapping[str, Any] | None:
    """Of a model or an optimizer, or what is one; `None`: it is something else."""
    state_dict: Callable[[], object] | None = getattr(stepped, "state_dict", None)
    held = stepped if state_dict is None else state_dict()
    return cast("Mapping[str, Any]", held) if isinstance(held, Mapping) else None


def _norm_of(tensors: Iterable[Weights], before: CanaryModel) -> float | None:
    each = list(tensors)
    whole = len(each) == len(before.weights)
    return math.sqrt(sum(float((tensor**2).sum()) for tensor in each)) if whole else None


def _is_canary_model(before: CanaryModel, head: Weights) -> bool:
    # A step hardly moves the rows of ids that no canary has.
    old, new = before.head[CANARY_IDS:], head[CANARY_IDS:]
    size = float(np.linalg.norm(old) * np.linalg.norm(new))
    return not math.isfinite(size) or float((old * new).sum()) > _SAME_MODEL * size


def _refuse_signs(step: Weights) -> None:
    """The first step of Adam has one size wherever there is a gradient."""
    if not np.isfinite(step).all():
        return
    sizes = np.abs(step[np.abs(step) > _SEEN * np.abs(step).max()])
    if len(sizes) > step.size / 10 and sizes.std() < _ONE_SIZE * sizes.mean():
        raise ConfigError(_SIGNS_ALONE.format(size=sizes.mean()))
