"""Mutants of the code that must lose nothing: each is a small change, run against its nearest tests.

`python -m scripts.mutate [--max N] [--seconds S] [--seed K] [--only WORD …]` prints those that survive.
It works on a copy of the repository, one mutant after the other. Tests that fail without one end it.
"""

import argparse
import ast
import copy
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("environments", "tools", "turnwise", "tests", "pyproject.toml")
_SERVE, _WIRE, _RECORD = "tests/environments/serve/", "tests/environments/wire/", "tests/environments/record/"
_AT_API = (f"{_SERVE}test_durability.py", f"{_SERVE}test_registration.py", f"{_SERVE}test_delivery.py")
NEAREST = {
    "environments/serve/outbox.py": (f"{_SERVE}test_durability.py", f"{_SERVE}test_outbox.py"),
    "environments/serve/acknowledgements.py": (f"{_SERVE}test_acknowledgements.py", *_AT_API),
    "environments/serve/circuit_breaker.py": (f"{_SERVE}test_circuit_breaker.py",),
    "environments/serve/exact_tokens.py": (f"{_SERVE}test_exact_tokens.py",),
    "environments/serve/registration.py": _AT_API,
    "environments/serve/sender.py": _AT_API,
    "environments/serve/delivery.py": _AT_API,
    "environments/serve/trajectory_api.py": ("tests/adversarial/test_hostile_api.py", *_AT_API),
    "environments/inference/http_body.py": ("tests/adversarial/test_hostile_api.py",),
    "environments/rollout/rows.py": ("tests/environments/rollout/test_rows.py",),
    "environments/wire/packing.py": (_WIRE,),
    "environments/wire/padding.py": (_WIRE,),
    "environments/wire/payloads.py": (_WIRE,),
    "environments/wire/training_rows.py": (_WIRE,),
    "environments/wire/views.py": (_WIRE,),
    "environments/wire/columns.py": (_WIRE,),
    "environments/wire/credited_rows.py": (_WIRE,),
    **{
        f"environments/record/{name}.py": (_RECORD, "tests/adversarial/test_hostile_records.py")
        for name in (
            "append_file",
            "contents",
            "group_line",
            "origin",
            "recorder",
            "schema_2",
            "unrecordable",
        )
    },
    "environments/rollout/completion_check.py": ("tests/adversarial/test_hostile_completions.py",),
}
"""Which tests a module's mutants have to be noticed by."""
_LONGEST_S = 240
_SWAPS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One changed module."""

    module: str
    line: int
    change: str
    source: str


def mutants_of(module: str) -> Iterator[Mutant]:
    """Every mutant of a module, its decorators left out: whether a dataclass has slots is no behaviour."""
    tree = ast.parse((ROOT / module).read_text())
    decorators = [each for node in ast.walk(tree) for each in getattr(node, "decorator_list", ())]
    left_out = {id(node) for each in decorators for node in ast.walk(each)}
    for index, node in enumerate(ast.walk(tree)):
        if id(node) in left_out:
            continue
        for kind in range(2):
            twin = copy.deepcopy(tree)
            target = next(each for at, each in enumerate(ast.walk(twin)) if at == index)
            change = _changed(target, kind)
            if change:
                source = ast.unparse(ast.fix_missing_locations(twin))
                yield Mutant(module=module, line=getattr(node, "lineno", 0), change=change, source=source)


def _changed(node: ast.AST, kind: int) -> str | None:
    """Change a node in one of at most two ways, and say how; `None`: there is no such way."""
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
        return _without_a_statement(node) if kind == 0 else None
    return f"{before}  →  {ast.unparse(node)[:60]}"


def _without_a_statement(node: ast.AST) -> str | None:
    """Turn a call or an assignment that stands alone into nothing."""
    plain = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Await)
    if not (plain or isinstance(node, ast.AugAssign)):
        return None
    before = ast.unparse(node)[:60]
    node.__class__ = ast.Pass  # pyright: ignore[reportAttributeAccessIssue]  # the node stays where it is
    return f"{before}  →  nothing"


def verdict(mutant: Mutant, folder: Path) -> str:
    """What the nearest tests say to the mutant: `survived`, `noticed` or `timed out`."""
    path = folder / mutant.module
    before = path.read_text()
    path.write_text(mutant.source)
    try:
        return "noticed" if fails(NEAREST[mutant.module], folder) else "survived"
    except subprocess.TimeoutExpired:
        return "timed out"
    finally:
        path.write_text(before)


def fails(tests: Iterable[str], folder: Path) -> bool:
    """Whether one of the tests fails in a copy of the repository."""
    options = [
        "-x",
        "-q",
        "-o",
        "addopts=--import-mode=importlib",
        "-p",
        "no:cacheprovider",
        "--timeout",
        "60",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *tests],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        timeout=_LONGEST_S,
        check=False,
    )
    return done.returncode != 0


def main() -> int:
    """Draw mutants, run them, print what survives; 1 when something does."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--max", type=int, default=40, help="how many mutants are drawn")
    parser.add_argument("--seconds", type=float, default=1800, help="after which no other one is begun")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", default=[""], help="modules whose path has one of these in it")
    asked = parser.parse_args()
    modules = [module for module in NEAREST if any(word in module for word in asked.only)]
    mutants = [mutant for module in modules for mutant in mutants_of(module)]
    drawn = random.Random(asked.seed).sample(mutants, min(asked.max, len(mutants)))
    verdicts: Counter[str] = Counter()
    end = monotonic() + asked.seconds
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for each in COPIED:
            copied = shutil.copytree if (ROOT / each).is_dir() else shutil.copy
            copied(ROOT / each, folder / each)
        for tests in sorted({NEAREST[mutant.module] for mutant in drawn}):
            if fails(tests, folder):
                sys.stdout.write(f"these fail without a mutant: {' '.join(tests)}\n")
                return 2
        for mutant in drawn:
            if monotonic() > end:
                break
            verdicts[found := verdict(mutant, folder)] += 1
            if found != "noticed":
                sys.stdout.write(f"{found}: {mutant.module}:{mutant.line}: {mutant.change}\n")
                sys.stdout.flush()
    sys.stdout.write(f"{dict(verdicts)} of {len(drawn)} drawn and {len(mutants)} that there are\n")
    return 1 if verdicts["survived"] else 0


if __name__ == "__main__":
    sys.exit(main())
