"""The files that an experiment is told apart by: an environment's code, and the data that it loads."""

import asyncio
import os
import sqlite3
import sys
import tempfile
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from environments.config import AgentEnvConfig
from environments.run.experiment import environment_files, origin_of

ENV = """
from pathlib import Path
from environments.testing import group_of
from tests.environments.chat.chat_env import Chat

HERE = Path(__file__).parent

class Shop(Chat):
    name = "shop"

    async def setup(self):
        (HERE / "texts" / "rules.md").read_text()

    async def load_items(self):
        return [{"id": path.name, "text": path.read_text()} for path in sorted(HERE.glob("../corpus/*"))]
"""
FILES = {
    "shop/shop_under_test.py": ENV,
    "shop/texts/rules.md": "Be fair.",
    "shop/README.md": "A shop.",
    "corpus/a.txt": "a",
    "corpus/b.txt": "b",
}
"""An environment in a single file, and data beside and outside of its folder."""


@pytest.fixture
def folder(tmp_path):
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return tmp_path


def loaded(folder, text=ENV, name="shop_under_test"):
    path = folder / "shop" / f"{name}.py"
    path.write_text(text)
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Shop


@pytest.fixture(autouse=True)
def _forgotten():
    yield
    sys.modules.pop("shop_under_test", None)


def facts(folder, text=ENV):
    """What the fingerprint covers once the environment is open."""

    async def opened():
        async with loaded(folder, text)(AgentEnvConfig(group_size=2)).loaded() as env:
            named = origin_of(env).facts()
            return {name: named[name] for name in environment_files(env) if "of ../../" not in name}

    return asyncio.run(opened())


def own(facts):
    """Those of the environment under test, without the file that it inherits from and those beside that."""
    inherited = {path.name for path in (Path(__file__).parents[1] / "chat").glob("*.py")}
    return {name for name in facts if name.removeprefix("code of ") not in inherited}


def test_code_and_what_is_read_while_items_are_loaded_counts_wherever_it_lies(folder):
    assert own(facts(folder)) == {
        "code of shop_under_test.py",
        "data of texts/rules.md",
        "data of ../corpus/a.txt",
        "data of ../corpus/b.txt",
    }


@pytest.mark.parametrize("name", ["shop/texts/rules.md", "corpus/a.txt"])
def test_data_that_changed_is_named(folder, name):
    before = facts(folder)
    (folder / name).write_text("other")
    after = facts(folder)
    (changed,) = [key for key in after if after[key] != before[key]]
    assert (folder / "shop" / changed.removeprefix("data of ")).resolve() == (folder / name).resolve()


def test_a_file_that_nothing_reads_does_not_count(folder):
    before = facts(folder)
    (folder / "shop/README.md").write_text("A bigger shop.")
    assert facts(folder) == before


READS = """
class Read(Shop):
    {data}
    async def setup(self):
        {setup}
Read.__name__ = "Shop"
Shop = Read
"""


def reading(setup, data=""):
    return ENV + READS.format(setup=setup, data=data)


@pytest.mark.parametrize(
    "setup",
    [
        "import os, sys; open('/proc/self/status').read()",
        "import json.tool, sqlite3, xml.dom",
        "open(__import__('yaml').__file__).read()",
        "import tempfile; p = Path(tempfile.mkdtemp(), 'x'); p.write_text('1'); p.read_text()",
        "p = HERE / '.cache'; p.write_text('1'); p.read_text()",
    ],
    ids=["of the system", "standard library", "package", "temporary", "hidden"],
)
def test_what_is_not_the_environments_does_not_count(folder, setup):
    assert own(facts(folder, reading(setup))) == {
        "code of shop_under_test.py",
        "data of ../corpus/a.txt",
        "data of ../corpus/b.txt",
    }


def test_a_file_that_setup_makes_at_the_first_start_counts_the_same_at_the_second(folder, monkeypatch):
    monkeypatch.setattr(tempfile, "gettempdir", lambda: "/nowhere")
    text = reading("p = HERE / 'index.json'; p.exists() or p.write_text('1'); p.read_text()")
    assert facts(folder, text) == facts(folder, text)


def test_data_that_only_a_c_library_opens_is_named_by_the_class(folder):
    with sqlite3.connect(folder / "shop/goods.sqlite") as database:
        database.execute("CREATE TABLE goods (id)")
    text = reading("__import__('sqlite3').connect(HERE / 'goods.sqlite').execute('SELECT * FROM goods')")
    assert "data of goods.sqlite" not in facts(folder, text)
    named = reading("pass", data="data = ('goods.sqlite', 'texts')")
    assert facts(folder, named).keys() >= {"data of goods.sqlite", "data of texts/rules.md"}


def test_many_files_are_named_by_their_folder(folder):
    for number in range(600):
        (folder / f"corpus/{number}.txt").write_text("x")

    async def opened():
        async with loaded(folder)(AgentEnvConfig(group_size=2)).loaded() as env:
            return origin_of(env).facts()

    before = asyncio.run(opened())
    assert "data of ../corpus/a.txt" not in before
    (folder / "corpus/7.txt").write_text("y")
    after = asyncio.run(opened())
    assert [name for name in after if after[name] != before[name]][-1] == "data of ../corpus/"


def test_a_package_counts_whole_and_a_module_beside_a_file_where_it_is_imported(folder):
    for name in ("judge.py", "other.py"):
        (folder / "shop" / name).write_text("A = 1\n")
    later = reading("def later(): import judge")
    assert own(facts(folder, later)) >= {"code of judge.py"}
    assert "code of other.py" not in facts(folder, later)
    (folder / "shop/__init__.py").touch()
    assert facts(folder).keys() >= {"code of judge.py", "code of other.py"}


def test_opening_what_cannot_be_opened_raises_as_ever(folder):
    env = loaded(folder)(AgentEnvConfig(group_size=2))
    with env.lifecycle.opened_files.watch():
        for path in ("/no/such/file", "\0", b"\xff", Path("/no/such"), 10**6):
            with pytest.raises((OSError, ValueError)):
                open(path).close()  # noqa: PTH123  # a `Path` takes no bytes and no numbers
        os.close(os.open("/", os.O_RDONLY))
    assert env.lifecycle.opened_files.written == {}
