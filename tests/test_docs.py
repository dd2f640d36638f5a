"""Every code block of the README and the docs runs."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.equipment.warm_commands import shell_commands
from tests.tables import seldom

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    ROOT / "README.md",
    *sorted(page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "reference"),
    *sorted(ROOT.glob("environments/shipped/*/README.md")),
]
# These set up or test the whole repository, which is what runs this very test.
NOT_INSIDE_A_TEST = re.compile(r"^(git clone|cd turnwise|make (test|check))\b")
# What runs this test is set up already; make must not install into it from here.
DEMO = "make --no-print-directory -o .venv/.run-ready demo"
FIRST_OF_DEMO = f"$({DEMO} --dry-run | tail -n 1) --env.total_steps 4"
"""Its command with the first bugs; with `--soak` it runs whole, see below."""
BLOCK = re.compile(r'^```(\w+)(?: title="(\S+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
FENCE = re.compile(r'^```(\w+(?: title="\S+")?)?$')


@dataclass(frozen=True)
class Block:
    """A fenced block: ```language [title="file name"]."""

    page: Path
    language: str
    filename: str | None
    text: str


def blocks_of(page):
    return [Block(page, *match.groups()) for match in BLOCK.finditer(page.read_text())]


def test_every_block_names_its_language():
    for page in PAGES:
        fences = [line for line in page.read_text().splitlines() if line.startswith("```")]
        assert all(map(FENCE.match, fences)), f'{page.name}: ```language title="file.py", and nothing else'
        assert all(line != "```" for line in fences[::2]), f"{page.name}: a block that would not be run"


def test_every_test_that_a_page_names_exists():
    pages = [*PAGES, ROOT / "tests/README.md"]
    named = {name for page in pages for name in re.findall(r"`(tests/[\w/]+\.py)`", page.read_text())}
    assert named
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_no_two_pages_start_a_server_on_one_port():
    """Pages run at the same time."""
    started = [port for page in PAGES for port in set(re.findall(r"--port (\d+) .*&", page.read_text()))]
    assert started
    assert sorted(set(started)) == sorted(started)


def as_installed(folder):
    """Makes a folder one where make finds all it needs; the environment variables of a shell there."""
    for name in ("Makefile", "pyproject.toml", "requirements", "docs"):
        (folder / name).symlink_to(ROOT / name)
    (folder / ".venv").symlink_to(sys.prefix)
    return {**os.environ, "PATH": f"{Path(sys.prefix) / 'bin'}:{os.environ['PATH']}", "COLUMNS": "120"}


def uses(block, script):
    """Whether a block runs a script or imports it."""
    named = rf"\b{script.stem}\.py\b|\b(from|import) {script.stem}\b"
    return block.language in ("python", "bash") and re.search(named, block.text) is not None


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_the_demo_plays_every_bug_to_its_end(tmp_path):
    done = subprocess.run(
        DEMO.split(), cwd=tmp_path, env=as_installed(tmp_path), capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stdout + done.stderr
    record = tmp_path / "runs/code_debug/default/record.jsonl"
    assert len(record.read_text().splitlines()) == 51


def name_of(page):
    return str(page.relative_to(ROOT))


@pytest.fixture(scope="module")
def commands(tmp_path_factory):
    """A folder with `turnwise` as a shell finds it, and `run`, which start faster than their like."""
    with shell_commands(tmp_path_factory.mktemp("commands")) as folder:
        yield folder


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "page",
    # Each command is a process: `make test` runs those of the README.
    seldom({name_of(page): page for page in PAGES}, ["README.md"]),
)
def test_the_blocks_of_a_page_run_in_order(page, commands, tmp_path):
    """Python blocks run as files, named ones are kept; bash blocks run where those files lie.

    Commands of the README are started as by anyone, those of other pages are forked.
    """
    environment = as_installed(tmp_path)
    if page != PAGES[0]:
        environment["PATH"] = f"{commands}:{environment['PATH']}"
    blocks = blocks_of(page)
    for number, block in enumerate(blocks):
        if block.language == "python":
            script = tmp_path / (block.filename or f"block_{number}.py")
            script.write_text(block.text)
            if block.filename and any(uses(later, script) for later in blocks[number + 1 :]):
                continue
            # A named block that no later one runs: its definitions must work.
            name = "block" if block.filename else "__main__"
            command = [commands / "run", script, name]
        elif block.language == "bash":
            lines = [line for line in block.text.splitlines() if not NOT_INSIDE_A_TEST.match(line)]
            if page.name != "README.md":
                lines = [line for line in lines if line != "make demo"]  # the README runs it
            script = "\n".join(lines).replace("make demo", FIRST_OF_DEMO)
            command = [shutil.which("bash"), "-euc", script]
        else:
            continue
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, (
            f"{page.name}, block {number}:\n{block.text}\n{done.stdout}\n{done.stderr}"
        )
