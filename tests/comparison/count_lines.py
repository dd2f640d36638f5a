"""Lines of user code of the five environments: `python -m tests.comparison.count_lines` prints the table.

Counted are lines of code: not blank, no comment, no import, not the module's docstring. All versions are
formatted by one formatter; the docstrings of tools are counted, for they are prompts.
"""

import ast
import io
import tokenize
from pathlib import Path

HERE = Path(__file__).parent
NAMES = {
    "maths": "maths with a tool",
    "shop": "shop",
    "word_game": "word game",
    "rubric": "rubric",
    "judge": "judge",
}
LIBRARIES = ("turnwise", "verifiers", "trl")
_NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER
}  # fmt: skip


def count(source: str) -> int:
    """Its lines of code."""
    body = ast.parse(source).body
    skipped = [node for node in body if isinstance(node, ast.Import | ast.ImportFrom)]
    skipped += body[:1]  # the docstring
    not_counted = {line for node in skipped for line in range(node.lineno, node.end_lineno + 1)}
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    spans = [(token.start[0], token.end[0]) for token in tokens if token.type not in _NO_CODE]
    lines = {line for first, last in spans for line in range(first, last + 1)}
    code = {line for line in lines if source.splitlines()[line - 1].strip()}
    return len(code - not_counted)


def rows() -> list[tuple[str, list[int]]]:
    """By environment, the lines in each library."""
    return [
        (label, [count((HERE / f"{library}_envs" / f"{name}.py").read_text()) for library in LIBRARIES])
        for name, label in NAMES.items()
    ]


def table() -> str:
    counted = rows()
    totals = [sum(each) for each in zip(*(counts for _, counts in counted), strict=True)]
    lines = [
        f"| {label} | {' | '.join(map(str, counts))} |" for label, counts in [*counted, ("together", totals)]
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
