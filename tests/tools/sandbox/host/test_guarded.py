"""A program behind its guard is started, connected and reported as without one."""

import subprocess
import sys

from tests.tables import cases
from tools.sandbox.host.guarded import guarded


def run(*argv, **options):
    options = {"env": {"PATH": "/usr/bin:/bin"}, "capture_output": True, "text": True} | options
    return subprocess.run(guarded(argv), timeout=60, check=False, start_new_session=True, **options)


@cases("script, code", [("exit 3", 3), ("kill -KILL $$", 137), ("kill -SEGV $$", 139), ("exit 0", 0)])
def test_its_exit_code_is_that_of_the_program_or_128_and_its_signal(script, code):
    assert run("sh", "-c", script).returncode == code


def test_who_reads_the_output_sees_its_end_while_the_program_goes_on():
    program = "import os, sys, time; os.close(1); os.close(2); time.sleep(600)"
    process = subprocess.Popen(guarded([sys.executable, "-c", program]), stdout=subprocess.PIPE)
    assert process.stdout.read() == b""
    process.terminate()
    assert process.wait() == 137


def test_the_program_has_the_variables_that_were_given_and_no_other():
    assert run("env").stdout == "PATH=/usr/bin:/bin\n"


def test_signals_that_python_ignores_have_their_usual_effect():
    assert run("sh", "-c", "kill -PIPE $$").returncode == 141


def test_a_program_that_cannot_be_started_is_named():
    done = run("/nothing")
    assert (done.returncode, done.stderr[:30]) == (127, "/nothing cannot be started: [E")
