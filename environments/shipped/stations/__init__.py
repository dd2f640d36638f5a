"""`stations`: eight signs, and the right key for each; small enough that a policy learns it in seconds."""

from environments.shipped.stations.env import StationsEnv

__all__ = ["StationsEnv"]
