"""The client of the Atropos trajectory API: one shared session, one connection, typed answers."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal

import aiohttp

from tools.errors import ConfigError

_CALL_TIMEOUT_S = 10.0
_POST_TIMEOUT_S = 120.0
"""The API reads a large post inside its event loop."""


class ApiUnavailableError(Exception):
    """The API did not answer, or answered 5xx: the same request may succeed later."""


class PostRefusedError(Exception):
    """The API answered 4xx: it will never take this post."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiState:
    """What the API shows of itself, at one moment."""

    step: int
    queued: int
    """Groups in its queue, of all environments."""
    batch_size: int
    """Rows of a batch; -1: no trainer has registered."""
    max_row_tokens: int
    """The trainer's limit; 0 or less: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """The API's answer to an environment that it took in."""

    env_id: int
    known_before: bool
    """Whether the API's memory already held an environment of this name."""
    num_steps: int


class TrajectoryApi:
    """Calls the API. `connections` grows whenever a new connection was needed, as after a restart."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self.connections = 0
        self._session: aiohttp.ClientSession | None = None

    async def state(self) -> ApiState:
        """The API's step, queue and trainer.

        Raises:
            ApiUnavailableError: no usable answer.
            ConfigError: something else answers there.
        """
        info = await self._json("GET", "/info")
        status = await self._json("GET", "/status")
        try:
            return ApiState(
                step=status["current_step"],
                queued=status["queue_size"],
                batch_size=info["batch_size"],
                max_row_tokens=info["max_token_len"],
            )
        except KeyError as error:
            raise self._not_an_api(f"/info and /status without {error}") from error

    async def register(self, environment: Mapping[str, Any]) -> Registration | None:
        """Register an environment; `None` while no trainer has started.

        Args:
            environment: the fields of Atropos' `RegisterEnv`.
        """
        answer = await self._json("POST", "/register-env", dict(environment))
        if answer.get("status") != "success":
            return None
        # The API numbers the environments of one name: `name_0`, `name_1`, …
        number = str(answer["wandb_name"]).removeprefix(f"{environment['desired_name']}_")
        return Registration(
            env_id=answer["env_id"], known_before=number != "0", num_steps=answer["num_steps"]
        )

    async def post_rows(self, body: bytes) -> Literal["received", "buffered"]:
        """Post one group.

        Args:
            body: gzipped JSON.

        Raises:
            ApiUnavailableError: it may or may not have arrived.
            PostRefusedError: it never will.
        """
        headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
        status, text = await self._call("POST", "/scored_data", body, headers, _POST_TIMEOUT_S)
        if status != 200:
            raise PostRefusedError(f"the API answered {status}: {text[:500]}")
        return "buffered" if '"buffered"' in text else "received"

    async def disconnect(self, env_id: int) -> None:
        """Say that an environment is gone, so that its weight no longer counts."""
        await self._json("POST", "/disconnect-env", {"env_id": env_id})

    async def close(self) -> None:
        """Close the connection."""
        if self._session is not None:
            await self._session.close()

    async def _json(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        status, text = await self._call(method, path, data, headers, _CALL_TIMEOUT_S)
        if status != 200:
            raise self._not_an_api(f"{path} answered {status}")
        try:
            answer = json.loads(text)
        except json.JSONDecodeError as error:
            raise self._not_an_api(f"{path} answered no JSON") from error
        if not isinstance(answer, dict):
            raise self._not_an_api(f"{path} answered {text[:100]}")
        return answer  # pyright: ignore[reportUnknownVariableType]  # JSON

    async def _call(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str], timeout_s: float
    ) -> tuple[int, str]:
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        try:
            async with self._open().request(
                method, self.url + path, data=body, headers=headers, timeout=timeout
            ) as response:
                text = await response.text()
        except aiohttp.InvalidURL as error:
            raise ConfigError(f"{self.url!r} is no URL; give one such as http://localhost:8000") from error
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise ApiUnavailableError(
                f"{self.url} does not answer: {str(error) or type(error).__name__}"
            ) from error
        if response.status >= 500:
            raise ApiUnavailableError(f"{self.url}{path} answered {response.status}")
        return response.status, text

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            trace = aiohttp.TraceConfig()
            trace.on_connection_create_end.append(self._count)
            # One connection: a state that was read and the post after it reach the same process.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=1, keepalive_timeout=300), trace_configs=[trace]
            )
        return self._session

    async def _count(self, _: aiohttp.ClientSession, __: SimpleNamespace, ___: object) -> None:
        self.connections += 1

    def _not_an_api(self, what: str) -> ConfigError:
        return ConfigError(f"no trajectory API at {self.url}: {what}; start one with `run-api`")
