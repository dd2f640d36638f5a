"""Hooks as they are written: refused when they cannot be called as meant, and near misses are said."""

import logging

import pytest

from environments.base_env import AgentEnv
from environments.turn_level_reward import TurnLevelRewardMixin
from tests.tables import cases
from tests.turnwise.typed_hooks import Awaited, AwaitedScalar, Plain, Scalar
from tools.errors import ConfigError


def made(*bases, **written):
    own = {
        "name": "mine",
        "sandbox": "none",
        "format_prompt": lambda self, item: "begin",
        "compute_outcome": lambda self, item, trajectory, ctx: 1.0,
    }
    return type("Mine", (*bases, TurnLevelRewardMixin, AgentEnv), {**own, **written})()


@cases(
    ("name", "hook", "wanted"),
    [
        ("respond", lambda self, item, turn: None, "(self, item, turn, ctx)"),
        ("respond", lambda self, turn, item, ctx: None, "(self, item, turn, ctx)"),
        ("respond", lambda self, item, turn, *, ctx: None, "(self, item, turn, ctx)"),
        ("score_turn", lambda self, item, turn: 1.0, "(self, item, turn, ctx)"),
        ("compute_outcome", lambda self, trajectory, ctx: 1.0, "(self, item, trajectory, ctx)"),
        ("prepare", lambda self, item, ctx: None, "(self, item, sandbox, ctx) (ctx may be left out)"),
        ("prepare", lambda self, item: None, "(self, item, sandbox, ctx) (ctx may be left out)"),
        ("format_prompt", lambda self, ctx: "", "(self, item, ctx) (ctx may be left out)"),
        ("state_key", lambda self, item, ctx: "", "(self, item, turn, ctx) (ctx may be left out)"),
        ("tools_for", lambda self: [], "(self, item, ctx) (ctx may be left out)"),
        ("load_items", lambda self, split: [], "(self)"),
        ("passed", lambda self, trajectory: True, "(self, item, trajectory)"),
        ("scripted_choices", lambda self, item, messages: [], "(self, item, messages, tools, skill)"),
    ],
    ids=["no ctx", "other order", "by keyword", "score_turn", "outcome", "ctx for sandbox", "no sandbox",
         "no item", "ctx for turn", "nothing", "one too many", "passed", "script"],
)  # fmt: skip
def test_a_hook_with_other_parameters_is_refused_with_those_to_write(name, hook, wanted):
    with pytest.raises(ConfigError) as refused:
        made(**{name: hook})
    assert f": {name}(self" in str(refused.value)
    assert str(refused.value).endswith(f"; write {name}{wanted}")


@cases(
    ("name", "hook"),
    [
        ("prepare", lambda self, row, box: None),
        ("prepare", lambda self, item, sandbox, ctx: None),
        ("prepare", lambda self, *everything: None),
        ("respond", staticmethod(lambda item, turn, ctx: None)),
        ("load_items", lambda self, count=3: []),
        ("scripted_judge", dict),
    ],
    ids=["other names", "ctx", "star", "static", "a default", "a class"],
)
def test_a_hook_that_can_be_called_is_taken_however_it_is_written(name, hook):
    assert made(**{name: hook}).name == "mine"


def test_a_hook_is_a_method():
    with pytest.raises(ConfigError, match=r"respond is a hook, and so a method; got 'hello'"):
        made(respond="hello")


@cases(
    ("written", "meant"),
    [
        ("responds", "respond"),
        ("score_turns", "score_turn"),
        ("prepares", "prepare"),
        ("compute_outcomes", None),
        ("tool", "tools"),
        ("systemprompt", "system_prompt"),
        ("preview", None),
        ("_respond", None),
    ],
)
def test_a_name_that_is_nearly_a_hooks_is_named(written, meant, caplog):
    with caplog.at_level(logging.WARNING):
        made(**{written: lambda self, *args: None})
    said = [f"Mine.{written} is not a hook; if it is meant to be {meant}, rename it"]
    assert caplog.messages == (said if meant else [])


@pytest.mark.parametrize("env", [Plain, Scalar, Awaited, AwaitedScalar])
def test_hooks_as_type_checkers_take_them_are_taken(env, caplog):
    with caplog.at_level(logging.WARNING):
        assert env().name
    assert caplog.messages == []


@pytest.mark.parametrize("name", ["estimator", "max_turns", "group_size"])
def test_a_setting_as_a_class_attribute_is_refused_with_where_it_belongs(name):
    with pytest.raises(ConfigError, match=rf"{name} is a setting.* --env\.{name}, or .* `config_init`"):
        made(**{name: 4})


def test_a_method_with_the_name_of_a_setting_is_none():
    made(seed=lambda self: 4)


def test_required_fields_are_a_tuple():
    with pytest.raises(ConfigError, match=r"give a tuple of names, \('answer',\)"):
        made(required_fields="answer")
