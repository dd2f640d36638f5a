"""`code_debug`: find and fix the bug in a Python function, with a reward for every turn."""

from environments.shipped.code_debug.env import CodeDebugEnv

__all__ = ["CodeDebugEnv"]
