"""Which settings a trainer's code reads, so that a test can say of each what it does to the step."""

import ast
import inspect
import textwrap

ROOTS = ("config", "cfg", "args", "algorithm")


def settings_read(*sources):
    """Dotted names that functions and classes read from their configs, without the config's own name.

    `self.config.algorithm.get("lam")` is `algorithm.lam`; a name that another one goes on from is left out.
    """
    read = set()
    for source in sources:
        tree = ast.parse(textwrap.dedent(inspect.getsource(source)))
        called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        read |= {_name(node) for node in ast.walk(tree) if id(node) not in called}
    read.discard(None)
    return {name for name in read if not any(other.startswith(f"{name}.") for other in read)}


def _name(node):
    match node:
        case ast.Attribute(value=value, attr=attr):
            last = attr
        case ast.Subscript(value=value, slice=ast.Constant(value=str(last))):
            pass
        case (
            ast.Call(func=ast.Attribute(value=value, attr="get"), args=[ast.Constant(value=str(last)), *_])
            | ast.Call(func=ast.Name(id="getattr"), args=[value, ast.Constant(value=str(last)), *_])
        ):
            pass
        case _:
            return None
    if _is_root(value):
        return last
    before = _name(value)
    return None if before is None else f"{before}.{last}"


def _is_root(node):
    name = node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")
    is_own = isinstance(node, ast.Name) or (isinstance(node, ast.Attribute) and _is_self(node.value))
    return is_own and any(name == root or name.endswith(f"_{root}") for root in ROOTS)


def _is_self(node):
    return isinstance(node, ast.Name) and node.id == "self"
