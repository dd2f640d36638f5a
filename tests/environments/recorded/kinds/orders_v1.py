"""A task for verifiers' `user-sim`: the simulated user knows the order, the assistant has to ask for it."""

import verifiers.v1 as vf

__all__ = ["OrdersTaskset"]


class OrderData(vf.TaskData):
    order: dict[str, str]


class Order(vf.Task[OrderData, vf.State]):
    @vf.reward
    async def repeated(self, trace):
        return sum(value in trace.last_reply for value in self.data.order.values()) / len(self.data.order)

    @vf.reward(weight=0.1)
    async def patient(self, trace):
        return float(trace.num_turns > 1)


class OrdersTaskset(vf.Taskset[Order, vf.TasksetConfig]):
    def load(self):
        for size, kind in (("large", "margherita"), ("small", "funghi")):
            order = {"size": size, "kind": kind}
            yield Order(
                OrderData(prompt=f"You want a {size} {kind}.", system_prompt="You sell pizza.", order=order)
            )
