"""`terminal_tasks`: make a file with given content in a terminal, with one reward per trajectory."""

from environments.shipped.terminal_tasks.env import TerminalTasksEnv

__all__ = ["TerminalTasksEnv"]
