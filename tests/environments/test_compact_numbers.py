"""Token rows in little memory, which read as tuples."""

import gc
import pickle
import tracemalloc
from random import Random

import pytest

from environments.policy.base import OpenRow
from environments.rollout.rows import RowBuilder
from environments.trajectory import Completion, Message, TokenRow, compact_ids
from tests.tables import cases

ROW = TokenRow(token_ids=(1, 2, 3), logprobs=(1.0, -0.1, -1 / 3))
SAID = Message(role="assistant")


def test_a_row_reads_compares_and_hashes_as_of_tuples():
    assert (ROW.token_ids, ROW.logprobs) == ((1, 2, 3), (1.0, -0.1, -1 / 3))
    assert (1, 2, 3) == ROW.token_ids != (1, 2)
    assert isinstance(ROW.token_ids[1:], tuple)
    assert (ROW.token_ids[1:], ROW.token_ids[-1], [*ROW.logprobs][1]) == ((2, 3), 3, -0.1)
    again = TokenRow(token_ids=[1, 2, 3], logprobs=list(ROW.logprobs))
    assert again == ROW == pickle.loads(pickle.dumps(ROW))
    assert hash(again) == hash(ROW)
    assert {ROW.token_ids: 1}[(1, 2, 3)] == 1


def test_what_a_row_was_made_of_does_not_change_it():
    ids = [1, 2]
    row = TokenRow(token_ids=ids, logprobs=None)
    ids.append(3)
    assert row.token_ids == (1, 2)
    assert not hasattr(row.token_ids, "append")


@cases("ids", [(2**64,), (2**31,), ("1",), (1.0,), (None,), None])
def test_a_row_holds_nothing_but_ids_and_logprobs(ids):
    with pytest.raises((ValueError, TypeError)):
        TokenRow(token_ids=ids, logprobs=None)
    for logprobs in (("1",), (None,), 5):
        with pytest.raises(TypeError):
            TokenRow(token_ids=(1,), logprobs=logprobs)


def test_a_prompt_of_what_is_no_id_does_not_go_on():
    row = OpenRow()
    row.extend((1,), (2,), messages=1)
    assert row.rest_of((1.5, 2)) is row.rest_of((2**40, 2)) is None
    assert compact_ids(row.token_ids) == (1, 2)


def test_a_token_of_a_row_takes_24_bytes_at_most_while_it_grows_and_once_it_is_closed():
    rng = Random(0)
    tokens = 20 * 500

    def grown():
        builder = RowBuilder()
        for turn in range(20):
            sampled = tuple(rng.randrange(300, 150_000) for _ in range(500))
            builder.append(
                Completion(
                    message=SAID,
                    finish_reason="stop",
                    prompt_ids=(),
                    extends_row=turn > 0,
                    token_ids=sampled,
                    logprobs=tuple(-rng.random() for _ in sampled),
                    exact=True,
                )
            )
            builder.open.json()
        return builder

    grown()
    tracemalloc.start()
    try:
        builder = grown()
        gc.collect()
        growing = tracemalloc.get_traced_memory()[0]
        rows = builder.build()
        del builder
        gc.collect()
        closed = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(rows[0].token_ids) == tokens
    assert growing / tokens <= 24
    assert closed / tokens <= 14
