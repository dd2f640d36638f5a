"""`retail`: customer service of an online shop, over a database, with a simulated customer."""

from environments.retail_env.env import RetailEnv

__all__ = ["RetailEnv"]
