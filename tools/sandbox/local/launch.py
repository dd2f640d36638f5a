"""Starting the supervisor of one sandbox in its isolation tier."""

import subprocess
from collections.abc import Mapping
from contextlib import ExitStack

from tools.errors import SandboxCreateError
from tools.sandbox.base import SandboxLimits
from tools.sandbox.local import landlocked, namespaces
from tools.sandbox.local.session import Session
from tools.sandbox.local.tiers import Tier


def start(tier: Tier, limits: SandboxLimits, files: Mapping[str, bytes] | None = None) -> Session:
    """Start a session and wait until it answers; blocks, so call it in a thread.

    Args:
        tier: how it isolates.
        limits: of the sandbox.
        files: of a verifier, to be held; `None` for a sandbox that is no verification.

    Raises:
        SandboxCreateError: it did not start; nothing of it is left.
    """
    try:
        with ExitStack() as undo:
            if tier == "B":
                session = namespaces.start(limits, undo, files)
            else:
                session = landlocked.start(tier, limits, undo, files)
            undo.pop_all()
            return session
    except (OSError, EOFError, subprocess.SubprocessError) as error:
        raise SandboxCreateError(f"no sandbox of tier {tier}: {error}") from error
