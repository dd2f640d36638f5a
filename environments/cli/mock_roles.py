"""The second models of an environment as a mock model plays them: by the hooks of its class."""

from collections.abc import Iterator, Sequence
from typing import Any, cast

from environments.base_env import AgentEnv
from environments.data.item_json import recorded_item
from environments.hooks import writes
from environments.policy.scripted import Choice, Script, say
from environments.trajectory import Message
from environments.turn_level_reward import call_hook
from tools.calls import ToolSpec
from tools.errors import ConfigError


class MockRole:
    """Plays `judge`, `user` or `summariser` in any conversation."""

    def __init__(self, env: AgentEnv, role: str) -> None:
        """Play for an open environment.

        Raises:
            ConfigError: its class does not say what the model answers.
        """
        self._name = f"scripted_{role}"
        self._hook = getattr(env, self._name)
        if not writes(env, self._name):
            raise ConfigError(
                f"environment {env.name!r} plays no {role}; write {self._name}(self, item, messages)"
            )
        self._items = [(item, set(_texts(recorded_item(item)))) for item in env.items]

    def script(self, messages: Sequence[Message]) -> Script:
        """What it answers there. The item is the one that the conversation quotes most of."""
        spoken = "\n".join(message.content for message in messages)
        item, _ = max(self._items, key=lambda each: sum(len(text) for text in each[1] if text in spoken))

        async def script(
            messages: Sequence[Message], tools: Sequence[ToolSpec], skill: float
        ) -> Sequence[Choice]:
            answer = await call_hook(self._name, self._hook, item, messages)
            return [Choice(probability=1.0, message=say(answer))]

        return script


def _texts(value: Any) -> Iterator[str]:
    """All texts in JSON values."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for each in cast("list[Any]", value):
            yield from _texts(each)
    elif isinstance(value, dict):
        for each in cast("dict[str, Any]", value).values():
            yield from _texts(each)
