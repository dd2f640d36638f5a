"""What a consumer of masks of 0 and 1 and of advantages per token does, as verl's recipe for Atropos."""

from dataclasses import replace

import orjson
import pytest

from environments.trajectory import IGNORED
from environments.wire.columns import columns_of, rows_of
from environments.wire.credited_rows import credited_rows
from environments.wire.padding import longer_than
from environments.wire.payloads import Shape, pack, part_without, post_text
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


def test_advantages_times_mask_are_the_advantages(case):
    masks, advantages = real_rows(case, "masks"), real_rows(case, "advantages")
    for mask, row in zip(masks, advantages, strict=True):
        once = [value * factor for value, factor in zip(row, mask, strict=True)]
        assert [value * factor for value, factor in zip(once, mask, strict=True)] == row


def test_the_advantage_of_each_token_is_that_of_its_turn(case):
    computed = [row.advantages for row in credited_rows(CASES[case]) if any(each >= 0 for each in row.mask)]
    assert sorted(real_rows(case, "advantages")) == sorted(computed)


def test_padding_has_no_token_to_train_and_advantages(case):
    for post in posts(case):
        for mask, row, override in zip(post["masks"], post["advantages"], post["overrides"], strict=True):
            if "padding" in override:
                assert (set(mask), set(row)) == ({0}, {0.0})


def test_every_row_of_every_environment_has_advantages(case):
    (group,) = map(columns_of, binary_masks(CASES[case]))
    assert [len(row) for row in group["advantages"]] == [len(row) for row in group["tokens"]]


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


def test_rows_of_tokens_0_and_1_come_back_as_they_were():
    (group,) = binary_masks(CASES["turn_rewards"])
    row = group.rows[0]
    tokens = [index % 2 for index in range(len(row.tokens))]
    mask = [token if label >= 0 else IGNORED for token, label in zip(tokens, row.mask, strict=True)]
    odd = replace(group, rows=(replace(row, tokens=tokens, mask=mask),))
    assert rows_of(orjson.loads(orjson.dumps(columns_of(odd)))) == odd


def test_a_part_that_is_cut_for_another_trainer_keeps_its_masks(case):
    package = pack(CASES[case], Shape(view="binary_masks", group_size=SIZE[case] + 1))
    for part in package.parts:
        cut, _ = part_without(part, longer_than(5))
        for before, after in zip(*map(masks_of, (part, cut or part)), strict=True):
            assert after in (before, [0, 0])


def masks_of(part):
    return orjson.loads(post_text(part.body))["masks"]
