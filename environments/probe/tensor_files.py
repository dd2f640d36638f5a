"""Weights in files: safetensors with numpy alone, and what else trainers save as far as it can be read."""

import json
import pickle
import re
import struct
from collections.abc import Collection, Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from tools.errors import ConfigError

Tensor = NDArray[np.float32]
Weights = NDArray[np.float64]

_DTYPES = {"F32": "<f4", "F64": "<f8"}
_UNREADABLE = (
    *(OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, RuntimeError),
    *(struct.error, pickle.UnpicklingError),
)
"""What readers raise for a file that is torn, or of another kind."""
_MAX_HEADER_BYTES = 100_000_000
"""The bound of safetensors itself."""
_INDEX = "model.safetensors.index.json"
_WRAPPERS = re.compile(
    r"\b(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module|modules_to_save\.default)\."
)
"""What torch.compile, FSDP, checkpointing and PEFT put into names."""


def write_safetensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write float32 tensors by name."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.nbytes
        header[name] = {"dtype": "F32", "shape": tensor.shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    data = b"".join(np.ascontiguousarray(tensor, "<f4").tobytes() for tensor in tensors.values())
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def read_tensors(path: Path, names: Collection[str]) -> dict[str, Weights]:
    """Those of `names` that a checkpoint has, a folder or a file; the first of them has to be there.

    A name may stand in a model that wraps it. A `.npy` is the first of `names`. Torch's own format needs
    torch.

    Raises:
        ConfigError: it is not there, or is there twice, cannot be read, or holds numbers of 16 bits.
    """
    found: dict[str, Weights] = {}
    with reading(path):
        for file in _files(path):
            for name, tensor in _in_file(file, names):
                if name in found:
                    raise ConfigError(f"{path} has {name} twice, of two models or two steps; save one")
                found[name] = tensor
    (head, *_) = names
    if head not in found:
        raise ConfigError(f"{path} has no tensor {head}; save the whole model, with adapters merged")
    return found


def named_tensors(tensors: Mapping[str, Any], names: Collection[str], where: object) -> dict[str, Weights]:
    """Those of `names` that a state dict has, also one of a model that wraps it.

    Raises:
        ConfigError: one is there twice, or has 16 bits, or is no tensor.
    """
    found: dict[str, Weights] = {}
    for key, tensor in _flat(tensors):
        name = _name_of(key, names)
        if name in found:
            raise ConfigError(f"{where} has {name} twice, of two models; give one of them")
        if name is not None:
            found[name] = tensor_values(tensor, f"{where}, {key},")
    return found


def load_torch_file(path: Path) -> Mapping[str, Any]:
    """What `torch.save` wrote, tensors and plain values alone.

    Raises:
        ConfigError: torch is not installed.
    """
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


def tensor_values(tensor: Any, where: object) -> Weights:
    """The numbers of a torch tensor or an array, without importing torch.

    Raises:
        ConfigError: they have 16 bits, or are no numbers.
    """
    try:
        values: Any = tensor.detach().cpu() if hasattr(tensor, "detach") else np.asarray(tensor)
        if values.dtype.itemsize < 4:
            raise ConfigError(_too_coarse(where, values.dtype))
        return np.asarray(values, np.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"{where} is no tensor of numbers: {type(tensor).__name__}") from error


@contextmanager
def reading(path: Path) -> Generator[None]:
    """Around what reads a file: whatever is wrong with it is one line.

    Raises:
        ConfigError: in the place of what readers raise.
    """
    try:
        yield
    except _UNREADABLE as error:
        (line, *_) = str(error).splitlines() or [""]
        raise ConfigError(f"cannot read the weights in {path}: {type(error).__name__}: {line}") from error


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if (path / _INDEX).is_file():
        index: Mapping[str, Mapping[str, str]] = json.loads((path / _INDEX).read_text())
        return [path / name for name in sorted({*index["weight_map"].values()})]
    for pattern in ("*.safetensors", "pytorch_model*.bin"):
        files = sorted(path.glob(pattern))
        if files:
            return files
    raise ConfigError(f"{path} has no *.safetensors and no pytorch_model*.bin")


def _in_file(path: Path, names: Collection[str]) -> Iterator[tuple[str, Weights]]:
    if path.suffix == ".npy":
        (first, *_) = names
        yield first, tensor_values(np.load(path, allow_pickle=False), path)
    elif path.suffix == ".safetensors":
        yield from _in_safetensors(path, names)
    else:
        yield from named_tensors(load_torch_file(path), names, path).items()


def _in_safetensors(path: Path, names: Collection[str]) -> Iterator[tuple[str, Weights]]:
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        if length > _MAX_HEADER_BYTES:
            raise ValueError("no safetensors file")
        header: dict[str, Any] = json.loads(file.read(length))
        for key, entry in header.items():
            name = _name_of(key, names)
            if name is None:
                continue
            start, end = entry["data_offsets"]
            if entry["dtype"] not in _DTYPES:
                raise ConfigError(_too_coarse(path, entry["dtype"]))
            file.seek(8 + length + start)
            numbers = np.frombuffer(file.read(end - start), _DTYPES[entry["dtype"]])
            yield name, numbers.reshape(entry["shape"]).astype(np.float64)


def _flat(tensors: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """With the state dicts inside a checkpoint, whatever their keys are."""
    for key, value in tensors.items():
        if isinstance(value, Mapping):
            yield from _flat(cast("Mapping[str, Any]", value), f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def _name_of(key: str, names: Collection[str]) -> str | None:
    bare = _WRAPPERS.sub("", key)
    return next((name for name in names if bare == name or bare.endswith(f".{name}")), None)


def _too_coarse(where: object, dtype: object) -> str:
    return f"{where} holds {dtype}, which rounds one step away; train and save the canary model in float32"
