"""Several model servers as one policy: each rollout is played by one of them."""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from environments.policy.base import CompletionRequest
from environments.policy.server_policy import ServerPolicy
from environments.trajectory import Completion


class ServedPolicy:
    """Chooses by the rollout's seed, so that all turns of a rollout come from one server."""

    def __init__(self, servers: Sequence[ServerPolicy], *, sampling: Mapping[str, Any]) -> None:
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
            PolicyError: as for `ServerPolicy`.
        """
        return await self._server_of(request).complete(request)

    async def prompt_tokens(self, request: CompletionRequest) -> int | None:
        """As the rollout's server counts them; `None`: only it knows."""
        return await self._server_of(request).prompt_tokens(request)

    @property
    def context_tokens(self) -> int | None:
        """The smallest of the servers' windows, as far as they are known; `None`: none is."""
        known = [each.context_tokens for each in self._servers if each.context_tokens is not None]
        return min(known, default=None)

    async def check(self) -> None:
        """Raise ConfigError while one of the servers cannot be used; buys no completion."""
        for server in self._servers:
            await server.check()

    @property
    def found(self) -> tuple[str, ...]:
        """What is known of the servers and how they are asked, a line each."""
        return tuple(server.found for server in self._servers if server.found is not None)

    @property
    def text_only(self) -> tuple[str, ...]:
        """The servers that are known to give no token ids."""
        return tuple(server.found or "" for server in self._servers if server.text_only)

    async def aclose(self) -> None:
        """Close the connections."""
        for server in self._servers:
            await server.aclose()

    def _server_of(self, request: CompletionRequest) -> ServerPolicy:
        return self._servers[request.seed % len(self._servers)]


def _shown(value: Any) -> str:
    """A number as people write it, anything else as JSON."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:g}"
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
