"""Every hook in each way that an author may write it: `make check` holds these classes to strict types."""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

from turnwise import (
    AgentEnv,
    Choice,
    GroupContext,
    Message,
    RolloutContext,
    Sandbox,
    SandboxSpec,
    State,
    ToolSpec,
    Trajectory,
    Turn,
    TurnLevelRewardMixin,
)


class World(State): ...


class Plain(TurnLevelRewardMixin, AgentEnv):
    name = "plain"
    tools = ()

    def setup(self) -> None: ...
    def teardown(self) -> None: ...
    def load_items(self) -> list[dict[str, Any]]:
        return []

    def load_eval_items(self) -> list[dict[str, Any]]:
        return []

    def sandbox_for(self, item: dict[str, Any]) -> SandboxSpec | None:
        return None

    def prepare_sandbox(self, item: dict[str, Any], sandbox: Sandbox) -> None: ...

    def prepare(self, item: dict[str, Any], sandbox: Sandbox) -> World:
        return World()

    def format_prompt(self, item: dict[str, Any]) -> str:
        return ""

    def tools_for(self, item: dict[str, Any]) -> list[str]:
        return []

    def limits_for(self, item: dict[str, Any]) -> dict[str, float]:
        return {}

    def respond(self, item: dict[str, Any], turn: Turn, ctx: RolloutContext) -> str | None:
        return None

    def state_key(self, item: dict[str, Any], turn: Turn | None) -> str:
        return ""

    def score_turn(self, item: dict[str, Any], turn: Turn, ctx: RolloutContext) -> float | None:
        return None

    def train_turn(self, item: dict[str, Any], turn: Turn, ctx: RolloutContext) -> bool:
        return True

    def compute_turn_rewards(
        self, item: dict[str, Any], trajectory: Trajectory, ctx: RolloutContext
    ) -> list[float | None]:
        return []

    def compute_outcome(
        self, item: dict[str, Any], trajectory: Trajectory, ctx: RolloutContext
    ) -> float | None:
        return None

    def score_group(
        self, item: dict[str, Any], trajectories: Sequence[Trajectory], ctx: GroupContext
    ) -> list[float]:
        return []

    def passed(self, item: dict[str, Any], trajectory: Trajectory) -> bool:
        return True

    def scripted_choices(
        self, item: dict[str, Any], messages: Sequence[Message], tools: Sequence[ToolSpec], skill: float
    ) -> list[Choice]:
        return []

    def scripted_judge(self, item: dict[str, Any], messages: Sequence[Message]) -> str:
        return ""

    def scripted_user(self, item: dict[str, Any], messages: Sequence[Message]) -> str:
        return ""


class Scalar(AgentEnv):
    name = "scalar"

    def prepare(self, item: Any, sandbox: Sandbox, ctx: RolloutContext) -> Iterator[World]:
        yield World()

    def format_prompt(self, item: Any, ctx: RolloutContext) -> list[Message]:
        return []

    def tools_for(self, item: Any, ctx: RolloutContext) -> None:
        return None

    def state_key(self, item: Any, turn: Turn | None, ctx: RolloutContext) -> str | None:
        return None

    def compute_reward(
        self, item: Any, trajectory: Trajectory, ctx: RolloutContext
    ) -> float | dict[str, float]:
        return 1.0

    def respond(self, item: Any, turn: Turn, ctx: RolloutContext) -> list[Message]:
        return []


class Awaited(TurnLevelRewardMixin, AgentEnv):
    name = "awaited"

    async def setup(self) -> None: ...
    async def teardown(self) -> None: ...
    async def load_items(self) -> Sequence[Any]:
        return await super().load_items()

    async def load_eval_items(self) -> list[dict[str, Any]]:
        return []

    async def sandbox_for(self, item: Any) -> SandboxSpec | None:
        return None

    async def prepare(self, item: Any, sandbox: Sandbox, ctx: RolloutContext) -> AsyncIterator[World]:
        yield World()

    async def format_prompt(self, item: Any) -> list[dict[str, str]]:
        return []

    async def tools_for(self, item: Any) -> Sequence[str] | None:
        return []

    async def limits_for(self, item: Any) -> Mapping[str, float]:
        return {}

    async def respond(self, item: Any, turn: Turn, ctx: RolloutContext) -> str | None:
        return None

    async def state_key(self, item: Any, turn: Turn | None) -> str:
        return ""

    async def score_turn(self, item: Any, turn: Turn, ctx: RolloutContext) -> float | None:
        return None

    async def train_turn(self, item: Any, turn: Turn, ctx: RolloutContext) -> bool:
        return True

    async def compute_turn_rewards(
        self, item: Any, trajectory: Trajectory, ctx: RolloutContext
    ) -> list[float | None]:
        return []

    async def compute_outcome(self, item: Any, trajectory: Trajectory, ctx: RolloutContext) -> float | None:
        return None

    async def score_group(
        self, item: Any, trajectories: Sequence[Trajectory], ctx: GroupContext
    ) -> list[float] | None:
        return []

    async def passed(self, item: Any, trajectory: Trajectory) -> bool:
        return True

    async def scripted_choices(
        self, item: Any, messages: Sequence[Message], tools: Sequence[ToolSpec], skill: float
    ) -> list[Choice]:
        return []

    async def scripted_judge(self, item: Any, messages: Sequence[Message]) -> str:
        return ""

    async def scripted_user(self, item: Any, messages: Sequence[Message]) -> str:
        return ""


class AwaitedScalar(AgentEnv):
    name = "awaited_scalar"

    async def format_prompt(self, item: Any, ctx: RolloutContext) -> str:
        return ""

    async def compute_reward(self, item: Any, trajectory: Trajectory, ctx: RolloutContext) -> float:
        return 1.0
