"""A task's test, rewritten to record every assertion separately."""

import ast
from typing import cast

from tools.errors import DatasetError
from tools.python_syntax import parse_python

RECORDS = "__assertions__"


def prepare_test(test: str, task_id: str) -> tuple[str, int]:
    """Return the test with every assertion recorded separately, and their number.

    An assert statement holds if it was evaluated at least once and was true every time. A statement that the
    test must not reach (`assert False`, `raise AssertionError`) holds if the statement around it, the
    outermost `try` or else the nearest block, finished without reaching it. `with pytest.raises(E)` holds if
    its body raised an E. Assertions of a true constant (`assert True`) are dropped.

    Raises:
        DatasetError: if the text is not Python, or asserts nothing.
    """
    try:
        tree = parse_python(test)
        recorder = _AssertionRecorder()
        recorded = ast.fix_missing_locations(recorder.visit(tree))
        text = ast.unparse(recorded)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise DatasetError(f"task {task_id!r}: the test is not Python: {error}") from None
    if recorder.count == 0:
        raise DatasetError(f"task {task_id!r}: the test has no assert statement")
    return text, recorder.count


class _AssertionRecorder(ast.NodeTransformer):
    def __init__(self) -> None:
        self.count = 0
        self._unreached: list[int] = []
        """Indices of assertions that the visited statement must not reach."""
        self._in_try = False

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        if isinstance(node.test, ast.Constant):
            return ast.Pass() if node.test.value else self._unreachable()
        index = self._next()
        guarded = cast(ast.If, _statement(f"if {RECORDS}.open({index}):\n    pass"))
        guarded.body = [_record([node], index)]
        return guarded

    def visit_Raise(self, node: ast.Raise) -> ast.stmt:
        kind = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        is_assertion = isinstance(kind, ast.Name) and kind.id == "AssertionError"
        return self._unreachable() if is_assertion else node

    def visit_With(self, node: ast.With) -> ast.stmt:
        for item in node.items:
            call = item.context_expr
            if isinstance(call, ast.Call) and ast.unparse(call.func).rpartition(".")[2] == "raises":
                call.func = cast(ast.Expr, _statement(f"{RECORDS}.raising")).value
                call.args.insert(0, ast.Constant(self._next()))
        return self._visit_around(node)

    def visit_Import(self, node: ast.Import) -> ast.stmt:
        # Tests use only `raises` of pytest, which is replaced.
        node.names = [name for name in node.names if name.name != "pytest"]
        return node if node.names else ast.Pass()

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.stmt:
        return ast.Pass() if node.module == "pytest" else node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.stmt:
        outside, self._unreached, self._in_try = (self._unreached, self._in_try), [], False
        self.generic_visit(node)
        if self._unreached:
            node.body = [_record(node.body, *self._unreached)]
        self._unreached, self._in_try = outside
        return node

    def visit_Try(self, node: ast.Try) -> ast.stmt:
        return self._visit_around(node)

    def _visit_around(self, node: ast.stmt) -> ast.stmt:
        if self._in_try:
            self.generic_visit(node)
            return node
        outside, self._unreached, self._in_try = self._unreached, [], isinstance(node, ast.Try)
        self.generic_visit(node)
        inside, self._unreached, self._in_try = self._unreached, outside, False
        return _record([node], *inside) if inside else node

    # Names required by `ast`.
    visit_If = visit_For = visit_While = visit_Match = _visit_around  # noqa: N815

    def _unreachable(self) -> ast.stmt:
        index = self._next()
        self._unreached.append(index)
        return _statement(f"raise {RECORDS}.unreachable({index})")

    def _next(self) -> int:
        self.count += 1
        return self.count - 1


def _record(body: list[ast.stmt], *indices: int) -> ast.With:
    block = cast(
        ast.With, _statement(f"with {RECORDS}.evaluating({', '.join(map(str, indices))}):\n    pass")
    )
    block.body = body
    return block


def _statement(text: str) -> ast.stmt:
    return parse_python(text).body[0]
