"""Settings of every test, and which of them `make test` runs.

`make test` runs all but what `LEFT_OUT` names and what is marked `soak`; `make test-all` (`pytest --soak`)
runs everything, and what the fixture `soak` cuts short whole. A path that is named on the command line runs.
"""

import gc
import os
import resource
import signal
import subprocess
from collections import Counter
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import settings

# Inspect's own environment, for its own suite, has none of Turnwise's dependencies.
HAS_DEPENDENCIES = find_spec("orjson") is not None
if HAS_DEPENDENCIES:
    from tests.equipment import warm_commands

LEFT_OUT = (
    "adversarial",
    "environments/real_model",
    "environments/recorded",
    "environments/rewards/verdict",
    "environments/rollout/agents/test_hostile_neighbours.py",
    "environments/run",
    "environments/serve/test_serve_end_to_end.py",
    "environments/serve/test_serve_growth.py",
    "environments/serve/test_serving.py",
    "environments/shipped/code_debug",
    "environments/shipped/retail",
    "environments/shipped/swe_tasks",
    "environments/shipped/terminal_tasks",
    "environments/test_mcp_env.py",
    "environments/trainers",
    "tools/mcp",
    "tools/sandbox",
    "tools/test_extras.py",
    "tools/test_files.py",
    "tools/test_terminal.py",
    "test_site.py",
    "turnwise/lab",
    "turnwise/test_installed.py",
    "turnwise/viewer",
)
"""Files and folders, below `tests/`, that start sandboxes, servers or other processes by the dozen."""
KEPT = (
    "adversarial/test_damaged_records.py",
    "environments/run/test_experiment.py",
    "environments/run/test_group_source.py",
    "environments/run/test_process_kills.py",
    "tools/sandbox/test_check.py",
)
"""Files of these folders that `make test` runs."""

if HAS_DEPENDENCIES:
    warm_commands.install()

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
    parser.addoption("--soak", action="store_true", help="every test, whole: what `make test-all` runs")


def pytest_ignore_collect(collection_path, config):
    """Without `--soak`, leave out what `LEFT_OUT` names, unless the command line names a path within it."""
    if config.getoption("--soak"):
        return None
    tests = Path(__file__).parent
    left_out = [tests / each for each in LEFT_OUT if collection_path.is_relative_to(tests / each)]
    kept = [
        each
        for each in (tests / name for name in KEPT)
        if each.is_relative_to(collection_path) or collection_path.is_relative_to(each)
    ]
    if not left_out or kept:
        return None
    named = [config.invocation_params.dir / arg.partition("::")[0] for arg in config.args]
    wanted = any(
        collection_path.is_relative_to(path) and path.is_relative_to(folder)
        for path in named
        for folder in left_out
    )
    return None if wanted else True


def pytest_collection_modifyitems(config, items):
    """Without `--soak`, leave out what is marked with it."""
    if config.getoption("--soak"):
        return
    config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("soak")])
    items[:] = [item for item in items if not item.get_closest_marker("soak")]


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session):
    """In CI, fail when a test was skipped for a reason that `known_skips.txt` does not have.

    Tests that failed are then not remembered, so that `.ci/twice` does not run them alone.
    """
    if os.environ.get("TURNWISE_REQUIRE_KNOWN_SKIPS") and new_reasons(skips(session.config)):
        session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED
        session.config.cache.set("cache/lastfailed", {})


def pytest_terminal_summary(terminalreporter, config):
    """Show the skips by reason in CI, and the CPU seconds of all processes that were waited for."""
    if os.environ.get("TURNWISE_REQUIRE_KNOWN_SKIPS"):
        counts = skips(config)
        for reason, count in sorted(counts.items()):
            new = (
                "NEW, add it to tests/known_skips.txt or run the test: "
                if reason in new_reasons(counts)
                else ""
            )
            terminalreporter.write_line(f"{count} skipped: {new}{reason}")
    times = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu_s = sum(each.ru_utime + each.ru_stime for each in times)
    terminalreporter.write_sep("=", f"{cpu_s:.0f} CPU seconds")


def skips(config):
    """How many tests were skipped, by reason; none in a worker of xdist, which has no reporter."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    reports = reporter.stats.get("skipped", []) if reporter else []
    return Counter(
        each.longrepr[2].removeprefix("Skipped: ") for each in reports if isinstance(each.longrepr, tuple)
    )


def new_reasons(reasons):
    """Those that match no line of `known_skips.txt`, in which `*` stands for anything."""
    known = [
        line
        for line in (Path(__file__).parent / "known_skips.txt").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    return {reason for reason in reasons if not any(fnmatchcase(reason, line) for line in known)}


@pytest.fixture(scope="session")
def soak(request):
    """Whether tests that are cut short otherwise run whole."""
    return request.config.getoption("--soak")


@pytest.fixture
def real_starts(monkeypatch):
    """Starts commands as a shell does, where others are forked."""
    monkeypatch.setattr(subprocess, "Popen", warm_commands.plain)
