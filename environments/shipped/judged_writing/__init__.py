from environments.shipped.judged_writing.env import JudgedWritingEnv

__all__ = ["JudgedWritingEnv"]
