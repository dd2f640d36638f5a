"""Settings of every test: hypothesis draws the same examples each run and never judges by the clock."""

import gc
import signal
import subprocess

import pytest
from hypothesis import settings

from tests.equipment import forked_starts

forked_starts.install()

settings.register_profile("turnwise", deadline=None, derandomize=True, print_blob=True, max_examples=30)
settings.load_profile("turnwise")

# A shell's background jobs ignore SIGINT, and so would every command that a test starts and interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What collecting makes stays: looking through it for garbage is a quarter of that time, and goes on in tests.
gc.disable()


def pytest_collection_finish():
    gc.freeze()
    gc.enable()


def pytest_addoption(parser):
    parser.addoption("--soak", action="store_true", help="run what is left out or cut short otherwise, whole")


def pytest_collection_modifyitems(config, items):
    """Without `--soak` what is marked with it is left out; with it all that would run the same is."""
    wanted, left = [], []
    for item in items:
        marked, cut_short = item.get_closest_marker("soak"), "soak" in item.fixturenames
        keep = marked or cut_short if config.getoption("--soak") else not marked
        (wanted if keep else left).append(item)
    config.hook.pytest_deselected(items=left)
    items[:] = wanted


@pytest.fixture(scope="session")
def soak(request):
    """Whether soak tests run whole."""
    return request.config.getoption("--soak")


@pytest.fixture
def real_starts(monkeypatch):
    """Starts commands as a shell does, where others are forked."""
    monkeypatch.setattr(subprocess, "Popen", forked_starts.plain)
