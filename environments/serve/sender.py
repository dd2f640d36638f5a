"""One post to the API: cut to the trainer's limit, sent, and put where the answer says it belongs."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from environments.lifecycle.weight_versions import WeightVersions
from environments.serve.api_connection import ApiUnavailableError
from environments.serve.outbox import Post
from environments.serve.outbox_thread import OutboxThread
from environments.serve.registration import Registration
from environments.serve.trajectory_api import PostRefusedError, TrajectoryApi
from environments.wire.payloads import post_body, shortened

_STUCK_AFTER = (10, 100, 1000)


@dataclass(slots=True, kw_only=True)
class Tally:
    """What a delivery did so far; only the delivery changes it."""

    posts: int = 0
    """Posts that the API took."""
    rejected: int = 0
    """Posts and groups that will never be delivered."""
    too_long: int = 0
    """Rows left out because of the trainer's limit."""
    repeated: int = 0
    """Posts sent once more because the API lost its memory."""
    registrations: int = 0
    stale: int = 0
    """Groups that became too old for the trainer while they waited."""


class Sender:
    """Sends posts, and says what will not arrive."""

    def __init__(
        self,
        in_outbox: OutboxThread,
        api: TrajectoryApi,
        registration: Registration,
        *,
        tally: Tally,
        say: Callable[[str], None],
        weights: WeightVersions | None,
    ) -> None:
        self._in_outbox = in_outbox
        self._api = api
        self._registration = registration
        self._tally = tally
        self._say = say
        self._weights = weights

    async def send(self, post: Post, env_id: int) -> bool:
        """Send a post; whether the API has it now.

        Raises:
            ApiUnavailableError: it may or may not have arrived; it waits behind the others.
        """
        if await self._is_stale(post) or (fitting := await self._fitting(post)) is None:
            return False
        try:
            answer = await self._api.post_rows(post_body(fitting.part.body, env_id))
        except PostRefusedError as error:
            reason = str(error)
            await self._in_outbox(lambda outbox: outbox.reject(fitting, reason))
            self.reject(f"group {post.group_id}: {reason}")
            return False
        except ApiUnavailableError as error:
            await self._in_outbox(lambda outbox: outbox.postpone(fitting))
            if fitting.tries + 1 in _STUCK_AFTER:
                self._say(f"group {post.group_id} was not taken {fitting.tries + 1} times: {error}")
            raise
        if answer == "buffered":
            # Our number belongs to an environment with other groups: register anew, send again.
            self._registration.drop()
            return False
        await self._in_outbox(lambda outbox: outbox.mark_sent(fitting))
        self._tally.posts += 1
        return True

    def reject(self, what: str) -> None:
        """Count and show what will never be delivered; the file of rejected ones holds it already."""
        self._tally.rejected += 1
        self._say(f"rejected for good, see {self._in_outbox.outbox.rejected_path}: {what}")

    def too_long(self, where: str, rows: int) -> None:
        """Count and show rows that the trainer could not take."""
        self._tally.too_long += rows
        self._say(f"{where}: {rows} rows are too long for the trainer; left out")

    async def _is_stale(self, post: Post) -> bool:
        """Whether the weights have changed too often while its group waited, which then is dropped whole."""
        if self._weights is None or not self._weights.is_bounded:
            return False
        reason = self._weights.too_old(await self._in_outbox(lambda outbox: outbox.unsent_versions(post)))
        if reason is None:
            return False
        await self._in_outbox(lambda outbox: outbox.drop(post.group_id))
        self._tally.stale += 1
        self._say(f"group {post.group_id} is not sent, {reason}")
        return True

    async def _fitting(self, post: Post) -> Post | None:
        """The post within the limit of the trainer that is there now; `None` when nothing is left of it."""
        limit = self._registration.shape.max_row_tokens
        if limit is None or post.part.longest_row <= limit:
            return post
        part, too_long = await self._in_outbox(lambda _: shortened(post.part, limit))
        self.too_long(f"group {post.group_id}", too_long)
        if part is None:
            await self._in_outbox(lambda outbox: outbox.remove([post.id]))
            return None
        await self._in_outbox(lambda outbox: outbox.shorten(post, part))
        return replace(post, part=part)
