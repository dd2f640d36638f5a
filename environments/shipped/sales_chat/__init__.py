from environments.shipped.sales_chat.env import SalesChatEnv

__all__ = ["SalesChatEnv"]
