"""An environment whose groups are the canaries: each item is one of them."""

from environments.base_env import AgentEnv
from environments.trainers.canary import CANARIES


class CanaryEnv(AgentEnv):
    """No rollout happens."""

    name = "canary"
    sandbox = "none"
    groups = CANARIES

    def load_items(self):
        return [{"id": name} for name in self.groups]

    def format_prompt(self, item):
        return item["id"]

    def compute_reward(self, item, trajectory, ctx):
        return 0.0

    async def run_group(self, task, size=None, **_):
        return self.groups[task.item_id]()
