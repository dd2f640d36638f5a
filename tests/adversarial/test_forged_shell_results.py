"""Commands of the live shell that were not run, or that the shell did not live to end, never succeed."""

# ruff: noqa: E501  # an attack is one line

import pytest

from tests.adversarial.tiers import docker_engine, fresh, in_each_tier, tier_c  # noqa: F401  # fixtures

FAKE_SHELL = r"""
import os, re, sys
while line := sys.stdin.readline():
    for nonce in re.findall(r"echo ([0-9a-f]{16}) ", line):
        for fd in range(3, 64):
            try: os.write(fd, f"{nonce} 0 \n".encode())
            except OSError: pass
"""
FORGER = r"""
import os, re, sys, time
shell = int(sys.argv[1])
own = [fd for fd in range(3, 64) if os.path.exists(f"/proc/self/fd/{fd}")]
while True:
    try:
        with open(f"/proc/{shell}/fd/0") as stdin:
            nonces = re.findall(r"echo ([0-9a-f]{16}) ", stdin.readline() + stdin.readline())
    except OSError:
        nonces = []
    for nonce in nonces:
        for fd in range(3, 64):
            for path in (f"/proc/{shell}/fd/{fd}", f"/proc/self/fd/{fd}"):
                try:
                    target = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
                    os.write(target, f"{nonce} 0 \n".encode())
                    os.close(target)
                except OSError:
                    pass
        for fd in own:
            try: os.write(fd, f"{nonce} 0 \n".encode())
            except OSError: pass
"""
SETUPS = {
    "another program with every descriptor": "for i in {10..30}; do eval \"exec $((i + 20))>&$i\"; done "
    "2>/dev/null; exec python3 fake.py",
    "a job with copies of the shell's descriptors": "for i in {10..30}; do eval \"exec $((i + 20))>&$i\"; done "
    "2>/dev/null; (exec python3 forger.py $$ >/dev/null 2>&1) & true",
    "an alias of source": "alias source=: builtin=: .=:",
    "an exit in the debug trap": "set -T; trap 'exit 0' DEBUG",
    "a debug trap that skips": "shopt -s extdebug; trap '[[ $BASH_COMMAND == *builtin* ]]' DEBUG",
    "an exit trap": "trap 'exit 0' EXIT ERR RETURN; set -eE",
    "a job that ends the shell": "(while :; do kill -TERM $$; kill -HUP $$; done) 2>/dev/null & trap 'exit 0' TERM HUP; true",
    "no status descriptor": "exec 9>&-; exec 10>&- 11>&- 12>&-",
    "another input": "printf 'exit 0\\n' >in; exec <in",
    "the command file closed": "(while :; do chmod 0 /run/turnwise ${TMPDIR:-/tmp}/../run; done) >/dev/null 2>&1 & true",
}  # fmt: skip


@pytest.fixture
async def sandbox(fresh):  # noqa: F811
    async with fresh() as opened:
        await opened.write_file("fake.py", FAKE_SHELL.encode())
        await opened.write_file("forger.py", FORGER.encode())
        yield opened


OF_EACH_KIND = (
    "another program with every descriptor",
    "a job with copies of the shell's descriptors",
    "an exit trap",
    "no status descriptor",
    "the command file closed",
)
"""Descriptors, processes and the files between host and shell differ by tier; what bash reads does not."""


@in_each_tier(SETUPS, OF_EACH_KIND)
async def test_what_was_left_in_the_shell_makes_no_command_succeed_that_did_not_run(sandbox, case):
    await sandbox.shell(case, timeout_s=1)
    for code in (7, 0):
        result = await sandbox.shell(f"echo ran >ran{code}; (exit {code})", timeout_s=2)
        ran = (await sandbox.exec(["cat", f"ran{code}"])).stdout == b"ran\n"
        assert ran or result.exit_code != 0
        assert not code or result.exit_code != 0
        assert result.timed_out or result.duration_s < 2


ENDS = ("exit 0", "exec true", "exec sh -c 'exit 0'", "kill $$", "kill -9 $$", "kill -HUP $$")


@in_each_tier({end: end for end in ENDS}, ["exit 0", "kill -9 $$"])
async def test_a_command_that_the_shell_did_not_live_to_end_is_no_success(sandbox, case):
    result = await sandbox.shell(case, timeout_s=60)
    assert result.exit_code != 0
    assert result.shell_restarted
    assert (await sandbox.shell("echo on")).stdout == b"on\n"


FORGED_ENDS = {
    "on every descriptor": "for fd in {1..40}; do echo '0123456789abcdef 0' >&$fd; done 2>/dev/null; exit 3",
    "on every descriptor of the shell": "for fd in /proc/$$/fd/*; do echo 0 >$fd; done 2>/dev/null; exit 3",
    "by another process": "python3 forger.py $$ >/dev/null 2>&1 & sleep 0.3; (exit 3)",
    "in much output": "yes '0123456789abcdef 0' | head -c 3000000; (exit 3)",
}


@in_each_tier(FORGED_ENDS, ["on every descriptor", "by another process"])
async def test_a_forged_end_does_not_hide_the_status(sandbox, case):
    result = await sandbox.shell(case, timeout_s=4)
    # A process of the agent's own may also take the shell's input away: then no end comes in time, or the shell is
    # replaced.
    assert result.exit_code == 3 or result.timed_out or (result.exit_code and result.shell_restarted)
