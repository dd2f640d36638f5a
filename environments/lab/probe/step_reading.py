"""What a trainer gives back after its step, in any of the forms that trainers have, as one gradient."""

import json
import math
import pickle
import re
import struct
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from environments.lab.probe.canaries import VOCABULARY as CANARY_IDS
from environments.lab.probe.canary_model import HEAD, CanaryModel, Weights
from tools.errors import ConfigError

_DTYPES = {"F32": "<f4", "F64": "<f8"}
_UNREADABLE = (
    *(OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, RuntimeError),
    *(struct.error, pickle.UnpicklingError),
)
"""What readers raise for a file that is torn, or of another kind."""
_MAX_HEADER_BYTES = 100_000_000
"""The bound of safetensors itself."""
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
    state = None if is_gradient else _optimizer_state(stepped)
    if state is not None:
        return TakenStep(head=-_first_moment(state, before), source="Adam's first moment")
    head = _head_of(stepped)
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


def _optimizer_state(stepped: object) -> Mapping[str, Any] | None:
    """The state dict of an optimizer with moments; `None`: there is none."""
    if not isinstance(stepped, str | Path):
        held = _state_dict(stepped)
        return None if held is None else _with_moments(held)
    path = Path(stepped)
    files = [path] if path.is_file() else [path / name for name in _OPTIMIZER_FILES]
    for file in files:
        if file.is_file() and file.suffix not in {".npy", ".safetensors"}:
            with _reading(file):
                return _with_moments(_load_torch_file(file))
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


def _head_of(stepped: object) -> Weights:
    if isinstance(stepped, str | Path):
        return read_head(Path(stepped))
    held = _state_dict(stepped)
    if held is None:
        return _values(stepped, HEAD)
    if {"state", "param_groups"} <= held.keys():
        raise ConfigError(_NO_MOMENT)
    heads = _heads_in(held, "what the step gave")
    if not heads:
        raise ConfigError(f"no {HEAD} among what the step gave: {sorted(map(str, held))[:5]}")
    return _only(heads, "what the step gave")


def read_head(path: Path) -> Weights:
    """The head of a checkpoint, a folder or a file; torch's own format needs torch.

    Raises:
        ConfigError: it is not there, or is there twice, cannot be read, or holds numbers of 16 bits.
    """
    files = [path] if path.is_file() else sorted(path.glob("*.safetensors"))
    files = files or sorted(path.glob("pytorch_model*.bin"))
    if not files:
        raise ConfigError(f"{path} has no *.safetensors and no pytorch_model*.bin")
    heads: list[Weights] = []
    with _reading(path):
        for file in files:
            if file.suffix == ".npy":
                heads.append(_values(np.load(file, allow_pickle=False), file))
            elif file.suffix == ".safetensors":
                heads += _heads_in_safetensors(file)
            else:
                heads += _heads_in(_load_torch_file(file), file)
    if not heads:
        raise ConfigError(f"{path} has no tensor {HEAD}; save the whole model, with adapters merged")
    return _only(heads, path)


def _only(heads: Sequence[Weights], where: object) -> Weights:
    if len(heads) > 1:
        raise ConfigError(f"{where} has {HEAD} twice, of two models or two steps; give one of them")
    return heads[0]


def _heads_in(tensors: Mapping[str, Any], where: object) -> list[Weights]:
    """Those of a state dict and of the state dicts in it, also where a model wraps the model."""
    heads: list[Weights] = []
    for key, value in tensors.items():
        if isinstance(value, Mapping):
            heads += _heads_in(cast("Mapping[str, Any]", value), where)
        elif _is_name(str(key)):
            heads.append(_values(value, f"{where}, {key},"))
    return heads


def _heads_in_safetensors(path: Path) -> list[Weights]:
    heads: list[Weights] = []
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        if length > _MAX_HEADER_BYTES:
            raise ValueError("no safetensors file")
        header: dict[str, Any] = json.loads(file.read(length))
        for key, entry in header.items():
            if not _is_name(key):
                continue
            start, end = entry["data_offsets"]
            if entry["dtype"] not in _DTYPES:
                raise ConfigError(_too_coarse(path, entry["dtype"]))
            file.seek(8 + length + start)
            numbers = np.frombuffer(file.read(end - start), _DTYPES[entry["dtype"]])
            heads.append(numbers.reshape(entry["shape"]).astype(np.float64))
    return heads


def _load_torch_file(path: Path) -> Mapping[str, Any]:
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
            raise ConfigError(_too_coarse(where, values.dtype))
        return np.asarray(values, np.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"{where} is no tensor of numbers: {type(tensor).__name__}") from error


@contextmanager
def _reading(path: Path) -> Generator[None]:
    """Around what reads a file: whatever is wrong with it is one line."""
    try:
        yield
    except _UNREADABLE as error:
        (line, *_) = str(error).splitlines() or [""]
        raise ConfigError(f"cannot read the weights in {path}: {type(error).__name__}: {line}") from error


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


def _too_coarse(where: object, dtype: object) -> str:
    return f"{where} holds {dtype}, which rounds one step away; train and save the canary model in float32"
