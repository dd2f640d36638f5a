"""A rollout before its first turn: in its sandbox, with its context and its state."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from environments.containment.hook_calls import HookCalls
from environments.data.tasks import GroupTask
from environments.lifecycle.env_lifecycle import Lifecycle
from environments.lifecycle.rollout_hooks import RolloutHooks
from environments.reward_context import RolloutContext


@asynccontextmanager
async def begun(
    env: Lifecycle, task: GroupTask, sibling: int, calls: HookCalls
) -> AsyncGenerator[tuple[RolloutContext, RolloutHooks]]:
    """What a rollout begins with; its state and its sandbox close afterwards."""
    open_own, open_fresh = env.sandbox_openers(await env.sandbox_spec(task.item, calls))
    own = calls.sandbox(open_own) if env.sandboxes.are_opened else open_own()
    async with own as sandbox:
        ctx = RolloutContext(
            env=env.name,
            item_id=task.item_id,
            item=task.item,
            seed=task.seed(env.config.seed, sibling),
            group_seed=task.group_seed(env.config.seed),
            sandbox=sandbox,
            fresh_sandbox=open_fresh,
            judge_model=env.asked_model("judge", task.item, calls),
            user_model=env.asked_model("user", task.item, calls),
            summariser_model=env.asked_model("summariser", task.item, calls),
        )
        hooks = RolloutHooks(env, ctx, calls)
        async with hooks.prepared():
            yield ctx, hooks
