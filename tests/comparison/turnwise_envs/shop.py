"""A shop with a simulated customer: the orders at the end are the outcome."""

from common import ORDERS, SCENARIOS, SHOP_POLICY, cancel, cancelled, look_up

from turnwise import AgentEnv, SimulatedUser, State, tool


class Orders(State):
    def __init__(self):
        self.orders = dict(ORDERS)

    @tool
    def find_order(self, order_id: str) -> str:
        """Look up the status of an order.

        Args:
            order_id: Its number.
        """
        return look_up(self.orders, order_id)

    @tool
    def cancel_order(self, order_id: str) -> str:
        """Cancel a pending order.

        Args:
            order_id: Its number.
        """
        return cancel(self.orders, order_id)


class Shop(AgentEnv):
    name = "shop"
    tools = (Orders,)
    system_prompt = SHOP_POLICY
    sandbox = "none"
    user = SimulatedUser()

    def load_items(self):
        return SCENARIOS

    def prepare(self, item, sandbox) -> Orders:
        return Orders()

    async def format_prompt(self, item, ctx):
        return await self.user.opening(ctx, persona=item["persona"])

    async def respond(self, item, turn, ctx):
        return None if turn.tool_results else await self.user.reply(ctx, persona=item["persona"])

    def compute_reward(self, item, trajectory, ctx):
        return float(cancelled(ctx.state.orders) == item["cancelled"])
