"""A file is written whole, whoever is killed meanwhile."""

import signal
import subprocess
import sys
from threading import Thread

from environments.record.private_file import write_private, write_whole

KILLED = (
    "import os, pathlib, sys; from environments.record.private_file import write_whole\n"
    "with write_whole(pathlib.Path(sys.argv[1])) as unfinished:\n"
    "    unfinished.write_text('half'); os.kill(os.getpid(), 9)"
)


def test_what_a_killed_writer_left_goes_with_the_next_and_what_others_write_stays(tmp_path):
    out = tmp_path / "out"
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", KILLED, out], check=False)
        assert done.returncode == -signal.SIGKILL
        assert len(list(tmp_path.iterdir())) == 1
    with write_whole(out) as ours:
        ours.write_text("whole")
        other = Thread(target=write_private, args=(out, b"before"))
        other.start()
        other.join()
        assert {each.name for each in tmp_path.iterdir()} == {"out", ours.name}
    assert [each.name for each in tmp_path.iterdir()] == ["out"]
    assert out.read_text() == "whole"
