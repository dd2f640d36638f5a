"""Atropos' own machinery over one of our environments: `atropos_env(MyEnv)` is a real `BaseEnv`.

For those who run Atropos' `process`, `serve` or trainer code. `turnwise process` and `turnwise serve` need
none of it, and lose nothing where it does: see docs/serving.md.
"""

from collections import Counter
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any, cast

from atroposlib.envs.base import (
    APIServerConfig,
    BaseEnv,
    BaseEnvConfig,
    ScoredDataGroup,
    ScoredDataItem,
    ServerBaseline,
)
from pydantic import create_model

from environments.base_env import AgentEnv
from environments.config import EMBEDDED_TOKENIZER, AgentEnvConfig, ServerConfig
from environments.data.item_ids import item_id
from environments.data.tasks import GroupTask
from environments.policy.renderer import EMBEDDED_TOKENIZER_DIR
from environments.run.evaluation import ItemResult, evaluate_results, evaluation_metrics, item_result
from environments.wire.columns import columns_of
from environments.wire.views import token_advantages
from tools.errors import WireError

Item = Any


class AtroposEnv(BaseEnv):
    """A `BaseEnv` that asks an `AgentEnv` for its groups. Made by `atropos_env`."""

    agent_env_cls: type[AgentEnv]

    def __init__(
        self,
        config: BaseEnvConfig,
        server_configs: "ServerBaseline | list[APIServerConfig]",
        slurm: bool = False,
        testing: bool = False,
    ) -> None:
        """Build both: Atropos' side from its settings, ours from those that it knows."""
        known = self.agent_env_cls.env_config_cls.model_fields
        settings = {name: value for name, value in config.model_dump().items() if name in known}
        servers = [] if isinstance(server_configs, ServerBaseline) else list(map(_server, server_configs))
        self.agent_env = self.agent_env_cls(self.agent_env_cls.env_config_cls(**settings), servers)
        # A group teaches or not by its advantages; equal scores say nothing about those.
        update: dict[str, Any] = {"ensure_scores_are_not_same": False}
        if settings.get("tokenizer_name") == EMBEDDED_TOKENIZER:
            update["tokenizer_name"] = str(EMBEDDED_TOKENIZER_DIR)
        super().__init__(config.model_copy(update=update), server_configs, slurm=slurm, testing=testing)
        self._closing = AsyncExitStack()
        self._open = False
        self._epochs: Counter[str] = Counter()
        self._next = 0

    @classmethod
    def config_init(cls) -> "tuple[BaseEnvConfig, ServerBaseline | list[APIServerConfig]]":
        """The class defaults of the environment, as Atropos wants them."""
        config, servers = cls.agent_env_cls.config_init()
        named = [
            APIServerConfig(
                base_url=server.base_url,
                api_key=server.api_key or "none",
                model_name=server.model_name,
                num_max_requests_at_once=server.num_max_requests_at_once,
                health_check=False,
            )
            for server in servers
        ]
        return cast("Any", cls.env_config_cls)(**config.model_dump()), named

    async def setup(self) -> None:
        """Open the environment once: items, isolation and model server are checked."""
        if not self._open:
            self._open = True
            await self._closing.enter_async_context(self.agent_env.opened())

    async def aclose(self) -> None:
        """Close the environment; `process_manager` and `env_manager` do it themselves."""
        self._open = False
        await self._closing.aclose()

    async def process_manager(self) -> None:
        """Atropos' `process`, after which the environment is closed."""
        try:
            await super().process_manager()
        finally:
            await self.aclose()

    async def env_manager(self) -> None:
        """Atropos' `serve`, after which the environment is closed."""
        try:
            await super().env_manager()
        finally:
            await self.aclose()

    async def get_next_item(self) -> Item:
        """The next item, round and round."""
        item = self.agent_env.items[self._next % len(self.agent_env.items)]
        self._next += 1
        return item

    async def collect_trajectory(self, item: Item) -> tuple[ScoredDataItem | None, list[Item]]:  # pyright: ignore[reportIncompatibleMethodOverride]  # its annotation leaves out None
        """One scored rollout, for code that builds groups itself; `None` when it broke.

        Turn rewards and spans are in `overrides`. There is no advantage: that takes siblings.

        Raises:
            WireError: the rollout has several token rows, and an item holds one.
        """
        group = await self.agent_env.rollout_group(self._task(item), 1)
        if not group.trajectories:
            return None, []
        if len(group.trajectories[0].rows) != 1:
            raise WireError(
                f"item {group.item_id!r}: the conversation was rewritten on its way, so that it has "
                f"{len(group.trajectories[0].rows)} token rows, and a ScoredDataItem holds one; use "
                f"collect_trajectories"
            )
        columns = columns_of(token_advantages(self.agent_env.credit(group)))
        row = {name: _first(columns[name]) for name in ScoredDataItem.__annotations__ if name in columns}
        override = dict(row.get("overrides") or {})
        override.pop("turn_advantages", None)
        row |= {"advantages": None, "overrides": override or None, "group_overrides": None}
        return cast("ScoredDataItem", row), []

    async def collect_trajectories(self, item: Item) -> tuple[ScoredDataGroup | None, list[Item]]:  # pyright: ignore[reportIncompatibleMethodOverride]  # likewise
        """One item in, one group with per-token advantages out; `None` when it would teach nothing."""
        self.agent_env.config.group_size = self.config.group_size  # Atropos changes it as it goes
        credited = await self.agent_env.run_group(self._task(item))
        if credited.status != "ok":
            return None, []
        columns = columns_of(token_advantages(credited))
        rows = len(columns["tokens"])
        if rows != self.config.group_size:
            columns["group_overrides"] = {**columns["group_overrides"], "group_size": rows}
        return ScoredDataGroup(**columns), []

    async def evaluate(self, *args: Any, **kwargs: Any) -> None:
        """Roll out the evaluation items, and log what they come to, as Atropos does."""
        await self.setup()
        rollouts = self.agent_env.config.eval_rollouts
        results: list[ItemResult] = []
        for item in (await self.agent_env.load_eval_items())[: self.agent_env.config.max_items]:
            group = await self.agent_env.rollout_group(GroupTask(item=item, item_id=item_id(item)), rollouts)
            passed = [self.agent_env.passed(item, trajectory) for trajectory in group.trajectories]
            results.append(item_result(group, passed))
        evaluation = evaluate_results(results, max_k=rollouts, seed=self.agent_env.config.seed)
        if evaluation is not None:
            metrics = evaluation_metrics(evaluation)
            await self.evaluate_log(metrics, model_name=self.agent_env.policy_name)  # pyright: ignore[reportUnknownMemberType]  # untyped there
            await self.wandb_log(metrics)  # pyright: ignore[reportUnknownMemberType]  # likewise

    def _task(self, item: Item) -> GroupTask:
        """The item's next group; equal items count as one."""
        identity = item_id(item)
        self._epochs[identity] += 1
        return GroupTask(item=item, item_id=identity, epoch=self._epochs[identity] - 1)


def atropos_env(env_cls: type[AgentEnv]) -> type[AtroposEnv]:
    """A `BaseEnv` subclass that plays `env_cls`, with its settings beside Atropos' own.

    Usage: `atropos_env(MyEnv).cli()` is Atropos' command line over the environment.
    """
    ours: type[AgentEnvConfig] = env_cls.env_config_cls
    fields: dict[str, Any] = {name: (field.annotation, field) for name, field in ours.model_fields.items()}
    config_cls = create_model(f"{env_cls.__name__}AtroposConfig", __base__=BaseEnvConfig, **fields)
    attributes: Mapping[str, Any] = {
        "__doc__": env_cls.__doc__,
        "__module__": env_cls.__module__,
        "name": env_cls.name,
        "agent_env_cls": env_cls,
        "env_config_cls": config_cls,
    }
    return type(f"Atropos{env_cls.__name__}", (AtroposEnv,), dict(attributes))


def _server(config: APIServerConfig) -> ServerConfig:
    return ServerConfig(
        base_url=config.base_url,
        model_name=config.model_name,
        api_key=config.api_key,
        num_max_requests_at_once=config.num_max_requests_at_once,
    )


def _first(column: Any) -> Any:
    return cast("list[Any]", column)[0] if isinstance(column, list) else column
