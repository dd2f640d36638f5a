"""An MCP server as a toolset: how it is reached, and which of its tools agents get."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tools.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class MCPToolset:
    """A server of the Model Context Protocol, started with `command` or reached at `url`.

    It runs on your side, not in the sandbox. Its tools are asked for when the environment is opened. Source:
    https://modelcontextprotocol.io.
    """

    name: str
    command: str | None = None
    """A program that speaks the protocol on its standard streams."""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """Beside `PATH`, `HOME` and the like; nothing else of this process's environment is handed on."""
    url: str | None = None
    """Of a server that speaks the protocol over HTTP."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """Of each request to `url`."""
    per: Literal["rollout", "run"] = "rollout"
    """Whether each rollout has a session (and with `command` a process) of its own, or all share one."""
    only: tuple[str, ...] | None = None
    """Names of the tools to take; `None`: all of them."""
    open_timeout_s: float = 30.0
    """For a session to be opened and to list its tools."""

    def __post_init__(self) -> None:
        """Refuse what cannot be reached.

        Raises:
            ConfigError: not exactly one of `command` and `url`, or a field of another kind.
        """
        where = f"MCPToolset {self.name!r:.100}"
        own: Mapping[str, Any] = {"name": self.name, "per": self.per, "args": self.args, "only": self.only}
        if not isinstance(own["name"], str) or not own["name"]:
            raise ConfigError(f"an MCPToolset needs a name, got {own['name']!r:.100}")
        if (self.command is None) == (self.url is None):
            raise ConfigError(f"{where} is started with `command` or reached at `url`; give one of them")
        if own["per"] not in ("rollout", "run"):
            raise ConfigError(f"{where}: per is 'rollout' or 'run', got {own['per']!r:.100}")
        for field_name in ("args", "only"):
            if own[field_name] is not None and not isinstance(own[field_name], tuple | list):
                raise ConfigError(f"{where}: {field_name} is a tuple of texts, got {own[field_name]!r:.100}")
