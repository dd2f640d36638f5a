"""^C while a command is still being imported."""

import signal
import subprocess
import sys

INTERRUPTED = """
import os, signal
import turnwise.__main__ as command
command.find_own_packages = lambda: os.kill(os.getpid(), signal.SIGINT)
command.main()
"""


def test_it_ends_the_command_without_a_traceback():
    ended = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGINT, b"", b"")
