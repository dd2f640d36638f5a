"""Opening by name: light to import, typed limits, backends of other packages."""

import subprocess
import sys
import typing
from dataclasses import fields

import pytest

from tools.errors import ConfigError
from tools.sandbox import SandboxLimits, find_backend, open_sandbox
from tools.sandbox.base import LimitOverrides
from tools.sandbox.check import Target, all_checks, run_check

THIRD = """
from contextlib import asynccontextmanager
from dataclasses import replace
from tools.sandbox.local.backend import open_local

class Third:
    def __init__(self, inner):
        self._inner = inner
        self.record = replace(inner.record, backend="third")
    def __getattr__(self, name):
        return getattr(self._inner, name)

@asynccontextmanager
async def open_third(limits, *, allow_unsafe=False, image=None):
    async with open_local(limits, allow_unsafe=allow_unsafe) as inner:
        yield Third(inner)

number = 3
"""


@pytest.fixture
def third_package(tmp_path, monkeypatch):
    """An installed package that registers backends, as pip would have left it."""
    (tmp_path / "third_sandbox.py").write_text(THIRD)
    info = tmp_path / "third_sandbox-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: third-sandbox\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[turnwise.sandboxes]\nthird = third_sandbox:open_third\n"
        "gone = third_sandbox:nothing\nnumber = third_sandbox:number\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("tools.sandbox._loaded", {})


def test_importing_the_protocol_loads_no_backend():
    heavy = ("asyncio", "ssl", "socket", "subprocess", "importlib.metadata", "tools.sandbox.local.backend")
    code = f"import sys, tools.sandbox.base; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_every_limit_can_be_given_as_a_keyword():
    assert set(typing.get_type_hints(LimitOverrides)) == {field.name for field in fields(SandboxLimits)}


async def test_single_limits_win_over_a_value_of_limits():
    async with open_sandbox("local", limits=SandboxLimits(pids=64, disk_mb=32), memory_mb=128) as sandbox:
        assert sandbox.record.limits == SandboxLimits(pids=64, disk_mb=32, memory_mb=128)


@pytest.mark.usefixtures("third_package")
async def test_a_backend_of_another_package_opens_by_its_name():
    async with open_sandbox("third", memory_mb=512) as sandbox:
        assert (sandbox.record.backend, sandbox.record.limits.memory_mb) == ("third", 512)
        assert (await sandbox.exec("echo on")).stdout == b"on\n"


@pytest.mark.usefixtures("third_package")
async def test_a_backend_of_another_package_gives_everything_back_when_it_cannot_open():
    (check,) = [each for each in all_checks() if each.number == 104]
    result = await run_check(Target(backend="third"), check, crowd=4)
    assert result.status == "ok", result.reason


@pytest.mark.usefixtures("third_package")
def test_an_unknown_backend_is_answered_with_the_nearest_and_all_others():
    with pytest.raises(
        ConfigError, match=r"did you mean 'third'.*'docker', 'gone', 'local', 'number', 'third'"
    ):
        find_backend("thrid")


@pytest.mark.usefixtures("third_package")
@pytest.mark.parametrize(("name", "problem"), [("gone", "cannot be loaded"), ("number", "which is a int")])
def test_a_registration_that_is_no_backend_is_named(name, problem):
    with pytest.raises(ConfigError, match=problem):
        find_backend(name)
