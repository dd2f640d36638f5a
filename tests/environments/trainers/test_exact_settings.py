"""Settings of trainers that would change the step are refused in one line."""

from types import SimpleNamespace

import pytest

from environments.trainers.exact_settings import SKYRL, VERL, refuse_inexact, value_of
from tools.errors import ConfigError


def config_of(settings, changed=None):
    """Nested mappings with the first exact value of each setting; `changed` has another."""
    config = {}
    for setting in settings:
        *path, last = setting.name.split(".")
        node = config
        for name in path:
            node = node.setdefault(name, {})
        node[last] = "other" if setting.name == changed else setting.exact[0]
    return config


def objects(node):
    """The same with attributes, as SkyRL's config is."""
    if not isinstance(node, dict):
        return node
    return SimpleNamespace(**{name: objects(value) for name, value in node.items()})


@pytest.mark.parametrize("settings", [VERL, SKYRL], ids=["verl", "skyrl"])
def test_what_a_refusal_says_to_use_is_taken(settings):
    refuse_inexact(config_of(settings), settings)
    refuse_inexact(objects(config_of(settings)), settings)


@pytest.mark.parametrize(
    ("settings", "setting"),
    [pytest.param(each, one, id=one.name) for each in (VERL, SKYRL) for one in each],
)
def test_any_other_value_is_refused_in_one_line_that_names_what_to_use(settings, setting):
    with pytest.raises(ConfigError) as refused:
        refuse_inexact(config_of(settings, changed=setting.name), settings)
    line = str(refused.value)
    assert line.startswith(f"{setting.name}=other ")
    assert f"; use {setting.exact[0] if setting.exact[0] is not None else 'null'}" in line
    assert "\n" not in line


def test_a_setting_that_must_be_set_is_refused_when_it_is_missing():
    with pytest.raises(ConfigError, match=r"^algorithm\.adv_estimator=None .*; use turnwise$"):
        refuse_inexact({}, VERL)


def test_a_value_is_found_in_mappings_and_objects():
    assert value_of({"a": SimpleNamespace(b={"c": 1})}, "a.b.c") == 1
    assert value_of({"a": SimpleNamespace(b={"c": 1})}, "a.x.c") is None
