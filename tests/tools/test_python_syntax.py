"""Python text is parsed as it is, whatever other threads parse."""

import ast
import gc
import sys
from threading import Thread

import pytest

from tools.python_syntax import parse_python

NESTED = "x = " + "(1 + " * 30 + "1" + ")" * 30 + "\n"


class Closed:
    """Garbage whose end runs Python, and so lets another thread run while a tree is made."""

    def __init__(self):
        self.itself = self

    def __del__(self):
        sum(range(3))


@pytest.fixture
def disturbed():
    interval, threshold = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(1e-6)
    gc.set_threshold(5)
    yield
    sys.setswitchinterval(interval)
    gc.set_threshold(*threshold)


def test_threads_that_parse_at_once_do_not_break_each_other(disturbed):
    trees, broken = [], []

    def parse():
        try:
            for _ in range(150):
                Closed()
                trees.append(ast.unparse(parse_python(NESTED).body[0].targets[0]))
        except Exception as error:  # noqa: BLE001  # whatever it is
            broken.append(error)

    threads = [Thread(target=parse) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert broken == []
    assert trees == ["x"] * 600


def test_what_is_no_python_is_an_error():
    with pytest.raises(SyntaxError):
        parse_python("def")
