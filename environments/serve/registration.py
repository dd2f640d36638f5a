"""Registration of the environment at the trajectory API, renewed when the API or its trainer restarts."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from time import monotonic

from environments.serve.outbox import OutboxThread
from environments.serve.trajectory_api import ApiState, ApiUnavailableError, RegistrationAnswer, TrajectoryApi
from environments.wire.payloads import Shape
from tools.errors import ConfigError

_MOST_SIBLINGS = 1024
_MOST_TAKEN_BACK = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    name: str
    """Unique per outbox: the API's answer then shows whether it remembers us."""
    max_row_tokens: int
    weight: float = 1.0
    min_batch_allocation: float | None = None


class Registration:
    """The registration and the last known state of the API.

    The API identifies an environment by a number that restarts at 0 with the API, and rows sent under another
    environment's number are held back or counted for it. So on every sign of a restart (a new connection, a
    transport error, no trainer, a lower step, an unknown number) we register again before anything is sent.
    """

    def __init__(
        self,
        api: TrajectoryApi,
        identity: Identity,
        shape: Shape,
        in_outbox: OutboxThread,
        *,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.shape = shape
        self.state: ApiState | None = None
        self.answer: RegistrationAnswer | None = None
        self.formed = 0
        """Upper bound of batches that the API has formed and not given to the trainer."""
        self.seen_at = monotonic()
        self._api, self._identity, self._in_outbox, self._say = api, identity, in_outbox, say
        self._connections = 0
        self._send_again = False

    async def look(self) -> bool:
        """Read the API's state and return whether our registration is still valid."""
        before = self.state
        state = await self._state_of(self.answer)
        has_fallen = before is not None and state.step < before.step
        if not self.still_holds() or state.batch_size <= 0 or has_fallen or not state.knows_us:
            self.answer = None
            return False
        if before is None or state.batch_size != before.batch_size:
            self.shape = fit(self.shape, state)
        if before is not None and state.step > before.step:
            # Batches are formed on request, and the last one was given to the trainer.
            self.formed = state.step - before.step - 1
        self.state, self.seen_at = state, monotonic()
        return True

    async def register(self) -> int | None:
        """Register again; posts that the API has lost wait in the outbox again.

        Returns the number of those posts, or None without a trainer: nothing is registered then. Raises
        ApiUnavailableError if the API does not answer; it may have registered us all the same.
        """
        if (await self._api.state()).batch_size <= 0:
            return None
        # An earlier attempt without an answer may have registered our name: then the count of earlier
        # registrations proves nothing, and everything is sent again.
        settled = await self._in_outbox(lambda outbox: outbox.fact("settled"))
        former = await self._in_outbox(lambda outbox: outbox.fact("env_id"))
        await self._in_outbox(lambda outbox: outbox.remember("settled", "no"))
        try:
            answer = await self._request()
        except ApiUnavailableError as error:
            if error.not_taken:
                await self._in_outbox(lambda outbox: outbox.remember("settled", settled or "yes"))
            raise
        lost = None
        if answer is not None:
            remembered = settled != "no" and answer.earlier > 0
            assert self.state is not None
            known = remembered and not self.state.shares and not self._send_again
            lost = await self._in_outbox(
                lambda outbox: outbox.record_registration(answer.env_id, forgot=not known)
            )
            if remembered and former is not None:
                await self._api.disconnect(int(former))
            else:
                await self._take_back(answer)
            self._send_again = False
            settled = "yes"
        await self._in_outbox(lambda outbox: outbox.remember("settled", settled or "yes"))
        return lost

    def send_again(self) -> None:
        self._send_again = True
        self.drop()

    def still_holds(self) -> bool:
        """Whether there was no sign of a restart since the last look."""
        return self.answer is not None and self._connections == self._api.connections

    def drop(self) -> None:
        self.answer = None

    async def sign_off(self) -> None:
        if self.answer is not None and self.still_holds():
            await self._api.disconnect(self.answer.env_id)

    async def _request(self) -> RegistrationAnswer | None:
        identity = self._identity
        answer = await self._api.register(
            {
                "max_token_length": identity.max_row_tokens,
                "desired_name": identity.name,
                "weight": identity.weight,
                "group_size": self.shape.rows_per_post,
                "min_batch_allocation": identity.min_batch_allocation,
            }
        )
        if answer is None:
            return None
        connections = self._api.connections
        state = await self._state_of(answer)
        if state.batch_size <= 0 or not state.knows_us:
            return None
        shape = fit(self.shape, state)
        limit, longest = shape.max_row_tokens, identity.max_row_tokens
        if limit is not None and limit != self.shape.max_row_tokens and limit < longest:
            self._say(
                f"the trainer takes rows of up to {limit} tokens, and rollouts may grow to {longest}: longer "
                f"rows are not trained on; --env.max_token_length {limit} stops rollouts before that"
            )
        self.shape, self.formed, self._connections = shape, 0, connections
        self.state, self.seen_at = state, monotonic()
        self.answer = answer
        return answer

    async def _take_back(self, answer: RegistrationAnswer) -> None:
        """Disconnect registrations of ours with numbers that never reached us."""
        if answer.earlier == answer.env_id and answer.earlier <= _MOST_TAKEN_BACK:
            # All registrations have our name, so every lower number is ours.
            for env_id in range(answer.earlier):
                await self._api.disconnect(env_id)
        elif answer.earlier and self._identity.min_batch_allocation is not None:
            self._say(
                f"{answer.earlier} earlier registrations of this environment could not be taken back: "
                f"the API keeps a share of every batch for them; if the trainer starves, restart run-api"
            )

    async def _state_of(self, answer: RegistrationAnswer | None) -> ApiState:
        # Without a weight, the API's status of an environment divides by 0.
        env_id = None if answer is None or self._identity.weight <= 0 else answer.env_id
        return await self._api.state(env_id, group_size=self.shape.rows_per_post)


def fit(shape: Shape, state: ApiState) -> Shape:
    """Return the shape with the trainer's limit.

    Raises ConfigError if batches of the trainer's size cannot be filled with our groups.
    """
    if state.batch_size % shape.rows_per_post:
        divisors = [each for each in range(1, _MOST_SIBLINGS + 1) if state.batch_size % each == 0]
        raise ConfigError(
            f"the trainer asks for batches of {state.batch_size} rows, which groups of {shape.rows_per_post} "
            f"never add up to, so it would wait for ever; choose --env.group_size from {divisors}, another "
            f"batch size of the trainer, or --env.credit_view turn_rows, which fits every batch"
        )
    return replace(shape, max_row_tokens=state.max_row_tokens if state.max_row_tokens > 0 else None)
