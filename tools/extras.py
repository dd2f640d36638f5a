"""Imports of optional packages, with an error that names the extra."""

import sysconfig
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from tools.errors import ConfigError

OWN_PACKAGES = ("environments", "tools", "turnwise")
OWN_FOLDERS = tuple(f"{Path(__file__).parents[1] / name}/" for name in OWN_PACKAGES)
LIBRARIES = ("<frozen ", *{f"{sysconfig.get_path(name)}/" for name in ("stdlib", "purelib", "platlib")})


@contextmanager
def needs_extra(extra: str, what: str) -> Generator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or str(error)).partition(".")[0]
        raise ConfigError(
            f"{what} needs the package {package}, which is not here; pip install 'turnwise[{extra}]'"
        ) from error
