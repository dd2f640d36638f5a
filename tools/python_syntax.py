"""Python text as a syntax tree, also while other threads parse."""

import ast
from collections.abc import Callable
from typing import TypeVar

Tree = TypeVar("Tree")

_TRIES = 100


def parse_python(text: str | bytes) -> ast.Module:
    """A module, as `ast.parse` has it, with its errors."""
    return _undisturbed(lambda: ast.parse(text))


def parse_expression(text: str) -> ast.expr:
    """An expression, as `ast.parse` has it, with its errors."""
    return _undisturbed(lambda: ast.parse(text, mode="eval").body)


def _undisturbed(parse: Callable[[], Tree]) -> Tree:
    """What `parse` gives. CPython 3.11 counts depth for all threads at once, and raises where they mix."""
    for _ in range(_TRIES - 1):
        try:
            return parse()
        except SystemError:
            continue
    return parse()
