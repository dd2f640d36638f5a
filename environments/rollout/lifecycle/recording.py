"""The loop of an agent that is recorded at an endpoint of its environment."""

from functools import partial

from environments.config import ModelServerConfig
from environments.policy.base import Policy
from environments.rewards.reward_context import AgentEndpoint
from environments.rollout.agents.command import HookPlayer, HostPlayer, SandboxPlayer
from environments.rollout.agents.endpoint import EndpointServer
from environments.rollout.agents.recorded_loop import Player, RecordedLoop
from environments.rollout.items.tasks import GroupTask
from environments.rollout.lifecycle.rollout_hooks import RolloutHooks
from environments.rollout.model_calls import Budget, ModelCalls
from environments.rollout.prompt_tokens import PromptTokens
from environments.trajectory import Message

_LEAST_SECRET = 8
"""Characters: shorter keys stand for none, and are words that texts may have."""


def recorded_loop(
    server: EndpointServer,
    task: GroupTask,
    hooks: RolloutHooks,
    policy: Policy,
    prompt: tuple[Message, ...],
    budget: Budget,
) -> RecordedLoop:
    life, ctx, calls = hooks.life, hooks.ctx, hooks.calls
    env, parts = life.env, life.parts
    servers: list[ModelServerConfig] = [*parts.servers, *parts.second_servers]
    keys = {key for each in servers if (key := each.api_key) and len(key) >= _LEAST_SECRET}

    def on_endpoint(endpoint: AgentEndpoint) -> None:
        ctx.agent_endpoint = endpoint

    player: Player
    text = "\n\n".join(message.content for message in prompt)
    if env.agent is None:
        player = HookPlayer(partial(calls.beside, partial(env.play, ctx.item, ctx), doing="play"))
    elif env.agent.where == "host":
        player = HostPlayer(env.agent, text)
    else:
        player = SandboxPlayer(env.agent, text, ctx.sandbox)
    return RecordedLoop(
        player=player,
        server=server,
        calls=ModelCalls(
            policy=policy, tools=(), budget=budget, seed=ctx.seed, calls=calls, is_parallel=True,
            count=PromptTokens(policy, parts.token_estimate, calls), anchor=hooks.anchor,
        ),
        is_ended=lambda: ctx.end_reason is not None,
        on_messages=ctx.see,
        on_endpoint=on_endpoint,
        prompt=prompt,
        others={name: life.asked_model(role, task, calls) for name, role in env.other_models.items()},
        hidden=sorted(keys),
    )  # fmt: skip
