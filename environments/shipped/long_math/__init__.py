from environments.shipped.long_math.env import LongMathEnv

__all__ = ["LongMathEnv"]
