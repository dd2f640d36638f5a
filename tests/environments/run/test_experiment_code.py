"""The files that an environment's experiment is told apart by: its code, and the data that its code names."""

import importlib.util
import sys
from pathlib import Path

import pytest

from environments.run.experiment_code import code_facts

ENV = """
from pathlib import Path

USERS = Path(__file__).parent / "users.jsonl"
RULES = Path(__file__).with_name("texts") / "rules.md"
SCHEMA = "sql/shop.sql"

class Shop:
    pass
"""
DATA = {"users.jsonl": "{}", "texts/rules.md": "Be fair.", "sql/shop.sql": "create table users (id)"}


@pytest.fixture
def folder(tmp_path):
    for name, text in {"shop_under_test.py": ENV, **DATA, "README.md": "A shop."}.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return tmp_path


def facts(folder, *apart):
    name = "shop_under_test"
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    try:
        return code_facts(module.Shop, apart=apart)
    finally:
        del sys.modules[name]


@pytest.mark.parametrize("name", DATA)
def test_a_file_that_the_code_names_counts_by_its_content(folder, name):
    before = facts(folder)
    (folder / name).write_text("other")
    after = facts(folder)
    assert {key for key in after if after[key] != before.get(key)} == {f"data of {name}"}


def test_a_file_that_no_code_names_does_not_count(folder):
    before = facts(folder)
    (folder / "README.md").write_text("A bigger shop.")
    assert facts(folder) == before


def test_what_a_run_writes_does_not_count_although_it_is_named(folder):
    assert "data of users.jsonl" not in facts(folder, folder / "users.jsonl")


def test_a_file_outside_of_the_environments_folder_does_not_count(folder):
    own = folder / "shop"
    own.mkdir()
    (own / "shop_under_test.py").write_text(ENV.replace("users.jsonl", "../users.jsonl"))
    assert list(facts(own)) == ["code of shop_under_test.py"]


def test_texts_that_name_no_file_break_nothing(folder):
    odd = ["\\0.md", "a" * 300 + ".txt", "/", "/no/such/x.json", ".md", "..", "\\ud800.txt"]
    code = "".join(f'\nODD_{index} = "{text}"' for index, text in enumerate(odd))
    Path(folder / "shop_under_test.py").write_text(ENV + code)
    assert "data of users.jsonl" in facts(folder)
