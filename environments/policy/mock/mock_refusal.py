"""Error answers of a mock server, in OpenAI's shape."""

from starlette.requests import Request
from starlette.responses import JSONResponse


class RefusalError(Exception):
    """An error answer in OpenAI's shape."""

    def __init__(self, status: int, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code


async def refuse(_: Request, refusal: Exception) -> JSONResponse:
    """The answer of a refusal."""
    assert isinstance(refusal, RefusalError)
    error = {"message": refusal.message, "type": "invalid_request_error", "param": None, "code": refusal.code}
    return JSONResponse({"error": error}, status_code=refusal.status)


def authorize(request: Request, api_key: str | None) -> None:
    """Refuse a request that does not bear the key."""
    if api_key is not None and request.headers.get("authorization") != f"Bearer {api_key}":
        raise RefusalError(401, "Incorrect API key provided.", "invalid_api_key")


def too_long(context_tokens: int, prompt_tokens: int) -> RefusalError:
    """What vLLM says to a prompt that does not fit."""
    return RefusalError(
        400,
        f"This model's maximum context length is {context_tokens} tokens. However, your messages resulted in "
        f"{prompt_tokens} tokens.",
        "context_length_exceeded",
    )
