"""`judged_writing`: a short text, written and revised; a judge reads every draft."""

from environments.judged_writing_env.env import JudgedWritingEnv

__all__ = ["JudgedWritingEnv"]
