from environments.shipped.stations.env import StationsEnv

__all__ = ["StationsEnv"]
