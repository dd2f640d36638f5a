"""`terminal_tasks`: make a file with given content in a terminal, with one reward per trajectory."""

from environments.terminal_tasks_env.env import TerminalTasksEnv

__all__ = ["TerminalTasksEnv"]
