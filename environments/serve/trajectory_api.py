"""The client of the Atropos trajectory API: what can be asked of it, in typed answers."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from pydantic import TypeAdapter, ValidationError

from environments.inference.openai_wire import first_problem
from environments.serve.api_answers import Done, EnvStatus, Info, NotYet, Registered, Status, Taken
from environments.serve.api_connection import ApiConnection, ApiUnavailableError, RawAnswer
from tools.errors import ConfigError

GET_RETRY_WAITS_S = (0.1, 0.3, 0.8)
"""Together less than a restart of the API and its trainer takes."""
LONGEST_RETRY_AFTER_S = 5.0
_CALL_TIMEOUT_S = 10.0
_POST_TIMEOUT_S = 120.0
"""The API reads a large post inside its event loop."""
_ABOUT_THE_POST = frozenset({400, 411, 413, 414, 415, 422, 431})
"""Statuses that the same post would get again; any other 4xx speaks of the way there, such as a proxy."""
_NOT_TAKEN = frozenset({404, 408, 425, 429, 503})
"""Statuses of whoever did not pass the request on, or not yet."""
_INFO, _STATUS, _ENV_STATUS = TypeAdapter(Info), TypeAdapter(Status), TypeAdapter(EnvStatus)
_REGISTERED = TypeAdapter[Registered | NotYet](Registered | NotYet)
_TAKEN, _DONE = TypeAdapter(Taken), TypeAdapter(Done)
Model = TypeVar("Model")


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
    """Calls the API, always over one connection."""

    def __init__(self, url: str) -> None:
        """Prepare calls to a URL.

        Raises:
            ConfigError: it is none.
        """
        self._connection = ApiConnection(url)
        self.url = self._connection.url
        """As it can be shown."""
        self._recognised = False

    @property
    def connections(self) -> int:
        """How many were opened; more than before after a restart."""
        return self._connection.count

    async def state(self, env_id: int | None = None, *, group_size: int = 1) -> ApiState:
        """The API's step, queue and trainer.

        Args:
            env_id: the number of an environment to ask about, one with a weight above 0.
            group_size: the rows of its groups.

        Raises:
            ApiUnavailableError: no usable answer, also after some more tries where something answered.
            ConfigError: something else answers there, and always did.
        """
        info = await self._get("/info", _INFO)
        # The API looks a number up without a check: one that it does not know is its error 500.
        ours = None if env_id is None else await self._get("/status-env", _ENV_STATUS, {"env_id": env_id})
        # Last: a batch that is handed out between the two makes the queue look longer than it is, never
        # shorter than the step says.
        status = await self._get("/status", _STATUS)
        assert info is not None
        assert status is not None
        self._recognised = True
        return ApiState(
            step=status.current_step,
            queued=status.queue_size,
            batch_size=info.batch_size,
            max_row_tokens=info.max_token_len,
            knows_us=env_id is None or ours is not None,
            own_groups=ours and ours.self_queue_size,
            waiting_rows=ours and _waiting_rows(ours, status.queue_size, group_size),
            shares=ours is None or ours.unallocated_fraction < 1,
        )

    async def register(self, environment: Mapping[str, Any]) -> RegistrationAnswer | None:
        """Register an environment; `None` while no trainer has started.

        Args:
            environment: the fields of Atropos' `RegisterEnv`.
        """
        answer = self._read("/register-env", await self._post("/register-env", environment), _REGISTERED)
        if isinstance(answer, NotYet):
            return None
        # The API numbers the environments of one name: `name_0`, `name_1`, …
        earlier = int(answer.wandb_name.rpartition("_")[2])
        return RegistrationAnswer(env_id=answer.env_id, earlier=earlier, num_steps=answer.num_steps)

    async def post_rows(self, body: bytes) -> Literal["received", "buffered"]:
        """Post one group.

        Args:
            body: gzipped JSON.

        Raises:
            ApiUnavailableError: it may or may not have arrived.
            PostRefusedError: it never will.
        """
        answer = await self._connection.call(
            "POST", "/scored_data", body, timeout_s=_POST_TIMEOUT_S, may_open=False
        )
        if answer.status in _ABOUT_THE_POST:
            raise PostRefusedError(f"the API answered {answer.status}: {answer.shown}")
        return self._read("/scored_data", answer, _TAKEN, known=True).status

    async def disconnect(self, env_id: int) -> None:
        """Say that an environment is gone, so that its weight no longer counts."""
        self._read("/disconnect-env", await self._post("/disconnect-env", {"env_id": env_id}), _DONE)

    async def close(self) -> None:
        """Close the connection."""
        await self._connection.close()

    async def _get(
        self, path: str, model: TypeAdapter[Model], body: Mapping[str, Any] | None = None
    ) -> Model | None:
        """The answer to a question, asked again where it was none; `None`: it knows no such number."""
        data = None if body is None else json.dumps(body).encode()
        for attempt, wait_s in enumerate((*GET_RETRY_WAITS_S, None)):
            answer = await self._connection.call("GET", path, data, timeout_s=_CALL_TIMEOUT_S)
            if attempt and body and answer.status == 500:
                break
            try:
                return self._read(path, answer, model)
            except ApiUnavailableError as error:
                if wait_s is None:
                    raise ApiUnavailableError(str(error), retry_after_s=error.retry_after_s) from None
                await asyncio.sleep(max(wait_s, min(error.retry_after_s, LONGEST_RETRY_AFTER_S)))
        return None

    async def _post(self, path: str, body: Mapping[str, Any]) -> RawAnswer:
        data = json.dumps(dict(body)).encode()
        return await self._connection.call("POST", path, data, timeout_s=_CALL_TIMEOUT_S)

    def _read(self, path: str, answer: RawAnswer, model: TypeAdapter[Model], *, known: bool = False) -> Model:
        """The value of an answer.

        Raises:
            ApiUnavailableError: there is none in it.
            ConfigError: neither is there one in any answer before.
        """
        problem = f"{path} answered {answer.status}: {answer.shown!r}"
        if answer.problem is not None:
            problem = f"{path}: {answer.problem}"
        elif answer.status == 200:
            try:
                return model.validate_json(answer.body)
            except ValidationError as error:
                problem += f" ({first_problem(error)})"
        elif answer.status >= 500 or answer.status in _NOT_TAKEN - {404}:
            known = True
        if known or self._recognised:
            raise ApiUnavailableError(
                f"{self.url}{problem}",
                not_taken=answer.status in _NOT_TAKEN,
                retry_after_s=answer.retry_after_s,
            )
        raise ConfigError(f"no trajectory API at {self.url}: {problem}; start one with `run-api`")


def _waiting_rows(ours: EnvStatus, queued: int, group_size: int) -> int:
    # While every group is a single row, the API counts only those of the environment that asks.
    return queued if ours.max_group_size == 1 else ours.queue_size * group_size
