"""Commands in processes of their own, as users start them."""

import os
import subprocess
import sys


def python(*arguments, cwd=None, **variables):
    """The interpreter's exit code and output, with more variables than this process has."""
    environment = {**os.environ, **{name: str(value) for name, value in variables.items()}}
    return subprocess.run(
        [sys.executable, *map(str, arguments)], cwd=cwd, env=environment, capture_output=True, text=True,
        timeout=280, check=False,
    )  # fmt: skip


def turnwise(*arguments, **options):
    return python("-m", "turnwise", *arguments, **options)
