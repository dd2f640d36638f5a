from environments.shipped.harbor_tasks.env import HarborTasksEnv

__all__ = ["HarborTasksEnv"]
