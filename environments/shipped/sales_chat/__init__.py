"""`sales_chat`: sell in a chat whose customer upvotes, stays silent, buys or leaves; every turn is scored."""

from environments.shipped.sales_chat.env import SalesChatEnv

__all__ = ["SalesChatEnv"]
