"""`serve` assembled from the settings: outbox, trajectory API, record and serving loop."""

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

from rich.console import Console

from environments.base_env import AgentEnv
from environments.config import sampling_of
from environments.record.origin import RunOrigin, differences, refuse_other_run
from environments.record.summary import loop_rows, print_rows
from environments.rollout.containment.hook_calls import InFlight
from environments.rollout.hooks import writes
from environments.rollout.lifecycle.rollout_hooks import floor_advice
from environments.run.group_source import Finishing, withhold_stale
from environments.run.open_run import DEFAULTS, OpenSource, RunOptions, in_this_process, open_run
from environments.run.process_run import ask_tasks
from environments.run.progress import Progress
from environments.run.tracking import Traces
from environments.run.worker_pool import MAX_ALIKE_FAILURES
from environments.serve.delivery import Delivery, DeliveryRules
from environments.serve.outbox import Outbox, OutboxThread
from environments.serve.registration import Identity, Registration
from environments.serve.serve_loop import Bounds, Rollouts, ServeLoop
from environments.serve.trajectory_api import TrajectoryApi
from environments.turn_level_reward import TurnLevelRewardMixin
from environments.wire.payloads import ROW_BY_ROW, Shape, refuse_text_only
from tools.errors import ConfigError

WHO_READS = {
    "turn_rows": "for trainers that read only scores, such as Atropos' example trainer",
    "token_advantages": "for trainers that read `advantages`, a number per token; one that reads only scores "
    "gets no turn credit from it",
    "binary_masks": "for trainers that read `advantages` and take masks for 0 and 1, as verl's recipe for "
    "Atropos does",
    "prefix_rows": "for experiments with trainers that read only scores; a turn is trained in every row that "
    "reaches it",
}
"""The trainers for each view: the API does not know which fields a trainer ignores."""
_GRACE_S = 30.0
PLAIN = "token_advantages"
"""Without turn rewards this view is plain scalar data."""


async def serve(
    env: AgentEnv,
    console: Console,
    *,
    options: RunOptions = DEFAULTS,
    open_source: OpenSource = in_this_process,
) -> int:
    """Open an environment and serve its groups to the trainer behind `config.rollout_server_url`.

    Returns the exit code, see `ServeLoop.run`. Raises UsageError if no view is chosen, the environment cannot
    be opened, there is no trajectory API, its batch size cannot be filled, or the outbox belongs to another
    run.
    """
    config, shape = env.config, shape_of(env)
    path = config.data_path_to_save_groups

    def refuse_text(progress: Progress) -> None:
        if not config.allow_approximate_tokens:
            refuse_text_only(env.lifecycle.text_only_servers)
        progress.ready()

    def with_posts(plain: Finishing, progress: Progress) -> Finishing:
        # The line is read for stale groups and for traces.
        is_read = path is not None or env.lifecycle.weight_versions.max_staleness is not None
        has_line = is_read or Traces(progress.observers).are_made
        exact_only = not config.allow_approximate_tokens
        return replace(plain, has_line=has_line, shape=shape, exact_only=exact_only)

    async with AsyncExitStack() as files:
        place = None if path is None else Path(path)
        opened = open_run(
            env, console, place, options, open_source, waits=True, finishing=with_posts, on_open=refuse_text
        )
        run = await files.enter_async_context(opened)
        say = run.progress.say
        calls = files.enter_context(env.lifecycle.hook_calls(InFlight(item_id="", sibling=0)))
        outbox = files.enter_context(Outbox(options.outbox or Path(f"data/{env.name}.outbox.sqlite")))
        if options.fresh and (posts := outbox.start_over("put aside by --fresh")):
            say(f"{posts} posts of an earlier run are put aside in {outbox.rejected_path}")
        claim(outbox, replace(run.origin, view=in_words(shape)))
        is_plain = shape.view == PLAIN and not isinstance(env, TurnLevelRewardMixin)
        readers = "plain scores, as there are no turn rewards" if is_plain else WHO_READS[shape.view]
        say(f"view {in_words(shape)}: {readers}")
        if len(outbox):
            say(
                f"{len(outbox)} posts of an earlier run, which no trainer is known to have, go first; to "
                f"begin anew, stop and delete {outbox.path}"
            )
        if shape.sampling:
            say(
                f"sampled with {shape.sampling}: the trainer must use the same (generation_params tells "
                f"it), and the server's logprobs must be those after sampling settings, such as vLLM's "
                f"--logprobs-mode processed_logprobs"
            )
        delivery = await files.enter_async_context(_delivery(env, shape, outbox, say))
        next_items = ask_tasks(run, calls, most=-1) if writes(env, "next_items") else None
        rollouts = Rollouts(
            tasks=env.tasks_for_ever,
            next_items=next_items,
            source=run.source,
            finishing=run.finishing,
            withhold_stale=partial(withhold_stale, env, run.finishing),
            probe=env.lifecycle.check_policy,
            origin=run.origin,
            track=run.tracker.add,
            traces=Traces(run.progress.observers),
            stride=0 if next_items is not None else len(env.items) // MAX_ALIKE_FAILURES,
        )
        bounds = Bounds(
            max_in_flight=run.source.at_once,
            max_waiting=config.outbox_groups,
            group_timeout_s=config.worker_timeout if config.worker_timeout > 0 else None,
            grace_s=_GRACE_S,
            total_steps=config.total_steps,
            send_all=options.send_all,
        )
        loop = ServeLoop(
            delivery,
            rollouts,
            bounds=bounds,
            console=console,
            recorder=None if run.record is None else run.record.recorder,
            watched=run.progress.in_flight,
        )
        run.watchdog.on_end = loop.record_blocked
        with run.watchdog.arm():
            code = await loop.run()
        print_rows(console, loop_rows(run.watchdog.utilisation))
        honest_score = loop.summary.values()["honest_score"]["min"]
        if advice := floor_advice(honest_score, run.env.lifecycle.parts.failed_score):
            loop.say(advice)
        return code


def shape_of(env: AgentEnv) -> Shape:
    """Return the shape of the trainer's posts; with turn rewards a view must be chosen."""
    config = env.config
    if config.credit_view is None and (isinstance(env, TurnLevelRewardMixin) or config.branches > 1):
        views = ", ".join(f"{view} ({readers})" for view, readers in WHO_READS.items())
        raise ConfigError(
            f"environment {env.name!r} gives turn rewards or has branches, and what reaches the gradient "
            f"depends on what the trainer reads; choose --env.credit_view: {views}"
        )
    return Shape(
        view=config.credit_view or PLAIN,
        group_size=config.group_size,
        divisor=config.score_divisor or config.max_tokens_per_turn,
        sampling=sampling_of(env.servers),
    )


def in_words(shape: Shape) -> str:
    """Return the view with its scale, since a trainer must not get two scales in one run."""
    if shape.view not in ROW_BY_ROW:
        return shape.view
    weighting = f", prefix_weighting {shape.prefix_weighting}" if shape.view == "prefix_rows" else ""
    return f"{shape.view}, score_divisor {shape.divisor}{weighting}"


def claim(outbox: Outbox, now: RunOrigin) -> None:
    """Claim an outbox for this run.

    Raises RecordError if it holds posts of another experiment, credit or view.
    """
    text = outbox.fact("origin")
    if len(outbox) and text is not None:
        before = RunOrigin.from_json(text)
        changed = differences(before.facts() | before.credit_facts(), now.facts() | now.credit_facts())
        instead = (
            "deliver them with its settings, choose another --outbox, or start over with "
            "--fresh, which puts them aside"
        )
        refuse_other_run(f"the outbox {outbox.path}", changed, instead=instead)
    outbox.remember("origin", now.to_json())


def _delivery(env: AgentEnv, shape: Shape, outbox: Outbox, say: Callable[[str], None]) -> Delivery:
    config = env.config
    api = TrajectoryApi(config.rollout_server_url, config.rollout_server_token)
    identity = Identity(
        name=f"{config.wandb_name or env.name}-{outbox.fact('run_id')}",
        max_row_tokens=config.max_token_length,
        min_batch_allocation=config.min_batch_allocation,
    )
    in_outbox = OutboxThread(outbox)
    return Delivery(
        in_outbox,
        api,
        Registration(api, identity, shape, in_outbox, say=say),
        rules=DeliveryRules(
            max_batches_waiting=config.max_batches_offpolicy,
            patience_s=None if config.exit_when_api_away_s < 0 else config.exit_when_api_away_s,
            weights=env.lifecycle.weight_versions,
        ),
        say=say,
    )
