"""`serve`, put together from the settings: outbox, trajectory API, record and the serving loop."""

import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from rich.console import Console

from environments.base_env import AgentEnv
from environments.config import AgentEnvConfig
from environments.data.tasks import GroupTask, plan_for_ever
from environments.record.recorder import Recorder
from environments.run.pool import groups_at_once
from environments.run.process_run import origin_of, refuse_other_run
from environments.run.tracking import tracked
from environments.serve.delivery import Delivery
from environments.serve.outbox import Outbox
from environments.serve.outbox_thread import OutboxThread
from environments.serve.registration import Identity, Link
from environments.serve.serve_loop import Bounds, Rollouts, ServeLoop
from environments.serve.trajectory_api import TrajectoryApi
from environments.trajectory import CreditedGroup
from environments.wire.payloads import Shape
from tools.errors import ConfigError

WHO_READS = {
    "token_advantages": "for trainers that read `advantages`, such as verl's Atropos recipe; one that reads "
    "only scores, such as Atropos' example trainer, gets turn credit from --env.credit_view turn_rows",
    "turn_rows": "for trainers that read only scores, such as Atropos' example trainer",
    "prefix_rows": "for trainers that read only scores; a turn counts once in every row that reaches it",
}
"""Which trainers each encoding is for: the API cannot tell what a trainer ignores."""


async def serve(env: AgentEnv, console: Console) -> int:
    """Open an environment and serve its groups to the trainer behind `config.rollout_server_url`.

    Returns:
        The exit code, see `ServeLoop.run`.

    Raises:
        UsageError: the environment cannot be opened, no trajectory API there, a batch size that cannot be
            filled, an outbox of another run.
    """
    config = env.config
    say = partial(console.print, markup=False, highlight=False, soft_wrap=True)
    async with env.opened(notify=say):
        with tracked(config, env.name) as track:

            async def run_group(task: GroupTask) -> CreditedGroup:
                credited = await env.run_group(task)
                track(credited)
                return credited

            rollouts = Rollouts(
                tasks=partial(plan_for_ever, env.items, env.item_ids),
                run_group=run_group,
                probe=env.check_policy,
                origin=origin_of(env),
            )
            workers = config.max_num_workers
            if workers == -1:
                workers = config.max_num_workers_per_node * max(1, len(env.servers))
            groups = min(workers, groups_at_once(config.max_concurrent_rollouts, config.group_size))
            return await _serve(env.name, config, rollouts, console, max_in_flight=groups)


async def _serve(
    name: str, config: AgentEnvConfig, rollouts: Rollouts, console: Console, *, max_in_flight: int
) -> int:
    with ExitStack() as files:
        recorder = None
        if config.data_path_to_save_groups is not None:
            recorder = files.enter_context(
                Recorder(Path(config.data_path_to_save_groups), fresh=config.fresh)
            )
            refuse_other_run(recorder, rollouts.origin)
        outbox = files.enter_context(Outbox(Path(config.outbox_path or f"data/{name}.outbox.sqlite")))
        refuse_other_groups(outbox, rollouts.origin)
        say = partial(console.print, markup=False, highlight=False, soft_wrap=True)
        say(f"encoding {config.credit_view}: {WHO_READS[config.credit_view]}")
        if len(outbox):
            say(
                f"{len(outbox)} posts of an earlier run, which no trainer is known to have, go first; to "
                f"begin anew, stop and delete {outbox.path}"
            )
        if config.sampling():
            say(
                f"sampled with {config.sampling()}: the trainer must use the same (generation_params tells "
                f"it), and the server's logprobs must be those after sampling settings, such as vLLM's "
                f"--logprobs-mode processed_logprobs"
            )
        async with _delivery(name, config, outbox, say) as delivery:
            bounds = Bounds(
                max_in_flight=max_in_flight,
                max_waiting=config.outbox_groups,
                group_timeout_s=config.worker_timeout if config.worker_timeout > 0 else None,
                grace_s=config.shutdown_grace_s,
                total_steps=config.total_steps,
                allow_approximate=config.allow_approximate_tokens,
            )
            loop = ServeLoop(delivery, rollouts, bounds=bounds, console=console, recorder=recorder)
            return await loop.run()


def refuse_other_groups(outbox: Outbox, origin: Mapping[str, str]) -> None:
    """Refuse to send one run's groups to the trainer of another.

    Raises:
        ConfigError: the outbox still holds groups of another environment, policy, credit or group size.
    """
    now = json.dumps(dict(origin), sort_keys=True)
    before = outbox.fact("origin")
    if before not in (None, now) and len(outbox):
        raise ConfigError(
            f"the outbox {outbox.path} still holds groups of another run ({before}, now {now}); deliver them "
            f"with its settings, or choose another --env.outbox_path"
        )
    outbox.remember("origin", now)


def _delivery(name: str, config: AgentEnvConfig, outbox: Outbox, say: Callable[[str], None]) -> Delivery:
    api = TrajectoryApi(config.rollout_server_url)
    shape = Shape(
        encoding=config.credit_view,
        group_size=config.group_size,
        include_messages=config.include_messages,
        sampling=config.sampling(),
    )
    identity = Identity(
        name=f"{config.wandb_name or name}-{outbox.fact('run_id')}",
        max_row_tokens=config.max_token_length,
        weight=config.inference_weight,
        min_batch_allocation=config.min_batch_allocation,
    )
    in_outbox = OutboxThread(outbox)
    return Delivery(
        in_outbox,
        api,
        Link(api, identity, shape, in_outbox, say=say),
        max_batches_waiting=config.max_batches_offpolicy,
        patience_s=None if config.exit_when_api_away_s < 0 else config.exit_when_api_away_s,
        say=say,
    )
