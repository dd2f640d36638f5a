from environments.shipped.higher_lower.env import HigherLowerEnv

__all__ = ["HigherLowerEnv"]
