"""Which sandboxes the rollouts of an environment get: those of its settings, or none at all."""

import logging
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import cast

from environments.config import AgentEnvConfig
from tools.errors import ConfigError
from tools.registry import Toolset
from tools.sandbox import lent_folder, open_sandbox, prepare_sandboxes
from tools.sandbox.absent import NONE, NoSandbox
from tools.sandbox.base import Sandbox, SandboxLimits

_LOG = logging.getLogger(__name__)
_DEFAULT = "local"


class Sandboxes:
    """What opens them, from the settings and from what the class says."""

    def __init__(self, config: AgentEnvConfig, chosen: str | None, env: type) -> None:
        """Nothing is opened yet.

        Args:
            config: the settings, which win over the class.
            chosen: the class attribute `sandbox`.
            env: the class.

        Raises:
            ConfigError: the class attribute is no name, or `verify_sandbox` contradicts the sandbox.
        """
        if chosen is not None and not isinstance(chosen, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # user code
            raise ConfigError(
                f"{env.__name__}.sandbox is a name, such as 'local' or {NONE!r}, got {chosen!r:.100}"
            )
        self._config, self._env = config, env
        self.kind = config.sandbox or chosen or _DEFAULT
        self.verifier_kind = config.verify_sandbox or (_DEFAULT if self.kind == NONE else self.kind)
        """Where `ctx.verify` runs."""
        if self.verifier_kind == NONE:
            raise ConfigError(f"--env.verify_sandbox {NONE} would verify nothing; choose local or docker")
        if self.kind not in (NONE, self.verifier_kind):
            raise ConfigError(
                f"--env.verify_sandbox {self.verifier_kind} is for --env.sandbox {NONE}: with {self.kind} "
                f"a verification is in a fresh sandbox of the same kind; leave it out"
            )

    @property
    def are_opened(self) -> bool:
        """Whether a rollout has a sandbox at all."""
        return self.kind != NONE

    def open(self) -> AbstractAsyncContextManager[Sandbox]:
        """A fresh one for a rollout."""
        if not self.are_opened:
            return nullcontext(cast("Sandbox", NoSandbox()))
        return self._open(self.kind)

    def open_for_verification(self) -> AbstractAsyncContextManager[Sandbox]:
        """A fresh one for `ctx.verify`, of the same kind where rollouts have one."""
        return self._open(self.verifier_kind)

    async def prepare(self, notify: Callable[[str], None]) -> None:
        """Do what the first one would wait for; that of a verification alone is made ready when it is used.

        Raises:
            ConfigError: the image cannot be had.
            IsolationError: no engine answers.
        """
        if self.are_opened:
            self._warn_of_lent_files()
            await prepare_sandboxes(self.kind, image=self._config.sandbox_image, progress=notify)

    def refuse_tools_in(self, toolset: Toolset) -> None:
        """Raise ConfigError where a rollout has no sandbox, and tools act in one."""
        names = [tool.name for tool in toolset.tools if tool.needs_sandbox]
        if names and not self.are_opened:
            raise ConfigError(
                f"{self._env.__name__} has no sandbox (`sandbox` is {NONE!r}), and these tools act in one: "
                f"{', '.join(names)}; choose --env.sandbox {_DEFAULT}, or take them out "
                f"(`tools`, --env.enabled_toolsets)"
            )

    def _open(self, kind: str) -> AbstractAsyncContextManager[Sandbox]:
        config = self._config
        return open_sandbox(
            kind,
            limits=SandboxLimits(
                memory_mb=config.sandbox_memory_mb,
                pids=config.sandbox_pids,
                disk_mb=config.sandbox_disk_mb,
                network=config.sandbox_network,
            ),
            allow_unsafe=config.allow_unsafe_sandbox,
            image=config.sandbox_image,
        )

    def _warn_of_lent_files(self) -> None:
        """Say which files of an environment every agent can read: its hidden tests may be in them."""
        # A class that was typed in has no file.
        module = getattr(sys.modules.get(self._env.__module__), "__file__", None)
        for what, path in (("code", module), ("dataset", self._config.dataset_path)):
            if path is not None and (folder := lent_folder(self.kind, Path(path))):
                _LOG.warning(
                    "the environment's %s lies below %s, which every sandbox can read, %s: agents can find "
                    "their hidden tests there; move it",
                    what, folder, path,
                )  # fmt: skip
