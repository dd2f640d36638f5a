"""The `MCPToolset`: connection to an MCP server, and the choice of its tools."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, cast

from tools.errors import ConfigError

ROLLOUT = "{rollout}"
"""Placeholder in `env` for a folder of the rollout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MCPToolset:
    """A server of the Model Context Protocol, started with `command` or reached at `url`.

    It runs on your side, not in the sandbox. Its tools are listed when the environment opens. Source:
    https://modelcontextprotocol.io.
    """

    name: str
    command: str | None = None
    """A program that speaks the protocol on its standard streams."""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """Variables of the process besides `PATH`, `HOME` and the like; it inherits no others.

    `{rollout}` in a value becomes a folder of the rollout, which its servers share.
    """
    url: str | None = None
    """Address of a server that speaks the protocol over HTTP."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """Headers of each request to `url`."""
    per: Literal["rollout", "run"] = "rollout"
    """Whether each rollout has its own session (and process with `command`) or all share one."""
    only: tuple[str, ...] | None = None
    """Names of the tools to use; None for all."""
    open_timeout_s: float = 30.0
    """Limit for opening a session and listing its tools."""

    def __post_init__(self) -> None:
        """Validate the fields.

        Raises:
            ConfigError: if not exactly one of `command` and `url` is set, or a field is invalid.
        """
        where = f"MCPToolset {self.name!r:.100}"
        given: dict[str, Any] = {each.name: getattr(self, each.name) for each in fields(self)}
        if not isinstance(given["name"], str) or not given["name"]:
            raise ConfigError(f"an MCPToolset needs a name, got {given['name']!r:.100}")
        if (self.command is None) == (self.url is None):
            raise ConfigError(f"{where} is started with `command` or reached at `url`; give one of them")
        for name, (is_right, wanted) in _KINDS.items():
            if given[name] is not None and not is_right(given[name]):
                raise ConfigError(f"{where}: {name} is {wanted}, got {_describe_value(given[name])}")
        if self.per == "run" and any(ROLLOUT in value for value in self.env.values()):
            raise ConfigError(f"{where}: env has {ROLLOUT}, and per='run' is one process for all rollouts")


def _is_text(given: Any) -> bool:
    return isinstance(given, str) and bool(given)


def _are_texts(given: Any) -> bool:
    return isinstance(given, tuple | list) and all(isinstance(each, str) for each in cast("list[Any]", given))


def _name_texts(given: Any) -> bool:
    if not isinstance(given, Mapping):
        return False
    named = cast("Mapping[Any, Any]", given)
    return _are_texts([*named, *named.values()])


def _describe_value(given: object) -> str:
    """Hide the values of mappings, which may be secrets."""
    return "one with other values" if isinstance(given, Mapping) else f"{given!r:.100}"


_KINDS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "command": (_is_text, "a program; what follows it stands in `args`"),
    "args": (_are_texts, "a tuple of texts"),
    "env": (_name_texts, "a mapping of texts to texts"),
    "url": (
        lambda given: _is_text(given) and given.startswith(("http://", "https://")),
        "an http:// or https:// URL",
    ),
    "headers": (_name_texts, "a mapping of texts to texts"),
    "per": (lambda given: given in ("rollout", "run"), "'rollout' or 'run'"),
    "only": (_are_texts, "a tuple of texts"),
    "open_timeout_s": (
        lambda given: isinstance(given, int | float) and not isinstance(given, bool) and given > 0,
        "a number of seconds above 0",
    ),
}
