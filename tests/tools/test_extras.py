"""What only some commands need may be missing: then one line names the extra."""

import subprocess
import sys

import pytest

from tools.errors import ConfigError
from tools.extras import needs_extra
from turnwise.cli.main import main


@pytest.fixture
def without(monkeypatch):
    """Hide packages, and forget our modules that have already imported them."""

    def hide(package, *modules):
        for name in [package, *(name for name in sys.modules if name.startswith(f"{package}."))]:
            monkeypatch.setitem(sys.modules, name, None)
        for module in modules:
            monkeypatch.delitem(sys.modules, module, raising=False)

    return hide


def only_line(capsys):
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize("package", ["starlette", "uvicorn"])
def test_mock_model_names_its_extra(without, capsys, package):
    without(package, "environments.policy.mock_server")
    assert main(["mock-model", "terminal_tasks"]) == 2
    assert only_line(capsys) == (
        f"turnwise: error: mock-model needs the package {package}, which is not here; "
        "pip install 'turnwise[mock]'"
    )


def test_help_of_mock_model_needs_no_extra(without, capsys):
    without("uvicorn", "environments.policy.mock_server", "turnwise.cli.mock_model")
    assert main(["mock-model", "--help"]) == 0


def test_tracking_names_its_extra_before_any_rollout(without, capsys, tmp_path):
    without("wandb")
    out = tmp_path / "r.jsonl"
    assert main(["process", "terminal_tasks", "--env.use_wandb", "true", "--out", str(out)]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        "turnwise: error: --env.use_wandb needs the package wandb, which is not here; "
        "pip install 'turnwise[wandb]'"
    )
    assert not out.exists() or out.read_bytes() == b""


def test_a_failure_inside_the_extra_is_not_called_a_missing_package():
    with pytest.raises(ImportError, match="broken"), needs_extra("mock", "mock-model"):
        raise ImportError("broken")


def test_a_missing_package_is_an_error_of_the_users():
    with pytest.raises(ConfigError, match="turnwise\\[mock\\]"), needs_extra("mock", "mock-model"):
        import no_such_package  # noqa: F401  # pyright: ignore


@pytest.mark.parametrize("module", ["environments.run.tracking", "turnwise.cli.mock_model"])
def test_the_modules_load_no_extra(module):
    # What Atropos imports is not ours.
    code = f"import sys, environments.base_env; before = set(sys.modules); import {module}; " + (
        "print(sorted({'wandb', 'uvicorn', 'starlette'} & (set(sys.modules) - before)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
