"""Messages arrive as they were sent, however their bytes do; anything else is an error and no message."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tables import cases
from tools.sandbox.inside.messages import (
    Cancel,
    Done,
    Inbox,
    ReadFile,
    Ready,
    Refused,
    RunProgram,
    decode,
    encode,
)

# What `os.fsencode` can carry: text and bytes that are none.
_TEXT = st.binary(max_size=20).map(lambda data: data.replace(b"\0", b"").decode("utf-8", "surrogateescape"))
_MESSAGES = st.one_of(
    st.builds(
        RunProgram, argv=st.lists(_TEXT, max_size=3).map(tuple), env=st.lists(_TEXT, max_size=3).map(tuple),
        cwd=_TEXT, stdin=st.binary(max_size=40), timeout_s=st.floats(0, 1e9), max_output_bytes=st.integers(),
    ),
    st.builds(ReadFile, _TEXT, st.integers(), st.floats(0, 1e9), st.integers()),
    st.builds(
        Done, st.integers(0, 255), st.binary(max_size=40), st.binary(max_size=40), st.integers(0),
        st.integers(0), st.booleans(), st.booleans(), st.booleans(), st.floats(0, 1e9),
    ),
    st.builds(Refused, st.integers(1, 133)),
    st.sampled_from([Cancel(), Ready()]),
)  # fmt: skip


@given(st.lists(_MESSAGES, max_size=4), st.integers(1, 30))
def test_messages_arrive_as_they_were_sent_however_the_bytes_do(sent, step):
    wire = b"".join(map(encode, sent))
    inbox, got = Inbox(), []
    for at in range(0, len(wire), step):
        inbox.add(wire[at : at + step])
        while (message := inbox.next()) is not None:
            got.append(message)
    assert got == sent
    assert list(map(type, got)) == list(map(type, sent))


@cases("body", [b"", b"Z", b"D", b"E\0\0\0\1x", b"R\0\0\0\0"], ids=repr)
def test_what_is_no_message_is_refused(body):
    with pytest.raises(ValueError, match=r"no message|invalid literal"):
        decode(body)


@given(st.binary(max_size=60))
def test_nothing_that_a_supervisor_could_send_is_more_than_an_error(body):
    with suppress(ValueError):
        decode(body)
