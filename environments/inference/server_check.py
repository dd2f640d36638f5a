"""The look at a model server before a run: it buys no completion, and says what to change."""

from pydantic import ValidationError

from environments.inference.http_client import NoAnswerError, StatusError
from environments.inference.model_server import ModelServer
from environments.inference.openai_wire import ModelList
from environments.inference.server_text import one_line, start_of
from tools.errors import ConfigError


async def check(server: ModelServer, model: str) -> None:
    """Find out whether the server can be used.

    Asks `GET /models`. A server without that path is accepted, its model unverified, when it understands
    an empty `POST /chat/completions` well enough to refuse it.

    Raises:
        ConfigError: one line that says what to change.
    """
    url = server.base_url
    try:
        content = await server.ask_once("/models")
    except StatusError as error:
        if error.status != 404:
            raise _refused(url, error) from error
        await _check_without_models(server)
        return
    except NoAnswerError as error:
        raise _unreachable(url, error) from error
    try:
        models = [entry.id for entry in ModelList.model_validate_json(content).data]
    except ValidationError as error:
        raise ConfigError(
            f"{url} does not speak the OpenAI API{_hint(url)}; its /models is {start_of(content)}"
        ) from error
    if models and not any(name == model or name.endswith(f"/{model}") for name in models):
        raise ConfigError(f"{url} has no model {model!r}; it has {_listed(models)}")


async def _check_without_models(server: ModelServer) -> None:
    url = server.base_url
    try:
        await server.ask_once("/chat/completions", b"{}")
    except StatusError as error:
        if error.status in (404, 405):
            raise ConfigError(f"{url} has neither /models nor /chat/completions{_hint(url)}") from error
        if error.status not in (400, 422):
            raise _refused(url, error) from error
    except NoAnswerError as error:
        raise _unreachable(url, error) from error


def _refused(url: str, error: StatusError) -> ConfigError:
    if error.status in (401, 403):
        return ConfigError(f"{url} refuses the API key ({error.status}): {error.reason}")
    return ConfigError(f"{url} answered {error.status}: {error.reason}")


def _unreachable(url: str, error: NoAnswerError) -> ConfigError:
    return ConfigError(f"no model server answers at {url}: {error}")


def _hint(url: str) -> str:
    return "" if url.endswith("/v1") else f" (did you mean {url}/v1?)"


def _listed(models: list[str]) -> str:
    more = f" and {len(models) - 10} more" if len(models) > 10 else ""
    return ", ".join(one_line(name) for name in sorted(models)[:10]) + more
