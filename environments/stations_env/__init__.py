"""`stations`: eight signs, and the right key for each; small enough that a policy learns it in seconds."""

from environments.stations_env.env import StationsEnv

__all__ = ["StationsEnv"]
