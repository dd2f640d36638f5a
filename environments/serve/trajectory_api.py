"""Client of the Atropos trajectory API with typed answers."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Annotated, Any, Literal, TypeVar

import aiohttp
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from environments.policy.inference.http_client import (
    ACCEPTED_ENCODINGS,
    BodyError,
    endpoint,
    read_body,
    reason_of_loss,
    retry_after_s,
)
from tools.errors import ConfigError
from tools.plain_text import one_line

MAX_ANSWER_BYTES = 1 << 20
_SHOWN_BYTES = 4_000
GET_RETRY_WAITS_S = (0.1, 0.3, 0.8)
"""Together less than a restart of the API and its trainer takes."""
LONGEST_RETRY_AFTER_S = 5.0
_CALL_TIMEOUT_S = 10.0
_POST_TIMEOUT_S = 120.0
"""The API reads a large post inside its event loop."""
_ABOUT_THE_POST = frozenset({400, 411, 413, 414, 415, 422, 431})
"""Statuses that the same post would get again; any other 4xx comes from the path, such as a proxy."""
_NOT_TAKEN = frozenset({404, 408, 425, 429, 503})
"""Statuses of a proxy or server that did not pass the request on."""
Model = TypeVar("Model")
Count = Annotated[int, Field(ge=0, le=2**53)]
Size = Annotated[int, Field(ge=-(2**31), lt=2**31)]


class ApiAnswer(BaseModel):
    """One answer, a model per path: other content is not the API's. Unknown fields are ignored."""

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)


class Info(ApiAnswer):
    batch_size: Size
    max_token_len: Size


class Status(ApiAnswer):
    current_step: Count
    queue_size: Count


class EnvStatus(ApiAnswer):
    queue_size: Count
    self_queue_size: Count
    max_group_size: Annotated[Count, Field(ge=1)]
    unallocated_fraction: Annotated[float, Field(le=1)]


class Registered(ApiAnswer):
    status: Literal["success"]
    env_id: Annotated[int, Field(ge=0, lt=2**31)]
    wandb_name: Annotated[str, Field(pattern=r"_[0-9]{1,9}$")]
    """The name with the number of earlier registrations of it."""
    num_steps: Size


class NotYet(ApiAnswer):
    status: Literal["wait for trainer to start"]


class Taken(ApiAnswer):
    status: Literal["received", "buffered"]


class Done(ApiAnswer):
    status: Literal["success", "failure"]


class ApiUnavailableError(Exception):
    """No answer of the API itself, or a 5xx: the same request may succeed later."""

    def __init__(self, text: str, *, not_taken: bool = False, retry_after_s: float = 0.0) -> None:
        super().__init__(text)
        self.not_taken = not_taken
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True, kw_only=True)
class RawAnswer:
    status: int
    body: bytes
    shown: str
    problem: str | None
    retry_after_s: float


_INFO, _STATUS, _ENV_STATUS = TypeAdapter(Info), TypeAdapter(Status), TypeAdapter(EnvStatus)
_REGISTERED = TypeAdapter[Registered | NotYet](Registered | NotYet)
_TAKEN, _DONE = TypeAdapter(Taken), TypeAdapter(Done)


class PostRefusedError(Exception):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiState:
    step: int
    queued: int
    batch_size: int
    """Rows of a batch; -1: no trainer has registered."""
    max_row_tokens: int
    """The trainer's limit; 0 or less: no limit."""
    knows_us: bool
    own_groups: int | None
    waiting_rows: int | None
    """Queued rows of all environments, as far as they add up, if known."""
    shares: bool
    """Whether environments may have a share of every batch: then batches are not formed oldest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrationAnswer:
    env_id: int
    earlier: int
    num_steps: int


class TrajectoryApi:
    def __init__(self, url: str, token: str = "") -> None:
        name, example = "rollout_server_url", "http://localhost:8000"
        self._endpoint = endpoint(url, name=name, example=example, api_key=token)
        self.url = self._endpoint.url
        self.connections = 0
        self._may_open = True
        self._session: aiohttp.ClientSession | None = None
        self._recognised = False

    async def state(self, env_id: int | None = None, *, group_size: int = 1) -> ApiState:
        """Return the API's step, queue and trainer.

        Raises ApiUnavailableError without a usable answer after some retries; ConfigError if no API is there.
        """
        info = await self._get("/info", _INFO)
        # The API answers 500 for an unknown number.
        ours = None if env_id is None else await self._get("/status-env", _ENV_STATUS, {"env_id": env_id})
        # Last: a batch fetched in between then makes the queue look longer than it is, never shorter.
        status = await self._get("/status", _STATUS)
        assert info is not None
        assert status is not None
        self._recognised = True
        waiting_rows = None if ours is None else ours.queue_size * group_size
        if ours is not None and ours.max_group_size == 1:  # then the API counts only our own groups
            waiting_rows = status.queue_size
        return ApiState(
            step=status.current_step,
            queued=status.queue_size,
            batch_size=info.batch_size,
            max_row_tokens=info.max_token_len,
            knows_us=env_id is None or ours is not None,
            own_groups=ours and ours.self_queue_size,
            waiting_rows=waiting_rows,
            shares=ours is None or ours.unallocated_fraction < 1,
        )

    async def register(self, environment: Mapping[str, Any]) -> RegistrationAnswer | None:
        answer = self._read("/register-env", await self._post("/register-env", environment), _REGISTERED)
        if isinstance(answer, NotYet):
            return None
        # The API numbers the environments of one name: `name_0`, `name_1`, …
        earlier = int(answer.wandb_name.rpartition("_")[2])
        return RegistrationAnswer(env_id=answer.env_id, earlier=earlier, num_steps=answer.num_steps)

    async def post_rows(self, body: bytes) -> Literal["received", "buffered"]:
        """Post one group.

        Raises ApiUnavailableError if it may or may not have arrived; PostRefusedError if it never will.
        """
        answer = await self._call("POST", "/scored_data", body, timeout_s=_POST_TIMEOUT_S, may_open=False)
        if answer.status in _ABOUT_THE_POST:
            raise PostRefusedError(f"the API answered {answer.status}: {answer.shown}")
        return self._read("/scored_data", answer, _TAKEN, known=True).status

    async def disconnect(self, env_id: int) -> None:
        self._read("/disconnect-env", await self._post("/disconnect-env", {"env_id": env_id}), _DONE)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _get(
        self, path: str, model: TypeAdapter[Model], body: Mapping[str, Any] | None = None
    ) -> Model | None:
        """Return the answer to a GET after some retries, or None if the number in `body` is unknown."""
        data = None if body is None else json.dumps(body).encode()
        for attempt, wait_s in enumerate((*GET_RETRY_WAITS_S, None)):
            answer = await self._call("GET", path, data, timeout_s=_CALL_TIMEOUT_S)
            if attempt and body and answer.status == 500:
                break
            try:
                return self._read(path, answer, model)
            except ConfigError:
                # A proxy may answer while the API behind it starts.
                if wait_s is None:
                    raise
                await asyncio.sleep(wait_s)
            except ApiUnavailableError as error:
                if wait_s is None:
                    raise ApiUnavailableError(str(error), retry_after_s=error.retry_after_s) from None
                await asyncio.sleep(max(wait_s, min(error.retry_after_s, LONGEST_RETRY_AFTER_S)))
        return None

    async def _post(self, path: str, body: Mapping[str, Any]) -> RawAnswer:
        data = json.dumps(dict(body)).encode()
        return await self._call("POST", path, data, timeout_s=_CALL_TIMEOUT_S)

    def _read(self, path: str, answer: RawAnswer, model: TypeAdapter[Model], *, known: bool = False) -> Model:
        problem = f"{path} answered {answer.status}: {answer.shown!r}"
        if answer.problem is not None:
            problem = f"{path}: {answer.problem}"
        elif answer.status == 200:
            try:
                return model.validate_json(answer.body)
            except ValidationError as error:
                first = error.errors(include_url=False, include_input=False)[0]
                problem += f" ({': '.join(filter(None, ['.'.join(map(str, first['loc'])), first['msg']]))})"
        elif answer.status >= 500 or answer.status in _NOT_TAKEN - {404}:
            known = True
        if answer.retry_after_s > LONGEST_RETRY_AFTER_S:
            problem += f" (it asks to wait {answer.retry_after_s:g} s, and is asked again before)"
        if known or self._recognised:
            raise ApiUnavailableError(
                f"{self.url}{problem}",
                not_taken=answer.status in _NOT_TAKEN,
                retry_after_s=answer.retry_after_s,
            )
        raise ConfigError(f"no trajectory API at {self.url}: {problem}; start one with `run-api`")

    async def _call(
        self, method: str, path: str, body: bytes | None, *, timeout_s: float, may_open: bool = True
    ) -> RawAnswer:
        self._may_open = may_open
        try:
            async with self._open().request(
                method,
                self._endpoint.at(path),
                data=None if body is None else aiohttp.BytesPayload(body),
                headers={} if may_open else {"Content-Encoding": "gzip"},
                timeout=aiohttp.ClientTimeout(total=timeout_s),
                allow_redirects=False,
            ) as response:
                problem, is_cut = None, response.status != 200
                try:
                    chunks = response.content.iter_any()
                    content = await read_body(chunks, max_bytes=MAX_ANSWER_BYTES, cut=is_cut)
                except BodyError as error:
                    content, problem = b"", str(error)
        except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError):
            raise ConfigError(f"{self.url!r} is not a URL; give one such as http://localhost:8000") from None
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
            # Without the cause: a library's text may quote the URL.
            text = self._endpoint.without_secrets(reason_of_loss(error))
            raise ApiUnavailableError(f"{self.url} does not answer: {one_line(text)}") from None
        start = content[:_SHOWN_BYTES].decode("utf-8", "replace")
        return RawAnswer(
            status=response.status,
            body=content,
            shown=one_line(self._endpoint.without_secrets(start)),
            problem=problem,
            retry_after_s=retry_after_s(response.headers.get("Retry-After")) or 0.0,
        )

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            trace = aiohttp.TraceConfig()
            trace.on_connection_create_start.append(self._before_connecting)
            trace.on_connection_create_end.append(self._after_connecting)
            # One connection, so that a state and the post after it reach the same process.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=1, keepalive_timeout=300),
                headers={
                    "Content-Type": "application/json",
                    "Accept-Encoding": ACCEPTED_ENCODINGS,
                    **self._endpoint.headers,
                },
                cookie_jar=aiohttp.DummyCookieJar(),
                trace_configs=[trace],
            )
        return self._session

    async def _before_connecting(self, _: aiohttp.ClientSession, __: SimpleNamespace, ___: object) -> None:
        # The API may have restarted since the last look, and a post without a trainer blocks it.
        if not self._may_open:
            raise ApiUnavailableError(f"{self.url} closed the connection before a post", not_taken=True)

    async def _after_connecting(self, _: aiohttp.ClientSession, __: SimpleNamespace, ___: object) -> None:
        self.connections += 1
