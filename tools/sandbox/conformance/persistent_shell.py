"""Checks 67 to 73: the persistent shell keeps what it should and cannot be wedged."""

import asyncio

from tools.errors import SandboxUnavailable
from tools.sandbox.conformance.bench import Bench
from tools.sandbox.conformance.checks import check, equal, holds

_UNFINISHED = ("echo 'a", "if true; then", "echo $(", "}", 'echo "a', "for i in")


@check(67)
async def directory_variables_and_functions_persist(bench: Bench) -> None:
    """The next command finds directory, variables, functions and exports of the last one."""
    await bench.sandbox.shell("cd /tmp; X=1; f() { echo f$X; }; export Y=2; set -o noglob")
    result = await bench.sandbox.shell("pwd; f; sh -c 'echo $Y'; echo *")
    equal("stdout", result.stdout, b"/tmp\nf1\n2\n*\n")


@check(68)
async def exit_is_reported_and_the_restart_flagged(bench: Bench) -> None:
    """`exit 3` is status 3, and the shell that follows is flagged as a new one."""
    result = await bench.sandbox.shell("X=1; exit 3")
    after = await bench.sandbox.shell("echo on$X")
    equal("exit code", result.exit_code, 3)
    equal("the next command", after.stdout, b"on\n")
    holds("one of the two results says so", result.shell_restarted or after.shell_restarted)
    holds("later ones do not", not (await bench.sandbox.shell("true")).shell_restarted)


@check(69)
async def unfinished_syntax_does_not_hang(bench: Bench) -> None:
    """Heredocs and several lines work, and an unclosed quote is an error, not a wait."""
    equal("heredoc", (await bench.sandbox.shell("cat <<'EOF'\na 'b\nEOF\n")).stdout, b"a 'b\n")
    equal("lines", (await bench.sandbox.shell("X=1\nfor i in 1 2; do\necho $i\ndone\n")).stdout, b"1\n2\n")
    for broken in _UNFINISHED:
        result = await bench.sandbox.shell(broken, timeout_s=10)
        holds(f"{broken!r} is an error at once", not result.timed_out and result.exit_code != 0)
    equal("afterwards", (await bench.sandbox.shell("echo on $X")).stdout, b"on 1\n")


@check(70)
async def the_shell_cannot_be_wedged(bench: Bench) -> None:
    """Replacing, trapping, redirecting and reading in the shell leave a shell that answers."""
    tricks = ("exec true", "set -e; false", "trap 'echo trapped' EXIT; exit 1", "cat", "read x",
              "exec </dev/null", "exec >/dev/null 2>&1", "set -x; PS4=; true", "trap 'true' DEBUG",
              "alias echo=false", "exec 9>&-")  # fmt: skip
    for trick in tricks:
        holds(f"{trick!r} ends", not (await bench.sandbox.shell(trick, timeout_s=10)).timed_out)
        after = await bench.sandbox.shell("printf on", timeout_s=10)
        holds(f"after {trick!r} the shell answers", not after.timed_out)
        await bench.sandbox.shell("exit")
        equal("a new shell", (await bench.sandbox.shell("printf on")).stdout, b"on")


@check(71)
async def a_busy_loop_of_the_shell_is_ended(bench: Bench) -> None:
    """A loop of builtins is ended; the shell goes on, or says that it is a new one."""
    await bench.sandbox.shell("X=kept")
    result = await bench.sandbox.shell("while :; do :; done", timeout_s=0.5)
    holds("it timed out", result.timed_out)
    after = await bench.sandbox.shell("echo on$X")
    restarted = result.shell_restarted or after.shell_restarted
    equal("the next command", after.stdout, b"on\n" if restarted else b"onkept\n")


@check(72)
async def two_shells_are_isolated_and_parallel(bench: Bench) -> None:
    """Shells of two sandboxes share nothing and do not wait for each other."""
    async with bench.open() as other:
        await asyncio.gather(bench.sandbox.shell("cd /tmp; X=1"), other.shell("X=2; touch seen"))
        slow = asyncio.create_task(bench.sandbox.shell("sleep 5", timeout_s=30))
        fast = await other.shell("pwd; echo $X")
        holds("the other shell did not wait", not slow.done())
        equal("the other shell", fast.text(), f"{other.workdir}\n2\n")
        slow.cancel()
        await asyncio.wait({slow})
    equal("this shell", (await bench.sandbox.shell("pwd; echo $X; ls")).stdout, b"/tmp\n1\n")


@check(73)
async def killing_the_shell_from_inside_is_survived(bench: Bench) -> None:
    """`kill -9` of the shell or of everything ends in a new shell or a clear error, never in a hang."""
    for suicide in ("kill -9 $$", "kill -9 -1", "sh -c 'kill -9 -1'"):
        try:
            await bench.sandbox.shell("X=kept")
            result = await bench.sandbox.shell(suicide, timeout_s=10)
            after = await bench.sandbox.shell("echo on$X", timeout_s=10)
        except SandboxUnavailable:
            return
        # `kill -9 -1` spares whoever calls it: a shell that does it with its builtin lives on.
        restarted = result.shell_restarted or after.shell_restarted
        equal(f"the command after {suicide!r}", after.stdout, b"on\n" if restarted else b"onkept\n")
        await bench.sandbox.shell("exit")
