"""What Atropos expects of an environment: construction, items one by one, `process`, `evaluate`, `cli`."""

import asyncio
import hashlib
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, ExitStack, nullcontext
from functools import partial
from importlib import import_module
from pathlib import Path
from time import time
from typing import Any, NoReturn

from atroposlib.envs.base import APIServerConfig, BaseEnv
from rich.console import Console

from environments.config import EMBEDDED_TOKENIZER, AgentEnvConfig, ServerConfig
from environments.credit import recorded_params
from environments.data.item_ids import item_ids
from environments.data.items import load_items
from environments.data.tasks import GroupTask, plan, plan_for_ever
from environments.inference.model_server import ModelServer
from environments.policy.chat import ChatPolicy
from environments.policy.renderer import EMBEDDED_TOKENIZER_DIR, Renderer
from environments.record.origin import RunOrigin
from environments.record.recorder import Recorder
from environments.run.evaluation import (
    ItemResult,
    evaluate_results,
    evaluation_metrics,
    item_result,
    print_evaluation,
    sample_row,
)
from environments.run.pool import run_groups
from environments.run.process_run import FAILED, print_end, print_start, process
from environments.run.progress import Progress
from environments.run.streak import FailedInARowError, Streak
from environments.run.tracking import Track, tracked, untracked
from environments.serve.serve_loop import Rollouts
from environments.serve.serving import serve
from environments.trajectory import CreditedGroup, Trajectory, TrajectoryGroup
from tools.errors import ConfigError, DatasetError
from tools.registry import Toolset
from tools.sandbox import prepare_sandboxes
from tools.sandbox.base import Sandbox
from tools.toolsets import select_toolsets

Item = Any


class AtroposEnv(BaseEnv):
    """The side of an environment that faces Atropos; `AgentEnv` adds the rollouts."""

    name: str = ""  # pyright: ignore[reportIncompatibleVariableOverride]  # Atropos allows None
    tools: tuple[Toolset, ...] = ()
    required_fields: tuple[str, ...] = ()
    """Fields that every item must have."""
    default_estimator: str = "grpo"
    env_config_cls: type[AgentEnvConfig] = AgentEnvConfig  # pyright: ignore[reportIncompatibleVariableOverride]  # mistyped there
    config: AgentEnvConfig

    @abstractmethod
    async def run_group(self, item: Item, identity: str, epoch: int) -> CreditedGroup:
        """Roll an item out and give every turn its advantage."""

    @abstractmethod
    async def rollout_group(self, item: Item, identity: str, epoch: int, size: int) -> TrajectoryGroup:
        """Roll an item out `size` times."""

    @abstractmethod
    def open_sandbox(self) -> AbstractAsyncContextManager[Sandbox]:
        """A fresh sandbox as the config asks for."""

    @abstractmethod
    def passed(self, item: Item, trajectory: Trajectory) -> bool:
        """Whether `evaluate` counts this rollout as passed."""

    def __init__(
        self,
        config: AgentEnvConfig,
        server_configs: list[APIServerConfig],
        slurm: bool = False,
        testing: bool = False,
    ) -> None:
        if not self.name:
            raise ConfigError(f"class {type(self).__name__} has no name; set the class attribute `name`")
        # Atropos would open the JSONL itself, and rename it when it exists: the recorder owns it.
        shown: dict[str, Any] = {"data_path_to_save_groups": None}
        if config.tokenizer_name == EMBEDDED_TOKENIZER:
            shown["tokenizer_name"] = str(EMBEDDED_TOKENIZER_DIR)
        super().__init__(config.model_copy(update=shown), server_configs, slurm=slurm, testing=testing)
        self.config = config
        self.credit_params = recorded_params(
            self.estimator, preset=config.estimator_preset, params=config.estimator_params()
        )
        if config.score_aggregation is not None:
            self.score_aggregation = config.score_aggregation
        self.console = Console()
        self.toolset = select_toolsets(self.tools, config.enabled_toolsets, config.disabled_toolsets)
        self.renderer = Renderer.over(self.tokenizer)  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]  # transformers
        self.chat_policies = tuple(self._chat_policy(server) for server in server_configs if server.base_url)
        self.rollout_slots = asyncio.Semaphore(config.max_concurrent_rollouts)
        self.watch_rollout: Callable[[], AbstractContextManager[None]] = nullcontext
        self.track: Track = untracked
        self.items: Sequence[Item] = ()
        self.item_ids: Sequence[str] = ()
        self._identities: dict[int, str] = {}
        self._epochs: Counter[str] = Counter()
        self._given = 0

    @classmethod
    def config_init(cls) -> tuple[AgentEnvConfig, list[APIServerConfig]]:
        """Class defaults. Without a `base_url` there is no model server, and the scripted agent plays."""
        return cls.env_config_cls(), [ServerConfig()]

    async def load_items(self) -> Sequence[Item]:
        """The items to roll out; by default the dataset that the config names."""
        return load_items(
            name=self.config.dataset_name,
            config=self.config.dataset_config,
            split=self.config.dataset_split,
            path=self.config.dataset_path,
            limit=self.config.max_items,
            required_fields=self.required_fields,
        )

    async def load_eval_items(self) -> Sequence[Item]:
        """The items that `evaluate` uses; by default those of `load_items`."""
        return await self.load_items()

    async def setup(self) -> None:
        """Load the items, and check what every rollout needs."""
        self.items = self._first(await self.load_items())
        self.item_ids = item_ids(self.items)
        self._identities = dict(zip(map(id, self.items), self.item_ids, strict=True))
        await self.preflight()

    async def preflight(self) -> None:
        """Fail now rather than in every rollout: isolation, then the model server. Images are made ready.

        Raises:
            IsolationError: no sandbox can be made here.
            ConfigError: the image of the sandboxes cannot be had, or the model server does not answer as one.
        """
        say = partial(self.console.print, markup=False, highlight=False, soft_wrap=True)
        await prepare_sandboxes(self.config.sandbox, image=self.config.sandbox_image, progress=say)
        async with self.open_sandbox():
            pass
        await self.check_models()

    async def check_models(self) -> None:
        """Raise ConfigError while a model server cannot be used; buys no completion."""
        for policy in self.chat_policies:
            await policy.check()

    async def get_next_item(self) -> Item:
        """The next item, round and round."""
        item = self.items[self._given % len(self.items)]
        self._given += 1
        return item

    async def process_manager(self) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]  # Atropos ignores it
        """`process`: the planned groups into the rollout JSONL.

        Returns:
            The exit code of the command, see `environments.run.process_run.process`.
        """
        await self.setup()
        tasks = plan(self.items, self.item_ids, self.config.total_steps)
        path = Path(self.config.data_path_to_save_groups or f"data/{self.name}.jsonl")
        with ExitStack() as files:
            recorder = files.enter_context(Recorder(path, fresh=self.config.fresh))
            recorder.refuse_other_run(self.origin)
            done = sum(recorder.holds(task.item_id, task.epoch) for task in tasks)
            print_start(self.console, recorder, done=done, total=len(tasks))
            progress = Progress(self.console, total=len(tasks), done_before=done)
            self.watch_rollout = progress.rollout
            self.track = files.enter_context(self._tracked())
            code = await process(
                tasks,
                lambda task: self.run_group(task.item, task.item_id, task.epoch),
                recorder,
                progress,
                max_in_flight=self._groups_in_flight(self.config.group_size),
                max_failed=self.config.max_failed_groups,
            )
            left = len(tasks) - done - progress.summary.done
            print_end(self.console, recorder, progress, left=left)
        return code

    async def env_manager(self) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]  # Atropos ignores it
        """`serve`: groups to the trainer behind `rollout_server_url`, until a signal or its last step.

        Returns:
            The exit code of the command, see `environments.serve.serving.serve`.
        """
        await self.setup()
        rollouts = Rollouts(
            tasks=partial(plan_for_ever, self.items, self.item_ids),
            run_group=lambda task: self.run_group(task.item, task.item_id, task.epoch),
            probe=self.check_models,
            origin=self.origin,
        )
        groups = min(self.max_num_workers, self._groups_in_flight(self.config.group_size))
        with self._tracked() as self.track:
            return await serve(self.name, self.config, rollouts, self.console, max_in_flight=groups)

    async def evaluate(self, *args: Any, **kwargs: Any) -> int:
        """`evaluate`: every evaluation item `eval_rollouts` times; writes `metrics.json`, `samples.jsonl`.

        Returns:
            The exit code of the command: 0, 130 or 143 after a signal, 1 when no rollout was left to count
            or too many items failed in a row.
        """
        started = time()
        await self.preflight()
        items = self._first(await self.load_eval_items())
        progress = Progress(self.console, total=len(items))
        self.watch_rollout = progress.rollout
        results: dict[str, ItemResult] = {}
        samples: list[dict[str, Any]] = []

        async def take(task: GroupTask, group: TrajectoryGroup) -> None:
            passed = [self.passed(task.item, trajectory) for trajectory in group.trajectories]
            results[task.item_id] = item_result(group, passed)
            samples.extend(map(sample_row, group.trajectories, passed))
            progress.rolled_out(group)
            streak.add(group)

        streak = Streak(self.config.max_failed_groups)
        rollouts = self.config.eval_rollouts
        try:
            with progress:
                code = await run_groups(
                    plan(items, item_ids(items), -1),
                    lambda task: self.rollout_group(task.item, task.item_id, task.epoch, rollouts),
                    take,
                    max_in_flight=self._groups_in_flight(rollouts),
                )
        except FailedInARowError as error:
            progress.say(f"stopped: {error}")
            progress.say(f"{len(results)} of {len(items)} items were tried, which is no evaluation")
            return FAILED
        evaluation = evaluate_results(list(results.values()), max_k=rollouts, seed=self.config.seed)
        if evaluation is None:
            self.console.print("no rollout was left to evaluate")
            return code or FAILED
        print_evaluation(self.console, evaluation)
        await self.evaluate_log(  # pyright: ignore[reportUnknownMemberType]  # untyped there
            evaluation_metrics(evaluation),
            model_name=self.policy_name,
            start_time=started,
            end_time=time(),
            samples=samples,
            verbose=False,
        )
        return code

    @classmethod
    def cli(cls) -> NoReturn:
        """The command line of this one environment: `python my_env.py process --env.group_size 4`."""
        import_module("environments.cli.main").main_for(cls)
        raise AssertionError("main_for ends the process")

    @property
    def origin(self) -> RunOrigin:
        """What the groups of this run have in common, for the record."""
        return RunOrigin(
            env=self.name,
            policy=self.policy_name,
            estimator=self.estimator,
            estimator_params=self.credit_params,
            group_size=self.config.group_size,
        )

    @property
    def estimator(self) -> str:
        """The advantage estimator in use."""
        return self.config.estimator or self.default_estimator

    @property
    def policy_name(self) -> str:
        """What the record calls whoever plays."""
        if not self.chat_policies:
            return f"scripted:{self.config.scripted_skill:g}"
        names = "+".join(dict.fromkeys(policy.name for policy in self.chat_policies))
        return " ".join([names, *(f"{name}={value:g}" for name, value in self.config.sampling().items())])

    def _tracked(self) -> AbstractContextManager[Track]:
        name = self.config.wandb_name or self.name
        return tracked(self.config.use_wandb, name=name, settings=self.config.model_dump(mode="json"))

    def _chat_policy(self, server: APIServerConfig) -> ChatPolicy:
        return ChatPolicy(
            server=ModelServer(
                base_url=str(server.base_url),
                api_key=str(server.api_key),
                request_timeout_s=self.config.request_timeout_s,
                tries=self.config.request_tries,
                max_concurrency=server.num_max_requests_at_once,
            ),
            model=server.model_name,
            temperature=self.config.temperature,
            top_p=self.config.top_p,
            renderer=self.renderer,
        )

    def _groups_in_flight(self, rollouts: int) -> int:
        # One more than fits, so that the slots of a straggling group are used by the next.
        return self.config.max_concurrent_rollouts // rollouts + 1

    def _first(self, items: Sequence[Item]) -> Sequence[Item]:
        """The items that `max_items` leaves, whoever loaded them."""
        if not isinstance(items, Sequence) or isinstance(items, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # user code
            raise DatasetError(
                f"environment {self.name!r}: load_items gave an object of type {type(items).__name__}; "
                "give a list"
            )
        if not items:
            raise DatasetError(f"environment {self.name!r} has no items")
        return items[: self.config.max_items]

    def next_epoch(self, item: Item) -> tuple[str, int]:
        """The item's id and how often it was given out; an item from elsewhere is named by its content."""
        known = self._identities.get(id(item))
        identity = known or hashlib.blake2b(repr(item).encode(), digest_size=8).hexdigest()
        self._epochs[identity] += 1
        return identity, self._epochs[identity] - 1
