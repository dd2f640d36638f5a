"""`retail`: customer service of an online shop, over a database, with a simulated customer."""

from environments.shipped.retail.env import RetailEnv

__all__ = ["RetailEnv"]
