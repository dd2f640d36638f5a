from environments.shipped.terminal_tasks.env import TerminalTasksEnv

__all__ = ["TerminalTasksEnv"]
