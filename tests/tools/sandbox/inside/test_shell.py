"""The persistent shell: what stays, what cannot wedge it, what a timeout kills."""

import pytest


async def test_the_last_status_is_seen_by_the_next_command(sandbox):
    assert (await sandbox.shell("(exit 5)")).exit_code == 5
    assert (await sandbox.shell("echo $?")).stdout == b"5\n"


_TO_STATUS = "for fd in {{9..19}}; do echo {words} >&$fd; done 2>/dev/null"
"""While bash runs a command, its status descriptor is under some number that is not told."""


async def test_a_flood_of_forged_statuses_does_not_hide_the_status(sandbox):
    await sandbox.shell(f"(while :; do {_TO_STATUS.format(words='0123456789abcdef 0')}; done) & true")
    for code in (3, 0, 5):
        assert (await sandbox.shell(f"(exit {code})", timeout_s=20)).exit_code == code


async def test_a_status_that_comes_with_other_words_is_found(sandbox):
    result = await sandbox.shell(f"{_TO_STATUS.format(words='junk')}; (exit 3)", timeout_s=20)
    assert result.exit_code == 3


async def test_a_status_with_a_long_number_is_none(sandbox):
    # The word that nobody else knows is in the shell's input, which the command can find.
    forge = """for fd in {9..19}; do
      if read -r -t 1 -u $fd line; then
        set -- $line
        for to in {9..19}; do echo $3 $(head -c 5000 /dev/zero | tr '\\0' 1) >&$to; done
      fi
    done 2>/dev/null"""
    assert (await sandbox.shell(forge, timeout_s=2)).timed_out
    assert (await sandbox.shell("echo on")).stdout == b"on\n"


async def test_a_heredoc_works(sandbox):
    assert (await sandbox.shell("cat <<'EOF'\na 'b\nEOF\n")).stdout == b"a 'b\n"


async def test_reading_stdin_gives_the_end_at_once(sandbox):
    assert (await sandbox.shell("cat; read x; echo done", timeout_s=5)).stdout == b"done\n"


async def test_a_background_job_does_not_hold_the_result_and_lives_on(sandbox):
    result = await sandbox.shell("sleep 1000 & echo hi", timeout_s=20)
    assert (result.stdout, result.timed_out) == (b"hi\n", False)
    assert (await sandbox.shell("kill -0 $! && jobs")).text().endswith("sleep 1000 &\n")


async def test_late_output_of_a_background_job_is_not_mixed_in(sandbox):
    await sandbox.shell("mkfifo go; { cat go; echo late; } & true")
    assert (await sandbox.shell("echo > go; wait; echo mine")).stdout == b"mine\n"


@pytest.mark.parametrize(
    "endless",
    [
        "sleep 1000",
        "while :; do sleep 1; done",
        "while :; do :; done",
        "f() { while :; do :; done; }; f; echo after",
    ],
)
async def test_a_timeout_ends_the_command_and_keeps_the_shell(sandbox, endless):
    await sandbox.shell("cd /tmp; X=kept; sleep 3001 & :")
    result = await sandbox.shell(endless, timeout_s=0.2)
    assert (result.timed_out, result.exit_code, result.shell_restarted, result.stdout) == (
        True,
        137,
        False,
        b"",
    )
    assert (await sandbox.shell("echo $X $PWD; pgrep -x sleep | wc -l")).stdout == b"kept /tmp\n1\n"


async def test_a_timeout_also_kills_what_left_the_session(sandbox):
    started = "setsid sleep 4001 & (setsid sleep 4002 &); until [ $(pgrep -cx sleep) = 2 ]; do :; done;"
    result = await sandbox.shell(f"{started} echo two; sleep 4003", timeout_s=1)
    assert result.stdout == b"two\n"
    assert (await sandbox.exec("pgrep -x sleep")).stdout == b""


async def test_a_shell_that_refuses_to_leave_is_replaced(sandbox):
    result = await sandbox.shell("trap '' PWR; while :; do :; done", timeout_s=0.2)
    assert (result.timed_out, result.shell_restarted) == (True, True)
    assert (await sandbox.shell("echo on")).stdout == b"on\n"


@pytest.mark.parametrize("suicide", ["kill -9 $$", "sh -c 'kill -9 -1'", "exec true", "set -e; false"])
async def test_a_shell_that_dies_is_replaced(sandbox, suicide):
    assert (await sandbox.shell(suicide, timeout_s=5)).shell_restarted
    assert (await sandbox.shell("echo on")).stdout == b"on\n"


async def test_a_shell_killed_between_commands_is_flagged(sandbox):
    pid = (await sandbox.shell("echo $$")).text().strip()
    await sandbox.exec(f"kill -9 {pid}; while kill -0 {pid}; do :; done")
    result = await sandbox.shell("echo on")
    assert (result.stdout, result.shell_restarted) == (b"on\n", True)


async def test_endless_output_of_the_shell_is_stopped_and_the_shell_stays(sandbox):
    result = await sandbox.shell('X=kept; printf -v big %9999s; while :; do echo "$big"; done', timeout_s=60)
    assert (result.exit_code, result.timed_out, result.shell_restarted) == (137, False, False)
    assert (await sandbox.shell("echo $X")).stdout == b"kept\n"


async def test_memory_the_shell_itself_takes_is_bounded(sandbox):
    result = await sandbox.shell("x=$(head -c 400000000 /dev/zero | tr '\\0' a); echo ${#x}", timeout_s=60)
    assert result.oom_killed
    assert (await sandbox.shell("echo on")).stdout == b"on\n"


async def test_a_shell_whose_folder_was_closed_to_it_is_the_command_s_failure(sandbox):
    await sandbox.shell("chmod 0 .; exit")
    result = await sandbox.shell("echo on")
    assert (result.exit_code, result.stderr) == (126, b"cannot start in /workspace: Permission denied\n")
    await sandbox.exec("chmod 700 /workspace", cwd="/")
    assert (await sandbox.shell("echo on")).stdout == b"on\n"
