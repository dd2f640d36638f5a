"""The look at a model server before a run: it buys no completion, and says what to change."""

import logging
from typing import Any, cast

import orjson

from environments.inference.http_client import NoAnswerError, StatusError
from environments.inference.model_server import ModelServer
from environments.inference.server_text import one_line, start_of
from tools.errors import ConfigError

_LOG = logging.getLogger(__name__)
_NAMES = ("id", "name", "model")
"""Where the entries of a list of models have their names: OpenAI's, ollama's own, llama.cpp's own."""


async def check(server: ModelServer, model: str) -> None:
    """Find out whether the server can be used.

    Asks `GET /models`. A server that has no such path, breaks there or lists nothing is accepted, its model
    unverified, when it understands an empty `POST /chat/completions` well enough to refuse it.

    Raises:
        ConfigError: one line that says what to change.
    """
    url = server.base_url
    try:
        content = await server.ask_once("/models")
    except StatusError as error:
        if error.status in (401, 403):
            raise _refused(url, error) from error
        await _check_chat(server, None if error.status == 404 else _refused(url, error))
        return
    except NoAnswerError as error:
        raise _unreachable(url, error) from error
    problem = ConfigError(
        f"{url} does not speak the OpenAI API{_hint(url)}; its /models is {start_of(content)}"
    )
    try:
        models = _models_in(orjson.loads(content))
    except ValueError:
        raise problem from None
    if models:
        _check_listed(url, model, models)
        return
    await _check_chat(server, problem if models is None else None)
    _LOG.info("%s does not list its models; whether it has %r shows with the first answer", url, model)


async def model_names(server: ModelServer) -> list[str]:
    """The models that a server lists; empty where it lists none."""
    try:
        return _models_in(orjson.loads(await server.ask_once("/models"))) or []
    except (StatusError, NoAnswerError, ValueError):
        return []


def _models_in(answer: object) -> list[str] | None:
    """The names of a server's models; `None` where this is no list of them.

    `{"data": [{"id"}]}` as OpenAI has it, the list alone (Together), `{"models": [{"name"}]}` (ollama).
    """
    if isinstance(answer, dict):
        fields = cast("dict[str, object]", answer)
        if not fields.keys() & {"data", "models"}:
            return None
        answer = fields.get("data") or fields.get("models") or []
    if not isinstance(answer, list):
        return None
    names = [_name_of(entry) for entry in cast("list[object]", answer)]
    return None if None in names else cast("list[str]", names)


def _name_of(entry: object) -> str | None:
    if isinstance(entry, dict):
        fields = cast("dict[str, Any]", entry)
        entry = next((fields[name] for name in _NAMES if isinstance(fields.get(name), str)), None)
    return entry if isinstance(entry, str) else None


def _check_listed(url: str, model: str, models: list[str]) -> None:
    # ollama adds `:latest`; OpenRouter takes `:nitro` and others after any name that it lists.
    wanted = {model, f"{model}:latest", model.rpartition(":")[0] or model}
    if not any(name in wanted or name.endswith(f"/{model}") for name in models):
        raise ConfigError(f"{url} has no model {model!r}; it has {_listed(models)}")


async def _check_chat(server: ModelServer, problem: ConfigError | None) -> None:
    """Accept a server whose chat path refuses an empty request; else it is the problem that it had before."""
    url = server.base_url
    # transformers serve breaks on `{}`, but refuses what is no object.
    for body in (b"{}", b"[]"):
        try:
            content = await server.ask_once("/chat/completions", body)
        except StatusError as error:
            if error.status in (404, 405):
                raise problem or ConfigError(
                    f"{url} has neither /models nor /chat/completions{_hint(url)}"
                ) from error
            if error.status in (400, 422):
                return
            if error.status < 500:
                raise _refused(url, error) from error
            problem = problem or _refused(url, error)
        except NoAnswerError as error:
            raise problem or _unreachable(url, error) from error
        else:
            if _has_choices(content):
                return
            problem = problem or ConfigError(
                f"{url} does not speak the OpenAI API{_hint(url)}; it answers a chat with {start_of(content)}"
            )
    assert problem is not None
    raise problem


def _has_choices(content: bytes) -> bool:
    try:
        answer: object = orjson.loads(content)
    except ValueError:
        return False
    return isinstance(answer, dict) and "choices" in answer


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
