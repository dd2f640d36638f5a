"""Atropos' own machinery over an environment: `atropos_env(MyEnv)` is a real `BaseEnv`.

`turnwise process` and `turnwise serve` do not need it, see docs/serving.md.
"""

import logging
import sys
from collections import Counter
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from contextlib import nullcontext as unwatched
from typing import Any, NoReturn, cast

from atroposlib.envs.base import (
    APIServerConfig,
    BaseEnv,
    BaseEnvConfig,
    ScoredDataGroup,
    ScoredDataItem,
    ServerBaseline,
)
from pydantic import Field, create_model

from environments.base_env import AgentEnv
from environments.config import (
    EMBEDDED_TOKENIZER,
    AgentEnvConfig,
    SecondModelConfig,
    ServerConfig,
    sampling_of,
)
from environments.config import server_configs as server_configs_of
from environments.policy.rendering.chatml import EMBEDDED_TOKENIZER_DIR
from environments.record.summary import flat
from environments.record.totals import EVALUATED, Summary
from environments.rollout.items.item_json import item_id
from environments.rollout.items.tasks import GroupTask
from environments.rollout.lifecycle.rollout_hooks import has_group_reward
from environments.run.evaluation import ItemTotals, evaluate_results, item_totals
from environments.run.group_source import score_eval
from environments.trajectory import CreditedGroup
from environments.wire.payloads import ROW_BY_ROW, ExactTokens, Shape, only_exact, posts_of, refuse_text_only
from environments.wire.training_rows import PER_ROW, check_rows, columns_of
from environments.wire.views import VIEWS
from tools.errors import ConfigError, UsageError, WireError

logger = logging.getLogger(__name__)


class AtroposEnv(BaseEnv):
    """A `BaseEnv` that gets its groups from an `AgentEnv`. Made by `atropos_env`."""

    agent_env_cls: type[AgentEnv]

    def __init__(
        self,
        config: BaseEnvConfig,
        server_configs: "ServerBaseline | list[APIServerConfig]",
        slurm: bool = False,
        testing: bool = False,
    ) -> None:
        known = self.agent_env_cls.env_config_cls.model_fields
        settings = {name: value for name, value in config.model_dump().items() if name in known}
        # Atropos has no settings for judge, user and sampling: the class's are used.
        own = server_configs_of(self.agent_env_cls.config_init()[1])
        policy = next((each for each in own if isinstance(each, ServerConfig)), ServerConfig())
        sampling = {"temperature": policy.temperature, "top_p": policy.top_p}
        self._servers = [each.model_copy(update=sampling) for each in server_configs_of(server_configs)]
        self._servers += [each for each in own if isinstance(each, SecondModelConfig)]
        self.agent_env = self.agent_env_cls(self.agent_env_cls.env_config_cls(**settings), self._servers)
        view = self.agent_env.config.credit_view or "token_advantages"
        if view in ROW_BY_ROW:
            raise ConfigError(
                f"--env.credit_view {view} makes a group of every row, and Atropos' own machinery registers "
                f"those of a whole group; use `turnwise serve`, or the view token_advantages or binary_masks"
            )
        self._view = view
        self._exact = ExactTokens(say=logger.warning)
        # Equal scores do not imply equal advantages.
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
        config, servers = cls.agent_env_cls.config_init()
        named = [
            APIServerConfig(
                base_url=server.base_url,
                api_key=server.api_key or "none",
                model_name=server.model_name,
                num_max_requests_at_once=server.num_max_requests_at_once,
                health_check=False,
            )
            for server in server_configs_of(servers)
            if not isinstance(server, SecondModelConfig)
        ]
        return cast("Any", cls.env_config_cls)(**config.model_dump()), named

    async def setup(self) -> None:
        if not self._open:
            self._open = True
            await self._closing.enter_async_context(self.agent_env.opened())
            if not self.agent_env.config.allow_approximate_tokens:
                refuse_text_only(self.agent_env.lifecycle.text_only_servers)

    async def aclose(self) -> None:
        self._open = False
        await self._closing.aclose()

    async def process_manager(self) -> None:
        await self._run_and_close(super().process_manager())

    async def env_manager(self) -> None:
        await self._run_and_close(super().env_manager())

    async def _run_evaluate(self) -> None:
        await self._run_and_close(super()._run_evaluate())  # pyright: ignore[reportUnknownMemberType]  # untyped

    async def _run_and_close(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        finally:
            await self.aclose()

    @classmethod
    def cli(cls) -> NoReturn:
        try:
            super().cli()
        except UsageError as error:
            sys.stderr.write(f"{cls.name}: error: {error}\n")
            sys.exit(2)
        raise AssertionError("Atropos' command line ends the process")

    async def get_next_item(self) -> Any:
        item = self.agent_env.items[self._next % len(self.agent_env.items)]
        self._next += 1
        return item

    async def collect_trajectory(self, item: Any) -> tuple[ScoredDataItem | None, list[Any]]:  # pyright: ignore[reportIncompatibleMethodOverride]  # its annotation leaves out None
        """Return one scored rollout without advantage, or None if it broke or was not scored.

        Raises:
            WireError: if the rollout has several token rows; an item holds one.
            ConfigError: if a part of the reward compares siblings.
        """
        if has_group_reward(self.agent_env):
            raise ConfigError(
                f"environment {self.agent_env.name!r} writes score_group, which compares siblings; a rollout "
                f"alone has none, use collect_trajectories"
            )
        group = await self.agent_env.rollout_group(self._task(item), 1)
        if not group.trajectories or group.trajectories[0].score is None:
            return None, []
        if len(group.trajectories[0].rows) != 1:
            raise WireError(
                f"item {group.item_id!r}: the conversation was rewritten on its way, so that it has "
                f"{len(group.trajectories[0].rows)} token rows, and a ScoredDataItem holds one; use "
                f"collect_trajectories"
            )
        credited = self._drop_approximate(self.agent_env.credit(group))
        if not credited.group.trajectories:
            return None, []
        (shown,) = VIEWS[self._view](credited)
        check_rows(shown)
        columns = columns_of(shown)
        row = {name: columns[name][0] for name in PER_ROW if name in columns and name != "advantages"}
        if "overrides" in row:
            row["overrides"].pop("turn_advantages", None)
        return cast("ScoredDataItem", row), []

    async def collect_trajectories(
        self, item: Any
    ) -> tuple[ScoredDataGroup | list[ScoredDataGroup | None] | None, list[Any]]:
        """Return an item's group with advantages per token, or None if nothing in it can be trained on.

        A group has `group_size` rows, padding included; more rows become several groups.
        """
        env, size = self.agent_env, self.config.group_size  # Atropos may change the size
        credited = self._drop_approximate(env.withhold_stale(await env.run_group(self._task(item), size)))
        if credited.status != "ok":
            return None, []
        shape = Shape(view=self._view, group_size=size, sampling=sampling_of(env.servers))
        posts, _ = posts_of(credited, shape)
        groups = [ScoredDataGroup(**columns_of(post)) for post in posts]
        return (groups[0] if len(groups) == 1 else [*groups]), []

    async def evaluate(self, *args: Any, **kwargs: Any) -> None:
        config = self.agent_env.config
        results: list[ItemTotals] = []
        summary = Summary()
        # A separate environment, since its items may differ from those of training.
        async with self.agent_env_cls(config, self._servers).opened(evaluation=True) as env:
            for item, identity in zip(env.items, env.item_ids, strict=True):
                task = GroupTask(item=item, item_id=identity)
                group = await score_eval(
                    env, task, await env.rollout_group(task, config.eval_rollouts), unwatched
                )
                results.append(item_totals(group))
                summary.add_rollouts(group, EVALUATED)
        evaluation = evaluate_results(results, max_k=config.eval_rollouts, seed=config.seed)
        if evaluation is not None:
            metrics = evaluation.metrics() | flat(summary.values(), "eval")
            await self.evaluate_log(metrics, model_name=self.agent_env.policy_name)  # pyright: ignore[reportUnknownMemberType]  # untyped there
            await self.wandb_log(metrics)  # pyright: ignore[reportUnknownMemberType]  # likewise

    def _drop_approximate(self, credited: CreditedGroup) -> CreditedGroup:
        if self.agent_env.config.allow_approximate_tokens:
            return credited
        credited, lacking = only_exact(credited, self.agent_env.credit)
        group = credited.group
        self._exact.add(group.item_id, lacking, has_others=bool(group.trajectories))
        return credited

    def _task(self, item: Any) -> GroupTask:
        identity = item_id(item)
        self._epochs[identity] += 1
        return GroupTask(item=item, item_id=identity, epoch=self._epochs[identity] - 1)


def atropos_env(env_cls: type[AgentEnv]) -> type[AtroposEnv]:
    """Return a `BaseEnv` subclass that plays `env_cls`; its config has both sides' settings.

    `atropos_env(MyEnv).cli()` is Atropos' command line over the environment.
    """
    ours: type[AgentEnvConfig] = env_cls.env_config_cls
    fields: dict[str, Any] = {name: (field.annotation, field) for name, field in ours.model_fields.items()}
    # Atropos' command line passes a mapping as text, which our config parses.
    described = Field(default_factory=dict[str, Any], description="The estimator's parameters, as JSON.")
    fields["estimator_params"] = (dict[str, Any] | str, described)
    config_cls = create_model(f"{env_cls.__name__}AtroposConfig", __base__=BaseEnvConfig, **fields)
    attributes = {
        "__doc__": env_cls.__doc__,
        "__module__": env_cls.__module__,
        "name": env_cls.name,
        "agent_env_cls": env_cls,
        "env_config_cls": config_cls,
    }
    return type(f"Atropos{env_cls.__name__}", (AtroposEnv,), attributes)
