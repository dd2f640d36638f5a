"""What breaks before the first rollout, or after the last, ends the run in one line, and never with 0."""

from pathlib import Path

import pytest

from tests.adversarial.misbehaving_env import misbehaving
from tests.adversarial.misbehaviour import KINDS
from tests.tables import cases
from tools.errors import ConfigError, RunError
from turnwise.cli.main import main

RAISING = {name: kind for name, kind in KINDS.items() if "long text" not in name}
FILE = """
import tests.adversarial.misbehaviour as misbehaviour
from tests.adversarial.misbehaving_env import misbehaving

Base = type(misbehaving("none", None))


class Broken(Base):
    def {hook}(self):
        return misbehaviour.KINDS[{kind!r}]()
"""


def broken(hook, kind):
    env = misbehaving("none", None, hook_timeout_s=60)
    cls = type("Broken", (type(env),), {hook: lambda self: kind()})
    return cls(env.config, ())


@pytest.mark.parametrize("hook", ["setup", "load_items", "teardown"])
@cases("kind", RAISING)
async def test_a_hook_outside_of_the_rollouts_that_breaks_is_named(hook, kind):
    with pytest.raises((RunError, ConfigError)) as caught:
        async with broken(hook, RAISING[kind]):
            pass
    error = str(caught.value)
    assert "for one item" in error or f"{hook} broke: " in error or f"{hook} is a generator" in error


@cases("kind", ["def raises SystemExit", "async raises CancelledError", "exits in a task"])
@cases("hook", ["setup", "load_items", "teardown"])
def test_no_command_takes_it_for_success(hook, kind, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("broken_env.py").write_text(FILE.format(hook=hook, kind=kind))
    assert main(["process", "broken_env.py:Broken", "--env.min_group_size", "1"]) == 1
    told = capsys.readouterr().err
    assert told.splitlines()[-1].startswith(f"turnwise: error: environment 'misbehaving': {hook} broke: ")
    assert "misbehaviour.py" in told
