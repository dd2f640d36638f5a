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
_ABOUT_THE_POST = frozenset({400, 411, 413, 414, 415, 422, 431})
"""Statuses that the same post would get again; any other 4xx speaks of the way there, such as a proxy."""
_TRY_LATER = frozenset({408, 425, 429})


class ApiUnavailableError(Exception):
    """No answer of the API itself, or a 5xx: the same request may succeed later."""


class PostRefusedError(Exception):
    """The API will never take this post."""


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
    knows_us: bool
    """Whether the number that was asked about is an environment's; true when none was asked about."""
    own_groups: int | None
    """Groups in its queue under that number; `None`: unknown."""
    waiting_rows: int | None
    """Rows in its queue, of all environments, as far as they add up; `None`: unknown."""
    shares: bool
    """Whether an environment may have a share of every batch: then batches are not made oldest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrationAnswer:
    """The API's answer to an environment that it took in."""

    env_id: int
    earlier: int
    """Environments of this name that the API's memory already held."""
    num_steps: int


class TrajectoryApi:
    """Calls the API. `connections` grows whenever a new connection was needed, as after a restart."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self.connections = 0
        self._recognised = False
        self._posting = False
        self._session: aiohttp.ClientSession | None = None

    async def state(self, env_id: int | None = None, *, group_size: int = 1) -> ApiState:
        """The API's step, queue and trainer.

        Args:
            env_id: the number of an environment to ask about, one with a weight above 0.
            group_size: the rows of its groups.

        Raises:
            ApiUnavailableError: no usable answer.
            ConfigError: something else answers there, and always did.
        """
        info = await self._json("GET", "/info")
        # The API looks a number up without a check: one that it does not know is its error 500.
        ours = {} if env_id is None else await self._json("GET", "/status-env", {"env_id": env_id}, also=500)
        # Last: a batch that is handed out between the two makes the queue look longer than it is, never
        # shorter than the step says.
        status = await self._json("GET", "/status")
        try:
            state = ApiState(
                step=status["current_step"],
                queued=status["queue_size"],
                batch_size=info["batch_size"],
                max_row_tokens=info["max_token_len"],
                knows_us=env_id is None or bool(ours),
                own_groups=ours["self_queue_size"] if ours else None,
                waiting_rows=_waiting_rows(ours, status["queue_size"], group_size) if ours else None,
                shares=not ours or ours["unallocated_fraction"] < 1,
            )
        except KeyError as error:
            raise self._unusable(f"/info, /status and /status-env without {error}") from error
        self._recognised = True
        return state

    async def register(self, environment: Mapping[str, Any]) -> RegistrationAnswer | None:
        """Register an environment; `None` while no trainer has started.

        Args:
            environment: the fields of Atropos' `RegisterEnv`.
        """
        answer = await self._json("POST", "/register-env", dict(environment))
        if answer.get("status") != "success":
            return None
        # The API numbers the environments of one name: `name_0`, `name_1`, …
        number = str(answer["wandb_name"]).removeprefix(f"{environment['desired_name']}_")
        return RegistrationAnswer(env_id=answer["env_id"], earlier=int(number), num_steps=answer["num_steps"])

    async def post_rows(self, body: bytes) -> Literal["received", "buffered"]:
        """Post one group.

        Args:
            body: gzipped JSON.

        Raises:
            ApiUnavailableError: it may or may not have arrived.
            PostRefusedError: it never will.
        """
        headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
        self._posting = True
        try:
            status, text = await self._call("POST", "/scored_data", body, headers, _POST_TIMEOUT_S)
        finally:
            self._posting = False
        if status in _ABOUT_THE_POST:
            raise PostRefusedError(f"the API answered {status}: {text[:500]}")
        result = _decoded(text).get("status") if status == 200 else None
        if result not in ("received", "buffered"):
            # Something before the API, such as a proxy, answered in its place.
            raise ApiUnavailableError(f"{self.url}/scored_data answered {status}: {text[:200]!r}")
        return result

    async def disconnect(self, env_id: int) -> None:
        """Say that an environment is gone, so that its weight no longer counts."""
        await self._json("POST", "/disconnect-env", {"env_id": env_id})

    async def close(self) -> None:
        """Close the connection."""
        if self._session is not None:
            await self._session.close()

    async def _json(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, also: int | None = None
    ) -> dict[str, Any]:
        """The decoded answer; nothing for the status that is `also` an answer."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        status, text = await self._call(method, path, data, headers, _CALL_TIMEOUT_S)
        if status == also:
            return {}
        problem = f"{path} answered {status}: {text[:200]!r}"
        if status >= 500 or status in _TRY_LATER:
            raise ApiUnavailableError(self.url + problem)
        answer = _decoded(text) if status == 200 else None
        if not answer:
            raise self._unusable(problem)
        return answer

    async def _call(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str], timeout_s: float
    ) -> tuple[int, str]:
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        try:
            async with self._open().request(
                method, self.url + path, data=body, headers=headers, timeout=timeout, allow_redirects=False
            ) as response:
                text = await response.text(errors="replace")
        except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError) as error:
            raise ConfigError(f"{self.url!r} is no URL; give one such as http://localhost:8000") from error
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise ApiUnavailableError(
                f"{self.url} does not answer: {str(error) or type(error).__name__}"
            ) from error
        return response.status, text

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            trace = aiohttp.TraceConfig()
            trace.on_connection_create_start.append(self._before_connecting)
            trace.on_connection_create_end.append(self._count)
            # One connection: a state that was read and the post after it reach the same process.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=1, keepalive_timeout=300), trace_configs=[trace]
            )
        return self._session

    async def _before_connecting(self, _: aiohttp.ClientSession, __: SimpleNamespace, ___: object) -> None:
        # The API may be another than the one that was looked at, and without a trainer a post blocks it.
        if self._posting:
            raise ApiUnavailableError(f"{self.url} closed the connection before a post")

    async def _count(self, _: aiohttp.ClientSession, __: SimpleNamespace, ___: object) -> None:
        self.connections += 1

    def _unusable(self, problem: str) -> ConfigError | ApiUnavailableError:
        """The wrong address, or, where the API has answered before, something in its place for a while."""
        if self._recognised:
            return ApiUnavailableError(f"{self.url}{problem}")
        return ConfigError(f"no trajectory API at {self.url}: {problem}; start one with `run-api`")


def _decoded(text: str) -> dict[str, Any]:
    """The JSON object in an answer; empty when it is something else."""
    try:
        answer = json.loads(text)
    except json.JSONDecodeError:
        return {}
    return answer if isinstance(answer, dict) else {}  # pyright: ignore[reportUnknownVariableType]  # JSON


def _waiting_rows(ours: Mapping[str, Any], queued: int, group_size: int) -> int:
    # While every group is a single row, the API counts only those of the environment that asks.
    return queued if ours["max_group_size"] == 1 else ours["queue_size"] * group_size
