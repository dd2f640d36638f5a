"""Runs mutants, small changes of the code, against their nearest tests in a copy of the repository.

`python -m scripts.mutate [--max N] [--seconds S] [--seed K] [--only WORD …]` prints those that survive.
"""

import argparse
import ast
import copy
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from time import monotonic

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("environments", "tools", "turnwise", "tests", "pyproject.toml")
WALKED = (
    "environments/record",
    "environments/serve",
    "environments/wire",
    "environments/run",
    "environments/rollout/containment",
    "environments/credit",
    "environments/rollout/rows.py",
    "environments/policy/inference/http_client.py",
)
"""Folders and modules to mutate."""
FURTHER = {
    "environments/serve/": ("tests/environments/serve/test_durability.py",),
    "environments/serve/trajectory_api": ("tests/adversarial/test_hostile_api.py",),
    "environments/record/": ("tests/adversarial/test_hostile_records.py",),
    "environments/run/watchdog": ("tests/adversarial/test_blocked_loop.py",),
    "environments/rollout/containment/": ("tests/environments/rollout/containment",),
    "environments/rollout/rows": ("tests/adversarial/test_hostile_completions.py",),
    "environments/policy/inference/http_client": ("tests/adversarial/test_hostile_api.py",),
}
"""Further tests to run, by prefix of a module's path."""
_LONGEST_S = 240
_SWAPS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    module: str
    line: int
    change: str
    index: int
    """Index of the changed node in `ast.walk`."""
    kind: int

    def source(self, before: str) -> str:
        tree = ast.parse(before)
        _mutate(list(ast.walk(tree))[self.index], self.kind)
        return ast.unparse(ast.fix_missing_locations(tree))


def walked(root: Path) -> list[str]:
    """Return the modules below `WALKED`."""
    paths = [root / each for each in WALKED]
    files = [file for path in paths for file in ([path] if path.is_file() else sorted(path.rglob("*.py")))]
    return [file.relative_to(root).as_posix() for file in files if file.name != "__init__.py"]


def nearest(module: str, root: Path) -> tuple[str, ...]:
    """Return the tests for a module's mutants.

    These are the mirror, the tests beside it that import the module, and those of `FURTHER`; if there
    are none, the whole mirrored folder.
    """
    path = Path("tests", module)
    mirror = path.with_name(f"test_{path.name}").as_posix()
    name = module.removesuffix(".py").replace("/", ".")
    imported = re.compile(rf"^ *(?:from|import) {re.escape(name)}\b", re.MULTILINE)
    beside = sorted((root / path.parent).rglob("test_*.py"))
    near = [file.relative_to(root).as_posix() for file in beside if imported.search(file.read_text())]
    further = [test for prefix, tests in FURTHER.items() if module.startswith(prefix) for test in tests]
    found = [each for each in dict.fromkeys((mirror, *near, *further)) if (root / each).exists()]
    return tuple(found or [path.parent.as_posix()])


def mutants_of(module: str, root: Path) -> Iterator[Mutant]:
    """Yield every mutant of a module, except in decorators: slots of a dataclass are no behaviour."""
    tree = ast.parse((root / module).read_bytes())
    decorators = [each for node in ast.walk(tree) for each in getattr(node, "decorator_list", ())]
    left_out = {id(node) for each in decorators for node in ast.walk(each)}
    for index, node in enumerate(ast.walk(tree)):
        if id(node) in left_out or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        for kind in range(2):
            if change := _mutate(copy.deepcopy(node), kind):
                line = getattr(node, "lineno", 0)
                yield Mutant(module=module, line=line, change=change, index=index, kind=kind)


def _mutate(node: ast.AST, kind: int) -> str | None:
    """Change a node in one of at most two ways, and describe the change; None if it has no such way."""
    before = ast.unparse(node)[:60] if isinstance(node, ast.expr | ast.stmt) else ""
    if isinstance(node, ast.Compare) and kind == 0:
        node.ops[0] = _SWAPS[type(node.ops[0])]()
    elif isinstance(node, ast.BoolOp) and kind == 0:
        node.op = ast.And() if isinstance(node.op, ast.Or) else ast.Or()
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float) and (node.value or kind == 0):
        node.value += 1 if kind == 0 else -1
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool) and kind == 0:
        node.value = not node.value
    elif isinstance(node, ast.Return) and node.value is not None and kind == 0:
        node.value = ast.UnaryOp(op=ast.Not(), operand=node.value)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub) and kind == 0:
        node.op = ast.Sub() if isinstance(node.op, ast.Add) else ast.Add()
    else:
        return _remove_statement(node) if kind == 0 else None
    return f"{before}  →  {ast.unparse(node)[:60]}"


def _remove_statement(node: ast.AST) -> str | None:
    """Remove a call or an augmented assignment."""
    plain = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Await)
    if not (plain or isinstance(node, ast.AugAssign)):
        return None
    before = ast.unparse(node)[:60]
    node.__class__ = ast.Pass  # pyright: ignore[reportAttributeAccessIssue]
    return f"{before}  →  nothing"


def verdict(mutant: Mutant, folder: Path) -> str:
    """Run the nearest tests; return `noticed`, `survived`, `timed out` or `fails without it`."""
    tests = nearest(mutant.module, folder)
    path = folder / mutant.module
    before = path.read_text()
    path.write_text(mutant.source(before))
    try:
        if not fails(tests, folder):
            return "survived"
        path.write_text(before)
        return "fails without it" if _fails_unchanged(tests, folder) else "noticed"
    except subprocess.TimeoutExpired:
        return "timed out"
    finally:
        path.write_text(before)


def fails(tests: Iterable[str], folder: Path) -> bool:
    """Whether one of the tests fails in a copy of the repository."""
    options = (
        "-x",
        "-q",
        "-o",
        "addopts=--import-mode=importlib",
        "-p",
        "no:cacheprovider",
        "--timeout",
        "60",
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *tests],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        timeout=_LONGEST_S,
        check=False,
    )
    return done.returncode != 0


@cache
def _fails_unchanged(tests: tuple[str, ...], folder: Path) -> bool:
    return fails(tests, folder)


def main() -> int:
    """Run drawn mutants of each folder; return 1 if one survives."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--max", type=int, default=8, help="how many mutants are drawn of each folder")
    parser.add_argument("--seconds", type=float, default=1800, help="no mutant starts after this time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", default=[""], help="modules whose path has one of these in it")
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository")
    asked = parser.parse_args()
    end = monotonic() + asked.seconds
    verdicts: dict[str, Counter[str]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        for each in COPIED:
            if (asked.root / each).is_dir():
                shutil.copytree(
                    asked.root / each, folder / each, ignore=shutil.ignore_patterns("__pycache__")
                )
            elif (asked.root / each).is_file():
                shutil.copy(asked.root / each, folder / each)
        for mutant in _draw(folder, asked.only, asked.max, asked.seed):
            if monotonic() > end:
                break
            found = verdict(mutant, folder)
            verdicts.setdefault(str(Path(mutant.module).parent), Counter())[found] += 1
            if found != "noticed":
                sys.stdout.write(f"{found}: {mutant.module}:{mutant.line}: {mutant.change}\n")
                sys.stdout.flush()
    for where, counts in verdicts.items():
        sys.stdout.write(f"{where}: {counts['survived']} of {counts.total()} survived, {dict(counts)}\n")
    return 1 if any(counts["survived"] for counts in verdicts.values()) else 0


def _draw(root: Path, only: Iterable[str], most: int, seed: int) -> Iterator[Mutant]:
    """Draw up to `most` mutants of each folder, by the seed."""
    modules = [module for module in walked(root) if any(word in module for word in only)]
    for folder in dict.fromkeys(Path(module).parent for module in modules):
        mutants = [
            mutant
            for module in modules
            if Path(module).parent == folder
            for mutant in mutants_of(module, root)
        ]
        yield from random.Random(seed).sample(mutants, min(most, len(mutants)))


if __name__ == "__main__":
    sys.exit(main())
