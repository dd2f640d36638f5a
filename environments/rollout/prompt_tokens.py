"""How many tokens a prompt has, for whoever decides what the model sees."""

from collections.abc import Sequence
from functools import partial

from environments.policy.base import CompletionRequest
from environments.policy.rendering.chatml import ChatMLRenderer
from environments.policy.rendering.long_text import rendered
from environments.policy.row_prompt import prompt_of
from environments.trajectory import Message


class PromptTokens:
    """Counts by a renderer."""

    is_estimate = False
    """Whether another tokenizer than the model's counts."""

    def __init__(self, renderer: ChatMLRenderer) -> None:
        self._renderer = renderer

    async def of(self, request: CompletionRequest) -> int:
        """Tokens of the prompt of a request."""
        prompt = await rendered(
            partial(prompt_of, request, self._renderer), self._renderer, request.messages, max_tokens=None
        )
        before = len(request.row.token_ids) if prompt.extends_row and request.row is not None else 0
        return before + len(prompt.prompt_ids)

    async def of_text(self, text: str) -> int:
        """Tokens of a text alone."""
        with_text, without = self._message(text), self._message("")
        return await self._ids(with_text) - await self._ids(without)

    async def _ids(self, messages: Sequence[Message]) -> int:
        ids = await rendered(
            partial(self._renderer.prompt_ids, messages, ()), self._renderer, messages, max_tokens=None
        )
        return len(ids)

    def _message(self, text: str) -> Sequence[Message]:
        return (Message(role="user", content=text),)
