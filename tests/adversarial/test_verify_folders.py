"""Folders among the artefacts of a verification: plain files come along, whatever the agent made of them."""

import pytest

from environments.rewards.reward_context import RolloutContext
from tools.sandbox import open_sandbox
from tools.sandbox.conformance.file_safety import hostile_archives

RIGHT = b"def add(a, b):\n    return a + b\n"


@pytest.fixture
async def ctx(request):
    disk_mb = getattr(request, "param", 32)

    def fresh():
        return open_sandbox("local", memory_mb=192, disk_mb=disk_mb)

    async with fresh() as sandbox:
        yield RolloutContext(env="attacked", item_id="1", sandbox=sandbox, fresh_sandbox=fresh)


IN_THE_FOLDER = {
    "a linked file": "ln -s ../reference.py pkg/solution.py",
    "a linked folder": "rmdir pkg; mkdir real; ln -s .. real/up; ln -s real/up/real pkg; "
    "ln -s ../reference.py real/solution.py",
    "a link to where everything is": "ln -s .. pkg/up; ln -s up/reference.py pkg/solution.py",
}
PACKAGE_CHECK = (
    "from pkg.solution import add\nassert add(1, 2) == 3\nimport tag\nassert tag.one == 1\nprint('passed')\n"
)
PACKAGE_VERIFIER = {
    "check.py": PACKAGE_CHECK,
    "reference.py": RIGHT,
    "pkg/tests/data": "kept",
    "tag.py": "one = 1\n",
}


async def verified_package(ctx, command="python3 check.py", artefacts=("pkg",)):
    return await ctx.verify(command=command, artefacts=artefacts, files=PACKAGE_VERIFIER)


async def test_a_folder_is_an_artefact(ctx):
    await ctx.sandbox.write_file("pkg/solution.py", RIGHT)
    await ctx.sandbox.write_file("pkg/deep/er/tool", b"#!/bin/sh\necho ran\n", mode=0o755)
    result = await verified_package(ctx, "python3 check.py && pkg/deep/er/tool && cat pkg/tests/data")
    assert result.text() == "passed\nran\nkept"


@pytest.mark.parametrize("setup", IN_THE_FOLDER.values(), ids=IN_THE_FOLDER)
async def test_a_link_in_a_folder_leads_to_nothing_of_the_verifiers(ctx, setup):
    assert (await ctx.sandbox.exec(f"set -e; mkdir pkg; {setup}")).exit_code == 0
    assert b"passed" not in (await verified_package(ctx)).stdout
    for path, data in PACKAGE_VERIFIER.items():
        if "/" not in path:
            await ctx.sandbox.write_file(path, data if isinstance(data, bytes) else data.encode())
    assert b"passed" in (await ctx.sandbox.exec("python3 check.py")).stdout


async def test_only_plain_files_of_a_folder_come_along(ctx):
    await ctx.sandbox.write_file("pkg/solution.py", RIGHT)
    await ctx.sandbox.exec(
        "cd pkg; ln solution.py hard; ln -s solution.py soft; ln -s /etc/passwd far; "
        "mkfifo fifo; mknod null c 1 3; "
        "python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('socket')\""
    )
    result = await verified_package(
        ctx, "python3 -B check.py; find pkg ! -type d -printf '%p %y %n\\n' | sort"
    )
    assert result.text().splitlines() == [
        "passed", "pkg/hard f 1", "pkg/solution.py f 1", "pkg/tests/data f 1"
    ]  # fmt: skip


IN_THE_WAY = {
    "a folder instead of a file": "mkdir -p pkg/tests/data/x; echo x >pkg/tests/data/x/y",
    "a file instead of a folder": "rm -rf pkg/tests; echo x >pkg/tests",
    "a locked file": "echo x >pkg/locked; chmod 0 pkg/locked",
    "a folder that is too deep": "cd pkg; for i in $(seq 99); do mkdir d; cd d; done; echo x >file",
    "a path that is too long": "python3 -c \"import os; os.chdir('pkg'); "
    "[(os.mkdir('d' * 250), os.chdir('d' * 250)) for _ in range(17)]; open('x', 'w')\"",
    "as many files as an archive holds": "mkdir pkg/d; cd pkg/d; seq 9999 | xargs touch",
    "too many files": "mkdir pkg/d; cd pkg/d; seq 10100 | xargs touch",
    "a large file with nothing in it": "truncate -s 100M pkg/large",
    "odd names": "touch pkg/$(printf '\\377\\n') pkg/-n 'pkg/.. ' 'pkg/\\'",
    "a FIFO instead of the folder": "rm -r pkg; mkfifo pkg",
    "no folder": "rm -r pkg",
}


@pytest.mark.parametrize("ctx", [64], indirect=True)
@pytest.mark.parametrize("setup", IN_THE_WAY.values(), ids=IN_THE_WAY)
async def test_no_folder_of_the_agent_keeps_the_verifier_from_its_verdict(ctx, setup):
    assert (await ctx.sandbox.exec(f"set -e; mkdir pkg; {setup}")).exit_code == 0
    result = await verified_package(ctx, "cat pkg/tests/data; python3 check.py")
    assert result.stdout == b"kept"
    assert result.exit_code == 1


async def test_artefacts_that_fill_the_workspace_leave_room_for_the_verifier(ctx):
    fill = "for i in 1 2 3; do head -c 3300000 /dev/zero >$i; done"
    await ctx.sandbox.exec(f"mkdir pkg a b; (cd pkg; {fill}); cp pkg/* a; cp pkg/* b; ln -s pkg c; ln -s a d")
    names = ["pkg", "a", "b", "c", "d", "pkg/1"]
    result = await verified_package(ctx, "cat pkg/tests/data; ls", artefacts=names)
    assert result.text().split() == ["kepta", "b", "check.py", "pkg", "reference.py", "tag.py"]


async def test_artefacts_that_do_not_fit_where_they_belong_are_not_there(ctx):
    await ctx.sandbox.exec("truncate -s 9M /tmp/large; truncate -s 8M /tmp/all; truncate -s 4M /tmp/half")
    result = await ctx.verify(
        command="cat /tmp/check; ls /tmp",
        artefacts=["/tmp/large", "/tmp/all", "/tmp/half"],
        files={"/tmp/check": "kept"},
    )
    assert result.text().split() == ["keptcheck", "half"]


async def test_a_folder_that_changes_meanwhile_is_never_an_error(ctx):
    await ctx.sandbox.exec(
        "mkdir pkg; (while :; do mkdir -p pkg/tests/data; echo x >pkg/tests/data/x; rm -rf pkg; "
        "mkdir pkg; echo x >pkg/tests; mkfifo pkg/f; ln -s /etc pkg/e; rm -rf pkg; ln -s / pkg; rm pkg; "
        "mkdir pkg; done) >/dev/null 2>&1 &"
    )
    for _ in range(20):
        result = await verified_package(ctx, "cat pkg/tests/data", artefacts=["pkg", "pkg/tests", "pkg"])
        assert result.stdout == b"kept"


class Forging:
    """A sandbox whose agent made the archive itself."""

    def __init__(self, sandbox, archive):
        self._sandbox = sandbox
        self._archive = archive

    def __getattr__(self, name):
        return getattr(self._sandbox, name)

    async def get_archive(self, path, *, max_bytes=0):
        return self._archive


@pytest.mark.parametrize("problem", hostile_archives())
async def test_an_archive_that_would_escape_brings_nothing(ctx, problem):
    await ctx.sandbox.exec("mkdir pkg")
    ctx.sandbox = Forging(ctx.sandbox, hostile_archives()[problem])
    seen = await verified_package(ctx, "cat pkg/tests/data; ls pkg /tmp; ls -d /escaped escaped")
    assert seen.text().split() == ["kept/tmp:", "pkg:", "tests"]
