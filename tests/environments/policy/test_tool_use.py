"""Tools that are offered in vain: who is watched for them."""

import logging
from dataclasses import replace

import pytest

from environments.policy.row_prompt import ToolUse
from environments.trajectory import Message
from tests.environments.policy.chat_server import REQUEST

SAID = Message(role="assistant", content="I have looked at <tool_call> and so on.")


@pytest.mark.parametrize(("kind", "warned"), [("act", True), ("summary", False)])
def test_a_model_that_only_sums_up_has_not_ignored_its_tools(kind, warned, caplog):
    use = ToolUse("http://server")
    with caplog.at_level(logging.WARNING):
        for seed in range(10):
            use.note(replace(REQUEST, kind=kind, seed=seed), SAID)
    assert bool(caplog.records) == warned
