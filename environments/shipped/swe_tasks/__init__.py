"""`swe_tasks`: fix a bug of a repository; tests of the verifier decide, in a fresh sandbox."""

from environments.shipped.swe_tasks.env import SweTasksEnv

__all__ = ["SweTasksEnv"]
