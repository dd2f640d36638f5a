"""Start in namespaces: what they leave open is closed here, by system calls."""

from __future__ import annotations

from tools.sandbox.inside import supervisor
from tools.sandbox.inside.boot import Config
from tools.sandbox.inside.prctl import (
    filter_calls,
    hide_process,
    keep_capabilities,
    no_new_privileges,
)

KEPT_CAPABILITIES = 1 << 0 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 24
"""CHOWN, KILL, SETGID, SETUID and SYS_RESOURCE."""


def serve(control: int, config: Config) -> None:
    """Give up privileges as the settings say, then serve."""
    drop = config.settings["drop"] == "1"
    keep_capabilities(KEPT_CAPABILITIES if drop else 0)
    no_new_privileges()
    if config.seccomp:
        filter_calls(config.seccomp)
    if not drop:
        # The agent has the same user.
        hide_process()
    supervisor.serve(control, config)
