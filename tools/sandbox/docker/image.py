"""Getting images: on the engine, from a registry or from a folder."""

import fcntl
import hashlib
import math
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tools.errors import ConfigError
from tools.sandbox.docker.engine import MOST_BUILD_S, Engine, EngineError, Image

DEFAULT_IMAGE = "python:3.11-slim-bookworm"
_EVERY_S = 2.0
_DOCKERFILE = "Dockerfile"

Progress = Callable[[str], None]


def prepare(engine: Engine, name: str, progress: Progress) -> Image:
    """Return an image by name or id, or built from a folder.

    Raises:
        ConfigError: if it cannot be pulled or built.
        EngineError: if the engine does not answer.
    """
    with _one_at_a_time():
        return _prepared(engine, name, progress)


@contextmanager
def _one_at_a_time() -> Generator[None]:
    """Lock among processes, so that later ones find the image."""
    with open(__file__, "rb") as file:  # noqa: PTH123
        with suppress(OSError):  # then some images may be pulled twice
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _prepared(engine: Engine, name: str, progress: Progress) -> Image:
    if name.startswith(("./", "../", "/", "~")):
        return _built(engine, Path(name).expanduser(), progress)
    if (found := engine.image(name)) is not None:
        return found
    try:
        _follow(f"pulling {name}", engine.pull(name), progress)
    except EngineError as error:
        raise ConfigError(
            f"image {name!r} is not on the Docker engine and cannot be pulled: {error}; pull it by hand "
            "(`docker pull`), or name another one or a folder with a Dockerfile"
        ) from error
    if (found := engine.image(name)) is None:
        raise ConfigError(f"image {name!r} was pulled, but the Docker engine does not know it by that name")
    return found


def _built(engine: Engine, folder: Path, progress: Progress) -> Image:
    if not (folder / _DOCKERFILE).is_file():
        raise ConfigError(f"no image can be built from {str(folder)!r}: it has no {_DOCKERFILE}")
    tag = f"turnwise-built:{hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]}"
    try:
        _follow(f"building {folder}", engine.build(str(folder), tag), progress, MOST_BUILD_S)
        found = engine.image(tag)
    except EngineError as error:
        raise ConfigError(f"no image can be built from {str(folder)!r}: {error}") from error
    if found is None:
        raise ConfigError(f"no image can be built from {str(folder)!r}: the engine made none")
    return found


def _follow(
    what: str, events: Iterator[dict[str, Any]], progress: Progress, most_s: float = math.inf
) -> None:
    progress(what)
    told = began = time.monotonic()
    layers: dict[str, tuple[int, int]] = {}
    for event in events:
        if "error" in event:
            raise EngineError(str(event["error"]).strip(), None)
        if time.monotonic() - began > most_s:
            raise EngineError(f"it took longer than {most_s:g} s", None)
        detail: dict[str, int] = event.get("progressDetail") or {}
        if event.get("status") == "Downloading" and detail.get("total"):
            layers[event["id"]] = (detail.get("current", 0), detail["total"])
        if time.monotonic() - told > _EVERY_S:
            told = time.monotonic()
            progress(f"{what}: {_state(layers, event)}")
    progress(f"{what}: done")


def _state(layers: dict[str, tuple[int, int]], event: dict[str, Any]) -> str:
    if not layers:
        return str(event.get("stream") or event.get("status") or "").strip()
    done, total = (sum(column) >> 20 for column in zip(*layers.values(), strict=True))
    return f"{done} of {total} MB"
