"""A row that a trainer would misread is refused, and what is wrong with it is said."""

import math
from dataclasses import replace

import pytest

from environments.testing import group_of
from environments.trajectory import IGNORED, CreditedGroup
from environments.wire.training_rows import check_rows
from environments.wire.views import token_advantages
from tools.errors import WireError

TWO = token_advantages(
    CreditedGroup(
        group=group_of([[1.0, 2.0], [0.5]]),
        advantages=((0.5, -0.5), (1.0,)),
        policy="p",
        estimator="turn_return",
    )
)


@pytest.mark.parametrize(
    ("index", "changes", "says"),
    [
        (0, {"mask": [IGNORED, 2, 3]}, "the mask must be 4 plain integers"),
        (0, {"mask": [IGNORED, 1, IGNORED, 1]}, "a mask is the token's id"),
        (0, {"mask": [IGNORED, 2, 3, 2]}, "must cover every trainable token"),
        (1, {"score": math.nan}, "row 1 of 2: the score must be a plain, finite float, got nan"),
        (1, {"score": 1}, "the score must be a plain, finite float, got 1"),
        (0, {"score": [1.0]}, "the score must be a plain, finite float"),
        (1, {"advantages": [0.0]}, "advantages must be 2 plain floats"),
        (1, {"advantages": [0.0, math.inf]}, "advantages must be finite"),
        (0, {"logprobs": [1.0, None, 1.0, -1.0]}, "plain floats"),
        (0, {"messages": [{"role": "user"}]}, "role and content"),
        (0, {"tokens": [], "mask": []}, "one or more plain, non-negative integers"),
        (0, {"tokens": [1, -2, 3, 2]}, "one or more plain, non-negative integers"),
    ],
)
def test_what_a_trainer_would_misread_is_refused(index, changes, says):
    rows = list(TWO.rows)
    rows[index] = replace(rows[index], **changes)
    with pytest.raises(WireError, match=says):
        check_rows(replace(TWO, rows=tuple(rows)))
