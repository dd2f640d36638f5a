"""What a trainer gives back after its step, in any of the forms that trainers have, as one gradient."""

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
"""What readers raise for a file that is torn, or of another kind."""
_WRAPPERS = re.compile(
    r"\b(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module|modules_to_save\.default)\."
)
"""What torch.compile, FSDP, checkpointing and PEFT put into names."""
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
_TOO_COARSE = "{where} holds {dtype}, which rounds one step away; train and save the canary model in float32"


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenStep:
    """The direction a trainer goes in."""

    head: Weights
    """Of `HEAD`, by the learning rate: uphill."""
    source: str
    """What it was read from."""
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
    path = Path(stepped) if isinstance(stepped, str | Path) else None
    held = None if path is not None else _state_dict(stepped)
    if not is_gradient:
        moments = _saved_moments(path) if path is not None else _with_moments(held or {})
        if moments is not None:
            return TakenStep(head=-_first_moment(moments, before), source="Adam's first moment")
    if path is not None:
        head = read_head(path)
    else:
        head = _values(stepped, HEAD) if held is None else _head_in(held, "what the step gave")
    if head.shape != before.head.shape:
        raise ConfigError(f"{HEAD} has the shape {head.shape}, that of the canary model {before.head.shape}")
    if is_gradient:
        if _is_canary_model(before, head):
            raise ConfigError("these are weights and no gradient; leave out --gradient")
        return TakenStep(head=-head, source="gradient")
    moved = (head - before.head) / lr
    _refuse_signs(moved)
    if not _is_canary_model(before, head):
        raise ConfigError(
            "these are not the weights of the canary model after a step: of another model, after a step that "
            "is too large (a smaller --lr), or the gradient, which --gradient reads"
        )
    rounding = _FLOAT32_ROUNDING * float(np.linalg.norm(before.head)) / lr
    return TakenStep(head=moved, source="weights", rounding=rounding)


def read_head(path: Path) -> Weights:
    """The head of a checkpoint, a folder or a file; torch's own format needs torch.

    Raises:
        ConfigError: it is not there, or is there twice, cannot be read, or holds numbers of 16 bits.
    """
    files = [path] if path.is_file() else sorted(path.glob("*.safetensors"))
    files = files or sorted(path.glob("pytorch_model*.bin"))
    if not files:
        raise ConfigError(f"{path} has no *.safetensors and no pytorch_model*.bin")
    return _head_in({file.name: _content(file) for file in files}, path)


def _saved_moments(path: Path) -> Mapping[str, Any] | None:
    """The state of an optimizer with moments, in a file or beside the weights in a folder."""
    files = [path] if path.is_file() else [path / name for name in _OPTIMIZER_FILES]
    for file in files:
        if file.is_file() and file.suffix not in {".npy", ".safetensors"}:
            return _with_moments(_content(file))
    return None


def _with_moments(held: Mapping[str, Any]) -> Mapping[str, Any] | None:
    if "state" in held and "param_groups" in held:
        entries = held["state"].values()
        return held if any("exp_avg" in entry for entry in entries) else None
    # A checkpoint of someone's own has it beside the model's.
    inner = [cast("Mapping[str, Any]", each) for each in held.values() if isinstance(each, Mapping)]
    return next(filter(None, map(_with_moments, inner)), None)


def _first_moment(state: Mapping[str, Any], before: CanaryModel) -> Weights:
    """The gradient of the head: after one step the mean of gradients is (1 - beta1) of the first."""
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
    # The embedding is as large, but nothing of a loss reaches its rows of ids that no canary has.
    unused = before.embedding[CANARY_IDS:]
    decay = float((gradient[CANARY_IDS:] * unused).sum() / (unused**2).sum())
    rest = gradient[CANARY_IDS:] - decay * unused
    return float(np.linalg.norm(rest)) > _SEEN * float(np.linalg.norm(gradient[CANARY_IDS:]))


def _head_in(held: Mapping[str, Any], where: object) -> Weights:
    """The only head of state dicts, also of those in them, and of a model in a wrapper."""
    if {"state", "param_groups"} <= held.keys():
        raise ConfigError(_NO_MOMENT)
    heads = list(_heads_in(held, where))
    if not heads:
        raise ConfigError(f"{where} has no tensor {HEAD}; save the whole model, with adapters merged")
    if len(heads) > 1:
        raise ConfigError(f"{where} has {HEAD} twice, of two models or two steps; give one of them")
    return heads[0]


def _heads_in(held: Mapping[str, Any], where: object) -> Iterator[Weights]:
    for key, value in held.items():
        if isinstance(value, Mapping):
            yield from _heads_in(cast("Mapping[str, Any]", value), where)
        elif _is_name(str(key)):
            yield _values(value, f"{where}, {key},")


def _content(path: Path) -> Mapping[str, Any]:
    """The tensors in a file, by name.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        if path.suffix == ".npy":
            return {HEAD: np.load(path, allow_pickle=False)}
        return _safetensors_heads(path) if path.suffix == ".safetensors" else _torch_content(path)
    except _UNREADABLE as error:
        (line, *_) = str(error).splitlines() or [""]
        raise ConfigError(f"cannot read the weights in {path}: {type(error).__name__}: {line}") from error


def _safetensors_heads(path: Path) -> dict[str, Any]:
    heads: dict[str, Any] = {}
    opened: Any = safe_open(path, "numpy")  # which has no types
    with opened as file:
        for key in filter(_is_name, file.keys()):
            if (dtype := file.get_slice(key).get_dtype()) not in ("F32", "F64"):
                raise ConfigError(_TOO_COARSE.format(where=path, dtype=dtype))
            heads[key] = file.get_tensor(key)
    return heads


def _torch_content(path: Path) -> Mapping[str, Any]:
    """What `torch.save` wrote, tensors and plain values alone."""
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
    """The numbers of a torch tensor or an array, without importing torch."""
    try:
        values: Any = tensor.detach().cpu() if hasattr(tensor, "detach") else np.asarray(tensor)
        if values.dtype.itemsize < 4:
            raise ConfigError(_TOO_COARSE.format(where=where, dtype=values.dtype))
        return np.asarray(values, np.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"{where} is no tensor of numbers: {type(tensor).__name__}") from error


def _state_dict(stepped: object) -> Mapping[str, Any] | None:
    """Of a model or an optimizer, or what is one; `None`: it is something else."""
    state_dict: Callable[[], object] | None = getattr(stepped, "state_dict", None)
    held = stepped if state_dict is None else state_dict()
    return cast("Mapping[str, Any]", held) if isinstance(held, Mapping) else None


def _is_name(key: str) -> bool:
    """Whether a tensor of this name is the head, also of a model in a wrapper."""
    bare = _WRAPPERS.sub("", key)
    return bare == HEAD or bare.endswith(f".{HEAD}")


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
