"""Hooks as a class writes them: those that cannot be called are refused before anything runs."""

import pytest

from environments.config import AgentEnvConfig
from tests.environments.talking import Talking
from tools.errors import ConfigError


def respond(self, item, turn):
    return None


def limits_for(self, item, ctx):
    return {}


def score_turn(self, turn, ctx):
    return 1.0


def format_prompt(self, item, *, ctx):
    return "begin"


def score_group(self, item, trajectories):
    return None


def prepare(self):
    return None


@pytest.mark.parametrize(
    ("hook", "write"),
    [
        (respond, "respond(self, item, turn, ctx)"),
        (limits_for, "limits_for(self, item)"),
        (score_turn, "score_turn(self, item, turn, ctx)"),
        (format_prompt, "format_prompt(self, item, ctx)"),
        (score_group, "score_group(self, item, trajectories, ctx)"),
        (prepare, "prepare(self, item, sandbox, ctx)"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_a_hook_that_cannot_be_called_is_refused_with_what_to_write(hook, write):
    env = type("Env", (Talking,), {hook.__name__: hook})
    with pytest.raises(ConfigError) as refused:
        env(AgentEnvConfig())
    assert str(refused.value).endswith(f"is no such hook; write {write}")


@pytest.mark.parametrize(
    "hook",
    [lambda self, item: "begin", lambda self, item, ctx: "begin", lambda *args: "begin"],
    ids=["item", "item-ctx", "args"],
)
def test_a_hook_that_may_leave_the_context_out_is_taken_either_way(hook):
    type("Env", (Talking,), {"format_prompt": hook})(AgentEnvConfig())


def test_parameters_of_its_own_with_a_default_are_nobodys_business():
    def respond(self, item, turn, ctx, *, loud=False, tries=3):
        return None

    type("Env", (Talking,), {"respond": respond})(AgentEnvConfig())
