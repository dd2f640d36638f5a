"""How many connections this process can have: a setting beyond that is refused, not silently cut."""

import resource

from tools.errors import ConfigError

_FOR_THE_REST = 64
"""File descriptors for the record, standard streams, the event loop and libraries."""


def refuse_more_connections(asked: int, setting: str) -> None:
    """Raise ConfigError where this process may not open so many at once."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY or asked + _FOR_THE_REST <= allowed:
        return
    raise ConfigError(
        f"{setting} {asked} needs as many open connections, and this process may open {allowed} files: give "
        f"{max(1, allowed - _FOR_THE_REST)} or less, or raise the limit, `ulimit -n {asked + _FOR_THE_REST}`"
    )
