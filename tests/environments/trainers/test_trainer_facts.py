"""What the Atropos example trainer makes of a batch, as far as we lean on it; needs torch, as it does."""

import importlib
import os

import pytest

if not os.environ.get("TURNWISE_REQUIRE_TORCH"):
    pytest.importorskip("torch", reason="needs torch, to run the example trainer's data path")
data = importlib.import_module("example_trainer.data")
LEFT_OUT = {"set_advantage_to_zero": True}


def group(scores, **columns):
    rows = len(scores)
    given = {
        "tokens": [[7, 8, 9] for _ in range(rows)],
        "masks": [[-100, 8, 9] for _ in range(rows)],
        "scores": scores,
        "inference_logprobs": [[1.0, -0.5, -0.25] for _ in range(rows)],
        "overrides": None,
    }
    return given | columns


def read(*groups):
    """Tokens, labels, advantages, temperatures and logprobs, all rows in one batch."""
    tensors = data.pad_data_to_good_offset({"batch": list(groups)}, 64)
    return [tensor[0].tolist() for tensor in tensors]


def advantages(*groups):
    return [value for (value,) in read(*groups)[2]]


def test_a_row_alone_keeps_its_raw_score_and_rows_together_are_normalised():
    assert advantages(group([0.25]), group([-3.0])) == [0.25, -3.0]
    assert advantages(group([1.0, 3.0])) == [-1.0, 1.0]


def test_a_row_marked_so_is_trained_with_advantage_zero_and_its_score_counts_for_its_siblings():
    assert advantages(group([5.0], overrides=[LEFT_OUT])) == [0.0]
    deviations = advantages(group([1.0, 3.0, 2.0], overrides=[{}, {}, LEFT_OUT]))
    assert deviations == [pytest.approx(-(1.5**0.5)), pytest.approx(1.5**0.5), 0.0]


def test_advantages_and_messages_are_not_read():
    assert read(group([0.5], advantages=[[0.0, 9.0, 9.0]], messages=[[]])) == read(group([0.5]))


def test_a_mask_is_the_label_itself_and_padding_is_not_trained():
    labels = read(group([0.5]))[1][0]
    assert labels == [8, 9] + [-100] * (len(labels) - 2)
    assert read(group([0.5], masks=[[0, 1, 1]]))[1][0][:2] == [1, 1]


def test_logprobs_are_aligned_with_the_labels_and_have_to_be_there():
    assert read(group([0.5]))[4][0][:3] == [-0.5, -0.25, 1.0]
    with pytest.raises(TypeError):
        read(group([0.5], inference_logprobs=None))


def test_the_temperature_is_1_unless_generation_params_have_another():
    assert read(group([0.5]))[3] == [[[1.0]]]
    assert read(group([0.5], generation_params={"temperature": 0.5, "top_p": 1.0}))[3] == [[[0.5]]]
