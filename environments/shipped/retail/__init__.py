from environments.shipped.retail.env import RetailEnv

__all__ = ["RetailEnv"]
