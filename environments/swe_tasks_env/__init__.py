"""`swe_tasks`: fix a bug of a repository; tests of the verifier decide, in a fresh sandbox."""

from environments.swe_tasks_env.env import SweTasksEnv

__all__ = ["SweTasksEnv"]
