"""`harbor_tasks`: a folder of tasks in Harbor's format (Terminal-Bench 2's, too) as a dataset."""

from environments.harbor_tasks_env.env import HarborTasksEnv

__all__ = ["HarborTasksEnv"]
