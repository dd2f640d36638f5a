"""One HTTP request to a model server, and the two ways in which it fails. Only this module knows openai."""

from collections.abc import Mapping
from functools import partial
from typing import Any, cast

from openai import APIConnectionError, APIStatusError, AsyncOpenAI

from environments.inference.server_text import one_line, start_of

_DETAILS_CHARS = 10_000


class StatusError(Exception):
    """The server answered with an error status."""

    def __init__(
        self, status: int, reason: str, *, code: str | None, details: str, retry_after: str | None
    ) -> None:
        """Take the answer apart.

        Args:
            status: of HTTP.
            reason: what the server says is wrong, in a short line.
            code: the server's name for it.
            details: the whole answer, as far as one would search it for names.
            retry_after: the header.
        """
        super().__init__(f"{status}: {reason}")
        self.status = status
        self.reason = reason
        self.code = code
        self.details = details
        self.retry_after = retry_after


class NoAnswerError(Exception):
    """No answer came; the text is the cause."""


class HttpClient:
    """Connections to one server. Each call is exactly one request."""

    def __init__(self, base_url: str, api_key: str) -> None:
        self._open = partial(
            AsyncOpenAI, base_url=base_url, api_key=api_key or "none", max_retries=0, timeout=None
        )
        self._client = self._open()

    async def get(self, path: str) -> bytes:
        """The body of a page.

        Raises:
            StatusError: an error status.
            NoAnswerError: no answer.
        """
        try:
            return await self._client.get(path, cast_to=bytes)
        except APIStatusError as error:
            raise _status_error(error) from error
        except APIConnectionError as error:
            raise _no_answer(error) from error

    async def post(self, path: str, body: Mapping[str, Any]) -> bytes:
        """The body of the answer to some JSON.

        Raises:
            StatusError: an error status.
            NoAnswerError: no answer.
        """
        try:
            return await self._client.post(path, cast_to=bytes, body=body)
        except APIStatusError as error:
            raise _status_error(error) from error
        except APIConnectionError as error:
            raise _no_answer(error) from error

    async def close(self) -> None:
        """Close the connections; a later request opens new ones."""
        closing, self._client = self._client, self._open()
        await closing.close()


def _status_error(error: APIStatusError) -> StatusError:
    body: object = error.body
    message = cast("dict[str, object]", body).get("message") if isinstance(body, dict) else None
    return StatusError(
        error.status_code,
        one_line(message) if isinstance(message, str) else start_of(error.response.content),
        code=None if error.code is None else str(error.code),
        details=error.response.text[:_DETAILS_CHARS],
        retry_after=error.response.headers.get("retry-after"),
    )


def _no_answer(error: APIConnectionError) -> NoAnswerError:
    # The client only says "Connection error." and hides the rest as the cause.
    cause = error.__cause__ or error
    return NoAnswerError(one_line(str(cause) or type(cause).__name__))
