"""The sandbox of a rollout without one: any use raises an error that names the setting."""

from typing import NoReturn

from tools.errors import ConfigError
from tools.sandbox.base import Sandbox, SandboxRecord

NONE = "none"
"""The kind of sandbox that is never opened."""


class NoSandbox:
    """In the place of a `Sandbox`: any use of it is a `ConfigError`."""

    __slots__ = ()

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            # What Python asks of every object is no use of a sandbox.
            raise AttributeError(name)
        raise ConfigError(
            f"sandbox.{name}: this rollout has no sandbox, since `sandbox` is {NONE!r}; choose "
            "--env.sandbox local (or set the class attribute), or do without it"
        )


def record_of(sandbox: Sandbox) -> SandboxRecord | None:
    """How a rollout was isolated; `None` where it had no sandbox."""
    return None if isinstance(sandbox, NoSandbox) else sandbox.record
