"""Starting the supervisor of one sandbox in its isolation tier."""

import subprocess
from contextlib import ExitStack

from tools.errors import SandboxCreateError
from tools.sandbox.base import SandboxLimits
from tools.sandbox.local import landlocked, namespaces
from tools.sandbox.local.session import Session
from tools.sandbox.local.tiers import Tier


def start(tier: Tier, limits: SandboxLimits) -> Session:
    """Start a session and wait until it answers; blocks, so call it in a thread.

    Raises:
        SandboxCreateError: it did not start; nothing of it is left.
    """
    try:
        with ExitStack() as undo:
            session = namespaces.start(limits, undo) if tier == "B" else landlocked.start(tier, limits, undo)
            undo.pop_all()
            return session
    except (OSError, EOFError, subprocess.SubprocessError) as error:
        raise SandboxCreateError(f"no sandbox of tier {tier}: {error}") from error
