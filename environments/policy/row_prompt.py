"""The ids that a model sees before a turn, rendered: those that follow the open row, or all of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from environments.policy.base import CompletionRequest
from environments.policy.open_row import OpenRow
from environments.policy.rendering.renderer import CannotExtendError, Renderer
from environments.trajectory import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """As `Completion` has them."""

    prompt_ids: tuple[int, ...]
    extends_row: bool = False
    fork: str | None = None


def unseen(request: CompletionRequest) -> Sequence[Message]:
    """The messages that the open row does not hold."""
    return request.messages if request.row is None else request.messages[request.row.messages :]


def extension(request: CompletionRequest, row: OpenRow, renderer: Renderer) -> tuple[int, ...]:
    """What follows the open row.

    Raises:
        CannotExtendError: the format cannot go on from it.
    """
    return renderer.extend(row.token_ids[row.sampled_start :], unseen(request), request.tools)


def prompt_of(request: CompletionRequest, renderer: Renderer) -> Prompt:
    """What follows the open row; where there is none, or the format cannot go on from it, all ids."""
    fork = None
    if (row := request.row) is not None:
        try:
            return Prompt(prompt_ids=extension(request, row, renderer), extends_row=True)
        except CannotExtendError as error:
            fork = f"renderer: {error}"
    return Prompt(prompt_ids=renderer.prompt_ids(request.messages, request.tools), fork=fork)
