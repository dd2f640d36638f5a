"""Weights in files: safetensors with numpy alone, and what else trainers save as far as it can be read."""

import json
import pickle
import struct
from collections.abc import Mapping
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


def read_weights(path: Path, name: str) -> Weights:
    """The tensor of a checkpoint, a folder or a file, whose name is or ends with `name`.

    A `.npy` is the tensor itself. Torch's own format needs torch.

    Raises:
        ConfigError: there is none, it cannot be read, or it holds numbers of 16 bits.
    """
    try:
        for file in _files(path):
            found = _in_file(file, name)
            if found is not None:
                return found
    except _UNREADABLE as error:
        raise ConfigError(f"cannot read the weights in {path}: {type(error).__name__}: {error}") from error
    raise ConfigError(f"{path} has no tensor {name}; save the whole model, with adapters merged")


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    files = sorted(path.glob("*.safetensors")) or sorted(path.glob("pytorch_model*.bin"))
    if not files:
        raise ConfigError(f"{path} has no *.safetensors and no pytorch_model*.bin")
    return files


def _in_file(path: Path, name: str) -> Weights | None:
    if path.suffix == ".npy":
        return np.load(path, allow_pickle=False).astype(np.float64)
    if path.suffix == ".safetensors":
        return _in_safetensors(path, name)
    return _in_torch_file(path, name)


def _in_safetensors(path: Path, name: str) -> Weights | None:
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        if length > _MAX_HEADER_BYTES:
            raise ValueError("no safetensors file")
        header: dict[str, Any] = json.loads(file.read(length))
        for key, entry in header.items():
            if not is_named(key, name):
                continue
            start, end = entry["data_offsets"]
            if entry["dtype"] not in _DTYPES:
                raise ConfigError(_too_coarse(path, entry["dtype"]))
            file.seek(8 + length + start)
            data = file.read(end - start)
            return np.frombuffer(data, _DTYPES[entry["dtype"]]).reshape(entry["shape"]).astype(np.float64)
    return None


def _in_torch_file(path: Path, name: str) -> Weights | None:
    try:
        import torch  # noqa: PLC0415  # slow, and of the trainer's installation  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{path} can be read with torch alone, which is not here; run this where the trainer runs, "
            f"or save safetensors"
        ) from error
    tensors = cast("Mapping[str, Any]", torch.load(path, map_location="cpu", weights_only=True))  # pyright: ignore[reportUnknownMemberType]
    return next((tensor_values(tensor, path) for key, tensor in tensors.items() if is_named(key, name)), None)


def tensor_values(tensor: Any, where: object) -> Weights:
    """The numbers of a torch tensor or an array, without importing torch.

    Raises:
        ConfigError: they have 16 bits, or are no numbers.
    """
    values: Any = tensor.detach().cpu() if hasattr(tensor, "detach") else np.asarray(tensor)
    if values.dtype.itemsize < 4:
        raise ConfigError(_too_coarse(where, values.dtype))
    try:
        return np.asarray(values, np.float64)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where} is no tensor of numbers: {type(tensor).__name__}") from error


def is_named(key: str, name: str) -> bool:
    """Whether a tensor's name is `name`, within a model that wraps it or not."""
    return key == name or key.endswith(f".{name}")


def _too_coarse(where: object, dtype: object) -> str:
    return f"{where} holds {dtype}, which rounds one step away; train and save the canary model in float32"
