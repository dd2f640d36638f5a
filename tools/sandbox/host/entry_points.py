"""Sandbox backends of other packages, found by their entry points."""

from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import cast

from tools.errors import ConfigError
from tools.plain_text import did_you_mean
from tools.sandbox.base import SandboxBackend

GROUP = "turnwise.sandboxes"
_loaded: dict[str, SandboxBackend] = {}
"""Reading package metadata takes 10 ms, and descriptors that a busy host may lack."""


def find(name: str, own: Iterable[str]) -> SandboxBackend:
    """Return the backend that an installed package registers; `own` names ours, for the message.

    Raises:
        ConfigError: if no package registers it, or it cannot be loaded.
    """
    if name in _loaded:
        return _loaded[name]
    registered = {entry.name: entry for entry in entry_points(group=GROUP)}
    if name not in registered:
        known = sorted({*own, *registered})
        raise ConfigError(
            f"no sandbox backend {name!r}{did_you_mean(name, known)}; choose one of {known}, or install a "
            f"package that registers it in the entry point group {GROUP!r}"
        )
    _loaded[name] = _load(registered[name])
    return _loaded[name]


def _load(entry: EntryPoint) -> SandboxBackend:
    try:
        opener = entry.load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"the sandbox backend {entry.name!r} cannot be loaded from {entry.value}: {error}"
        ) from error
    if not callable(opener):
        raise ConfigError(
            f"the sandbox backend {entry.name!r} is {entry.value}, which is a {type(opener).__name__}; "
            f"it has to be a callable like `open(limits, *, allow_unsafe=False, image=None)`"
        )
    return cast(SandboxBackend, opener)
