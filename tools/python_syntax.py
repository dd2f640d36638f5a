"""Python syntax trees, safe while other threads parse."""

import ast

_TRIES = 100


def parse_python(text: str | bytes) -> ast.Module:
    for _ in range(_TRIES - 1):
        try:
            return ast.parse(text)
        except SystemError:  # CPython 3.11 shares its recursion counter between threads
            continue
    return ast.parse(text)
