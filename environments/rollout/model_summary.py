"""A summary by a second model, which reads the conversation as text: no server has to take its calls."""

from collections.abc import Sequence

from environments.rewards.quoting import quoted
from environments.second_models.asked_model import AskedModel
from environments.trajectory import Message
from tools.errors import ContextOverflow

_NO_SUMMARY = {
    "too_long": "the conversation does not fit the summariser's model",
    "filtered": "the summariser's model filters the conversation",
}


async def model_summary(model: AskedModel, messages: Sequence[Message], *, seed: int) -> str:
    """What the model answers: perhaps nothing, a text that was cut, or a refusal.

    Args:
        model: as one rollout asks it.
        messages: the conversation; the last one asks for its summary.
        seed: of the rollout.

    Raises:
        ContextOverflow: it takes no such conversation.
        SecondModelError: it gave no answer.
        NoModelError: nobody plays it.
    """
    *conversation, request = messages
    text = "\n\n".join(map(_as_text, conversation))
    question = Message(role="user", content=f"{quoted(text, 'conversation')}\n\n{request.content}")
    answer = await model.ask([question], seed=(seed + len(model.calls)) % 2**31)
    if answer.text is None:
        raise ContextOverflow(
            _NO_SUMMARY.get(answer.problem or "", "the summariser takes no such conversation")
        )
    return answer.text.strip()


def _as_text(message: Message) -> str:
    calls = [f"{call.name}({call.arguments})" for call in message.tool_calls]
    return "\n".join([f"[{message.role}]", *filter(None, [message.content]), *calls])
