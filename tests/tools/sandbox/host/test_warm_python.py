"""Interpreters that stop before their program, and the programs that are forked from them."""

import os
import subprocess
import sys

OWNER = """
import os, sys, time
from tools.sandbox.host.warm_python import ProgramStart, WarmPython
program = "import time; print('begun', flush=True); time.sleep(600)"
python = WarmPython([sys.executable, "-c", program], {})
python.load((), ())
python.fork(ProgramStart(arguments=(), env={}, cwd="/", folder=None, modules_file=None), (0, 1, 2))
time.sleep(600)
"""


def test_a_program_without_guards_ends_with_a_killed_owner():
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE) as owner:
        assert owner.stdout.readline() == b"begun\n"
        owner.kill()
        assert owner.stdout.read() == b""  # the end of the last process that holds it


HANGING = """
import sys
from tools.sandbox.host.warm_python import WarmPython
WarmPython([sys.executable, "-c", "pass"], {"PYTHONPATH": sys.argv[1]}).load(["hangs"], ())
"""


def test_an_interpreter_that_hangs_in_an_import_ends_with_a_killed_owner(tmp_path):
    os.mkfifo(tmp_path / "held")
    text = f"import time\nheld = open({str(tmp_path / 'held')!r}, 'w')\ntime.sleep(600)\n"
    (tmp_path / "hangs.py").write_text(text)
    with (
        subprocess.Popen([sys.executable, "-c", HANGING, str(tmp_path)]) as owner,
        (tmp_path / "held").open() as held,
    ):
        owner.kill()
        assert held.read() == ""  # the end of the process that holds it
