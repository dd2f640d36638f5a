"""Checks 125 to 132: the agent cannot touch what a verdict relies on."""

from tools.sandbox.archive import ArchivedFile, pack
from tools.sandbox.base import Sandbox
from tools.sandbox.conformance.checks import Bench, check, equal, holds, raises

_FILES = {"check": b"kept", "deep/er/check": b"kept"}
_PATHS = 'check deep/er/check "$VERIFIER/check" "$VERIFIER/deep/er/check"'
_KEPT = b"kept" * 4
_EXCHANGE = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
number = {'x86_64': 316, 'aarch64': 276}[os.uname().machine]
for path in sys.argv[1:]:
    with open('other', 'w') as file:
        file.write('forged')
    libc.syscall(number, -100, b'other', -100, path.encode(), 2)
"""


@check(125, "A verifier's files cannot be written to, cut short or made writable.", gives=("verifier_files",))
async def a_verifiers_files_cannot_be_changed(bench: Bench) -> None:
    async with bench.verification(_FILES) as sandbox:
        await _attack(sandbox, 'echo forged >"$p"; echo forged >>"$p"; : >"$p"; truncate -s 0 "$p"')
        await _attack(sandbox, 'chmod 666 "$p"; echo forged >"$p"; ln "$p" hard; echo forged >hard')


@check(126, "A verifier's files and their folders cannot be removed or renamed.", gives=("verifier_files",))
async def a_verifiers_files_cannot_be_taken_away(bench: Bench) -> None:
    async with bench.verification(_FILES) as sandbox:
        await _attack(sandbox, 'rm -f "$p"; mv "$p" away; mv "$p" "$p.old"; mv "$p" /tmp')
        await _attack(sandbox, 'd=$(dirname "$p"); mv "$d" away; mv "$d" "$d.old"; rm -rf "$d"; rmdir "$d"')
        await _attack(
            sandbox,
            'mv "$PWD" "$PWD.old"; mv deep away; rm -rf deep; mv "$VERIFIER" /tmp; rm -rf "$VERIFIER"',
        )


@check(
    127, "Nothing can replace a verifier's files by renaming, linking or exchange.", gives=("verifier_files",)
)
async def a_verifiers_files_cannot_be_replaced(bench: Bench) -> None:
    async with bench.verification(_FILES) as sandbox:
        await _attack(
            sandbox, 'echo forged >f; mv -f f "$p"; mv -fT f "$p"; ln -sf "$PWD/f" "$p"; ln -f f "$p"'
        )
        await _attack(sandbox, 'echo forged >"$(dirname "$p")/f"; mv -f "$(dirname "$p")/f" "$p"')
        equal("a program", (await sandbox.exec(["python3", "-c", "print(1)"])).stdout, b"1\n")
        await sandbox.exec(["python3", "-c", _EXCHANGE, "check", "deep/er/check"])
        await _attack(sandbox, ":")


@check(
    128,
    "`VERIFIER` names a read-only folder outside of the workspace with these files alone.",
    gives=("verifier_files",),
)
async def a_verifiers_folder_holds_nothing_else(bench: Bench) -> None:
    async with bench.verification(_FILES) as sandbox:
        await sandbox.exec('cd "$VERIFIER"; touch new deep/new deep/er/new; mkdir folder; ln -s check link')
        seen = (await sandbox.exec('cd "$VERIFIER"; find . | sort; pwd')).text().split()
        equal("what is there", seen[:-1], [".", "./check", "./deep", "./deep/er", "./deep/er/check"])
        holds("it is outside", not f"{seen[-1]}/".startswith(f"{sandbox.workdir}/"))


@check(129, "`HOME` is an empty, read-only folder outside of the workspace.", gives=("verifier_files",))
async def home_of_a_verification_is_empty_and_closed(bench: Bench) -> None:
    async with bench.verification({}) as sandbox:
        await sandbox.exec('touch "$HOME/.bashrc"; mkdir "$HOME/.local"')
        seen = (await sandbox.exec('cd "$HOME" && ls -A && pwd')).text().split()
        equal("what is there", len(seen), 1)
        holds("it is outside", not f"{seen[0]}/".startswith(f"{sandbox.workdir}/"))


@check(130, "Files can be made beside a verifier's, but not in their place.", gives=("verifier_files",))
async def a_verification_has_a_workspace(bench: Bench) -> None:
    async with bench.verification(_FILES) as sandbox:
        beside = {"deep/er/tool": ArchivedFile(data=b"#!/bin/sh\necho ran\n", mode=0o755)}
        await sandbox.put_archive(pack(beside))
        result = await sandbox.exec("deep/er/tool >deep/out; mkdir new; echo 1 >new/a; cat deep/out new/a")
        equal("stdout", result.stdout, b"ran\n1\n")
        with raises(OSError, what="a file in the way"):
            await sandbox.write_file("deep/er/check", b"forged")
        await _attack(sandbox, ":")


@check(131, "A command that the persistent shell did not live to end has another exit code than 0.")
async def a_shell_that_ended_told_no_success(bench: Bench) -> None:
    for command in ("exit 0", "exec true", "trap 'exit 0' DEBUG; true", "kill -9 $$"):
        result = await bench.sandbox.shell(command, timeout_s=10)
        if command.startswith("trap"):
            result = await bench.sandbox.shell("false", timeout_s=10)
        holds(f"{command!r} is not a success", result.exit_code != 0)
        equal("a new shell", (await bench.sandbox.shell("printf on")).stdout, b"on")


@check(132, "Functions, aliases and jobs of earlier commands make no command succeed that did not run.")
async def nobody_else_tells_the_status_of_a_command(bench: Bench) -> None:
    setups = ("source() { :; }; .() { :; }; eval() { :; }", "alias source=: .=: eval=:",
              "(while :; do read x </proc/$$/fd/0; for f in /proc/$$/fd/*; do echo $x 0 >$f; done; done) "
              ">/dev/null 2>&1 & true")  # fmt: skip
    for setup in setups:
        await bench.sandbox.shell(setup, timeout_s=10)
        result = await bench.sandbox.shell("touch ran; exit 7", timeout_s=2)
        holds(f"no success after {setup!r}", result.exit_code != 0)
        await bench.sandbox.exec("kill -9 -1")


async def _attack(sandbox: Sandbox, script: str) -> None:
    """Check that a script with each path as `$p` changes nothing."""
    equal("the files", (await sandbox.exec(f"cat {_PATHS}")).stdout, _KEPT)
    await sandbox.exec(f"for p in {_PATHS}; do {script}; done >/dev/null 2>&1")
    equal(f"the files after {script!r}", (await sandbox.exec(f"cat {_PATHS}")).stdout, _KEPT)
