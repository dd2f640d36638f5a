"""Imports of optional packages, with an error that names the extra."""

from collections.abc import Generator
from contextlib import contextmanager

from tools.errors import ConfigError

OWN_PACKAGES = ("environments", "tools", "turnwise")


@contextmanager
def needs_extra(extra: str, what: str) -> Generator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or str(error)).partition(".")[0]
        raise ConfigError(
            f"{what} needs the package {package}, which is not here; pip install 'turnwise[{extra}]'"
        ) from error
