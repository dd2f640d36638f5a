"""Sandboxes that begin as one was left: with its files as they were, apart, and with limits of their own."""

import asyncio
import inspect
import os
import tempfile
from pathlib import Path

import pytest

from tests.tools.sandbox.conftest import EACH_TIER
from tools.sandbox import reap_sandboxes
from tools.sandbox.check import Target, all_checks, run_check
from tools.sandbox.conformance import file_safety, floor, limits, verification
from tools.sandbox.host.ownership import identity
from tools.sandbox.layers import take_snapshot
from tools.sandbox.local import backend
from tools.waiting import side_by_side

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="an overlay takes root")

PREPARE = """
mkdir -p src/deep closed; echo one > src/one; echo two > src/deep/two
chmod 400 src/one; chmod 755 src/deep/two
ln -s deep/two src/link; ln -s /usr src/away; ln src/one src/hard; echo x > closed/x; chmod 500 closed
touch -d 2001-02-03 src/deep src/deep/two; export GIT_CONFIG_NOSYSTEM=1; git init -q .; git add -A
git -c user.name=a -c user.email=a@b commit -qm first
"""
LOOK = """
stat -c '%n %a %U %h %y' src/one src/deep src/deep/two src/hard closed | cut -c 1-38
readlink src/link src/away
GIT_CONFIG_NOSYSTEM=1 git status --short; cat src/link
"""
CHANGE = """
set -e; chmod 644 src/one; echo more >> src/one; rm src/hard; mv src moved; ls moved/deep
chmod 700 closed; rm -r closed .git; ls -A
"""


async def prepared(opening, command=PREPARE):
    async with opening as sandbox:
        assert (await sandbox.exec(command)).exit_code == 0
        seen = (await sandbox.exec(LOOK)).text() if command is PREPARE else ""
        return seen, await take_snapshot(sandbox)


@pytest.mark.parametrize("tier", EACH_TIER)
async def test_a_copy_has_links_modes_and_times_and_its_agent_may_change_all_of_it(tier, opening):
    seen, snapshot = await prepared(opening(tier))
    try:
        for _ in range(2):
            async with opening(tier).beginning_with(snapshot) as copy:
                assert (await copy.exec(LOOK)).text() == seen
                done = await copy.exec(CHANGE)
                assert (done.stderr, done.text().split()) == (b"", ["two", "moved"])
    finally:
        await snapshot.discard()


@pytest.mark.parametrize("tier", EACH_TIER)
async def test_a_verifiers_file_wins_over_one_that_was_prepared(tier, opening):
    _, snapshot = await prepared(opening(tier), "mkdir tests; echo old > tests/one; ln -s tests linked")
    fresh = opening(tier).beginning_with(snapshot).for_verifier({"tests/one": b"new", "linked/two": b"new"})
    try:
        async with fresh as sandbox:
            attack = (
                "for f in tests/one linked/two; do echo x > $f; rm -f $f; done; mv tests t; rm -rf linked"
            )
            await sandbox.exec(attack)
            assert (await sandbox.exec("cat tests/one linked/two")).text() == "newnew"
    finally:
        await snapshot.discard()


@as_root
async def test_a_fork_bomb_in_one_copy_leaves_another_its_processes(opening):
    _, snapshot = await prepared(opening("B"), "true")
    async with opening("B").beginning_with(snapshot) as one, opening("B").beginning_with(snapshot) as other:
        await one.exec("bomb() { bomb | bomb & }; bomb; sleep 1", timeout_s=3)
        spawn = await other.exec("for i in $(seq 20); do sleep 0.1 & done; wait; echo done")
        assert (spawn.stderr, spawn.text()) == (b"", "done\n")
    await snapshot.discard()


@as_root
async def test_copies_at_once_show_nothing_of_each_other(opening):
    _, snapshot = await prepared(opening("B"), "echo prepared > file")

    async def alone(number):
        async with opening("B").beginning_with(snapshot) as copy:
            return (await copy.exec(f"cat file; echo {number} > file; cat file; ls | wc -l")).text().split()

    seen = await side_by_side([alone(number) for number in range(16)])
    await snapshot.discard()
    assert seen == [["prepared", str(number), "1"] for number in range(16)]


@as_root
@pytest.mark.soak
async def test_a_copy_passes_the_checks_of_files_limits_and_verification(opening):
    _, snapshot = await prepared(opening("B"), "true")
    target = Target(options={"tier": "B", **snapshot.options})
    topics = {topic.__name__ for topic in (file_safety, floor, limits, verification)}
    checks = [check for check in all_checks() if check.run is not None and check.run.__module__ in topics]
    # A program of its own cannot be told of the snapshot, which is of this process.
    own = [check for check in checks if "host_program" not in inspect.getsource(check.run)]
    results = [await run_check(target, check, crowd=4) for check in own]
    await snapshot.discard()
    assert [result for result in results if result.status == "failed"] == []


@as_root
@pytest.mark.usefixtures("own_tmp")
async def test_what_a_dead_process_prepared_is_swept(opening):
    _, snapshot = await prepared(opening("B"), "true")
    base = Path(snapshot.options["tree"].base)
    dead = base.with_name(
        base.name.replace(identity(os.getpid()), "-".join([*identity(1).split("-")[:2], "7"]))
    )
    base.rename(dead)
    assert dead.name in [entry.name for entry in await reap_sandboxes("local")]
    assert not dead.exists()


@as_root
@pytest.mark.usefixtures("own_tmp")
async def test_a_machine_without_overlays_copies_an_archive_and_logs_its_time_once(
    opening, monkeypatch, caplog
):
    real = backend.launch.start

    def start(tier, limits, files=None, tree=None):
        if tree is not None and not tree.writable:
            raise backend.SandboxCreateError("no overlay")
        return real(tier, limits, files, tree)

    monkeypatch.setattr(backend.launch, "start", start)
    seen, snapshot = await prepared(opening("B"))
    for _ in range(2):
        async with opening("B").beginning_with(snapshot) as copy:
            assert (await copy.exec(LOOK)).text() == seen
    await snapshot.discard()
    assert [" MB" in message for message in caplog.messages] == [True]
    assert not list(Path(tempfile.gettempdir()).glob(f"turnwise.{identity(os.getpid())}.*"))


@pytest.mark.usefixtures("own_tmp")
async def test_a_snapshot_that_is_cancelled_leaves_nothing(opening):
    async with opening("B") as sandbox:
        await sandbox.exec("head -c 9000000 /dev/urandom > file")
        for steps in range(1, 40, 3):
            taking = asyncio.create_task(take_snapshot(sandbox))
            for _ in range(steps):
                await asyncio.sleep(0.001)
            taking.cancel()
            done, _ = await asyncio.wait({taking})
            if not taking.cancelled():
                await done.pop().result().discard()
    assert not list(Path(tempfile.gettempdir()).glob(f"turnwise.{identity(os.getpid())}.*"))
