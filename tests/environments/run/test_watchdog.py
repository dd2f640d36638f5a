"""Whose code a thread is in when it blocks the event loop."""

import json
import sys

import environments.testing
from environments.run.watchdog import find_place
from environments.shipped.code_debug.env import CodeDebugEnv


def hook():
    return helper()


def helper():
    return find_place(sys._getframe(), object)


def through_a_library():
    return json.loads("1", parse_int=lambda _: find_place(sys._getframe(), object))


def test_the_outermost_and_the_innermost_line_of_an_environment_are_named():
    # pytest called it, which is no code of the environment's either.
    place = hook()
    assert place.endswith("in helper")
    assert "test_watchdog.py:" in place


def test_our_own_work_is_nobodys_fault():
    code = compile("where = find_place(sys._getframe(), env)", environments.testing.__file__, "exec")
    found = {"find_place": find_place, "env": object, "sys": sys}
    exec(code, found)
    assert found["where"] is None


def test_frames_of_libraries_are_skipped():
    assert "in <lambda>" in through_a_library()


def test_a_shipped_environment_is_an_environment():
    file = sys.modules[CodeDebugEnv.__module__].__file__
    code = compile("where = find_place(sys._getframe(), env)", file, "exec")
    found = {"find_place": find_place, "env": CodeDebugEnv, "sys": sys}
    exec(code, found)
    assert "env.py:1 in <module>" in found["where"]
