"""Several model servers as one policy: each rollout is played by one of them."""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from environments.policy.base import CompletionRequest
from environments.policy.chat import ChatPolicy
from environments.trajectory import Completion


class ServedPolicy:
    """Chooses by the rollout's seed, so that all turns of a rollout come from one server."""

    def __init__(self, servers: Sequence[ChatPolicy], *, sampling: Mapping[str, Any]) -> None:
        """Play with `servers`, which are asked to sample with `sampling` (empty: as the model gives)."""
        self._servers = tuple(servers)
        self._sampling = dict(sampling)

    @property
    def name(self) -> str:
        """The models' names, and what reshapes their distribution."""
        names = "+".join(dict.fromkeys(server.name for server in self._servers))
        return " ".join([names, *(f"{name}={_shown(value)}" for name, value in self._sampling.items())])

    async def complete(self, request: CompletionRequest) -> Completion:
        """Ask the rollout's server.

        Raises:
            PolicyError: as for `ChatPolicy`.
        """
        return await self._servers[request.seed % len(self._servers)].complete(request)

    async def check(self) -> None:
        """Raise ConfigError while one of the servers cannot be used; buys no completion."""
        for server in self._servers:
            await server.check()

    async def aclose(self) -> None:
        """Close the connections."""
        for server in self._servers:
            await server.aclose()


def _shown(value: Any) -> str:
    """A number as people write it, anything else as JSON."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:g}"
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
