"""What records the agents of one environment: the endpoint, and the loop of each rollout."""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from environments.config import ModelServerConfig
from environments.policy.base import Policy
from environments.policy.second_models import AskedModel
from environments.rewards.reward_context import AgentEndpoint, RolloutContext
from environments.rollout.agents.command import Command, HookPlayer, HostPlayer, SandboxPlayer
from environments.rollout.agents.endpoint import EndpointServer
from environments.rollout.agents.recorded_loop import Player, RecordedLoop
from environments.rollout.containment.hook_calls import HookCalls
from environments.rollout.items.tasks import GroupTask
from environments.rollout.model_calls import Budget, ModelCalls
from environments.rollout.prompt_tokens import PromptTokens, TokenEstimate
from environments.trajectory import Message

_LEAST_SECRET = 8
"""Characters: shorter keys stand for none, and are words that texts may have."""


class Recordable(Protocol):
    """An environment with an agent of its own."""

    name: str
    agent: Command | None
    other_models: Any
    token_estimate: TokenEstimate
    servers: Any
    second_servers: Any

    def play(self, item: Any, ctx: RolloutContext) -> Any:
        """The hook."""
        ...

    def asked_model(self, role: str, task: GroupTask, calls: HookCalls) -> AskedModel:
        """A second model."""
        ...


class Recording:
    """One for an environment."""

    def __init__(self) -> None:
        self.server = EndpointServer()

    def loop(  # noqa: PLR0913  # the parts of one rollout, made by its environment
        self, env: Recordable, task: GroupTask, ctx: RolloutContext, policy: Policy,
        prompt: tuple[Message, ...], budget: Budget, anchor: Callable[[], str | None], calls: HookCalls,
    ) -> RecordedLoop:  # fmt: skip
        """The loop of one rollout."""
        servers: list[ModelServerConfig] = [*env.servers, *env.second_servers]
        keys = {key for each in servers if (key := each.api_key) and len(key) >= _LEAST_SECRET}

        def on_endpoint(endpoint: AgentEndpoint) -> None:
            ctx.agent_endpoint = endpoint

        return RecordedLoop(
            player=self._player(env, ctx, prompt, calls),
            server=self.server,
            calls=ModelCalls(
                policy=policy, tools=(), budget=budget, seed=ctx.seed, calls=calls, is_parallel=True,
                count=PromptTokens(policy, env.token_estimate, calls), anchor=anchor,
            ),
            is_ended=lambda: ctx.end_reason is not None,
            on_messages=ctx.see,
            on_endpoint=on_endpoint,
            prompt=prompt,
            others={name: env.asked_model(role, task, calls) for name, role in env.other_models.items()},
            hidden=sorted(keys),
        )  # fmt: skip

    def _player(
        self, env: Recordable, ctx: RolloutContext, prompt: tuple[Message, ...], calls: HookCalls
    ) -> Player:
        if env.agent is None:
            play = partial(env.play, ctx.item, ctx)
            return HookPlayer(partial(calls.beside, play, doing="play"))
        text = "\n\n".join(message.content for message in prompt)
        if env.agent.where == "host":
            return HostPlayer(env.agent, text)
        return SandboxPlayer(env.agent, text, ctx.sandbox)
