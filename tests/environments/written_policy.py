"""A policy that writes given messages, whatever they are; its tokens stand for nothing."""

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
