"""Credit on plain arrays, against numbers by hand and against the estimators on groups."""

import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.credit import ESTIMATORS, estimate
from environments.testing import group_of
from tests.environments.credit.golden_cases import credit_step
from tools.errors import CreditError
from turnwise.credit import token_advantages, turn_advantages, turn_ledger

CHATS = [[0.5, 0.0], [0.5, 0.5, 0.5], [0.0, None]]
OUTCOMES = [1.0, 0.0, 0.0]
BY_HAND = [[0.75, 0.5], [0.75, 0.5, 0.5], [-1.5, -1.0]]


def on_tokens(turn_rewards, *, tokens=2, between=1, width=None, dtype=np.float64):
    """Rewards on the last token of each turn, the mask, and the turn of each token."""
    longest = max(len(row) for row in turn_rewards) * (tokens + between)
    shape = len(turn_rewards), longest if width is None else width
    rewards, mask, turns = np.zeros(shape, dtype), np.zeros(shape, int), np.full(shape, -1)
    for row, values in enumerate(turn_rewards):
        for turn, value in enumerate(values):
            start = turn * (tokens + between)
            mask[row, start : start + tokens] = 1
            turns[row, start : start + tokens] = turn
            rewards[row, start + tokens - 1] = np.nan if value is None else value
    return rewards, mask, turns


def with_outcomes(turn_rewards, outcomes):
    return [[*row[:-1], (row[-1] or 0.0) + last] for row, last in zip(turn_rewards, outcomes, strict=True)]


def test_importing_it_loads_no_environment_no_array_and_no_server_code():
    program = "import sys, turnwise.credit; print(*{name.partition('.')[0] for name in sys.modules})"
    loaded = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    ).stdout
    assert not {"numpy", "torch", "pydantic", "openai", "httpx", "datasets", "transformers"} & set(
        loaded.split()
    )


def test_importing_it_does_not_load_what_rolls_out():
    program = "import sys, turnwise.credit; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    ).stdout
    rooms = {name.split(".")[1] for name in loaded.split() if name.startswith("environments.")}
    assert rooms == {"credit", "trajectory"}


@pytest.mark.parametrize(
    "params", [{"singleton": "raw"}, {"baseline": "none"}, {"estimator": "turn_gae"}], ids=str
)
def test_groups_of_one_row_are_refused_unless_it_is_said_what_they_get(params):
    with pytest.raises(CreditError, match="every group of group_ids has one row, and turn_return compares"):
        turn_advantages([[1.0], [3.0]], [0, 1])
    assert turn_advantages([[1.0], [3.0]], [0, 1], **params) == [[1.0], [3.0]]


# --- turns -----------------------------------------------------------------------------------------------


def test_turns_get_the_numbers_of_the_example_by_hand():
    assert turn_advantages(CHATS, ["x", "x", "x"], OUTCOMES) == BY_HAND


def test_groups_need_not_be_neighbours_and_do_not_compare_with_each_other():
    rewards = [[1.0], [5.0], [3.0], [9.0]]
    assert turn_advantages(rewards, ["a", "b", "a", "b"]) == [[-2.0], [-4.0], [2.0], [4.0]]


def test_without_outcomes_a_row_of_which_nothing_was_scored_returns_0():
    assert turn_advantages([[None], [1.0]], [0, 0]) == [[-1.0], [1.0]]


@pytest.mark.parametrize(
    "ids", [[np.int64(7), np.int64(7)], [np.array(7), np.array(7)]], ids=["numbers", "arrays"]
)
def test_ids_of_equal_value_are_one_group(ids):
    assert turn_advantages([[1.0], [0.0]], ids) == [[1.0], [-1.0]]


def test_a_parameter_of_numpy_is_its_number():
    by_number = turn_advantages(CHATS, ["x", "x", "x"], OUTCOMES, gamma=0.5)
    assert turn_advantages(CHATS, ["x", "x", "x"], OUTCOMES, gamma=np.float32(0.5)) == by_number


def test_a_text_is_no_reward():
    with pytest.raises(CreditError, match=r"turn_rewards\[1\]\[0\] is '1'; give a number"):
        turn_advantages([[0.0], ["1"]], [0, 0])


@pytest.mark.parametrize("length", [-3, "3", math.inf])
def test_a_length_that_counts_no_tokens_is_refused(length):
    with pytest.raises(CreditError, match=f"lengths has {length!r}; give the number of each turn's tokens"):
        turn_advantages([[1.0], [0.0]], [0, 0], lengths=[[1], [length]])


@pytest.mark.parametrize("ids", [[["a"]] * 2, [float("nan")] * 2, np.array([[1], [1]])], ids=str)
def test_ids_that_cannot_be_compared_are_refused(ids):
    with pytest.raises(CreditError, match=r"group_ids\[0\] is"):
        turn_advantages([[1.0], [0.0]], ids)


NAMES = st.sampled_from(
    sorted(name for name, each in ESTIMATORS.items() if "environments" in each.__module__)
)
REWARD = st.one_of(st.none(), st.integers(-4, 4).map(lambda n: n / 4))
GROUPS = st.lists(st.lists(REWARD, min_size=1, max_size=4), min_size=2, max_size=4)


@given(name=NAMES, first=GROUPS, second=GROUPS)
def test_every_estimator_gives_what_it_gives_for_groups(name, first, second):
    rows = [*first, *second]
    outcomes = [float(len(row)) for row in rows]
    got = turn_advantages(rows, [0] * len(first) + [1] * len(second), outcomes, estimator=name)

    groups = [
        group_of(first, outcomes=outcomes[: len(first)]),
        group_of(second, outcomes=outcomes[len(first) :]),
    ]
    assert got == [[*row] for advantages in credit_step(groups, name) for row in advantages]


def test_a_preset_states_and_values_reach_their_estimators():
    states = [["s", "t"], ["s", "u"]]
    group = group_of([[1.0, 0.0], [0.0, 0.0]], anchors=states)
    got = turn_advantages([[1.0, 0.0], [0.0, 0.0]], [7, 7], estimator="gigpo", preset="verl", anchors=states)
    assert got == estimate("gigpo", group, preset="verl")

    values = [[9.0], [0.5, 0.25]]
    got = turn_advantages([[1.0], [1.0, 0.0]], ["a", "b"], estimator="turn_gae", values=values)
    assert got == [[-8.0], [0.5, -0.25]]


def test_a_critic_without_a_value_for_a_turn_is_refused_by_turn():
    with pytest.raises(CreditError, match="value of trajectory 1, turn 2 is None"):
        turn_advantages([[1.0], [1.0, 0.0]], [0, 0], estimator="turn_gae", values=[[9.0], [0.5, None]])


def test_turns_without_an_action_are_not_equal_actions():
    states, actions = [["s"]] * 3, [[None], [None], ["x"]]
    got = turn_advantages([[1.0], [2.0], [3.0]], [0] * 3, estimator="rtmc", anchors=states, actions=actions)
    assert got == [[-1.0], [0.0], [1.0]]


def test_the_ledger_names_siblings_by_their_rows():
    entries = turn_ledger([[1.0], [5.0], [3.0]], ["a", "b", "a"])
    assert [(peer.sibling, peer.value) for peer in entries[0][0].terms[0].peers] == [(2, 3.0)]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"turn_rewards": [[0.0], [0.0, float("nan")]]}, r"turn_rewards\[1\]\[1\] is nan"),
        ({"turn_rewards": [[0.0], ["good"]]}, r"turn_rewards\[1\]\[0\] is 'good'; give a number"),
        ({"turn_rewards": [[0.0], [1e101]]}, r"turn_rewards\[1\]\[0\] is 1e\+101"),
        ({"turn_rewards": [[0.0], [0.0]], "outcomes": [1.0, None]}, r"outcomes\[1\] is None, and other rows"),
        ({"turn_rewards": [[0.0], [0.0]], "outcomes": [1.0]}, "outcomes has 1 entries for 2 rows"),
        (
            {"turn_rewards": [[0.0], [0.0]], "kinds": [["act"], ["Act"]]},
            r"kinds\[1\] has 'Act'; choose one of",
        ),
        ({"turn_rewards": [[None], [0.0]], "kinds": [["act"], ["summary"]]}, "a summary has no reward"),
        ({"turn_rewards": [[0.0]]}, "group_ids has 2 entries for 1 rows"),
        (
            {"turn_rewards": [[0.0], [0.0]], "anchors": [["s"], []]},
            r"anchors\[1\] has 0 entries for the 1 turns",
        ),
        ({"turn_rewards": [[0.0], [0.0]], "estimator": "turn_retrun"}, "did you mean 'turn_return'"),
        ({"turn_rewards": [[0.0], [0.0]], "gamma": 2}, "gamma is 2; possible: number 0 … 1"),
        (
            {"turn_rewards": [[0.0], [0.0]], "estimator": "grpo", "zero_variance": "error"},
            r"group 'a', whose trajectories 0, 1, … are the rows \[0, 1\]: every",
        ),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_what_cannot_be_credited_is_named_by_row_and_turn(given, message):
    with pytest.raises(CreditError, match=message):
        turn_advantages(group_ids=["a", "a"], **given)


# --- tokens ----------------------------------------------------------------------------------------------


def spread(advantages, turns):
    """The advantage of each token's turn."""
    rows = np.zeros(turns.shape)
    for row, token in zip(*np.nonzero(turns >= 0), strict=True):
        rows[row, token] = advantages[row][turns[row, token]]
    return rows


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_tokens_get_the_advantage_of_their_turn_in_the_dtype_that_came(dtype):
    rewards, mask, turns = on_tokens([*with_outcomes(CHATS[:2], OUTCOMES[:2]), [0.0, None]], dtype=dtype)
    got = token_advantages(rewards, mask, ["x"] * 3)

    assert got.dtype == dtype
    assert np.array_equal(got, spread(BY_HAND, turns))


def test_a_turns_reward_is_the_sum_on_its_tokens_and_0_is_scored():
    rewards = np.array([[0.25, 0.5, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    mask = np.array([[1, 1, 0, 0], [1, 1, 0, 0]])
    got = token_advantages(rewards, mask, [0, 0], estimator="process_supervision")
    assert np.array_equal(got, [[1, 1, 0, 0], [-1, -1, 0, 0]])


def test_a_reward_between_two_turns_belongs_to_the_one_before_it():
    mask = np.array([[1, 0, 1, 0]] * 2)
    rewards = np.array([[0.0, 1.0, 0.0, 2.0], [0.0, 0.0, 0.0, 0.0]])
    assert token_advantages(rewards, mask, [0, 0])[0].tolist() == [3.0, 0.0, 2.0, 0.0]


def test_turns_that_touch_are_one_without_ids_and_two_with_them():
    rewards, mask = np.array([[1.0, 2.0], [0.0, 0.0]]), np.ones((2, 2), int)
    assert token_advantages(rewards, mask, [0, 0])[0].tolist() == [3.0, 3.0]
    ids = np.array([[0, 1], [0, 1]])
    assert token_advantages(rewards, mask, [0, 0], turn_ids=ids)[0].tolist() == [3.0, 2.0]


def test_a_turn_that_is_masked_is_compared_and_not_trained():
    rewards, mask, turns = on_tokens([[1.0], [4.0], [0.0]])
    withheld = mask * np.array([[1], [0], [1]])
    got = token_advantages(rewards, withheld, [0, 0, 0], turn_ids=turns)
    assert got[:, 0].tolist() == [-1.0, 0.0, -2.5]


@given(name=NAMES, rows=GROUPS, tokens=st.integers(1, 3), named=st.booleans())
def test_tokens_and_turns_agree(name, rows, tokens, named):
    rewards, mask, turns = on_tokens(rows, tokens=tokens)
    got = token_advantages(
        rewards, mask, ["g"] * len(rows), turn_ids=turns if named else None, estimator=name
    )
    lengths = [[tokens] * len(row) for row in rows]
    of_turns = turn_advantages(rows, ["g"] * len(rows), estimator=name, lengths=lengths)
    assert np.array_equal(got, spread(of_turns, turns))


@pytest.mark.parametrize("tokens", [1, 20])
@pytest.mark.parametrize("named", [False, True])
def test_a_batch_has_the_same_credit_however_many_rows_are_computed_at_once(monkeypatch, tokens, named):
    draw = np.random.default_rng(0)
    rewards, mask, turns = on_tokens([list(draw.normal(size=1 + row % 4)) for row in range(9)])
    mask[5], rewards[5], turns[5] = 0, 0.0, -1
    ids = {"group_ids": np.arange(9) % 2, "turn_ids": turns if named else None}
    at_once = token_advantages(rewards, mask, **ids)

    monkeypatch.setattr("environments.credit.array_credit._BLOCK_TOKENS", tokens)

    assert np.array_equal(token_advantages(rewards, mask, **ids), at_once)
    rewards[7, 0] = np.inf
    with pytest.raises(CreditError, match=r"token_level_rewards\[7, 0\] is inf"):
        token_advantages(rewards, mask, **ids)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"response_mask": [[1, -100, 0], [1, 0, 0]]}, r"response_mask\[0, 1\] is -100: give 1"),
        ({"response_mask": [[1, 1], [1, 0]]}, r"response_mask has the shape \(2, 2\)"),
        ({"token_level_rewards": np.zeros((2, 3), int)}, "dtype int64"),
        ({"token_level_rewards": [[0.0] * 3] * 2}, "is a list; give a numpy array or a torch tensor"),
        ({"token_level_rewards": np.zeros(3)}, r"the shape \(3,\); give two dimensions"),
        (
            {"token_level_rewards": np.array([[np.nan, 0.0, 0.0], [0.0] * 3])},
            r"\[0, 0\] is nan: NaN is allowed only",
        ),
        (
            {"token_level_rewards": np.array([[0.0, 0.0, np.nan], [0.0] * 3])},
            r"\[0, 2\] is nan: NaN is allowed only",
        ),
        (
            {"token_level_rewards": np.array([[1.0, np.nan, 0.0], [0.0] * 3])},
            r"\[0, 1\] is nan: other tokens of its turn have a reward",
        ),
        (
            {"token_level_rewards": np.array([[np.inf, 0, 0], [0.0] * 3])},
            r"\[0, 0\] is inf: rewards are finite",
        ),
        (
            {"response_mask": [[0, 1, 1]] * 2, "token_level_rewards": np.array([[2.0, 0, 0]] * 2)},
            r"\[0, 0\] is 2.0: it belongs to no turn",
        ),
        ({"turn_ids": [[0, 0.9, 1], [0, -1, -1]]}, r"turn_ids\[0, 1\] is 0.9: give whole numbers"),
        ({"turn_ids": [[0, 2, -1], [0, -1, -1]]}, r"turn_ids\[0, 1\] is 2: number the turns"),
        ({"turn_ids": [[1, 1, -1], [0, -1, -1]]}, r"turn_ids\[0, 0\] is 1: number the turns"),
        ({"turn_ids": [[0, -1, -1], [0, -1, -1]]}, r"turn_ids\[0, 1\] is -1: a token that is trained"),
    ],
)
def test_arrays_that_mean_something_else_are_refused_by_row_and_token(change, message):
    given = {"token_level_rewards": np.zeros((2, 3)), "response_mask": [[1, 1, 0], [1, 0, 0]]}
    with pytest.raises(CreditError, match=message):
        token_advantages(group_ids=[0, 0], **(given | change))


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (2, 3)])
def test_a_batch_in_which_nothing_was_sampled_has_no_credit(shape):
    got = token_advantages(np.zeros(shape), np.zeros(shape), [0] * shape[0])
    assert got.shape == shape
    assert not got.any()


def test_an_advantage_that_the_dtype_cannot_hold_is_refused():
    rewards = np.array([[6e4], [-6e4]], np.float16)
    with pytest.raises(CreditError, match="too large for float16"):
        token_advantages(rewards, np.ones((2, 1)), [0, 0])


def test_tensors_come_back_as_tensors_of_their_dtype():
    torch = pytest.importorskip("torch", reason="torch is not installed here")
    rewards, mask, turns = on_tokens(CHATS[:2])
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        tensor = torch.tensor(rewards, dtype=dtype, requires_grad=True)
        got = token_advantages(tensor, torch.tensor(mask).bool(), torch.tensor([3, 3]))
        assert got.dtype == dtype
        assert not got.requires_grad
        assert np.array_equal(got.double().numpy(), spread(turn_advantages(CHATS[:2], [3, 3]), turns))
