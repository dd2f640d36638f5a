"""A policy that writes given messages, whatever they are; its tokens stand for nothing."""

from environments.rollout.items.tasks import GroupTask
from environments.trajectory import Completion, Message


class Written:
    """The messages in order, then the last one for ever."""

    name = "written"

    def __init__(self, *messages: Message) -> None:
        self._messages = messages

    async def complete(self, request):
        turn = sum(message.role == "assistant" for message in request.messages)
        return Completion(
            message=self._messages[min(turn, len(self._messages) - 1)],
            finish_reason="stop",
            prompt_ids=tuple(range(5)) if request.row is None else (7,),
            extends_row=request.row is not None,
            token_ids=(1, 2),
            logprobs=(-1.0, -1.0),
            exact=True,
        )


async def rolled_out(env, item, size=1):
    """The siblings that an environment rolls out from an item, none of which may fail."""
    group = await env.rollout_group(GroupTask(item=item, item_id="item"), size)
    assert group.failures == ()
    return group.trajectories
