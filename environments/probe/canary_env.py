"""An environment whose groups are canaries: what an adapter that opens environments is probed with."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext as unwatched
from typing import Any

from environments.base_env import AgentEnv
from environments.containment.in_flight import Watch
from environments.data.tasks import GroupTask
from environments.trainers.canary import CANARIES
from environments.trajectory import CreditedGroup, Trajectory


class CanaryEnv(AgentEnv):
    """Each item is a canary; no rollout happens."""

    name = "canary"
    sandbox = "none"
    groups: Mapping[str, Callable[[], CreditedGroup]] = CANARIES
    """By the ids of their items."""

    def load_items(self) -> list[Any]:
        """One for each group."""
        return [{"id": name} for name in self.groups]

    def format_prompt(self, item: Any) -> str:
        """Nobody reads it."""
        return item["id"]

    def compute_reward(self, item: Any, trajectory: Trajectory, ctx: Any) -> float:
        """Nobody asks for it."""
        return 0.0

    async def run_group(
        self, task: GroupTask, size: int | None = None, *, watch: Watch = unwatched
    ) -> CreditedGroup:
        """The canary, whatever size is asked for."""
        return self.groups[task.item_id]()
