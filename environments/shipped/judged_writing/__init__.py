"""`judged_writing`: a short text, written and revised; a judge reads every draft."""

from environments.shipped.judged_writing.env import JudgedWritingEnv

__all__ = ["JudgedWritingEnv"]
