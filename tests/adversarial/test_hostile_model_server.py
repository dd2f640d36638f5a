"""A model server that answers anything at all: the call is lost, in a short line, and nothing else stops."""

import pytest

from environments.policy.inference import http_client
from environments.rollout.boundary import failure_of
from tests.adversarial.hostile_server import answer, hostile
from tests.adversarial.test_hostile_api import ANSWERS
from tests.environments.policy.chat_server import REQUEST, chat_policy
from tests.tables import cases
from tools.errors import ConfigError, PolicyError


def chatting(url, **settings):
    return chat_policy(f"{url}/v1", **{"tries": 1, "request_timeout_s": 20.0, **settings})


async def lost(policy, request=REQUEST):
    """The failure of a sibling whose call was lost."""
    with pytest.raises(PolicyError) as caught:
        await policy.complete(request)
    await policy.aclose()
    failure = failure_of(caught.value, sibling=0, turns=0)
    assert len(failure.error) < 1000
    assert len(failure.traceback) < 20_000
    assert "\n" not in str(caught.value)
    return caught.value


@cases("made", ANSWERS.values(), ids=ANSWERS)
async def test_the_look_at_a_server_before_a_run_takes_any_answer(made, monkeypatch):
    monkeypatch.setattr(http_client, "_MAX_ANSWER_BYTES", 1 << 20)
    async with hostile({"*": made}) as server:
        policy = chatting(server.url)
        with pytest.raises(ConfigError) as caught:
            await policy.check()
        await policy.aclose()
    assert len(str(caught.value)) < 1000


async def test_a_redirection_is_not_followed_and_names_where_to_ask():
    made = answer(b"", status=308, headers=["Location: http://user:secret@127.0.0.1:9/v2?token=t0ken"])
    async with hostile({"*": made}) as server:
        error = str(await lost(chatting(server.url)))
    assert "it leads to http://127.0.0.1:9/v2; ask there" in error
