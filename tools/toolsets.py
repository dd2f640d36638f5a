"""Which tools a rollout gets: the environment's own toolsets and the shipped ones, picked by name."""

from collections.abc import Mapping, Sequence

from tools.errors import ConfigError
from tools.files import file
from tools.registry import Tool, Toolset
from tools.terminal import terminal

SHIPPED: Mapping[str, Toolset] = {toolset.name: toolset for toolset in (terminal, file)}
"""Toolsets that can be enabled by name in any environment."""


def select_toolsets(
    own: Sequence[Toolset | Tool], enabled: Sequence[str] | None = None, disabled: Sequence[str] = ()
) -> Toolset:
    """One toolset out of several, without the disabled ones.

    Args:
        own: What the environment lists; a bare tool counts as a toolset of its own name. An own toolset wins
            over a shipped one of the same name.
        enabled: Names of own or shipped toolsets; `None` takes all own ones.
        disabled: Names to leave out.

    Raises:
        ConfigError: a name that does not exist, or two tools or toolsets of one name.
    """
    if not isinstance(own, Sequence) or not all(isinstance(entry, Toolset | Tool) for entry in own):  # pyright: ignore[reportUnnecessaryIsInstance]  # user code
        raise ConfigError(f"an environment's tools are a tuple of toolsets, `(terminal,)`, got {own!r:.200}")
    named: dict[str, Toolset] = {}
    for entry in own:
        toolset = Toolset(entry.name, (entry,)) if isinstance(entry, Tool) else entry
        if toolset.name in named:
            raise ConfigError(f"the environment lists two toolsets called {toolset.name!r}")
        named[toolset.name] = toolset
    known = {**SHIPPED, **named}
    wanted = list(named) if enabled is None else list(dict.fromkeys(enabled))
    if unknown := sorted({*wanted, *disabled} - set(known)):
        raise ConfigError(f"no toolset {', '.join(map(repr, unknown))}; choose from {sorted(known)}")
    return Toolset.merged([known[name] for name in wanted if name not in disabled])
