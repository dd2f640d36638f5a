"""Python text as a syntax tree, also while other threads parse."""

import ast

_TRIES = 100


def parse_python(text: str | bytes) -> ast.Module:
    """A module, as `ast.parse` has it, with its errors."""
    for _ in range(_TRIES - 1):
        try:
            return ast.parse(text)
        except SystemError:  # CPython 3.11 counts depth for all threads at once, and raises where they mix
            continue
    return ast.parse(text)
