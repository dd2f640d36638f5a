"""Writes the file map of docs/architecture.md: every module with the first line of its docstring.

python -m scripts.file_map
"""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "architecture.md"
START, END = "<!-- file map -->\n", "<!-- end of file map -->\n"
COLUMN = 34


def page_with_map() -> str:
    """The page as it should be."""
    before, rest = PAGE.read_text().split(START)
    _, after = rest.split(END)
    return f"{before}{START}```text\n{file_map()}```\n{END}{after}"


def file_map() -> str:
    """One line per module, indented by folder."""
    lines = [line for package in ("turnwise", "environments", "tools") for line in _lines(ROOT / package, 0)]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _lines(folder: Path, depth: int) -> Iterator[str]:
    init = folder / "__init__.py"
    about = f"# {_summary(init)}" if init.exists() else ""
    yield f"{'  ' * depth}{folder.name}/".ljust(COLUMN) + about
    modules = sorted(path for path in folder.glob("*.py") if path.name != "__init__.py")
    for path in modules:
        yield f"{'  ' * (depth + 1)}{path.name}".ljust(COLUMN) + f"# {_summary(path)}"
    for inner in sorted(path for path in folder.iterdir() if path.is_dir() and any(path.glob("*.py"))):
        yield from _lines(inner, depth + 1)


def _summary(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return text.partition("\n")[0]


if __name__ == "__main__":
    PAGE.write_text(page_with_map())
