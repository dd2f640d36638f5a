"""Packages that only some commands need: imported when used, and named with their extra when missing."""

from collections.abc import Generator
from contextlib import contextmanager

from tools.errors import ConfigError

OWN_PACKAGES = ("environments", "tools", "turnwise")
"""What one may import of Turnwise."""


@contextmanager
def needs_extra(extra: str, what: str) -> Generator[None]:
    """Around the imports of `what`, which `pip install 'turnwise[extra]'` brings.

    Raises:
        ConfigError: a package is missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or str(error)).partition(".")[0]
        raise ConfigError(
            f"{what} needs the package {package}, which is not here; pip install 'turnwise[{extra}]'"
        ) from error
