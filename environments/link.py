"""The environment's registration at the trajectory API: kept up when the API or its trainer restarts."""

from dataclasses import dataclass, replace
from time import monotonic

from environments.payloads import Shape
from environments.trajectory_api import ApiState, Registration, TrajectoryApi
from tools.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """How an environment registers."""

    name: str
    """Unique to this outbox: the API's answer then tells whether its memory still knows us."""
    max_row_tokens: int
    """Longest row that this environment makes, for the API's weights."""
    weight: float = 1.0
    min_batch_allocation: float | None = None


class Link:
    """The registration, and what the API showed of itself last.

    The API knows an environment only by a number that starts at 0 again when it restarts, and rows sent
    under another environment's number are held back or counted for that one. So every sign of a restart
    (a new connection, no trainer, a step that fell) means to register anew before anything is sent.
    """

    def __init__(self, api: TrajectoryApi, identity: Identity, shape: Shape) -> None:
        self.shape = shape
        """With the trainer's limit, once that is known."""
        self.state: ApiState | None = None
        self.registration: Registration | None = None
        self.seen_at = monotonic()
        """When the API and its trainer were last there."""
        self._api = api
        self._identity = identity
        self._connections = 0

    async def look(self) -> bool:
        """Read the API's state; whether our registration is still there.

        Raises:
            ApiUnavailableError: the API does not answer.
            ConfigError: no API, or batches of its size cannot be made of our groups.
        """
        state = await self._api.state()
        if self._void(state):
            self.registration = None
            return False
        if self.state is None or state.batch_size != self.state.batch_size:
            self.shape = fit(self.shape, state)
        self._saw(state)
        return True

    async def register(self) -> Registration | None:
        """Register; `None` while there is no trainer, and nothing is registered then.

        Raises:
            ApiUnavailableError: the API does not answer; it may have registered us all the same.
            ConfigError: batches of its size cannot be made of our groups.
        """
        identity = self._identity
        registration = await self._api.register(
            {
                "max_token_length": identity.max_row_tokens,
                "desired_name": identity.name,
                "weight": identity.weight,
                "group_size": self.shape.rows_per_post,
                "min_batch_allocation": identity.min_batch_allocation,
            }
        )
        if registration is None:
            return None
        connections = self._api.connections
        state = await self._api.state()
        self.shape = fit(self.shape, state)
        self._saw(state)
        self._connections = connections
        self.registration = registration
        return registration

    def still_holds(self) -> bool:
        """Whether nothing since the last look hints at a restart."""
        return self.registration is not None and self._connections == self._api.connections

    def drop(self) -> None:
        """Take the registration for lost."""
        self.registration = None

    def _void(self, state: ApiState) -> bool:
        fell = self.state is not None and state.step < self.state.step
        return not self.still_holds() or state.batch_size == -1 or fell

    def _saw(self, state: ApiState) -> None:
        self.state = state
        self.seen_at = monotonic()


def fit(shape: Shape, state: ApiState) -> Shape:
    """The shape with the trainer's limit.

    Raises:
        ConfigError: batches of the trainer's size cannot be made of our groups.
    """
    if state.batch_size % shape.rows_per_post:
        divisors = [each for each in range(1, state.batch_size + 1) if state.batch_size % each == 0]
        raise ConfigError(
            f"the trainer asks for batches of {state.batch_size} rows, which groups of {shape.rows_per_post} "
            f"never add up to, so it would wait for ever; choose --env.group_size from {divisors}, another "
            f"batch size of the trainer, or --env.credit_encoding turn_rows, which fits every batch"
        )
    return replace(shape, max_row_tokens=state.max_row_tokens if state.max_row_tokens > 0 else None)
