from environments.shipped.swe_tasks.env import SweTasksEnv

__all__ = ["SweTasksEnv"]
