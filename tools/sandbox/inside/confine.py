"""Start without bubblewrap or without root: what is still open is closed here, by system calls."""

from __future__ import annotations

from tools.sandbox.inside import supervisor
from tools.sandbox.inside.boot import Config
from tools.sandbox.inside.prctl import (
    adopt_orphans,
    filter_calls,
    hide_process,
    keep_capabilities,
    no_new_privileges,
)

KEPT_CAPABILITIES = 1 << 0 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 24
"""CHOWN, KILL, SETGID, SETUID and SYS_RESOURCE."""


def enter(control: int) -> None:
    """Give up privileges as the settings say, then serve."""
    config = Config(control)
    if config.settings["subreaper"] == "1":
        adopt_orphans()
    serve(control, config)


def serve(control: int, config: Config) -> None:
    """The same, with the first frame read."""
    settings = config.settings
    if settings["confine"] == "1":
        keep_capabilities(KEPT_CAPABILITIES if settings["drop"] == "1" else 0)
        no_new_privileges()
        if config.seccomp:
            filter_calls(config.seccomp)
    if settings["drop"] != "1":
        # The agent has the same user.
        hide_process()
    supervisor.serve(control, config)
