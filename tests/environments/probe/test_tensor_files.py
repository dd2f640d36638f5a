"""Checkpoints as trainers save them."""

import json
import struct

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from environments.probe.tensor_files import read_tensors, write_safetensors
from tools.errors import ConfigError

TENSOR = np.arange(6, dtype=np.float32).reshape(2, 3)


def read_head(path):
    return read_tensors(path, ("head.weight",))["head.weight"]


def test_what_is_written_the_package_of_the_format_reads(tmp_path):
    write_safetensors(tmp_path / "w.safetensors", {"a.weight": TENSOR, "b.weight": 2 * TENSOR})
    assert {name: value.tolist() for name, value in load_file(tmp_path / "w.safetensors").items()} == {
        "a.weight": TENSOR.tolist(),
        "b.weight": (2 * TENSOR).tolist(),
    }


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_tensor_is_found_in_the_shards_of_a_folder_also_in_a_model_that_wraps_it(tmp_path, dtype):
    save_file({"other": TENSOR}, tmp_path / "model-1.safetensors")
    save_file({"module.head.weight": TENSOR.astype(dtype)}, tmp_path / "model-2.safetensors")
    assert read_head(tmp_path).tolist() == TENSOR.tolist()


def test_an_array_in_a_file_is_the_tensor(tmp_path):
    np.save(tmp_path / "gradient.npy", TENSOR)
    assert read_head(tmp_path / "gradient.npy").tolist() == TENSOR.tolist()


def test_16_bits_are_refused_since_they_round_the_step_away(tmp_path):
    save_file({"head.weight": TENSOR.astype(np.float16)}, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match=r"holds F16.*float32"):
        read_head(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "has no .*safetensors and no"),
        (struct.pack("<Q", 2) + b"[]", "cannot read the weights"),
        (b"", "cannot read the weights"),
        (struct.pack("<Q", 2**60), "cannot read the weights"),
        (struct.pack("<Q", 2) + b"{}", "has no tensor head.weight; save the whole model"),
        (struct.pack("<Q", 7) + b'{"a": 1', "cannot read the weights"),
        (
            struct.pack("<Q", 20) + json.dumps({"head.weight": 1}).encode().ljust(20),
            "cannot read the weights",
        ),
    ],
    ids=["nothing", "a list", "empty", "a large header", "another model", "torn", "no entry"],
)
def test_what_is_no_checkpoint_of_the_model_is_one_line(tmp_path, content, message):
    if content is not None:
        (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        read_head(tmp_path)
