"""Mutants are run against the tests that are near, wherever a module lies now."""

import subprocess
import sys

import pytest

from scripts.mutate import COPIED, ROOT, nearest, walked

FILES = {
    "environments/__init__.py": "",
    "environments/record/__init__.py": "",
    "environments/record/notes.py": """
def add(notes: list[str], note: str) -> None:
    notes.append(note)


def forget(notes: list[str]) -> None:
    notes.clear()
""",
    "tests/environments/record/test_notes.py": """
from environments.record.notes import add


def test_a_note_is_added():
    notes = []
    add(notes, "one")
    assert notes == ["one"]
""",
}


@pytest.mark.soak  # it runs pytest four times
def test_it_names_the_mutant_that_no_test_notices_and_none_that_one_does(tmp_path):
    for name in COPIED:
        (tmp_path / name).touch() if "." in name else (tmp_path / name).mkdir()
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    command = [sys.executable, "-m", "scripts.mutate", "--root", str(tmp_path)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.stdout.splitlines() == [
        "survived: environments/record/notes.py:7: notes.clear()  →  nothing",
        "environments/record: 1 of 2 survived, {'survived': 1, 'noticed': 1}",
    ]
    assert ended.returncode == 1


def test_each_module_has_tests_that_are_near_and_exist():
    found = {module: nearest(module, ROOT) for module in walked(ROOT)}
    assert len(found) > 20
    absent = [module for module, tests in found.items() if not all((ROOT / each).exists() for each in tests)]
    assert absent == []
