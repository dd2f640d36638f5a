"""`harbor_tasks`: a folder of tasks in Harbor's format (Terminal-Bench 2's, too) as a dataset."""

from environments.shipped.harbor_tasks.env import HarborTasksEnv

__all__ = ["HarborTasksEnv"]
