"""A policy whose weights change when a test says so, and the chat that it plays."""

from dataclasses import replace
from itertools import chain, repeat

from environments.config import AgentEnvConfig
from environments.policy.rendering.chatml import EMBEDDED, ChatMLRenderer
from environments.policy.scripted import Choice, ScriptedPolicy, say
from tests.environments.chat.chat_env import WORDS, Chat

CHOICES = [Choice(probability=1 / 3, message=say(word)) for word in WORDS]


class Versioned:
    """Says colours; each call has the next of some versions, and the last of them from then on."""

    name = "versioned"

    def __init__(self, *versions):
        self.versions = chain(versions[:-1], repeat(versions[-1]))
        self.inner = ScriptedPolicy(lambda *_: CHOICES, skill=0.5, renderer=ChatMLRenderer.load(EMBEDDED))

    async def complete(self, request):
        return replace(await self.inner.complete(request), weight_version=next(self.versions))


def played_by(*versions, cls=Chat, **fields):
    """The chat of two siblings, three turns each, one after the other."""
    fields = {"group_size": 2, "max_concurrent_rollouts": 1, **fields}
    return cls(AgentEnvConfig(**fields), policy=Versioned(*versions))
