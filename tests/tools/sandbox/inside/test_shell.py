"""The persistent shell: what stays, what cannot wedge it, what a timeout kills."""

import pytest


async def test_the_last_status_is_seen_by_the_next_command(sandbox):
    assert (await sandbox.shell("(exit 5)")).exit_code == 5
    assert (await sandbox.shell("echo $?")).stdout == b"5\n"


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


async def test_late_output_of_a_background_job_is_not_mixed_in(sandbox):
    await sandbox.shell("mkfifo go; { cat go; echo late; } & true")
    assert (await sandbox.shell("echo > go; wait; echo mine")).stdout == b"mine\n"


@pytest.mark.parametrize("endless", ["sleep 1000", "f() { while :; do :; done; }; f; echo after"])
async def test_a_timeout_ends_the_command_and_keeps_the_shell(sandbox, endless):
    await sandbox.shell("cd /tmp; X=kept; sleep 3001 & :")
    result = await sandbox.shell(endless, timeout_s=0.2)
    assert (result.timed_out, result.exit_code, result.shell_restarted) == (True, 137, False)
    assert (await sandbox.shell("echo $X $PWD; pgrep -x sleep | wc -l")).stdout == b"kept /tmp\n1\n"


async def test_a_shell_that_refuses_to_leave_is_replaced(sandbox):
    result = await sandbox.shell("trap '' PWR; while :; do :; done", timeout_s=0.2)
    assert (result.timed_out, result.shell_restarted) == (True, True)
    assert (await sandbox.shell("echo on")).stdout == b"on\n"


async def test_a_shell_killed_between_commands_is_flagged(sandbox):
    pid = (await sandbox.shell("echo $$")).text().strip()
    await sandbox.exec(f"kill -9 {pid}; while kill -0 {pid}; do :; done")
    result = await sandbox.shell("echo on")
    assert (result.stdout, result.shell_restarted) == (b"on\n", True)


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
