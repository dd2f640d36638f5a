"""What a consumer of masks of 0 and 1 and of advantages per token does, as verl's recipe for Atropos."""

from dataclasses import replace

import orjson
import pytest

from environments.trajectory import IGNORED
from environments.wire.credited_rows import credited_rows
from environments.wire.payloads import Shape, pack, post_text
from environments.wire.training_rows import check_rows
from environments.wire.views import VIEWS, binary_masks
from tests.environments.wire.golden_groups import CASES, SIZE
from tools.errors import WireError


@pytest.fixture(params=CASES)
def case(request):
    return request.param


def posts(case, view="binary_masks", **shape):
    package = pack(CASES[case], Shape(view=view, group_size=SIZE[case] + 1, **shape))
    return [orjson.loads(post_text(part.body)) for part in package.parts]


def sampled_tokens(case):
    """Per row that is no padding, how many tokens are trained."""
    return [sum(label != IGNORED for label in row.mask) for row in credited_rows(CASES[case])]


def real_rows(case, column):
    """A column without padding."""
    return [
        value
        for post in posts(case)
        for value, override in zip(post[column], post["overrides"], strict=True)
        if "padding" not in override
    ]


def test_the_sum_of_a_mask_is_the_number_of_sampled_tokens(case):
    assert sorted(map(sum, real_rows(case, "masks"))) == sorted(filter(None, sampled_tokens(case)))


def test_padding_has_no_token_to_train_and_advantages(case):
    for post in posts(case):
        for mask, row, override in zip(post["masks"], post["advantages"], post["overrides"], strict=True):
            if "padding" in override:
                assert (set(mask), set(row)) == ({0}, {0.0})


def test_only_this_view_has_masks_of_0_and_1_and_it_has_no_others(case):
    for view in VIEWS:
        for post in posts(case, view):
            labels = {label for mask in post["masks"] for label in mask}
            is_binary = (post["group_overrides"] or {}).get("masks") == "binary"
            assert is_binary == (view == "binary_masks")
            assert labels <= {0, 1} if is_binary else not labels & {0, 1}


def test_a_mask_of_0_and_1_is_refused_before_it_leaves_as_labels():
    (group,) = binary_masks(CASES["turn_rewards"])
    rows = tuple(replace(row, mask=[int(label >= 0) for label in row.mask]) for row in group.rows)
    with pytest.raises(WireError, match="a mask is the token's id or -100"):
        check_rows(replace(group, rows=rows))
