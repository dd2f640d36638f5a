"""The check of `make check` finds public names without a docstring."""

import turnwise
from environments.config import AgentEnvConfig
from scripts.public_docstrings import find_exports, find_hooks, find_protocols


def test_an_export_without_a_docstring_is_found(monkeypatch):
    monkeypatch.setattr(turnwise.say, "__doc__", None)
    assert "turnwise.say" in list(find_exports())


def test_a_setting_without_a_description_is_found(monkeypatch):
    monkeypatch.setattr(AgentEnvConfig.model_fields["group_size"], "description", None)
    assert "turnwise.AgentEnvConfig.group_size" in list(find_exports())


def test_a_hook_without_a_docstring_is_found(monkeypatch):
    hook = next(cls for cls in turnwise.AgentEnv.__mro__ if "load_items" in vars(cls)).load_items
    monkeypatch.setattr(hook, "__doc__", None)
    assert "AgentEnv.load_items" in list(find_hooks())


def test_a_protocol_without_a_docstring_is_found(tmp_path):
    for package in ("environments", "tools", "turnwise"):
        (tmp_path / package).mkdir()
    (tmp_path / "tools/seam.py").write_text("class Seam(Protocol[T]):\n    def ask(self) -> T: ...\n")
    assert list(find_protocols(tmp_path)) == ["tools/seam.py:1: Seam"]
