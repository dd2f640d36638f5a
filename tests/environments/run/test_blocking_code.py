"""Whose code a thread is in."""

import json
import sys

import environments.testing
from environments.code_debug_env.env import CodeDebugEnv
from environments.run.blocking_code import CodePlaces

HERE = CodePlaces(object)


def hook():
    return helper()


def helper():
    return HERE.of_frame(sys._getframe())


def through_a_library():
    return json.loads("1", parse_int=lambda _: HERE.of_frame(sys._getframe()))


def test_the_outermost_and_the_innermost_line_of_an_environment_are_named():
    # pytest called it, which is no code of the environment's either.
    place = hook()
    assert place.endswith("in helper")
    assert "test_blocking_code.py:" in place


def test_our_own_work_is_nobodys_fault():
    code = compile("where = places.of_frame(sys._getframe())", environments.testing.__file__, "exec")
    found = {"places": HERE, "sys": sys}
    exec(code, found)
    assert found["where"] is None


def test_frames_of_libraries_are_skipped():
    assert "in <lambda>" in through_a_library()


def test_a_shipped_environment_is_an_environment():
    file = sys.modules[CodeDebugEnv.__module__].__file__
    code = compile("where = places.of_frame(sys._getframe())", file, "exec")
    found = {"places": CodePlaces(CodeDebugEnv), "sys": sys}
    exec(code, found)
    assert "env.py:1 in <module>" in found["where"]
