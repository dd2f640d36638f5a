"""Reads a trainer's step as one gradient, from a checkpoint, a model, a state dict or an optimizer."""

import math
import pickle
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from safetensors import SafetensorError, safe_open

from tools.errors import ConfigError
from turnwise.lab.probe.canaries import VOCABULARY as CANARY_IDS
from turnwise.lab.probe.canary_model import HEAD, CanaryModel, Weights

_UNREADABLE = (
    *(OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, RuntimeError),
    *(SafetensorError, pickle.UnpicklingError),
)
_WRAPPERS = re.compile(
    r"\b(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module|modules_to_save\.default)\."
)
_OPTIMIZER_FILES = ("optimizer.pt", "optimizer.bin")
"""Names that transformers and accelerate use, beside the weights."""
_SAME_MODEL = 0.5
_FLOAT32_ROUNDING = 2.0**-24
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
_TOO_COARSE = "{where} holds {dtype}, which rounds one step away; train and save the canary model in float32"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerStep:
    head: Weights
    """The change of `HEAD`, divided by the learning rate."""
    source: str
    rounding: float = 0.0
    """Norm of the rounding error in `head`."""


def read_step(stepped: object, before: CanaryModel, lr: float, *, is_gradient: bool) -> TrainerStep:
    """Read a step from a checkpoint's path, a model, a state dict, an optimizer, or the head alone.

    With `is_gradient`, `stepped` has the gradient of the loss instead of weights.

    Raises:
        ConfigError: if there is no head of the canary model, or only the signs of a step.
    """
    if stepped is None:
        raise ConfigError(
            "the step gave nothing; return the model, its state dict, the optimizer or a checkpoint's path"
        )
    path = Path(stepped) if isinstance(stepped, str | Path) else None
    # The state dict of a model or an optimizer; any other value stands for the head.
    state_dict: Callable[[], object] | None = getattr(stepped, "state_dict", None)
    found = stepped if state_dict is None else state_dict()
    content = cast("Mapping[str, Any]", found) if isinstance(found, Mapping) else {HEAD: stepped}
    if not is_gradient:
        moments = _find_moments(content if path is None else _read_optimizer(path))
        if moments is not None:
            return TrainerStep(head=-_first_moment(moments, before), source="Adam's first moment")
    head = _head_in(content, "what the step gave") if path is None else read_head(path)
    if head.shape != before.head.shape:
        raise ConfigError(f"{HEAD} has the shape {head.shape}, that of the canary model {before.head.shape}")
    if is_gradient:
        if _is_canary_model(before, head):
            raise ConfigError("these are weights and no gradient; leave out --gradient")
        return TrainerStep(head=-head, source="gradient")
    moved = (head - before.head) / lr
    _refuse_signs(moved)
    if not _is_canary_model(before, head):
        raise ConfigError(
            "these are not the weights of the canary model after a step: of another model, after a step that "
            "is too large (a smaller --lr), or the gradient, which --gradient reads"
        )
    rounding = _FLOAT32_ROUNDING * float(np.linalg.norm(before.head)) / lr
    return TrainerStep(head=moved, source="weights", rounding=rounding)


def read_head(path: Path) -> Weights:
    """Read the head from a checkpoint, a folder or a file; torch's own format needs torch."""
    files = [path] if path.is_file() else sorted(path.glob("*.safetensors"))
    files = files or sorted(path.glob("pytorch_model*.bin"))
    if not files:
        raise ConfigError(f"{path} has no *.safetensors and no pytorch_model*.bin")
    return _head_in({file.name: _read_file(file) for file in files}, path)


def _read_optimizer(path: Path) -> Mapping[str, Any]:
    files = [path] if path.is_file() else [path / name for name in _OPTIMIZER_FILES]
    files = [each for each in files if each.is_file() and each.suffix not in {".npy", ".safetensors"}]
    return _read_file(files[0]) if files else {}


def _find_moments(content: Mapping[str, Any]) -> Mapping[str, Any] | None:
    if "state" in content and "param_groups" in content:
        return content if any("exp_avg" in entry for entry in content["state"].values()) else None
    inner = [cast("Mapping[str, Any]", each) for each in content.values() if isinstance(each, Mapping)]
    return next(filter(None, map(_find_moments, inner)), None)


def _first_moment(state: Mapping[str, Any], before: CanaryModel) -> Weights:
    """Return the gradient of the head: after one step, the first moment is (1 - beta1) times it."""
    beta1 = {
        index: group.get("betas", (0.9,))[0]
        for group in state["param_groups"]
        for index in cast("Sequence[Any]", group["params"])
    }
    heads: list[Weights] = []
    for index, entry in state["state"].items():
        steps = float(entry.get("step", 1))
        if steps != 1:
            raise ConfigError(f"the optimizer took {steps:g} steps; take one, with all canaries in it")
        gradient = _values(entry["exp_avg"], f"exp_avg of {index}") / (1 - beta1.get(index, 0.9))
        if _is_name(index) if isinstance(index, str) else _is_gradient_of_head(gradient, before):
            heads.append(gradient)
    if len(heads) != 1:
        raise ConfigError(_NO_MOMENT)
    return heads[0]


def _is_gradient_of_head(gradient: Weights, before: CanaryModel) -> bool:
    if gradient.shape != before.head.shape:
        return False
    # The embedding has the same shape, but no gradient in rows of ids that no canary has.
    unused = before.embedding[CANARY_IDS:]
    decay = float((gradient[CANARY_IDS:] * unused).sum() / (unused**2).sum())
    rest = gradient[CANARY_IDS:] - decay * unused
    return float(np.linalg.norm(rest)) > _SEEN * float(np.linalg.norm(gradient[CANARY_IDS:]))


def _head_in(content: Mapping[str, Any], where: object) -> Weights:
    if {"state", "param_groups"} <= content.keys():
        raise ConfigError(_NO_MOMENT)
    heads = list(_find_heads(content, where))
    if not heads:
        raise ConfigError(f"{where} has no tensor {HEAD}; save the whole model, with adapters merged")
    if len(heads) > 1:
        raise ConfigError(f"{where} has {HEAD} twice, of two models or two steps; give one of them")
    return heads[0]


def _find_heads(content: Mapping[str, Any], where: object) -> Iterator[Weights]:
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield from _find_heads(cast("Mapping[str, Any]", value), where)
        elif _is_name(str(key)):
            yield _values(value, f"{where}, {key},")


def _read_file(path: Path) -> Mapping[str, Any]:
    try:
        if path.suffix == ".npy":
            return {HEAD: np.load(path, allow_pickle=False)}
        if path.suffix != ".safetensors":
            return _read_torch(path)
        heads: dict[str, Any] = {}
        untyped: Any = safe_open(path, "numpy")
        with untyped as file:
            for key in filter(_is_name, file.keys()):
                if (dtype := file.get_slice(key).get_dtype()) not in ("F32", "F64"):
                    raise ConfigError(_TOO_COARSE.format(where=path, dtype=dtype))
                heads[key] = file.get_tensor(key)
        return heads
    except _UNREADABLE as error:
        (line, *_) = str(error).splitlines() or [""]
        raise ConfigError(f"cannot read the weights in {path}: {type(error).__name__}: {line}") from error


def _read_torch(path: Path) -> Mapping[str, Any]:
    try:
        import torch  # noqa: PLC0415  # slow, and of the trainer's installation  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{path} can be read with torch alone, which is not here; run this where the trainer runs, "
            f"or save safetensors"
        ) from error
    loaded = torch.load(path, map_location="cpu", weights_only=True)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    if not isinstance(loaded, Mapping):
        raise ValueError(f"a {type(loaded).__name__}, and no state dict")  # pyright: ignore[reportUnknownArgumentType]
    return cast("Mapping[str, Any]", loaded)


def _values(tensor: Any, where: object) -> Weights:
    """Return the numbers of a torch tensor or an array, without importing torch."""
    try:
        values: Any = tensor.detach().cpu() if hasattr(tensor, "detach") else np.asarray(tensor)
        if values.dtype.itemsize < 4:
            raise ConfigError(_TOO_COARSE.format(where=where, dtype=values.dtype))
        return np.asarray(values, np.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"{where} is not a tensor of numbers: {type(tensor).__name__}") from error


def _is_name(key: str) -> bool:
    bare = _WRAPPERS.sub("", key)
    return bare == HEAD or bare.endswith(f".{HEAD}")


def _is_canary_model(before: CanaryModel, head: Weights) -> bool:
    # A step barely moves the rows of ids that no canary has.
    old, new = before.head[CANARY_IDS:], head[CANARY_IDS:]
    size = float(np.linalg.norm(old) * np.linalg.norm(new))
    return not math.isfinite(size) or float((old * new).sum()) > _SAME_MODEL * size


def _refuse_signs(step: Weights) -> None:
    """Raise ConfigError for a step of Adam: all its nonzero entries have one size."""
    if not np.isfinite(step).all():
        return
    sizes = np.abs(step[np.abs(step) > _SEEN * np.abs(step).max()])
    if len(sizes) > step.size / 10 and sizes.std() < _ONE_SIZE * sizes.mean():
        raise ConfigError(_SIGNS_ALONE.format(size=sizes.mean()))
