"""A rollout of the loop alone, without an environment."""

from environments.policy.rendering.chatml import ChatMLRenderer
from environments.rollout.agent_loop import AgentLoop
from environments.rollout.containment.hook_calls import HookCalls, InFlight
from environments.rollout.containment.hook_threads import HookThreads
from environments.rollout.model_calls import Budget
from environments.trajectory import Message

RENDERER = ChatMLRenderer.embedded()
ROOMY = Budget(
    max_turns=8,
    max_tokens_per_turn=500,
    token_budget=5_000,
    max_row_tokens=10_000,
    timeout_s=60,
    tool_timeout_s=10,
    tool_output_chars=1_000,
)
ASKED = (Message(role="user", content="2 + 3?"),)


async def looped(policy, toolset, *, messages=ASKED, budget=ROOMY, in_flight=None, **options):
    """The loop and its turns; what breaks it is raised."""
    in_flight = in_flight or InFlight(item_id="i", sibling=0)
    with HookCalls(in_flight, HookThreads(), hook_timeout_s=60) as calls:
        loop = AgentLoop(
            policy=policy,
            toolset=toolset,
            sandbox=None,
            messages=messages,
            budget=budget,
            seed=1,
            calls=calls,
            **options,
        )
        return loop, [turn async for turn in loop.turns()]
