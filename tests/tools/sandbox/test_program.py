"""The process of a supervisor as a program: what it said last is told in one line."""

import sys

import pytest

from tools.sandbox.program import Program


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise OSError(1, 'unshare')", "PermissionError: [Errno 1] unshare"),
        ("import sys; sys.exit('x' * 5000 + '\\nno bubblewrap here\\n')", "no bubblewrap here"),
        ("", ""),
    ],
)
def test_the_last_line_says_what_was_wrong(code, said):
    program = Program([sys.executable, "-I", "-c", code], [])
    assert program.ends(within_s=30)
    assert program.last_words() == said
    program.close()
