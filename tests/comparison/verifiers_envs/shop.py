"""A shop with a simulated customer (`--env.id user-sim`): the orders at the end are the outcome."""

import verifiers.v1 as vf
from common import ORDERS, SCENARIOS, SHOP_POLICY, cancel, cancelled, look_up

__all__ = ["ShopTaskset"]


class Data(vf.TaskData):
    cancelled: list[str]


class Orders(vf.State):
    orders: dict[str, str] = dict(ORDERS)  # noqa: RUF012  # pydantic copies it


class ShopTools(vf.Toolset[vf.ToolsetConfig, Orders]):
    TOOL_PREFIX = None

    @vf.tool
    def find_order(self, order_id: str) -> str:
        """Look up the status of an order.

        Args:
            order_id: Its number.
        """
        return look_up(self.state.orders, order_id)

    @vf.tool
    def cancel_order(self, order_id: str) -> str:
        """Cancel a pending order.

        Args:
            order_id: Its number.
        """
        return cancel(self.state.orders, order_id)


class ShopTask(vf.Task[Data, Orders]):
    @classmethod
    def toolsets(cls, config):
        return [ShopTools(vf.ToolsetConfig())]

    @vf.reward
    async def served(self, trace: vf.Trace) -> float:
        return float(cancelled(trace.state.orders) == self.data.cancelled)


class ShopTaskset(vf.Taskset[ShopTask, vf.TasksetConfig]):
    def load(self):
        for scenario in SCENARIOS:
            data = Data(
                id=scenario["id"],
                prompt=scenario["persona"],
                system_prompt=SHOP_POLICY,
                cancelled=scenario["cancelled"],
            )
            yield ShopTask(data, self.config.task)


if __name__ == "__main__":
    ShopTools.run()
