"""`long_math`: a chain of facts over many pages, each read once; what is forgotten is gone."""

from environments.shipped.long_math.env import LongMathEnv

__all__ = ["LongMathEnv"]
